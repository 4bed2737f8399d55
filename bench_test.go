package recorder_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"example.com/recorder"
)

// This file uses the package as others do: the README's first lines, the examples of the
// documentation, and the benchmarks.

const webhookURL = "http://notification-controller.flux-system./"

// readmeExample is the README's, which TestTheReadmeExampleCompiles holds against it.
func readmeExample(ctx context.Context, mgr interface{ Start(context.Context) error }) error {
	rec, err := recorder.New(recorder.Config{Webhook: webhookURL, Controller: "app-controller"})
	if err != nil {
		return err
	}
	// In a reconciler. See rec.Stats() for what becomes of it, and the log if Config.Logger is set.
	_ = rec.Record(recorder.Event{
		InvolvedObject: recorder.ObjectReference{Kind: "App", Namespace: "prod", Name: "web"},
		Reason:         "Deployed",
		Message:        "version 1.2.3 is live",
	})
	// Where mgr.Start(ctx) stood: delivers events while mgr runs, and then what is still queued.
	return rec.Run(ctx, mgr.Start)
}

var _ = readmeExample // not called: it would look for the receiver

// A receiver that has an event already answers 429, which is not an error.
func Example() {
	taken := false
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if taken {
			w.Header().Set("Retry-After", "300")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		taken = true
		w.WriteHeader(http.StatusAccepted)
	}))
	defer receiver.Close()

	rec, err := recorder.New(recorder.Config{Webhook: receiver.URL, Controller: "app-controller"})
	if err != nil {
		panic(err)
	}
	event := recorder.Event{
		InvolvedObject: recorder.ObjectReference{Kind: "App", Namespace: "prod", Name: "web"},
		Reason:         "Deployed",
		Message:        "version 1.2.3 is live",
	}
	fmt.Println(rec.Post(context.Background(), event))
	fmt.Println(rec.Post(context.Background(), event))
	stats := rec.Stats()
	fmt.Println(stats.Delivered, "delivered,", stats.Duplicates, "duplicate")
	// Output:
	// <nil>
	// <nil>
	// 1 delivered, 1 duplicate
}

// Every field but Webhook has a default that suits most controllers.
func ExampleNew() {
	config := recorder.Config{
		Webhook:      "https://events.example.com/hook?token=secret",
		Controller:   "app-controller",
		Instance:     "app-controller-7d5c",
		Header:       http.Header{"X-Tenant": {"prod"}},
		TLS:          &tls.Config{MinVersion: tls.VersionTLS13},
		Timeout:      3 * time.Second,
		MaxAttempts:  60, // an outage of 825s at least loses nothing
		Backoff:      recorder.Backoff{Min: time.Second, Max: 30 * time.Second, Jitter: 0.5},
		QueueSize:    4096,
		Workers:      8,
		DrainTimeout: 20 * time.Second,
		Logger:       slog.Default(),
	}
	_, err := recorder.New(config)
	fmt.Println(err)

	config.Backoff.Max = time.Millisecond
	_, err = recorder.New(config)
	fmt.Println(err)
	// Output:
	// <nil>
	// recorder: Config.Backoff.Max is negative or below Backoff.Min
}

// Record queues an event. Start delivers the queue for a program that has no manager to run.
func ExampleRecorder_Record() {
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var event recorder.Event
		if err := json.NewDecoder(req.Body).Decode(&event); err != nil {
			panic(err)
		}
		fmt.Println(event.Severity, event.Reason, event.Message)
	}))
	defer receiver.Close()

	rec, err := recorder.New(recorder.Config{Webhook: receiver.URL})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- rec.Start(ctx) }()

	err = rec.Record(recorder.Event{
		InvolvedObject: recorder.ObjectReference{Kind: "App", Namespace: "prod", Name: "web"},
		Severity:       recorder.SeverityError,
		Reason:         "DeployFailed",
		Message:        "disk 100% full",
	})
	fmt.Println("recorded:", err)

	stop()
	fmt.Println("drained:", <-ended)
	fmt.Println("recorded:", rec.Record(recorder.Event{InvolvedObject: recorder.ObjectReference{Kind: "App", Name: "web"}}))
	// Unordered output:
	// recorded: <nil>
	// error DeployFailed disk 100% full
	// drained: <nil>
	// recorded: recorder: stopped
}

// In a controller main is the Start of its manager.
func ExampleRecorder_Run() {
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer receiver.Close()

	rec, err := recorder.New(recorder.Config{Webhook: receiver.URL})
	if err != nil {
		panic(err)
	}
	errLeaseLost := errors.New("leader election lost")
	err = rec.Run(context.Background(), func(context.Context) error {
		for _, name := range []string{"web", "api", "db"} {
			_ = rec.Record(recorder.Event{InvolvedObject: recorder.ObjectReference{Kind: "App", Name: name}})
		}
		return errLeaseLost
	})
	fmt.Println(err)
	fmt.Println(rec.Stats().Delivered, "delivered")
	// Output:
	// leader election lost
	// 3 delivered
}

// An answer that is final, and what it said.
func ExampleRecorder_Post() {
	receiver := httptest.NewServer(http.NotFoundHandler())
	defer receiver.Close()

	rec, err := recorder.New(recorder.Config{Webhook: receiver.URL + "/hok"})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = rec.Post(ctx, recorder.Event{
		InvolvedObject: recorder.ObjectReference{Kind: "App", Namespace: "prod", Name: "web"},
		Reason:         "Deployed",
		Message:        "version 1.2.3 is live",
	})
	var status *recorder.StatusError
	if errors.As(err, &status) {
		fmt.Println(status.StatusCode, status.Snippet)
	}
	// Output: 404 404 page not found
}

func ExampleRecorder_Stats() {
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer receiver.Close()

	rec, err := recorder.New(recorder.Config{Webhook: receiver.URL, QueueSize: 4})
	if err != nil {
		panic(err)
	}
	for range 5 { // of which three may wait, since the last quarter of a queue is for errors
		_ = rec.Record(recorder.Event{InvolvedObject: recorder.ObjectReference{Kind: "App", Name: "web"}})
	}
	_ = rec.Record(recorder.Event{Reason: "NoObject"})
	fmt.Printf("%+v\n", rec.Stats())

	_ = rec.Run(context.Background(), func(context.Context) error { return nil })
	fmt.Printf("%+v\n", rec.Stats())
	// Output:
	// {Delivered:0 Duplicates:0 Rejected:1 Failed:0 Dropped:2 Retries:0 Queued:3}
	// {Delivered:3 Duplicates:0 Rejected:1 Failed:0 Dropped:2 Retries:0 Queued:0}
}

func ExampleBackoff_Delay() {
	backoff := recorder.Backoff{Min: time.Second, Max: 30 * time.Second}
	for retry := 1; retry <= 7; retry++ {
		fmt.Println(retry, backoff.Delay(retry))
	}
	// Output:
	// 1 1s
	// 2 2s
	// 3 4s
	// 4 8s
	// 5 16s
	// 6 30s
	// 7 30s
}

// An app stands for the objects of a controller, which are runtime.Objects.
type app struct {
	name        string
	annotations map[string]string
}

func (a *app) GetAnnotations() map[string]string { return a.annotations }

// With T = runtime.Object it satisfies client-go's interfaces, reference is made of
// reference.GetReference, and next is mgr.GetEventRecorder("app-controller").AnnotatedEventf.
func ExampleNewEventRecorder() {
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var event recorder.Event
		if err := json.NewDecoder(req.Body).Decode(&event); err != nil {
			panic(err)
		}
		fmt.Println(event.InvolvedObject.Name, event.Severity, event.Reason, event.Message, event.Metadata)
	}))
	defer receiver.Close()

	rec, err := recorder.New(recorder.Config{Webhook: receiver.URL})
	if err != nil {
		panic(err)
	}
	reference := func(a *app) (recorder.ObjectReference, error) {
		return recorder.ObjectReference{Kind: "App", Namespace: "prod", Name: a.name}, nil
	}
	events := recorder.NewEventRecorder(rec, reference, nil)
	web := &app{"web", map[string]string{"event.toolkit.fluxcd.io/image": "web:1.2.3"}}

	_ = rec.Run(context.Background(), func(context.Context) error {
		events.Eventf(web, nil, "Warning", "DeployFailed", "Deploying", "version %s does not start", "1.2.3")
		return nil
	})
	// Output: web error DeployFailed version 1.2.3 does not start map[event.toolkit.fluxcd.io/image:web:1.2.3]
}

// The benchmarks with a receiver have it in this process, so their allocations are those of both
// ends; interop/ has the same with a receiver in a process of its own, beside other clients.

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

// BenchmarkHTTPPost is the baseline: the same bytes, encoded and sent by a plain client.
func BenchmarkHTTPPost(b *testing.B) {
	address := benchReceiver(b, http.StatusAccepted, "")
	event := recorder.BenchEvent()
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
	r := newRecorder(b, recorder.Config{Webhook: benchReceiver(b, code, body)})
	event := recorder.BenchEvent()
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
	r := newRecorder(b, recorder.Config{Webhook: benchReceiver(b, http.StatusAccepted, "")})
	event := recorder.BenchEvent()
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

// benchAccepted times calls that put an event into the queue, which is emptied in between.
func benchAccepted(b *testing.B, r *recorder.Recorder, record func()) {
	b.ReportAllocs()
	for queued := 1; b.Loop(); queued++ {
		record()
		if queued%500 == 0 { // which the default queue has room for
			b.StopTimer()
			r.Discard()
			b.StartTimer()
		}
	}
	if dropped := r.Stats().Dropped; dropped != 0 {
		b.Errorf("%d events dropped, want none", dropped)
	}
}

func newRecorder(t testing.TB, config recorder.Config) *recorder.Recorder {
	t.Helper()
	r, err := recorder.New(config)
	if err != nil {
		t.Fatalf("New() = %v, want no error", err)
	}
	return r
}

func BenchmarkRecord(b *testing.B) {
	r := newRecorder(b, recorder.Config{Webhook: "http://receiver.test"})
	event := recorder.BenchEvent()
	benchAccepted(b, r, func() { r.Record(event) })
}

// BenchmarkRecordFull is a call that the full queue refuses.
func BenchmarkRecordFull(b *testing.B) {
	r := newRecorder(b, recorder.Config{Webhook: "http://receiver.test", QueueSize: 1})
	event := recorder.BenchEvent()
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
	r := newRecorder(b, recorder.Config{Webhook: "http://receiver.test"})
	event := recorder.BenchEvent()
	var draining sync.Mutex
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			for r.Record(event) != nil {
				draining.Lock()
				r.Discard()
				draining.Unlock()
			}
		}
	})
	b.ReportMetric(float64(r.Stats().Dropped)/float64(b.N), "refused/op")
}

// BenchmarkEventf is a call of the client-go adapter with two annotations and an argument.
func BenchmarkEventf(b *testing.B) {
	r := newRecorder(b, recorder.Config{Webhook: "http://receiver.test"})
	event := recorder.BenchEvent()
	reference := func(*app) (recorder.ObjectReference, error) { return event.InvolvedObject, nil }
	events := recorder.NewEventRecorder(r, reference, nil)
	webapp := &app{name: "webapp"}
	benchAccepted(b, r, func() {
		events.AnnotatedEventf(webapp, nil, event.Metadata, "Normal", event.Reason, "Reconciling",
			"Reconciliation finished in %s", "1.2s")
	})
}

func BenchmarkEncode(b *testing.B) {
	event := recorder.BenchEvent()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := json.Marshal(event); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDelay(b *testing.B) {
	backoff := recorder.Backoff{Min: time.Second, Max: 30 * time.Second, Jitter: 0.5}
	b.ReportAllocs()
	for b.Loop() {
		backoff.Delay(4)
	}
}
