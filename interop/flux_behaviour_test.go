package interop

import (
	"crypto/x509"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	fluxevents "github.com/fluxcd/pkg/runtime/events"
	"github.com/fluxcd/pkg/runtime/events/eventstest"
	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"example.com/recorder"
)

// bothRecorders runs a test of what Flux's own tests pin with Flux's recorder, which shows that the
// test is right, and with the adapter, each posting to a sink of its own. Settle returns when what
// was recorded has come to its end. Two attempts are made to post an event.
func bothRecorders(t *testing.T, test func(t *testing.T, sink *eventstest.Sink, events fluxevents.Recorder, settle func())) {
	t.Run("Flux", func(t *testing.T) {
		sink := eventstest.NewSink(t)
		events, err := fluxevents.NewRecorder(logr.FromSlogHandler(slog.DiscardHandler), sink.URL(), "app-controller",
			fluxevents.WithScheme(scheme.Scheme), fluxevents.WithRetryMax(1))
		if err != nil {
			t.Fatal(err)
		}
		test(t, sink, events, func() {})
	})
	t.Run("adapter", func(t *testing.T) {
		sink := eventstest.NewSink(t)
		rec := newRecorder(t, recorder.Config{
			Webhook: sink.URL(), Controller: "app-controller", MaxAttempts: 2, Backoff: promptly,
		})
		test(t, sink, adapt(rec), func() { drain(t, rec) })
	})
}

func TestAnnotationsOfTheObjectGoOverThoseOfTheCall(t *testing.T) {
	const image, env = "event.toolkit.fluxcd.io/image", "event.toolkit.fluxcd.io/env"
	object := configMap("web", map[string]string{image: "app:6.5.0", env: "object", "app.kubernetes.io/name": "web"})
	for name, test := range map[string]struct {
		object      runtime.Object
		annotations map[string]string
		want        map[string]string
	}{
		"both": {object, map[string]string{"test": "true", env: "call"},
			map[string]string{"test": "true", image: "app:6.5.0", env: "object"}},
		"nil annotations":   {object, nil, map[string]string{image: "app:6.5.0", env: "object"}},
		"empty annotations": {object, map[string]string{}, map[string]string{image: "app:6.5.0", env: "object"}},
		"object without annotations": {configMap("web", nil), map[string]string{"test": "true"},
			map[string]string{"test": "true"}},
		"object without metadata": {
			&corev1.ObjectReference{Kind: "ConfigMap", Namespace: "apps", Name: "web"}, map[string]string{"test": "true"},
			map[string]string{"test": "true"}},
		"object without metadata, nil annotations": {
			&corev1.ObjectReference{Kind: "ConfigMap", Namespace: "apps", Name: "web"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bothRecorders(t, func(t *testing.T, sink *eventstest.Sink, events fluxevents.Recorder, settle func()) {
				given := maps.Clone(test.annotations)
				events.AnnotatedEventf(test.object, nil, given, corev1.EventTypeNormal, "Synced", "Syncing", "%s", "in sync")
				if diff := gocmp.Diff(test.annotations, given); diff != "" {
					t.Errorf("annotations of the caller (-before, +after):\n%s", diff)
				}
				settle()

				got := sink.EventsFor("ConfigMap", "apps", "web")
				if len(got) != 1 || len(sink.Events()) != 1 {
					t.Fatalf("events = %+v, want one about the object", sink.Events())
				}
				if diff := gocmp.Diff(test.want, got[0].Metadata); diff != "" {
					t.Errorf("metadata (-want, +got):\n%s", diff)
				}
				if got[0].Reason != "Synced" || got[0].Action != "Syncing" || got[0].Message != "in sync" {
					t.Errorf("event = %+v, want that of the call", got[0])
				}
			})
		})
	}
}

func TestTraceEventsAreKeptFromTheWebhook(t *testing.T) {
	bothRecorders(t, func(t *testing.T, sink *eventstest.Sink, events fluxevents.Recorder, settle func()) {
		events.Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "before")
		events.Eventf(configMap("web", nil), nil, eventv1.EventTypeTrace, "Synced", "Syncing", "trace")
		events.Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "after")
		settle()
		checkMessages(t, sink, "before", "after")
	})
}

func TestLongMessageArrivesWhole(t *testing.T) {
	message := strings.Repeat("a very long message of a reconciliation ", 200) // more than the API server's 1,024
	bothRecorders(t, func(t *testing.T, sink *eventstest.Sink, events fluxevents.Recorder, settle func()) {
		events.Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "%s", message)
		settle()
		checkMessages(t, sink, message)
	})
}

func Test500IsRetried(t *testing.T) {
	bothRecorders(t, func(t *testing.T, sink *eventstest.Sink, events fluxevents.Recorder, settle func()) {
		sink.SetStatusCode(http.StatusInternalServerError)
		events.Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "in sync")
		settle()
		checkMessages(t, sink, "in sync", "in sync")
	})
}

func Test429IsNotRetried(t *testing.T) {
	bothRecorders(t, func(t *testing.T, sink *eventstest.Sink, events fluxevents.Recorder, settle func()) {
		sink.SetStatusCode(http.StatusTooManyRequests)
		events.Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "in sync")
		settle()
		checkMessages(t, sink, "in sync")
	})
}

func checkMessages(t *testing.T, sink *eventstest.Sink, want ...string) {
	t.Helper()
	var got []string
	for _, event := range sink.Events() {
		got = append(got, event.Message)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want, +got):\n%.1000s", diff)
	}
}

func TestWebhookIsCheckedWhenTheRecorderIsMade(t *testing.T) {
	for webhook, ok := range map[string]bool{"": true, "http://example.com": true, " http://example.com": false} {
		_, err := fluxevents.NewRecorder(logr.FromSlogHandler(slog.DiscardHandler), webhook, "app-controller")
		if (err == nil) != ok {
			t.Errorf("Flux's NewRecorder(%q) = %v, want ok = %v", webhook, err, ok)
		}
		_, err = recorder.New(recorder.Config{Webhook: webhook})
		if (err == nil) != ok {
			t.Errorf("New(%q) = %v, want ok = %v", webhook, err, ok)
		}
		if !ok && !strings.Contains(err.Error(), "Webhook") {
			t.Errorf("New(%q) = %v, want an error that names the field", webhook, err)
		}
	}
}

func TestWithoutWebhookOnlyNextIsCalled(t *testing.T) {
	rec := newRecorder(t, recorder.Config{})
	var forwarded int
	events := recorder.NewEventRecorder(rec, refer,
		func(_, _ runtime.Object, _ map[string]string, _, _, _, _ string, _ ...any) { forwarded++ })
	events.Eventf(configMap("web", nil), nil, corev1.EventTypeWarning, "Failed", "Syncing", "no")
	events.Eventf(nil, nil, corev1.EventTypeWarning, "Failed", "Syncing", "no")
	drain(t, rec)
	if forwarded != 2 {
		t.Errorf("calls of next = %d, want 2", forwarded)
	}
	checkStats(t, rec, recorder.Stats{})
}

// A sink speaks no TLS: a front that does stands before it.
func TestTLS(t *testing.T) {
	front := func(t *testing.T, sink *eventstest.Sink, protocols chan<- string) *server {
		target, err := url.Parse(sink.URL())
		if err != nil {
			t.Fatal(err)
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		t.Cleanup(transport.CloseIdleConnections)
		forward := &httputil.ReverseProxy{
			Transport: transport,
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		}
		return serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			protocols <- r.Proto
			forward.ServeHTTP(w, r)
		}))
	}

	t.Run("trusted", func(t *testing.T) {
		sink, protocols := eventstest.NewSink(t), make(chan string, 2)
		front := front(t, sink, protocols)
		rec := newRecorder(t, recorder.Config{Webhook: front.URL, TLS: trust(front), Backoff: never})
		adapt(rec).Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "one")
		adapt(rec).Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "two")
		drain(t, rec)
		checkMessages(t, sink, "one", "two")
		checkStats(t, rec, recorder.Stats{Delivered: 2})
		for _, got := range receive(t, protocols, 2) {
			if got != "HTTP/2.0" {
				t.Errorf("protocol = %q, want HTTP/2.0", got)
			}
		}
		if got := front.opened.Load(); got != 1 {
			t.Errorf("connections = %d, want 1", got)
		}
	})

	t.Run("not trusted", func(t *testing.T) {
		sink := eventstest.NewSink(t)
		front := front(t, sink, make(chan string, 1))
		log := new(journal)
		rec := newRecorder(t, recorder.Config{Webhook: front.URL, Backoff: never, Logger: slog.New(log)})
		adapt(rec).Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "in sync")
		drain(t, rec)
		checkMessages(t, sink)
		checkStats(t, rec, recorder.Stats{Rejected: 1})
		var unknown x509.UnknownAuthorityError
		if got := log.losses(); len(got) != 1 || !errors.As(got[0].err, &unknown) {
			t.Errorf("losses logged = %v, want one that wraps %T", got, unknown)
		}
		if got := front.opened.Load(); got != 1 {
			t.Errorf("connections = %d, want 1", got)
		}
	})
}
