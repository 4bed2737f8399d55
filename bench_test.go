package recorder

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// The benchmarks with a receiver have it in this process, so their allocations are those of both
// ends; interop/ has the same with a receiver in a process of its own, beside other clients.

func benchEvent() Event {
	return Event{
		InvolvedObject: ObjectReference{
			Kind: "Kustomization", Namespace: "flux-system", Name: "webapp", UID: "e076e315-5a48-41c3-81c8-8d8bdee7d74d",
			APIVersion: "kustomize.toolkit.fluxcd.io/v1", ResourceVersion: "12345",
		},
		Severity:  SeverityInfo,
		Timestamp: time.Date(2026, 3, 1, 2, 3, 4, 0, time.UTC),
		Message:   "Reconciliation finished in 1.2s, next run in 10m0s",
		Reason:    "ReconciliationSucceeded",
		Metadata: map[string]string{
			"kustomize.toolkit.fluxcd.io/revision":       "main@sha1:0123456789abcdef",
			"kustomize.toolkit.fluxcd.io/originRevision": "v1",
		},
		ReportingController: "kustomize-controller",
		ReportingInstance:   "kustomize-controller-7d5c",
	}
}

// benchReceiver answers every request alike, after having read it.
func benchReceiver(b testing.TB, code int, body string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(code)
		io.WriteString(w, body)
	}))
	b.Cleanup(server.Close)
	return server.URL
}

func mustNew(t testing.TB, c Config) *Recorder {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatalf("New() = %v, want no error", err)
	}
	return r
}

// BenchmarkHTTPPost is the baseline: the same bytes, encoded and sent by a plain client.
func BenchmarkHTTPPost(b *testing.B) {
	address := benchReceiver(b, http.StatusAccepted, "")
	event := benchEvent()
	client := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone(), Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	b.ReportAllocs()
	for b.Loop() {
		body, err := json.Marshal(event)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := client.Post(address, "application/json", bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// benchPost posts one event after another, each of which must be taken.
func benchPost(b *testing.B, code int, body string) {
	r := mustNew(b, Config{Webhook: benchReceiver(b, code, body)})
	defer r.closeIdle()
	event := benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Post(context.Background(), event); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPost(b *testing.B) { benchPost(b, http.StatusAccepted, "") }

func BenchmarkPostDuplicate(b *testing.B) {
	benchPost(b, http.StatusTooManyRequests, "Too Many Requests\n")
}

// BenchmarkPostParallel has 16 senders at once.
func BenchmarkPostParallel(b *testing.B) {
	r := mustNew(b, Config{Webhook: benchReceiver(b, http.StatusAccepted, "")})
	defer r.closeIdle()
	event := benchEvent()
	b.ReportAllocs()
	b.SetParallelism(8) // times two, on the two processors that the figures are from
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := r.Post(context.Background(), event); err != nil {
				b.Error(err)
			}
		}
	})
}

// drain empties the queue as workers do, but for the posting.
func (r *Recorder) drain() {
	for {
		select {
		case e := <-r.ready:
			r.mu.Lock()
			r.queued--
			r.mu.Unlock()
			r.finish(e)
		default:
			return
		}
	}
}

// benchAccepted times calls that put an event into the queue, which is emptied in between.
func benchAccepted(b *testing.B, r *Recorder, record func()) {
	b.ReportAllocs()
	for b.Loop() {
		record()
		if r.queued == r.config.QueueSize/2 {
			b.StopTimer()
			r.drain()
			b.StartTimer()
		}
	}
	if dropped := r.Stats().Dropped; dropped != 0 {
		b.Errorf("%d events dropped, want none", dropped)
	}
}

func BenchmarkRecord(b *testing.B) {
	r := mustNew(b, Config{Webhook: "http://receiver.test"})
	event := benchEvent()
	benchAccepted(b, r, func() { r.Record(event) })
}

// BenchmarkRecordFull is a call that the full queue refuses.
func BenchmarkRecordFull(b *testing.B) {
	r := mustNew(b, Config{Webhook: "http://receiver.test", QueueSize: 1})
	event := benchEvent()
	r.Record(event)
	b.ReportAllocs()
	for b.Loop() {
		if r.Record(event) == nil {
			b.Fatal("Record() = nil, want ErrQueueFull")
		}
	}
}

// BenchmarkRecordParallel has callers on every processor, each of whose events is taken: who finds the
// queue full empties it, or waits for who does, and calls again. That is in the figure, and how many
// refusals it took is reported.
func BenchmarkRecordParallel(b *testing.B) {
	r := mustNew(b, Config{Webhook: "http://receiver.test"})
	event := benchEvent()
	var draining sync.Mutex
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			for r.Record(event) != nil {
				draining.Lock()
				r.drain()
				draining.Unlock()
			}
		}
	})
	b.ReportMetric(float64(r.Stats().Dropped)/float64(b.N), "refused/op")
}

// BenchmarkEventf is a call of the client-go adapter with two annotations and an argument.
func BenchmarkEventf(b *testing.B) {
	r := mustNew(b, Config{Webhook: "http://receiver.test"})
	event := benchEvent()
	reference := func(o *kubeObject) (ObjectReference, error) { return event.InvolvedObject, nil }
	events := NewEventRecorder(r, reference, nil)
	app := &kubeObject{name: "webapp"}
	benchAccepted(b, r, func() {
		events.AnnotatedEventf(app, nil, event.Metadata, "Normal", event.Reason, "Reconciling", "Reconciliation finished in %s", "1.2s")
	})
}

func BenchmarkEncode(b *testing.B) {
	event := benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := json.Marshal(event); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDelay(b *testing.B) {
	backoff := Backoff{Min: time.Second, Max: 30 * time.Second, Jitter: 0.5}
	b.ReportAllocs()
	for b.Loop() {
		backoff.Delay(4)
	}
}

// The transport answers at once, so that what is counted is the recorder's own part: net/http adds
// some forty to each attempt.
func TestAllocationCeilings(t *testing.T) {
	accepted := &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody}
	r := mustNew(t, Config{Webhook: "http://receiver.test"})
	r.webhook.transport = roundTrip(func(*http.Request) (*http.Response, error) { return accepted, nil })
	event := benchEvent()
	events := NewEventRecorder(r, func(*kubeObject) (ObjectReference, error) { return event.InvolvedObject, nil }, nil)
	app := &kubeObject{name: "webapp"}
	for _, test := range []struct {
		name    string
		call    func()
		ceiling float64
	}{
		{"Post", func() { r.Post(t.Context(), event) }, 19}, // 16 without -race
		{"Record", func() { r.Record(event); r.drain() }, 2},
		{"AnnotatedEventf", func() {
			events.AnnotatedEventf(app, nil, event.Metadata, "Normal", event.Reason, "", "finished in %s", "1.2s")
			r.drain()
		}, 6},
		{"AnnotatedEventf of plain text", func() {
			events.AnnotatedEventf(app, nil, event.Metadata, "Normal", event.Reason, "", "finished")
			r.drain()
		}, 2},
		{"the end of an answer without a body", func() { r.webhook.finish(accepted) }, 0},
		{"Delay", func() { r.config.Backoff.Delay(4) }, 0},
	} {
		if got := testing.AllocsPerRun(500, test.call); got > test.ceiling {
			t.Errorf("%s allocates %v times, want at most %v", test.name, got, test.ceiling)
		} else {
			t.Logf("%s allocates %v times", test.name, got)
		}
	}
	if got := r.Stats(); got.Dropped+got.Rejected+got.Failed != 0 {
		t.Errorf("Stats() = %+v, want no event lost", got)
	}
}
