package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	fluxevents "github.com/fluxcd/pkg/runtime/events"
	"github.com/go-logr/logr/funcr"
	"github.com/hashicorp/go-retryablehttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clientrecord "k8s.io/client-go/tools/record"

	"example.com/recorder"
)

// The benchmarks are made to be compared by the value of "by", within one run:
//
//	go test -run '^$' -bench . -count 10 | go tool benchstat -table .name -col /by -
//
// and TestGoals holds their medians to what the recorder sets out to be:
//
//	go test -run '^TestGoals$' -v -goals
var goals = flag.Bool("goals", false, "hold TestGoals to its goals for time too, which takes some minutes")

// receiverProcess is in the environment of the process that receives what the benchmarks post.
const receiverProcess = "RECORDER_RECEIVER_PROCESS"

// A receiver is a process of its own, so that what is allocated in this one is the sender's alone. It
// reads each request to its end. The path says how it answers: as notification-controller does when
// it takes an event ("/202") or has it already ("/429"), that way after 5 ms ("/5ms"), or not at all
// ("/never").
type receiver struct {
	url    string
	counts func() counts
}

// The counts of a receiver.
type counts struct {
	Opened, Open    int           // connections
	Requests, Bytes int           // of which the latter are those of the bodies
	Took            time.Duration // by all answers of "/5ms", since a timer of 5 ms takes longer
}

// startReceiver starts the test binary once more. It is gone when the test ends.
func startReceiver(tb testing.TB) *receiver {
	tb.Helper()
	binary, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	command := exec.Command(binary, "-test.run=^TestReceiverProcess$")
	command.Env = append(os.Environ(), receiverProcess+"=1")
	command.Stderr = os.Stderr
	questions, err := command.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	answers, err := command.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := command.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		questions.Close()
		io.Copy(io.Discard, answers)
		if err := command.Wait(); err != nil {
			tb.Errorf("receiver: %v", err)
		}
	})
	decoder := json.NewDecoder(answers)
	r := new(receiver)
	if err := decoder.Decode(&r.url); err != nil {
		tb.Fatalf("address of the receiver: %v", err)
	}
	r.counts = func() (c counts) {
		if _, err := io.WriteString(questions, "\n"); err != nil {
			tb.Errorf("receiver: %v", err)
		}
		if err := decoder.Decode(&c); err != nil {
			tb.Errorf("counts of the receiver: %v", err)
		}
		return c
	}
	return r
}

// TestReceiverProcess tests nothing: it is what startReceiver starts. It says where it listens, then
// gives its counts for each line that it reads, and ends with its input.
func TestReceiverProcess(t *testing.T) {
	if os.Getenv(receiverProcess) == "" {
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var c counts
	server := &http.Server{
		ConnState: func(_ net.Conn, state http.ConnState) {
			mu.Lock()
			defer mu.Unlock()
			switch state {
			case http.StateNew:
				c.Opened++
				c.Open++
			case http.StateClosed:
				c.Open--
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			if err != nil {
				return // A sender that has been told to stop.
			}
			mu.Lock()
			c.Requests++
			c.Bytes += int(n)
			mu.Unlock()
			switch r.URL.Path {
			case "/202":
				w.WriteHeader(http.StatusAccepted)
			case "/429":
				w.Header().Set("Retry-After", time.Now().Add(5*time.Minute).Format(http.TimeFormat))
				http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
			case "/5ms":
				begin := time.Now()
				time.Sleep(5 * time.Millisecond)
				w.WriteHeader(http.StatusAccepted)
				mu.Lock()
				c.Took += time.Since(begin)
				mu.Unlock()
			case "/never":
				<-r.Context().Done() // The sender's patience is over.
			default:
				http.NotFound(w, r)
			}
		}),
	}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(listener) })
	defer serving.Wait()
	defer server.Close()

	encoder := json.NewEncoder(os.Stdout)
	encoder.Encode("http://" + listener.Addr().String())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		mu.Lock()
		now := c
		mu.Unlock()
		encoder.Encode(now)
	}
}

// What every benchmark posts or records: an event with two annotations and one argument.
var (
	deployment = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Namespace: "apps", UID: "e076e315-5a48-41c3-81c8-8d8bdee7d74d", ResourceVersion: "12345",
	}}
	annotations = map[string]string{
		"event.toolkit.fluxcd.io/revision": "main@sha1:0123456789abcdef",
		"event.toolkit.fluxcd.io/image":    "registry.test/web:1.2.3",
	}
	version = "1.2.3" // A variable, since a constant argument would cost no allocation.
)

// controller is who records it.
const controller = "app-controller"

// deploy is the one call of all peers that have it.
func deploy(events events.AnnotatedEventRecorder) error {
	events.AnnotatedEventf(deployment, nil, annotations, corev1.EventTypeNormal, "Deployed", "Deploying", "version %s is live", version)
	return nil
}

// deployed makes the event that deploy comes to, complete, for those who send an event.
func deployed(tb testing.TB) recorder.Event {
	tb.Helper()
	object, err := refer(deployment)
	if err != nil {
		tb.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		tb.Fatal(err)
	}
	return recorder.Event{
		InvolvedObject:      object,
		Severity:            recorder.SeverityInfo,
		Timestamp:           time.Now().UTC().Truncate(time.Second),
		Message:             fmt.Sprintf("version %s is live", version),
		Reason:              "Deployed",
		Action:              "Deploying",
		Metadata:            annotations,
		ReportingController: controller,
		ReportingInstance:   host,
	}
}

// A peer is one way to do the work of a benchmark.
type peer struct {
	by string

	// open makes the call that is measured, and what has to be done between two calls, while the clock
	// stands still: after each of so many calls, unless pause is 0, and at the end. There is no
	// receiver for what does not post.
	open  func(tb testing.TB, r *receiver, path string) (call func() error, settle func())
	pause int
}

// run measures one call after another.
func (p peer) run(b *testing.B, r *receiver, path string) {
	report := watch(b, r)
	call, settle := p.open(b, r, path)
	b.ReportAllocs()
	left := p.pause
	for b.Loop() {
		if err := call(); err != nil {
			b.Fatal(err)
		}
		if left--; left == 0 {
			b.StopTimer()
			settle()
			b.StartTimer()
			left = p.pause
		}
	}
	report()
	settle()
}

// runParallel measures senders that call at once.
func (p peer) runParallel(b *testing.B, r *receiver, path string) {
	const senders = 16
	report := watch(b, r)
	call, settle := p.open(b, r, path)
	b.ReportAllocs()
	processors := goruntime.GOMAXPROCS(0)
	b.SetParallelism((senders + processors - 1) / processors)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := call(); err != nil {
				b.Error(err)
			}
		}
	})
	report()
	settle()
}

// watch returns a function that reports the connections opened since, and fails the benchmark if a
// call was not one request: an event that never came would be a fast one.
func watch(b *testing.B, r *receiver) (report func()) {
	if r == nil {
		return func() {}
	}
	before := r.counts()
	return func() {
		after := r.counts()
		if got := after.Requests - before.Requests; got != b.N {
			b.Errorf("requests = %d, want the %d of the calls", got, b.N)
		}
		b.ReportMetric(float64(after.Opened-before.Opened), "conns")
	}
}

// benchmark measures peers, one after another.
func benchmark(b *testing.B, r *receiver, path string, peers ...peer) {
	for _, p := range peers {
		b.Run("by="+p.by, func(b *testing.B) { p.run(b, r, path) })
	}
}

func nothing() {}

// byRecorder posts a ready event.
var byRecorder = peer{by: "recorder", open: func(tb testing.TB, r *receiver, path string) (func() error, func()) {
	rec := newRecorder(tb, recorder.Config{Webhook: r.url + path})
	tb.Cleanup(func() { drain(tb, rec) }) // which closes its connections
	event := deployed(tb)
	return func() error { return rec.Post(context.Background(), event) }, nothing
}}

// byFlux posts to the webhook alone: it has no recorder of Kubernetes events behind it, as in a
// controller it would. Its logger is on, formats the values that it is given and writes nothing.
var byFlux = peer{by: "flux", open: func(tb testing.TB, r *receiver, path string) (func() error, func()) {
	flux, err := fluxevents.NewRecorder(funcr.New(func(_, _ string) {}, funcr.Options{}), r.url+path, controller, fluxevents.WithScheme(scheme.Scheme))
	if err != nil {
		tb.Fatal(err)
	}
	before := r.counts().Open
	return func() error { return deploy(flux) }, func() {
		if path == "/429" { // Each answer that is not closed keeps its connection until the client's timeout.
			eventually(tb, "the connections of Flux's recorder to time out", func() bool { return r.counts().Open <= before })
		}
	}
}, pause: 4000} // which is as many files as are open at once

// byRetryable has 429 end the loop as Flux's recorder does, and closes each answer as that does not.
var byRetryable = peer{by: "retryablehttp", open: func(tb testing.TB, r *receiver, path string) (func() error, func()) {
	client := retryablehttp.NewClient()
	client.Logger = nil
	client.HTTPClient.Timeout = 5 * time.Second
	client.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
		if resp != nil && resp.StatusCode == http.StatusTooManyRequests {
			return false, nil
		}
		return retryablehttp.ErrorPropagatedRetryPolicy(ctx, resp, err)
	}
	tb.Cleanup(client.HTTPClient.CloseIdleConnections)
	return encoding(tb, func(body []byte) (*http.Response, error) {
		return client.Post(r.url+path, "application/json", body)
	}), nothing
}}

// byClient is the baseline: the same bytes, encoded and posted by a plain client that keeps as many
// connections as there are senders.
var byClient = peer{by: "http.Client", open: func(tb testing.TB, r *receiver, path string) (func() error, func()) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = transport.MaxIdleConns
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	tb.Cleanup(client.CloseIdleConnections)
	return encoding(tb, func(body []byte) (*http.Response, error) {
		return client.Post(r.url+path, "application/json", bytes.NewReader(body))
	}), nothing
}}

// byRoundTrip is the floor: ready bytes, one fresh request, one timeout.
var byRoundTrip = peer{by: "RoundTrip", open: func(tb testing.TB, r *receiver, path string) (func() error, func()) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	tb.Cleanup(transport.CloseIdleConnections)
	body, err := json.Marshal(deployed(tb))
	if err != nil {
		tb.Fatal(err)
	}
	ready, err := http.NewRequest(http.MethodPost, r.url+path, nil)
	if err != nil {
		tb.Fatal(err)
	}
	ready.Header.Set("Content-Type", "application/json")
	ready.ContentLength = int64(len(body))
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		req := ready.WithContext(ctx)
		req.Body = io.NopCloser(bytes.NewReader(body))
		resp, err := transport.RoundTrip(req)
		return discard(resp, err)
	}, nothing
}}

// encoding makes a call that encodes the event and has it posted.
func encoding(tb testing.TB, post func(body []byte) (*http.Response, error)) func() error {
	event := deployed(tb)
	return func() error {
		body, err := json.Marshal(event)
		if err != nil {
			return err
		}
		return discard(post(body))
	}
}

// discard reads an answer to its end, which leaves its connection fit for the next request.
func discard(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func BenchmarkPost(b *testing.B) {
	benchmark(b, startReceiver(b), "/202", byRecorder, byClient, byFlux, byRetryable, byRoundTrip)
}

// BenchmarkDuplicate is answered 429 with 18 bytes and a Retry-After.
func BenchmarkDuplicate(b *testing.B) {
	benchmark(b, startReceiver(b), "/429", byRecorder, byClient, byFlux, byRetryable)
}

// BenchmarkParallel has 16 senders at once.
func BenchmarkParallel(b *testing.B) {
	r := startReceiver(b)
	for _, p := range []peer{byRecorder, byClient} {
		b.Run("by="+p.by, func(b *testing.B) { p.runParallel(b, r, "/202") })
	}
}

// BenchmarkEnqueue is the caller's part of an event that is delivered later. Each call counted is one
// that was taken: before a queue is full the clock stands still, while the recorder delivers what it
// has, client-go's watcher gets all that was sent, and the collector has its turn.
func BenchmarkEnqueue(b *testing.B) {
	benchmark(b, nil, "", enqueuers...)
}

// batch is how many events are put into a queue before it is seen to. Both queues have room for
// more: the recorder's for 768 that are no errors, client-go's for 1000.
const batch = 512

var enqueuers = []peer{
	queueing("recorder-Record", func(tb testing.TB, rec *recorder.Recorder) func() error {
		event := deployed(tb)
		return func() error { return rec.Record(event) }
	}),
	queueing("recorder-AnnotatedEventf", func(_ testing.TB, rec *recorder.Recorder) func() error {
		events := adapt(rec)
		return func() error { return deploy(events) }
	}),
	{by: "recorder-refused", open: func(tb testing.TB, _ *receiver, _ string) (func() error, func()) {
		rec := newRecorder(tb, recorder.Config{Webhook: "http://receiver.test", QueueSize: 1})
		event := deployed(tb)
		if err := rec.Record(event); err != nil {
			tb.Fatal(err)
		}
		return func() error {
			if err := rec.Record(event); err != recorder.ErrQueueFull {
				return fmt.Errorf("Record() = %v, want %v", err, recorder.ErrQueueFull)
			}
			return nil
		}, nothing
	}},
	broadcasting("client-go-record", func(tb testing.TB, take func()) events.AnnotatedEventRecorder {
		broadcaster := clientrecord.NewBroadcaster()
		tb.Cleanup(broadcaster.Shutdown)
		broadcaster.StartEventWatcher(func(*corev1.Event) { take() })
		return clientrecord.NewEventRecorderAdapter(broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: controller}))
	}),
	broadcasting("client-go-events", func(tb testing.TB, take func()) events.AnnotatedEventRecorder {
		broadcaster := events.NewBroadcaster(nil)
		tb.Cleanup(broadcaster.Shutdown)
		if _, err := broadcaster.StartEventWatcher(func(runtime.Object) { take() }); err != nil {
			tb.Fatal(err)
		}
		return broadcaster.NewRecorder(scheme.Scheme, controller).(events.AnnotatedEventRecorder)
	}),
}

// queueing puts events into the queue of a recorder that delivers them while the clock stands still.
// All batches but the first thus find a queue that has been in use. Of a new one TestGoals counts the
// allocations, without the time.
func queueing(by string, open func(testing.TB, *recorder.Recorder) func() error) peer {
	return peer{by: by, pause: batch, open: func(tb testing.TB, _ *receiver, _ string) (func() error, func()) {
		collect := withTheClockAlone(tb)
		var receiving gate
		receiving.Lock()
		rec := newRecorder(tb, recorder.Config{Webhook: "http://receiver.test", Controller: controller, Transport: &receiving})
		stop := start(tb, rec)
		tb.Cleanup(func() {
			receiving.Unlock()
			stop()
		})
		call, sent := open(tb, rec), uint64(0)
		return func() error { sent++; return call() }, func() {
			receiving.Unlock()
			for rec.Stats().Delivered < sent {
				if rec.Stats().Dropped > 0 {
					tb.Fatalf("Stats() = %+v, want no event dropped", rec.Stats())
				}
				goruntime.Gosched()
			}
			receiving.Lock()
			collect()
		}
	}}
}

// broadcasting hands events to a broadcaster of client-go, whose watcher counts them.
func broadcasting(by string, open func(tb testing.TB, take func()) events.AnnotatedEventRecorder) peer {
	return peer{by: by, pause: batch, open: func(tb testing.TB, _ *receiver, _ string) (func() error, func()) {
		collect := withTheClockAlone(tb)
		taken, sent := make(chan struct{}, batch), 0
		events := open(tb, func() { taken <- struct{}{} })
		return func() error { sent++; return deploy(events) }, func() {
			receive(tb, taken, sent)
			sent = 0
			collect()
		}
	}}
}

// withTheClockAlone keeps all others from running while the clock does: consumers, since there is one
// processor, and the collector, which would clear away what was left while the clock stood still.
// It runs in collect alone, at every sixteenth call: at each it would take more time than the work.
func withTheClockAlone(tb testing.TB) (collect func()) {
	processors, percent := goruntime.GOMAXPROCS(1), debug.SetGCPercent(-1)
	tb.Cleanup(func() {
		goruntime.GOMAXPROCS(processors)
		debug.SetGCPercent(percent)
	})
	calls := 0
	return func() {
		if calls++; calls%16 == 0 {
			goruntime.GC()
		}
	}
}

// BenchmarkQueue is the way from the queue to a receiver that takes 5 ms for each event, with 4
// workers. The share is that of the workers' time in which the receiver had the event: at 1 they
// deliver as fast as anyone could. What the receiver really took is reported too.
func BenchmarkQueue(b *testing.B) {
	r := startReceiver(b)
	b.Run("by=recorder", func(b *testing.B) { runQueue(b, r) })
}

func runQueue(b *testing.B, r *receiver) {
	const workers = 4
	report, before := watch(b, r), r.counts()
	rec := newRecorder(b, recorder.Config{Webhook: r.url + "/5ms", QueueSize: 64, Workers: workers})
	stop := start(b, rec)
	event := deployed(b)
	names := make([]string, 64)
	for i := range names {
		names[i] = fmt.Sprint("web-", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		event.InvolvedObject.Name = names[i%len(names)] // Those of one object would wait for each other.
		for rec.Record(event) != nil {
			time.Sleep(time.Millisecond) // 48 wait, so no worker does
		}
	}
	b.StartTimer() // Loop has stopped it, but what is queued has yet to be delivered.
	stop()
	b.StopTimer()
	report()
	took := (r.counts().Took - before.Took).Seconds()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(1000*took/float64(b.N), "took-ms")
	b.ReportMetric(took/(workers*b.Elapsed().Seconds()), "share")
}

// BenchmarkRecordAtADeadReceiver has every worker wait for an answer that does not come, while the
// queue has room, and when it is full. There is a call every 10 us: in a loop that does nothing else
// it would be the collector that is measured, which makes those pay that allocate the fastest. The
// percentiles are those of single calls, and include some 50 ns for looking at the clock.
func BenchmarkRecordAtADeadReceiver(b *testing.B) {
	for _, queue := range deadQueues {
		b.Run("queue="+queue+"/by=recorder", func(b *testing.B) { runDead(b, queue) })
	}
}

var deadQueues = []string{"open", "full"}

func runDead(b *testing.B, queue string) {
	const (
		pace    = 10 * time.Microsecond
		size    = 1 << 13
		lap     = size / 2 // so long that the first call after each emptying does not count
		workers = 4
	)
	var dead gate
	dead.Lock()
	rec := newRecorder(b, recorder.Config{Webhook: "http://receiver.test", Transport: &dead, QueueSize: size, Workers: workers})
	stop := start(b, rec)
	event := deployed(b)
	taken := uint64(0)
	// hang gives every worker an event that it cannot get rid of.
	hang := func() {
		for i := range workers {
			first := event
			first.InvolvedObject.Name = fmt.Sprint("first-", i)
			rec.Record(first)
			taken++
		}
		for rec.Stats().Queued > 0 {
			goruntime.Gosched()
		}
	}
	empty := func() {
		dead.Unlock()
		for rec.Stats().Delivered < taken {
			goruntime.Gosched()
		}
		dead.Lock()
		hang()
	}
	hang()
	// A queue whose memory is new has the system fault it in, once.
	for range 3 {
		for range lap {
			rec.Record(event)
			taken++
		}
		empty()
	}
	for queue == "full" && rec.Record(event) == nil {
		taken++
	}

	var took latencies
	for b.Loop() {
		begin := time.Now()
		err := rec.Record(event)
		took.add(time.Since(begin))
		for time.Since(begin) < pace {
		}
		if refused := errors.Is(err, recorder.ErrQueueFull); refused != (queue == "full") {
			b.Fatalf("Record() = %v while the queue is %s", err, queue)
		}
		if queue == "full" {
			continue
		}
		if taken++; took.n%lap == 0 {
			empty()
		}
	}
	dead.Unlock()
	stop()
	b.ReportMetric(0, "ns/op") // which would be the pace
	b.ReportMetric(float64(took.quantile(0.5)), "p50-ns")
	b.ReportMetric(float64(took.quantile(0.999)), "p99.9-ns")
}

// A gate is a transport that has no answer while it is locked, and takes every event otherwise.
type gate struct{ sync.RWMutex }

func (g *gate) RoundTrip(req *http.Request) (*http.Response, error) {
	g.RLock()
	defer g.RUnlock()
	return new(instantly).RoundTrip(req)
}

// latencies counts durations in steps of 10 ns up to 0.2 ms, and what is longer as that.
type latencies struct {
	steps [20_000]int
	n     int
}

func (l *latencies) add(d time.Duration) {
	l.steps[min(int(d/10), len(l.steps)-1)]++
	l.n++
}

// quantile is the end of the step that holds the given share of the durations.
func (l *latencies) quantile(share float64) time.Duration {
	rest := int(math.Ceil(share * float64(l.n)))
	for i, count := range l.steps {
		if rest -= count; rest <= 0 {
			return time.Duration(i+1) * 10
		}
	}
	return time.Duration(len(l.steps)) * 10
}

// A figure is what a benchmark reports of a peer in a unit.
type figure struct{ work, by, unit string }

// A goal bounds a figure, or its ratio to that of a second peer.
type goal struct {
	figure
	beside string // the second peer, or nothing
	bound  float64
	least  bool // the bound is a lower one
}

// untimed reports whether a goal can be judged on a machine that is busy.
func (g goal) untimed() bool { return g.unit == "allocs/op" || g.unit == "conns" }

// met reports whether value keeps to the bound. What could not be measured does not.
func (g goal) met(value float64) bool {
	if g.least {
		return value >= g.bound
	}
	return value <= g.bound
}

// onOneCore chooses between the bounds for one core and for more. There an idle one has to be woken for
// each answer, which costs all peers the same.
func onOneCore(one, more float64) float64 {
	if goruntime.NumCPU() == 1 {
		return one
	}
	return more
}

var allGoals = []goal{
	{figure{"Post", "recorder", "ns/op"}, "http.Client", 1.0, false},
	{figure{"Post", "recorder", "allocs/op"}, "http.Client", 0.80, false},
	{figure{"Post", "recorder", "ns/op"}, "RoundTrip", onOneCore(1.20, 1.12), false},
	{figure{"Post", "recorder", "ns/op"}, "flux", 0.85, false},
	{figure{"Post", "recorder", "allocs/op"}, "flux", 0.62, false},
	{figure{"Duplicate", "recorder", "ns/op"}, "flux", 0.3, false},
	{figure{"Duplicate", "recorder", "conns"}, "", 1, false},
	{figure{"Enqueue", "recorder-AnnotatedEventf", "ns/op"}, "client-go-events", 0.5, false},
	{figure{"Enqueue", "recorder-AnnotatedEventf", "ns/op"}, "client-go-record", 0.5, false},
	{figure{"Enqueue", "recorder-AnnotatedEventf", "allocs/op"}, "", 6, false},
	{figure{"Enqueue", "recorder-Record", "ns/op"}, "client-go-events", 0.12, false},
	{figure{"Enqueue", "recorder-Record", "ns/op"}, "client-go-record", 0.12, false},
	{figure{"Enqueue", "recorder-Record", "allocs/op"}, "", 2, false},
	{figure{"Enqueue", "recorder-refused", "allocs/op"}, "", 0, false},
	{figure{"Parallel", "recorder", "ns/op"}, "http.Client", 1.0, false},
	{figure{"Queue", "recorder", "share"}, "", 0.95, true},
	{figure{"RecordAtADeadReceiver/queue=open", "recorder", "p99.9-ns"}, "", 10_000, false},
	{figure{"RecordAtADeadReceiver/queue=full", "recorder", "p99.9-ns"}, "", 10_000, false},
}

// TestGoals holds the recorder to its goals: to those for allocations and connections always, and with
// -goals to all of them, by the medians of ten rounds in each of which every peer has its turn.
func TestGoals(t *testing.T) {
	if underRace() {
		t.Skip("the race detector allocates too")
	}
	r := startReceiver(t)
	figures := map[figure][]float64{}
	if *goals {
		slow := byFluxAtADeadReceiver(t)
		for range 10 {
			measure(t, r, figures)
		}
		t.Logf("Flux's recorder at a dead receiver: %v a call", (<-slow).Round(time.Second/10))
	} else {
		count(t, r, figures)
	}

	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "work\tby\tunit\tfigure\tbeside\tfigure\tratio\tgoal\t")
	for _, g := range allGoals {
		if !g.untimed() && !*goals {
			continue
		}
		value := median(figures[g.figure])
		fmt.Fprintf(table, "%s\t%s\t%s\t%.4g\t", g.work, g.by, g.unit, value)
		if g.beside == "" {
			fmt.Fprint(table, "\t\t\t")
		} else {
			other := median(figures[figure{g.work, g.beside, g.unit}])
			value /= other
			fmt.Fprintf(table, "%s\t%.4g\t%.3f\t", g.beside, other, value)
		}
		bound, verdict := "at most", "met"
		if g.least {
			bound = "at least"
		}
		if !g.met(value) {
			verdict = "MISSED"
			t.Errorf("%s by %s beside %q: %.4g of %s, want %s %v", g.work, g.by, g.beside, value, g.unit, bound, g.bound)
		}
		fmt.Fprintf(table, "%s %v\t%s\n", bound, g.bound, verdict)
	}
	table.Flush()
	t.Logf("medians:\n%s", &text)
}

// underRace reports whether the test was built with -race.
func underRace() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// measure adds what one round of the benchmarks reports.
func measure(t *testing.T, r *receiver, figures map[figure][]float64) {
	run := func(work, by string, f func(*testing.B)) {
		result := testing.Benchmark(f)
		if result.N == 0 {
			t.Fatalf("%s by %s failed: its benchmark says why", work, by)
		}
		add := func(unit string, value float64) {
			figures[figure{work, by, unit}] = append(figures[figure{work, by, unit}], value)
		}
		add("ns/op", float64(result.T.Nanoseconds())/float64(result.N))
		add("allocs/op", float64(result.AllocsPerOp()))
		for unit, value := range result.Extra {
			add(unit, value)
		}
	}
	for _, p := range []peer{byRecorder, byClient, byFlux, byRoundTrip} {
		run("Post", p.by, func(b *testing.B) { p.run(b, r, "/202") })
	}
	for _, p := range []peer{byRecorder, byFlux} {
		run("Duplicate", p.by, func(b *testing.B) { p.run(b, r, "/429") })
	}
	// Less than usual, since to deliver what was recorded takes some forty times as long as to record it.
	benchtime := flag.Lookup("test.benchtime").Value
	usual := benchtime.String()
	benchtime.Set("200ms")
	for _, p := range enqueuers {
		run("Enqueue", p.by, func(b *testing.B) { p.run(b, nil, "") })
	}
	benchtime.Set(usual)
	for _, p := range []peer{byRecorder, byClient} {
		run("Parallel", p.by, func(b *testing.B) { p.runParallel(b, r, "/202") })
	}
	run("Queue", "recorder", func(b *testing.B) { runQueue(b, r) })
	for _, queue := range deadQueues {
		run("RecordAtADeadReceiver/queue="+queue, "recorder", func(b *testing.B) { runDead(b, queue) })
	}
}

// count adds what can be counted in a moment.
func count(t *testing.T, r *receiver, figures map[figure][]float64) {
	sizes := map[int]string{}
	run := func(work, path string, p peer) {
		call, settle := p.open(t, r, path)
		before := r.counts()
		allocations := testing.AllocsPerRun(batch-2, func() { // one more for warming up
			if err := call(); err != nil {
				t.Errorf("%s by %s = %v, want no error", work, p.by, err)
			}
		})
		after := r.counts()
		settle()
		figures[figure{work, p.by, "allocs/op"}] = []float64{allocations}
		figures[figure{work, p.by, "conns"}] = []float64{float64(after.Opened - before.Opened)}
		if path != "" {
			sizes[(after.Bytes-before.Bytes)/(batch-1)] += " " + p.by
			if got := after.Requests - before.Requests; got != batch-1 {
				t.Errorf("%s by %s: requests = %d, want %d", work, p.by, got, batch-1)
			}
		}
	}
	for _, p := range []peer{byRecorder, byClient, byFlux, byRetryable, byRoundTrip} {
		run("Post", "/202", p)
	}
	if len(sizes) != 1 {
		t.Errorf("bytes posted = %v, want the same of all", sizes)
	}
	run("Duplicate", "/429", byRecorder)
	for _, p := range enqueuers {
		run("Enqueue", "", p)
	}
}

// byFluxAtADeadReceiver has Flux's recorder make one call, most of which it sleeps through.
func byFluxAtADeadReceiver(t *testing.T) <-chan time.Duration {
	call, _ := byFlux.open(t, startReceiver(t), "/never")
	took := make(chan time.Duration, 1)
	go func() {
		begin := time.Now()
		call()
		took <- time.Since(begin)
	}()
	return took
}

// median is NaN if there are no values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	values = slices.Sorted(slices.Values(values))
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// instantly is a transport that takes every event at once, so that what is measured is the
// recorder's own.
type instantly struct{}

func (*instantly) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody, Request: req}, req.Body.Close()
}

// TestCostOverSize makes one thing larger, step by step, and has no step cost more than its length,
// in allocations, in bytes of them, or in time.
func TestCostOverSize(t *testing.T) {
	type cost struct{ nanoseconds, allocations, bytes float64 } // of one event
	const (
		slack     = 1.5 // for allocations, and bytes of them
		timeSlack = 10  // for caches, and for a machine that is shared
	)

	// spend is the least cost of some runs, which is that of the one that was disturbed least. A long
	// run is not disturbed all the time.
	spend := func(events int, prepare func() (run func())) cost {
		least := cost{math.Inf(1), math.Inf(1), math.Inf(1)}
		for range max(1, min(5, 20_000/events)) {
			run := prepare()
			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			begin := time.Now()
			run()
			took := time.Since(begin)
			goruntime.ReadMemStats(&after)
			least.nanoseconds = min(least.nanoseconds, float64(took.Nanoseconds())/float64(events))
			least.allocations = min(least.allocations, float64(after.Mallocs-before.Mallocs)/float64(events))
			least.bytes = min(least.bytes, float64(after.TotalAlloc-before.TotalAlloc)/float64(events))
		}
		return least
	}
	post := func(change func(e *recorder.Event, size int)) func(size int) cost {
		return func(size int) cost {
			event := deployed(t)
			change(&event, size)
			rec := newRecorder(t, recorder.Config{Webhook: "http://receiver.test", Transport: new(instantly)})
			return spend(100, func() func() {
				return func() {
					for range 100 {
						if err := rec.Post(context.Background(), event); err != nil {
							t.Errorf("Post() = %v, want no error", err)
						}
					}
				}
			})
		}
	}
	// What is queued is delivered by workers, in this many events at least.
	const events = 5000
	queue := func(workers, objects int) cost {
		n := max(events, objects)
		return spend(n, func() func() {
			rec := newRecorder(t, recorder.Config{
				Webhook: "http://receiver.test", Transport: new(instantly), Workers: workers, QueueSize: 2 * n,
			})
			all := slices.Repeat([]recorder.Event{deployed(t)}, n)
			for i := range all {
				all[i].InvolvedObject.Name = fmt.Sprint("web-", i%objects)
			}
			return func() {
				for _, event := range all {
					if err := rec.Record(event); err != nil {
						t.Errorf("Record() = %v, want no error", err)
					}
				}
				drain(t, rec)
			}
		})
	}

	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "of\tsize\tns/event\tallocs/event\tB/event\t")
	for _, dimension := range []struct {
		name  string
		sizes []int
		of    func(size int) cost
		step  func(from, to int) float64 // how much more an event may cost for it
	}{
		{"characters in the message", []int{100, 1000, 10_000, 39_000},
			post(func(e *recorder.Event, size int) { e.Message = strings.Repeat("é", size) }), proportional},
		{"entries in the metadata", []int{0, 1, 5, 10, 50}, post(func(e *recorder.Event, size int) {
			e.Metadata = map[string]string{}
			for i := range size {
				e.Metadata[fmt.Sprintf("event.toolkit.fluxcd.io/key-%d", i)] = "value"
			}
		}), proportional},
		{"workers", []int{1, 2, 4, 16, 64}, func(workers int) cost { return queue(workers, events) }, constant},
		{"objects", []int{1, 10, 1000, 100_000}, func(objects int) cost { return queue(4, objects) }, constant},
	} {
		var last cost
		for i, size := range dimension.sizes {
			now := dimension.of(size)
			fmt.Fprintf(table, "%s\t%d\t%.0f\t%.1f\t%.0f\t\n", dimension.name, size, now.nanoseconds, now.allocations, now.bytes)
			if i > 0 {
				from := dimension.sizes[i-1]
				step := dimension.step(from, size)
				if now.nanoseconds > timeSlack*step*last.nanoseconds || now.allocations > slack*step*last.allocations || now.bytes > slack*step*last.bytes {
					t.Errorf("%s, from %d to %d: %+v to %+v an event, want about %.1f times as much at most", dimension.name, from, size, last, now, step)
				}
			}
			last = now
		}
	}
	table.Flush()
	t.Logf("cost of an event:\n%s", &text)
}

func proportional(from, to int) float64 { return float64(to) / float64(max(from, 1)) }
func constant(int, int) float64         { return 1 }
