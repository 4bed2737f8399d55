package interop

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	fluxevents "github.com/fluxcd/pkg/runtime/events"
	"github.com/fluxcd/pkg/runtime/events/eventstest"
	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"example.com/recorder"
)

// newManager makes a manager of an API, with a log of its own.
func newManager(t testing.TB, api *rest.Config, options manager.Options) (manager.Manager, *journal) {
	t.Helper()
	log := new(journal)
	options.Scheme = scheme.Scheme
	options.Logger = logr.FromSlogHandler(log)
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.Controller.SkipNameValidation = new(true) // a name is free once in a process
	options.GracefulShutdownTimeout = new(patience)
	mgr, err := manager.New(api, options)
	if err != nil {
		t.Fatal(err)
	}
	return mgr, log
}

// control has a manager run a reconciler of ConfigMaps.
func control(t testing.TB, mgr manager.Manager, reconciler reconcile.Func) {
	t.Helper()
	if err := ctrl.NewControllerManagedBy(mgr).For(new(corev1.ConfigMap)).Complete(reconciler); err != nil {
		t.Fatal(err)
	}
}

// around is a manager with a recorder around it, as controllers are to wire them.
func around(rec *recorder.Recorder, mgr manager.Manager) manager.Runnable {
	return manager.RunnableFunc(func(ctx context.Context) error { return rec.Run(ctx, mgr.Start) })
}

// with is a manager that runs a recorder.
func with(t testing.TB, mgr manager.Manager, rec *recorder.Recorder) manager.Runnable {
	t.Helper()
	if err := mgr.Add(rec); err != nil {
		t.Fatalf("mgr.Add(recorder) = %v, want nil", err)
	}
	return mgr
}

// recording is a reconciler that reads its object by the manager's cache, records an event about it,
// and tells that it is done.
func recording(mgr manager.Manager, events events.EventRecorder, done chan<- string) reconcile.Func {
	return func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		var object corev1.ConfigMap
		if err := mgr.GetClient().Get(ctx, req.NamespacedName, &object); err != nil {
			return reconcile.Result{}, err
		}
		events.Eventf(&object, nil, corev1.EventTypeNormal, "Reason"+strings.TrimPrefix(req.Name, "web-"), "Syncing", "in sync")
		done <- req.Name
		return reconcile.Result{}, nil
	}
}

// A hung receiver takes requests and does not answer them until it is revived.
type hung struct {
	next     http.Handler
	revived  chan struct{}
	requests atomic.Int64
}

func hang(next http.Handler) *hung { return &hung{next: next, revived: make(chan struct{})} }

func (h *hung) revive() { close(h.revived) }

func (h *hung) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A connection whose request has not been read is not watched for its end.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.requests.Add(1)
	select {
	case <-h.revived:
		h.next.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

func TestReconcilerIsNotHeldUpByADeadReceiver(t *testing.T) {
	const objects = 60
	api := newAPIServer(t, someConfigMaps(objects)...)
	mgr, _ := newManager(t, api.config(), manager.Options{})
	n := newNotifier(t)
	receiver := hang(n)
	log := new(journal)
	rec := newRecorder(t, recorder.Config{
		Webhook: serve(t, receiver).URL, Timeout: patience, Backoff: never, DrainTimeout: patience, Logger: slog.New(log),
	})
	done := make(chan string, objects)
	control(t, mgr, recording(mgr, adapt(rec), done))
	stop := start(t, around(rec, mgr))

	reconciled := receive(t, done, objects)
	slices.Sort(reconciled)
	if got := len(slices.Compact(reconciled)); got != objects {
		t.Errorf("objects reconciled = %d, want %d", got, objects)
	}
	eventually(t, "all workers to be under way", func() bool { return receiver.requests.Load() == 4 })
	checkStats(t, rec, recorder.Stats{Queued: objects - 4})

	receiver.revive()
	stop() // which would tell of an error, were the manager's grace period over
	checkStats(t, rec, recorder.Stats{Delivered: objects})
	if got := len(n.statuses()); got != objects {
		t.Errorf("requests = %d, want %d", got, objects)
	}
	checkSaid(t, n, log, objects)
}

func TestManagerStopsWhenTheReceiverIsDeadForGood(t *testing.T) {
	const objects = 20
	api := newAPIServer(t, someConfigMaps(objects)...)
	mgr, mgrLog := newManager(t, api.config(), manager.Options{})
	n := newNotifier(t)
	receiver := hang(n)
	log := new(journal)
	rec := newRecorder(t, recorder.Config{
		Webhook: serve(t, receiver).URL, Timeout: time.Hour, DrainTimeout: 200 * time.Millisecond, Logger: slog.New(log),
	})
	done := make(chan string, objects)
	control(t, mgr, recording(mgr, adapt(rec), done))
	stop := start(t, with(t, mgr, rec))
	receive(t, done, objects)
	eventually(t, "all workers to be under way", func() bool { return receiver.requests.Load() == 4 })
	stop()

	checkStats(t, rec, recorder.Stats{Failed: 4, Dropped: objects - 4})
	if got := len(log.losses()); got != objects {
		t.Errorf("losses logged = %d, want %d", got, objects)
	}
	checkSaid(t, n, log, objects)
	// The manager gets the error while it is stopping, and logs it then, perhaps after its return.
	eventually(t, "the manager to log how many events were lost", func() bool {
		return slices.ContainsFunc(append(mgrLog.losses(), mgrLog.at(slog.LevelInfo)...), func(l loss) bool {
			return l.err != nil && strings.Contains(l.err.Error(), fmt.Sprintf("%d events lost at stop", objects))
		})
	})
}

// forwarded is what both APIs keep of an event.
type forwarded struct {
	Type, Reason, Note, Object string
	Annotations                map[string]string
}

// Every event goes to the manager's own recorder, too, with the text that the webhook gets.
func TestNextIsTheManagersRecorder(t *testing.T) {
	object := configMap("web", map[string]string{"event.toolkit.fluxcd.io/image": "app:6.5.0"})
	long := strings.Repeat("a very long message of a reconciliation ", 200)
	annotations := map[string]string{"event.toolkit.fluxcd.io/image": "app:6.5.0", "k": "v"}
	calls := map[string]struct {
		eventtype, note string
		args            []any
		want            forwarded
		posted          bool
	}{
		"Synced":    {corev1.EventTypeNormal, "%s is %d%% done", []any{"web", 100}, forwarded{Type: "Normal", Note: "web is 100% done"}, true},
		"Failed":    {corev1.EventTypeWarning, "no", nil, forwarded{Type: "Warning", Note: "no"}, true},
		"Traced":    {eventv1.EventTypeTrace, "step %d", []any{1}, forwarded{Type: "Normal", Note: "step 1"}, false},
		"Full":      {corev1.EventTypeNormal, "disk 100% full", nil, forwarded{Type: "Normal", Note: "disk 100% full"}, true},
		"Escaped":   {corev1.EventTypeNormal, "%2Fpath %!s %d", nil, forwarded{Type: "Normal", Note: "%2Fpath %!s %d"}, true},
		"TraceFull": {eventv1.EventTypeTrace, "disk 100% full", nil, forwarded{Type: "Normal", Note: "disk 100% full"}, false},
		"Long":      {corev1.EventTypeNormal, long, nil, forwarded{Type: "Normal", Note: long}, true},
	}

	for name, test := range map[string]struct {
		make func(*recorder.Recorder, manager.Manager) func(reason, eventtype, note string, args ...any)
		read func(*apiServer) []forwarded
	}{
		"events.k8s.io/v1": {
			func(rec *recorder.Recorder, mgr manager.Manager) func(reason, eventtype, note string, args ...any) {
				var events fluxevents.Recorder = recorder.NewEventRecorder(rec, refer, mgr.GetEventRecorder("app-controller").AnnotatedEventf)
				return func(reason, eventtype, note string, args ...any) {
					events.AnnotatedEventf(object, configMap("source", nil), map[string]string{"k": "v"}, eventtype, reason, "Syncing", note, args...)
				}
			},
			func(api *apiServer) (got []forwarded) {
				_, events := api.recorded()
				for _, e := range events {
					if e.Action != "Syncing" || e.Related == nil || e.Related.Name != "source" || e.ReportingController != "app-controller" {
						t.Errorf("event = %+v, want the action, the related object and the controller of the call", e)
					}
					got = append(got, forwarded{e.Type, e.Reason, e.Note, e.Regarding.Name, e.Annotations})
				}
				return got
			},
		},
		"core/v1": {
			func(rec *recorder.Recorder, mgr manager.Manager) func(reason, eventtype, note string, args ...any) {
				//lint:ignore SA1019 the older API is what this shows
				next := mgr.GetEventRecorderFor("app-controller").AnnotatedEventf
				var events record.EventRecorder = recorder.NewLegacyEventRecorder(rec, refer, next)
				return func(reason, eventtype, note string, args ...any) {
					events.AnnotatedEventf(object, map[string]string{"k": "v"}, eventtype, reason, note, args...)
				}
			},
			func(api *apiServer) (got []forwarded) {
				events, _ := api.recorded()
				for _, e := range events {
					if e.Source.Component != "app-controller" {
						t.Errorf("event = %+v, want the controller of the call", e)
					}
					got = append(got, forwarded{e.Type, e.Reason, e.Message, e.InvolvedObject.Name, e.Annotations})
				}
				return got
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer(t)
			mgr, _ := newManager(t, api.config(), manager.Options{})
			sink := eventstest.NewSink(t)
			rec := newRecorder(t, recorder.Config{Webhook: sink.URL(), Backoff: never, DrainTimeout: patience})
			event := test.make(rec, mgr)
			stop := start(t, around(rec, mgr))
			want := make(map[string]forwarded)
			posted := make(map[string]string)
			for reason, call := range calls {
				event(reason, call.eventtype, call.note, call.args...)
				call.want.Reason, call.want.Object, call.want.Annotations = reason, "web", annotations
				want[reason] = call.want
				if call.posted {
					posted[reason] = call.want.Note
				}
			}
			eventually(t, "the API to have all events", func() bool { return len(test.read(api)) >= len(calls) })
			stop()

			got := make(map[string]forwarded)
			for _, e := range test.read(api) {
				got[e.Reason] = e
			}
			if diff := gocmp.Diff(want, got); diff != "" || len(test.read(api)) != len(calls) {
				t.Errorf("%d events in the API, want %d (-want, +got):\n%.2000s", len(test.read(api)), len(calls), diff)
			}
			gotPosted := make(map[string]string)
			for _, e := range sink.Events() {
				gotPosted[e.Reason] = e.Message
			}
			if diff := gocmp.Diff(posted, gotPosted); diff != "" {
				t.Errorf("messages posted (-want, +got):\n%.2000s", diff)
			}
			checkStats(t, rec, recorder.Stats{Delivered: uint64(len(posted))})
		})
	}
}
