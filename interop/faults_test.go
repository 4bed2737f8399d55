package interop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	fluxevents "github.com/fluxcd/pkg/runtime/events"
	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"example.com/recorder"
)

// Flux's recorder waits in real time, and of that nothing can be set but the number of its retries.
// So the faults are played with one retry, and what the default of four costs is worked out by the
// same table. To have it measured, in some six minutes:
//
//	go test . -run Faults -v -retries 4
var faultRetries = flag.Int("retries", 1, "how often both recorders try again in TestFaults")

const (
	defaultRetries = 4               // of both recorders
	attemptTimeout = 5 * time.Second // of both recorders
)

// A fate is what became of the events of a fault, and what that cost.
type fate struct {
	delivered   int           // the receiver has them
	mangled     string        // the text of those it has, where that is not the text of the call
	panicked    int           // calls
	logged      int           // lost, each with a line of its own in the log
	counted     int           // lost, told by Stats, and by the log no more than in sum
	silent      int           // lost without a trace
	held        time.Duration // by the median call, in whole seconds
	connections int           // that the receiver has seen
	logShows    string        // secrets of the webhook
	hostSees    string        // secrets of the webhook that went to another host
}

// A fault is what both recorders meet, and what they make of it.
type fault struct {
	name       string
	row        string // of the README, if any; faults that share one read the same there
	receiver   func(*testing.T) *stage
	config     func(*recorder.Config) // what ours has to set, beside the retries; default nothing
	events     int                    // all about one object, the first well before the others; default 1
	callers    int                    // that record the others at once; default 1
	object     runtime.Object         // default a ConfigMap
	note       string                 // default "in sync"
	discarding bool                   // the logger
	ours, flux fate
}

// faults is the table: every fault, with the fates that it has where so many retries are made.
func faults(retries int) []fault {
	attempts := retries + 1
	timeouts := time.Duration(attempts) * attemptTimeout
	var waits time.Duration
	for i := range retries {
		waits += min(time.Second<<i, 30*time.Second)
	}
	const (
		final    = "101; 301, 302, 303; 400, 401, 403, 404, 413"
		failing  = "connection refused or reset; 500"
		dripping = "no answer; one that drips, in the header or after a 500"

		secrets = "user, path, query" // of the webhook, but not the password
	)
	each := func(codes []int, of func(code int) fault) (all []fault) {
		for _, code := range codes {
			all = append(all, of(code))
		}
		return all
	}
	return slices.Concat([]fault{
		{
			name: "no fault", receiver: answering(taking),
			ours: fate{delivered: 1, connections: 1},
			flux: fate{delivered: 1, connections: 1},
		},
		{
			name: "202 with a slow body", receiver: answering(slowBody(http.StatusAccepted)),
			ours: fate{delivered: 1, connections: 1},
			flux: fate{delivered: 1, connections: 1},
		},
		{
			name: "202 with an endless body", receiver: answering(endless(http.StatusAccepted)),
			ours: fate{delivered: 1, connections: 1},
			flux: fate{delivered: 1, connections: 1},
		},
		{
			name:     "reset after the header",
			receiver: answering(resetting("HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\n")),
			ours:     fate{delivered: 1, connections: 1},
			flux:     fate{delivered: 1, connections: 1},
		},
	}, each([]int{307, 308}, func(code int) fault {
		return fault{
			name: fmt.Sprintf("%d to another host", code), row: "307, 308 to another host", receiver: redirectingAway(code),
			ours: fate{logged: 1, connections: 1},
			flux: fate{delivered: 1, connections: 1, hostSees: "path, query"},
		}
	}), []fault{
		{
			name: "302 to another host", receiver: redirectingAway(http.StatusFound), // with a GET, without the event
			ours: fate{logged: 1, connections: 1},
			flux: fate{silent: 1, connections: 1, hostSees: "path, query"},
		},
	}, each([]int{301, 302, 303}, func(code int) fault {
		return fault{
			name: strconv.Itoa(code), row: final, receiver: answering(redirecting(code)),
			ours: fate{logged: 1, connections: 1},
			flux: fate{silent: 1, connections: 1},
		}
	}), each([]int{400, 401, 403, 404, 413}, func(code int) fault {
		return fault{
			name: strconv.Itoa(code), row: final, receiver: answering(status(code)),
			ours: fate{logged: 1, connections: 1},
			flux: fate{silent: 1, connections: 1},
		}
	}), []fault{
		{
			name: "101", row: final, receiver: answering(switching),
			ours: fate{logged: 1, connections: 1},
			flux: fate{silent: 1, connections: 1},
		},
		{
			name: "bad certificate", row: "certificate that is not trusted", receiver: badCertificate,
			ours: fate{logged: 1, connections: 1},
			flux: fate{logged: 1, connections: 1, logShows: secrets},
		},
		{
			name: "refused", row: failing, receiver: closedPort,
			ours: fate{logged: 1},
			flux: fate{logged: 1, held: waits, logShows: secrets},
		},
		{
			name: "reset before the header", row: failing, receiver: answering(resetting("")),
			ours: fate{logged: 1, connections: attempts},
			flux: fate{logged: 1, held: waits, connections: attempts, logShows: secrets},
		},
		{
			name: "500", row: failing, receiver: answering(status(http.StatusInternalServerError)),
			ours: fate{logged: 1, connections: 1},
			flux: fate{logged: 1, held: waits, connections: 1, logShows: secrets},
		},
		{
			name: "500 with an endless body", row: failing, receiver: answering(endless(http.StatusInternalServerError)),
			ours: fate{logged: 1, connections: attempts},
			flux: fate{logged: 1, held: waits, connections: attempts, logShows: secrets},
		},
		{
			name: "500 that repeats the secrets", row: failing, receiver: answering(repeating),
			ours: fate{logged: 1, connections: 1},
			flux: fate{logged: 1, held: waits, connections: 1, logShows: secrets},
		},
		{
			name: "hung", row: dripping, receiver: answering(hanging),
			ours: fate{logged: 1, connections: attempts},
			flux: fate{logged: 1, held: timeouts + waits, connections: attempts, logShows: secrets},
		},
		{
			// Ours is told to stop. Flux's recorder has nothing that could be cancelled.
			name: "hung and cancelled", row: dripping, receiver: answering(hanging),
			config: func(c *recorder.Config) { c.DrainTimeout = time.Second },
			ours:   fate{logged: 1, connections: 1},
			flux:   fate{logged: 1, held: timeouts + waits, connections: attempts, logShows: secrets},
		},
		{
			name: "slow header", row: dripping, receiver: answering(slowHeader),
			ours: fate{logged: 1, connections: attempts},
			flux: fate{logged: 1, held: timeouts + waits, connections: attempts, logShows: secrets},
		},
		{
			name: "500 with a slow body", row: dripping, receiver: answering(slowBody(http.StatusInternalServerError)),
			ours: fate{logged: 1, connections: attempts},
			flux: fate{logged: 1, held: timeouts + waits, connections: attempts, logShows: secrets},
		},
		{
			name: "503 with Retry-After", row: "503 with `Retry-After: 20`", receiver: answering(comeBackLater),
			ours: fate{logged: 1, connections: 1},
			flux: fate{logged: 1, held: time.Duration(retries) * 20 * time.Second, connections: 1, logShows: secrets},
		},
		{
			name: "429 with a body", row: "429 with a body", receiver: answering(knowing), events: 20,
			ours: fate{delivered: 20, connections: 1},
			flux: fate{delivered: 20, connections: 20},
		},
		{
			name: "stale keep-alive", row: "kept connection that closes as the next event comes", receiver: staleKeepAlive, events: 4,
			ours: fate{delivered: 4, connections: 4},
			flux: fate{delivered: 4, connections: 4, held: time.Second},
		},
		{
			name: "percent sign", row: "`disk 100% full`, without arguments", receiver: answering(taking), note: "disk 100% full",
			ours: fate{delivered: 1, connections: 1},
			flux: fate{mangled: "disk 100%!f(MISSING)ull", connections: 1},
		},
		{
			name: "discarding logger", row: "logger that discards", receiver: answering(taking), discarding: true,
			ours: fate{delivered: 1, connections: 1},
			flux: fate{panicked: 1, silent: 1},
		},
		{
			name: "cluster-scoped object", row: "object without a namespace", receiver: answering(taking),
			object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
			ours:   fate{delivered: 1, connections: 1},
			flux:   fate{logged: 1},
		},
		{
			name: "ten thousand events at a dead receiver", row: "10,000 events of an object, connection refused",
			receiver: closedPort, events: 10_000, callers: 500,
			// The first event is under way for as long as the others are recorded, of which three quarters
			// of a queue of 1,024 wait.
			config: func(c *recorder.Config) { c.Backoff, c.DrainTimeout = never, time.Second },
			ours:   fate{logged: 1 + 768, counted: 10_000 - 1 - 768},
			flux:   fate{logged: 10_000, held: waits, logShows: secrets},
		},
	})
}

func TestFaults(t *testing.T) {
	before := goleak.IgnoreCurrent()
	all := faults(*faultRetries)
	table := make([]string, 2*len(all))
	// Not by t.Parallel, which runs no more tests at once than there are cores: these only wait.
	var running sync.WaitGroup
	for i, f := range all {
		for j, who := range []struct {
			name  string
			build builder
			want  fate
		}{{"ours", ours, f.ours}, {"Flux", flux, f.flux}} {
			running.Go(func() {
				t.Run(f.name+"/"+who.name, func(t *testing.T) {
					got, longest := f.play(t, who.build)
					if who.name == "Flux" {
						// On a busy machine also what does not wait takes its time.
						got.held = min(got.held, who.want.held)
					}
					if got != who.want {
						t.Errorf("fate = %+v, want %+v", got, who.want)
					}
					table[2*i+j] = fmt.Sprintf("| %s | %s | %d | %s | %d | %d | %d | %d | %v | %v | %d | %s | %s |\n",
						f.name, who.name, got.delivered, got.mangled, got.panicked, got.logged, got.counted, got.silent,
						got.held, longest, got.connections, got.logShows, got.hostSees)
				})
			})
		}
	}
	running.Wait()
	eventually(t, "Flux's recorder to let go of answers, which it leaves to its timeout",
		func() bool { return goleak.Find(before) == nil })
	t.Logf("measured with retries = %d:\n\n%s%s%s", *faultRetries,
		"| fault | recorder | delivered | mangled | panics | lost: logged | counted | silent | held | longest | connections | log shows | other host sees |\n",
		"|"+strings.Repeat(" --- |", 13)+"\n", strings.Join(table, ""))
	t.Logf("for README.md:\n\n%s", readmeTable(t, faults(defaultRetries)))
}

func TestReadmeShowsTheFaults(t *testing.T) {
	const begin, end = "<!-- faults:begin -->\n", "<!-- faults:end -->\n"
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), begin)
	got, _, ok := strings.Cut(rest, end)
	if want := readmeTable(t, faults(defaultRetries)); !ok || got != want {
		t.Errorf("README.md between its lines %s and %s =\n%s\nwant\n%s", begin, end, got, want)
	}
}

// readmeTable is a Markdown table of all faults that have a row there.
func readmeTable(t *testing.T, all []fault) string {
	t.Helper()
	table := "| fault | this recorder | Flux's recorder |\n| --- | --- | --- |\n"
	cells := make(map[string]string)
	for _, f := range all {
		got := f.ours.text(f.events) + " | " + f.flux.text(f.events)
		want, known := cells[f.row]
		switch {
		case f.row == "":
		case !known:
			cells[f.row] = got
			table += "| " + f.row + " | " + got + " |\n"
		case got != want:
			t.Errorf("cells of %q = %q, want those of its row, %q", f.name, got, want)
		}
	}
	return table
}

// text is a cell of the README's table.
func (f fate) text(events int) string {
	many := events > 1
	var parts []string
	say := func(n int, what string) {
		switch {
		case n >= 1000:
			what = fmt.Sprintf("%d,%03d %s", n/1000, n%1000, what)
		case many:
			what = fmt.Sprintf("%d %s", n, what)
		}
		if n > 0 {
			parts = append(parts, what)
		}
	}
	say(f.delivered, "delivered")
	if f.mangled != "" {
		parts = append(parts, fmt.Sprintf("arrives as `%s`", f.mangled))
	}
	say(f.panicked, "panic")
	say(f.logged, "lost, logged")
	say(f.counted, "lost, counted")
	say(f.silent, "lost without a trace")
	switch { // of a single event there are as many as attempts, or one
	case many && f.connections == 1:
		say(1, "connection")
	case many:
		say(f.connections, "connections")
	}
	switch {
	case f.held > 0 && many:
		parts = append(parts, fmt.Sprintf("caller held %gs an event", f.held.Seconds()))
	case f.held > 0:
		parts = append(parts, fmt.Sprintf("caller held %gs", f.held.Seconds()))
	}
	if f.logShows != "" {
		parts = append(parts, "log shows "+f.logShows)
	}
	if f.hostSees != "" {
		parts = append(parts, "the other host sees "+f.hostSees)
	}
	return strings.Join(parts, "; ")
}

// play has a recorder meet a fault. It returns the longest call beside the fate.
func (f fault) play(t *testing.T, build builder) (fate, time.Duration) {
	s := f.receiver(t)
	var log bytes.Buffer
	side := build(t, f, s.webhook(), &log)
	events, note := max(f.events, 1), cmp.Or(f.note, "in sync")
	object := f.object
	if object == nil {
		object = configMap("web", nil)
	}

	var got fate
	var mu sync.Mutex
	var calls []time.Duration
	record := func() {
		begun := time.Now()
		defer func() {
			took, panicked := time.Since(begun), recover() != nil
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, took)
			if panicked {
				got.panicked++
			}
		}()
		side.events.AnnotatedEventf(object, nil, nil, corev1.EventTypeNormal, "Synced", "Syncing", note)
	}
	record()
	side.underWay()
	others := make(chan struct{}, events)
	for range events - 1 {
		others <- struct{}{}
	}
	close(others)
	var callers sync.WaitGroup
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for range max(f.callers, 1) {
		<-tick.C // Many that begin at the same moment would hold up what is played beside this.
		callers.Go(func() {
			for range others {
				record()
			}
		})
	}
	callers.Wait()
	stats := side.finish()

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.taken {
		if text == note {
			got.delivered++
		} else {
			got.mangled = text
		}
	}
	got.logged = strings.Count(log.String(), "level=ERROR")
	if stats != nil {
		got.counted = int(stats.Rejected+stats.Failed+stats.Dropped) - got.logged
		if sum := got.delivered + got.logged + got.counted; sum != events || stats.Delivered+stats.Duplicates != uint64(got.delivered) {
			t.Errorf("Stats() = %+v, want %d events, %d of them delivered", *stats, events, got.delivered)
		}
	}
	got.silent = events - len(s.taken) - got.logged - got.counted
	slices.Sort(calls)
	got.held = calls[len(calls)/2].Truncate(time.Second)
	got.connections = int(s.opened())
	got.logShows, got.hostSees = secretsIn(log.String()), secretsIn(s.elsewhere)
	return got, calls[len(calls)-1]
}

// A builder makes one of the two recorders, as a controller does.
type builder func(t *testing.T, f fault, webhook string, log io.Writer) side

type side struct {
	events   fluxevents.Recorder
	underWay func()                 // returns once what was recorded waits in no queue
	finish   func() *recorder.Stats // returns once all events have come to their end; nil where nothing counts
}

func ours(t *testing.T, f fault, webhook string, log io.Writer) side {
	config := recorder.Config{Webhook: webhook, MaxAttempts: *faultRetries + 1, DrainTimeout: time.Hour}
	if !f.discarding {
		config.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	if f.config != nil {
		f.config(&config)
	}
	rec := newRecorder(t, config)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- rec.Start(ctx) }()
	return side{
		events:   adapt(rec),
		underWay: func() { eventually(t, "an empty queue", func() bool { return rec.Stats().Queued == 0 }) },
		finish: func() *recorder.Stats {
			stop()
			<-ended // nil, or how many events were lost to the end: all of them are looked into
			stats := rec.Stats()
			return &stats
		},
	}
}

func flux(t *testing.T, f fault, webhook string, log io.Writer) side {
	logger := logr.Discard()
	if !f.discarding {
		logger = logr.FromSlogHandler(slog.NewTextHandler(log, nil))
	}
	events, err := fluxevents.NewRecorder(logger, webhook, "app-controller",
		fluxevents.WithScheme(scheme.Scheme), fluxevents.WithRetryMax(*faultRetries))
	if err != nil {
		t.Fatal(err)
	}
	return side{
		events:   events,
		underWay: func() {},
		finish:   func() *recorder.Stats { return nil },
	}
}

// A stage is a receiver with a fault, and what it has seen.
type stage struct {
	address string
	opened  func() int64
	over    <-chan struct{} // closed when the test is

	mu        sync.Mutex
	taken     []string // the texts of the events that it has
	elsewhere string   // the header of what another host was sent
}

// webhook is the receiver's URL, with a secret in each part that may hold one.
func (s *stage) webhook() string {
	return strings.Replace(s.address, "://", "://user-7f3a:password-91c4@", 1) + "/path-5be2/events?token=query-d8e6"
}

// secretsIn names the secrets that a text shows, be they the webhook's or a redirect's.
func secretsIn(text string) string {
	var kinds []string
	for _, secret := range []string{"user-7f3a", "password-91c4", "path-5be2", "query-d8e6", "target-a3b9"} {
		if strings.Contains(text, secret) {
			kind, _, _ := strings.Cut(secret, "-")
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(kinds, ", ")
}

// serve runs the stage's server.
func (s *stage) serve(t *testing.T, serve func(testing.TB, http.Handler) *server, answer answerer) *stage {
	s.over = t.Context().Done()
	running := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(s, w, r) }))
	t.Cleanup(running.CloseClientConnections) // or Close would wait for those that Flux's recorder leaves open
	s.address, s.opened = running.URL, running.opened.Load
	return s
}

// take keeps the event of a request. It reports false if there is none.
func (s *stage) take(r *http.Request) bool {
	var event eventv1.Event
	if json.NewDecoder(r.Body).Decode(&event) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, event.Message)
	return true
}

// answering is a receiver that answers all requests alike.
func answering(answer answerer) func(*testing.T) *stage {
	return func(t *testing.T) *stage { return new(stage).serve(t, serve, answer) }
}

// closedPort is the port of a connection: nobody listens there, nor can as long as there is one.
func closedPort(t *testing.T) *stage {
	conn, err := net.Dial("tcp", serve(t, http.NotFoundHandler()).Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &stage{address: "http://" + conn.LocalAddr().String(), opened: func() int64 { return 0 }}
}

func badCertificate(t *testing.T) *stage { return new(stage).serve(t, serveTLS, taking) }

// staleKeepAlive is a receiver that closes a connection without an answer when it is used again.
func staleKeepAlive(t *testing.T) *stage {
	var used sync.Map
	return new(stage).serve(t, serve, func(s *stage, w http.ResponseWriter, r *http.Request) {
		if _, again := used.LoadOrStore(r.RemoteAddr, true); again {
			panic(http.ErrAbortHandler)
		}
		taking(s, w, r)
	})
}

// redirectingAway is a receiver that redirects to another one, which takes events.
func redirectingAway(code int) func(*testing.T) *stage {
	return func(t *testing.T) *stage {
		s := new(stage)
		other := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			s.elsewhere += fmt.Sprint(r.Header)
			s.mu.Unlock()
			taking(s, w, r)
		}))
		return s.serve(t, serve, func(_ *stage, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/events?token=target-a3b9", code)
		})
	}
}

// An answerer deals with one request.
type answerer func(s *stage, w http.ResponseWriter, r *http.Request)

func taking(s *stage, w http.ResponseWriter, r *http.Request) {
	if !s.take(r) {
		http.Error(w, "not an event", http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// knowing has every event already.
func knowing(s *stage, w http.ResponseWriter, r *http.Request) {
	s.take(r)
	w.Header().Set("Retry-After", "300")
	http.Error(w, "Too Many Requests", http.StatusTooManyRequests)
}

func status(code int) answerer {
	return func(_ *stage, w http.ResponseWriter, _ *http.Request) { http.Error(w, http.StatusText(code), code) }
}

func comeBackLater(_ *stage, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "20")
	http.Error(w, "later", http.StatusServiceUnavailable)
}

func repeating(_ *stage, w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	http.Error(w, fmt.Sprintf("cannot %s %s as %s with %s", r.Method, r.RequestURI, user, password), http.StatusInternalServerError)
}

func redirecting(code int) answerer {
	return func(s *stage, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			taking(s, w, r)
			return
		}
		http.Redirect(w, r, "/elsewhere?token=target-a3b9", code)
	}
}

func hanging(s *stage, _ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // only then is it noticed that the client has gone
	select {
	case <-r.Context().Done():
	case <-s.over:
	}
}

func slowHeader(s *stage, w http.ResponseWriter, r *http.Request) {
	if conn := hijack(w, r); conn != nil {
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 202 Accepted\r\n")
		s.drip(func() error { _, err := io.WriteString(conn, "X-A: b\r\n"); return err })
	}
}

func slowBody(code int) answerer {
	return func(s *stage, w http.ResponseWriter, r *http.Request) {
		s.takeIfOK(code, r)
		w.WriteHeader(code)
		s.drip(func() error { _, _ = io.WriteString(w, "x"); return http.NewResponseController(w).Flush() })
	}
}

// drip sends a little again and again.
func (s *stage) drip(send func() error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for send() == nil {
		select {
		case <-tick.C:
		case <-s.over:
			return
		}
	}
}

func endless(code int) answerer {
	return func(s *stage, w http.ResponseWriter, r *http.Request) {
		s.takeIfOK(code, r)
		w.WriteHeader(code)
		for {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}
}

func (s *stage) takeIfOK(code int, r *http.Request) {
	if code < 300 {
		s.take(r)
	}
}

// resetting sends what may be an answer's header, and resets the connection.
func resetting(header string) answerer {
	return func(s *stage, w http.ResponseWriter, r *http.Request) {
		if header != "" {
			s.take(r)
		}
		if conn := hijack(w, r); conn != nil {
			_, _ = io.WriteString(conn, header)
			_ = conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
	}
}

// switching goes over to another protocol, and waits.
func switching(s *stage, w http.ResponseWriter, r *http.Request) {
	if conn := hijack(w, r); conn != nil {
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		<-s.over
	}
}

// hijack takes the connection of a request that has been read, or returns nil.
func hijack(w http.ResponseWriter, r *http.Request) net.Conn {
	_, _ = io.Copy(io.Discard, r.Body)
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil
	}
	return conn
}
