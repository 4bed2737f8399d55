package interop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/fluxcd/pkg/runtime/events/eventstest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"example.com/recorder"
)

// A manager stops what needs no leader first. What a reconciler records after that, on its way out,
// is refused if the manager runs the recorder, and delivered if the recorder runs the manager.
func TestWhatAnInterruptedReconcilerRecords(t *testing.T) {
	for name, test := range map[string]struct {
		run      func(testing.TB, manager.Manager, *recorder.Recorder) manager.Runnable
		want     recorder.Stats
		messages []string
		refused  []loss
	}{
		"recorder added to the manager": {
			func(t testing.TB, mgr manager.Manager, rec *recorder.Recorder) manager.Runnable {
				return with(t, mgr, rec)
			},
			recorder.Stats{Delivered: 1, Dropped: 1},
			[]string{"begun"},
			[]loss{{"Interrupted", recorder.ErrStopped}},
		},
		"recorder around the manager": {
			func(_ testing.TB, mgr manager.Manager, rec *recorder.Recorder) manager.Runnable {
				return around(rec, mgr)
			},
			recorder.Stats{Delivered: 2},
			[]string{"begun", "stopped in the middle"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			mgr, _ := newManager(t, newAPIServer(t, someConfigMaps(1)...).config(), manager.Options{})
			sink := eventstest.NewSink(t)
			log := new(journal)
			rec := newRecorder(t, recorder.Config{
				Webhook: sink.URL(), Backoff: never, DrainTimeout: patience, Logger: slog.New(log),
			})
			kube := events.NewFakeRecorder(2)
			events := recorder.NewEventRecorder(rec, refer, kube.AnnotatedEventf)
			begun := make(chan string, 1)
			control(t, mgr, func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
				object := configMap(req.Name, nil)
				events.Eventf(object, nil, corev1.EventTypeNormal, "Begun", "Syncing", "begun")
				begun <- req.Name
				<-ctx.Done()
				events.Eventf(object, nil, corev1.EventTypeWarning, "Interrupted", "Syncing", "stopped in the middle")
				return reconcile.Result{}, nil
			})
			stop := start(t, test.run(t, mgr, rec))
			receive(t, begun, 1)
			stop()

			checkStats(t, rec, test.want)
			checkMessages(t, sink, test.messages...)
			refused := log.at(slog.LevelWarn)
			if fmt.Sprint(refused) != fmt.Sprint(test.refused) {
				t.Errorf("refusals logged = %v, want %v", refused, test.refused)
			}
			if got := len(kube.Events); got != 2 {
				t.Errorf("events forwarded = %d, want 2", got)
			}
		})
	}
}

// busy are eight objects whose reconciler runs again and again, and one whose reconciler is
// interrupted by the stop. Each run records one event.
type busy struct {
	events   events.EventRecorder
	recorded atomic.Int64
	waiting  chan string // the object that waits to be interrupted
}

const busyObjects = 8

func (b *busy) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	reason, eventtype := "Synced", corev1.EventTypeNormal
	if req.Name == fmt.Sprintf("web-%d", busyObjects) {
		b.waiting <- req.Name
		<-ctx.Done()
		reason, eventtype = "Interrupted", corev1.EventTypeWarning
	}
	n := b.recorded.Add(1)
	b.events.Eventf(configMap(req.Name, nil), nil, eventtype, reason, "Syncing", "run %d", n)
	return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
}

// run has a manager reconcile the busy objects, with a recorder around it, and stops it when they
// have been reconciled twice each. It returns what Run returned.
func (b *busy) run(t *testing.T, rec *recorder.Recorder) error {
	t.Helper()
	mgr, _ := newManager(t, newAPIServer(t, someConfigMaps(busyObjects+1)...).config(), manager.Options{
		Controller: config.Controller{MaxConcurrentReconciles: busyObjects + 1},
	})
	b.events, b.waiting = adapt(rec), make(chan string, 1)
	control(t, mgr, b.reconcile)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- rec.Run(ctx, mgr.Start) }()
	receive(t, b.waiting, 1)
	eventually(t, "two events of each object", func() bool { return b.recorded.Load() >= 2*busyObjects })
	stop()
	return receive(t, ended, 1)[0]
}

func TestAStopLosesNothing(t *testing.T) {
	for name, answer := range map[string]time.Duration{"healthy receiver": 0, "slow receiver": time.Second} {
		t.Run(name, func(t *testing.T) {
			n := newNotifier(t)
			receiver := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(answer)
				n.ServeHTTP(w, r)
			}))
			rec := newRecorder(t, recorder.Config{
				Webhook: receiver.URL, Timeout: patience, Backoff: never, DrainTimeout: patience,
				QueueSize: 1 << 16, Workers: busyObjects + 1,
			})
			b := new(busy)
			if err := b.run(t, rec); err != nil {
				t.Errorf("Run(ctx, mgr.Start) = %v, want nil", err)
			}
			checkStats(t, rec, recorder.Stats{Delivered: uint64(b.recorded.Load())})
			if !slices.ContainsFunc(n.events(), func(e eventv1.Event) bool { return e.Reason == "Interrupted" }) {
				t.Error("the event of the interrupted reconciler did not arrive")
			}
		})
	}
}

func TestAStopCountsWhatADeadReceiverDoesNotTake(t *testing.T) {
	receiver := hang(newNotifier(t))
	log := new(journal)
	rec := newRecorder(t, recorder.Config{
		Webhook: serve(t, receiver).URL, Timeout: time.Hour, DrainTimeout: 200 * time.Millisecond,
		QueueSize: 1 << 16, Logger: slog.New(log),
	})
	b := new(busy)
	err := b.run(t, rec)
	n := int(b.recorded.Load())
	if want := fmt.Sprintf("%d events lost at stop", n); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Run(ctx, mgr.Start) = %v, want an error with %q", err, want)
	}
	if got := len(log.losses()); got != n {
		t.Errorf("losses logged = %d, want %d", got, n)
	}
	stats := rec.Stats()
	if got := int(stats.Failed + stats.Dropped); got != n || stats.Delivered > 0 || stats.Queued > 0 {
		t.Errorf("Stats() = %+v, want %d failed or dropped and nothing else", stats, n)
	}
}

// A manager that has lost its lease returns at once and waits for nobody, so that what it ran ends
// with the process.
func TestALostLeaseLosesNoEvents(t *testing.T) {
	lock := new(lease)
	mgr, _ := newManager(t, newAPIServer(t, someConfigMaps(busyObjects)...).config(), manager.Options{
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lock,
		LeaseDuration:                       new(4 * time.Second),
		RenewDeadline:                       new(3 * time.Second),
		RetryPeriod:                         new(100 * time.Millisecond),
	})
	n := newNotifier(t)
	receiver := hang(n)
	rec := newRecorder(t, recorder.Config{
		Webhook: serve(t, receiver).URL, Timeout: patience, Backoff: never, DrainTimeout: patience,
	})
	done := make(chan string, busyObjects)
	control(t, mgr, recording(mgr, adapt(rec), done))

	var cause error
	ended := make(chan error, 1)
	go func() {
		ended <- rec.Run(context.Background(), func(ctx context.Context) error {
			cause = mgr.Start(ctx)
			receiver.revive() // not before the manager has gone
			return cause
		})
	}()
	receive(t, done, busyObjects)
	lock.lost.Store(true)
	err := receive(t, ended, 1)[0]
	if cause == nil || !errors.Is(err, cause) || cause.Error() != "leader election lost" {
		t.Errorf("Run(ctx, mgr.Start) = %v, want the manager's %q", err, "leader election lost")
	}
	checkStats(t, rec, recorder.Stats{Delivered: busyObjects})
	if got := len(n.events()); got != busyObjects {
		t.Errorf("events that arrived = %d, want %d", got, busyObjects)
	}
}

// A lease is held by whoever asks for it, until it is lost: from then on it cannot be renewed.
type lease struct {
	lost atomic.Bool

	mu     sync.Mutex
	record *resourcelock.LeaderElectionRecord
}

func (l *lease) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "app")
	}
	record := *l.record
	return &record, []byte(record.HolderIdentity), nil
}

func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

func (l *lease) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.lost.Load() {
		return errors.New("the API cannot be reached")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record = &record
	return nil
}

func (l *lease) RecordEvent(string) {}
func (l *lease) Identity() string   { return "app-0" }
func (l *lease) Describe() string   { return "apps/app" }

func TestAManagerThatDoesNotStartLosesNoEvents(t *testing.T) {
	gone := serve(t, http.NotFoundHandler())
	gone.Close()
	mgr, _ := newManager(t, &rest.Config{Host: gone.URL}, manager.Options{
		Controller: config.Controller{CacheSyncTimeout: 100 * time.Millisecond},
	})
	control(t, mgr, func(context.Context, reconcile.Request) (reconcile.Result, error) {
		t.Error("a reconciler runs without an API")
		return reconcile.Result{}, nil
	})
	sink := eventstest.NewSink(t)
	rec := newRecorder(t, recorder.Config{Webhook: sink.URL(), Backoff: never, DrainTimeout: patience})
	adapt(rec).Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Starting", "Starting", "starting")

	var cause error
	err := rec.Run(t.Context(), func(ctx context.Context) error {
		cause = mgr.Start(ctx)
		return cause
	})
	if cause == nil || !errors.Is(err, cause) {
		t.Errorf("Run(ctx, mgr.Start) = %v, want the manager's error %v", err, cause)
	}
	checkStats(t, rec, recorder.Stats{Delivered: 1})
	checkMessages(t, sink, "starting")
}
