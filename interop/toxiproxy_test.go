package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"example.com/recorder"
)

// A proxy stands between a recorder and its receiver and has the faults that it is given.
type proxy struct {
	t testing.TB
	*toxiproxy.Proxy
}

// newProxy runs a proxy to a server until the test ends.
func newProxy(t testing.TB, upstream *server) *proxy {
	host := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxy{t, toxiproxy.NewProxy(host, t.Name(), "127.0.0.1:0", upstream.Listener.Addr().String())}
	p.up()
	t.Cleanup(func() {
		p.mend() // or a connection that is to close slowly would outlive the test
		p.Stop()
	})
	return p
}

// up takes connections; when down, the proxy closes all and refuses new ones.
func (p *proxy) up() {
	p.t.Helper()
	if err := p.Start(); err != nil {
		p.t.Errorf("proxy does not start: %v", err)
	}
}

func (p *proxy) down() { p.Stop() }

// ail gives the proxy a fault, for the connections that it has and those to come.
func (p *proxy) ail(toxic, stream, format string, args ...any) {
	p.t.Helper()
	spec := fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": {%s}}`, toxic, stream, fmt.Sprintf(format, args...))
	if _, err := p.Toxics.AddToxicJson(strings.NewReader(spec)); err != nil {
		p.t.Fatalf("proxy does not take %s: %v", spec, err)
	}
}

// mend takes all faults away.
func (p *proxy) mend() { p.Toxics.ResetToxics(context.Background()) }

// through returns a recorder that posts through the proxy, and its journal.
func (p *proxy) through(config recorder.Config) (*recorder.Recorder, *journal) {
	p.t.Helper()
	log := new(journal)
	config.Webhook, config.Logger = "http://"+p.Listen, slog.New(log)
	return newRecorder(p.t, config), log
}

// recordSome queues n events of different objects, each with a reason of its own.
func recordSome(rec *recorder.Recorder, n int) {
	events := adapt(rec)
	for i := range n {
		events.Eventf(configMap(fmt.Sprintf("web-%d", i), nil), nil,
			corev1.EventTypeNormal, fmt.Sprintf("Reason%d", i), "Syncing", "in sync")
	}
}

// Each fault is there for the first attempt and is taken away once that has failed.
func TestOneEventThroughAFault(t *testing.T) {
	const timeout = time.Second
	lost := recorder.Stats{Delivered: 1, Retries: 1}   // the request: the second one is the first to arrive
	heard := recorder.Stats{Duplicates: 1, Retries: 1} // the answer
	for name, test := range map[string]struct {
		toxic, stream, attributes string
		statuses                  []int
		want                      recorder.Stats
	}{
		"answer late":           {"latency", "downstream", `"latency": 600000`, []int{202, 429}, heard},
		"request never arrives": {"timeout", "upstream", `"timeout": 0`, []int{202}, lost},
		"answer never arrives":  {"timeout", "downstream", `"timeout": 0`, []int{202, 429}, heard},
		"closed before request": {"timeout", "upstream", `"timeout": 100`, []int{202}, lost},
		"closed before answer":  {"timeout", "downstream", `"timeout": 100`, []int{202, 429}, heard},
		"reset before request":  {"reset_peer", "upstream", `"timeout": 0`, []int{202}, lost},
		"reset before answer":   {"reset_peer", "downstream", `"timeout": 0`, []int{202, 429}, heard},

		"request cut at once":         {"limit_data", "upstream", `"bytes": 0`, []int{202}, lost},
		"request cut in first line":   {"limit_data", "upstream", `"bytes": 3`, []int{202}, lost},
		"request cut in header":       {"limit_data", "upstream", `"bytes": 60`, []int{202}, lost},
		"request cut in body":         {"limit_data", "upstream", `"bytes": 300`, []int{400, 202}, lost},
		"answer cut at once":          {"limit_data", "downstream", `"bytes": 0`, []int{202, 429}, heard},
		"answer cut in first byte":    {"limit_data", "downstream", `"bytes": 1`, []int{202, 429}, heard},
		"answer cut in status":        {"limit_data", "downstream", `"bytes": 11`, []int{202, 429}, heard},
		"answer cut after first line": {"limit_data", "downstream", `"bytes": 23`, []int{202, 429}, heard},
		"answer cut in header":        {"limit_data", "downstream", `"bytes": 60`, []int{202, 429}, heard},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotifier(t)
			p := newProxy(t, serve(t, n))
			p.ail(test.toxic, test.stream, "%s", test.attributes)
			rec, log := p.through(recorder.Config{Timeout: timeout, Backoff: promptly})
			log.onRetry = func(int) { p.mend() }
			recordSome(rec, 1)
			drain(t, rec)
			checkStats(t, rec, test.want)
			n.checkStatuses(t, test.statuses...)
			checkSaid(t, n, log, 1)
			if got := log.losses(); len(got) != 0 {
				t.Errorf("losses logged = %v, want none", got)
			}
		})
	}
}

// checkSaid wants each of n events to have been taken, once, or to be in the journal.
func checkSaid(t *testing.T, n *notifier, log *journal, events int) {
	t.Helper()
	taken, said := make(map[string]int), make(map[string]bool)
	for _, event := range n.events() {
		taken[event.Reason]++
	}
	for _, loss := range log.losses() {
		if said[loss.reason] {
			t.Errorf("loss of %s is logged twice", loss.reason)
		}
		said[loss.reason] = true
	}
	for i := range events {
		reason := fmt.Sprintf("Reason%d", i)
		if taken[reason] > 1 {
			t.Errorf("event %s was taken %d times, want at most 1", reason, taken[reason])
		}
		if taken[reason] == 0 && !said[reason] {
			t.Errorf("event %s was lost without a line in the log", reason)
		}
	}
}

func TestFaultOfAKeptConnectionCostsNoAttempt(t *testing.T) {
	n := newNotifier(t)
	receiver := serve(t, n)
	p := newProxy(t, receiver)
	rec, _ := p.through(recorder.Config{Workers: 1, Backoff: never})
	stop := start(t, rec)
	recordSome(rec, 1)
	eventually(t, "the first event", func() bool { return rec.Stats().Delivered == 1 })
	p.down()
	p.up()
	recordSome(rec, 3) // of which the first is a duplicate
	stop()
	checkStats(t, rec, recorder.Stats{Delivered: 3, Duplicates: 1})
	n.checkStatuses(t, 202, 429, 202, 202)
	if got := receiver.opened.Load(); got != 2 {
		t.Errorf("connections = %d, want 2", got)
	}
}

func TestLatencyWithinTheTimeoutCostsNoAttempt(t *testing.T) {
	const events = 40
	n := newNotifier(t)
	p := newProxy(t, serve(t, n))
	p.ail("latency", "downstream", `"latency": 50, "jitter": 25`)
	rec, log := p.through(recorder.Config{Timeout: patience, Backoff: never})
	recordSome(rec, events)
	drain(t, rec)
	checkStats(t, rec, recorder.Stats{Delivered: events})
	if got := len(n.statuses()); got != events {
		t.Errorf("requests = %d, want %d", got, events)
	}
	checkSaid(t, n, log, events)
}

// An answer without a length ends where its connection does, which takes an hour here.
func TestSlowCloseHoldsNobodyUp(t *testing.T) {
	const events = 8
	n := newNotifier(t)
	endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.Header().Set("Transfer-Encoding", "identity")
		n.ServeHTTP(w, r)
		_, _ = io.WriteString(w, "taken")
	})
	receiver := serve(t, endless)
	p := newProxy(t, receiver)
	p.ail("slow_close", "downstream", `"delay": 3600000`)
	rec, log := p.through(recorder.Config{Timeout: time.Hour, Backoff: never})
	recordSome(rec, events)
	drain(t, rec)
	checkStats(t, rec, recorder.Stats{Delivered: events})
	if got := receiver.opened.Load(); got != events {
		t.Errorf("connections = %d, want %d", got, events)
	}
	checkSaid(t, n, log, events)
}

func TestReceiverThatComesBackGetsAll(t *testing.T) {
	const events = 10
	n := newNotifier(t)
	p := newProxy(t, serve(t, n))
	p.down()
	rec, log := p.through(recorder.Config{Workers: 1, Backoff: promptly})
	log.onRetry = func(retries int) {
		if retries == 3 {
			p.up()
		}
	}
	recordSome(rec, events)
	drain(t, rec)
	checkStats(t, rec, recorder.Stats{Delivered: events, Retries: 3})
	if got := len(n.statuses()); got != events {
		t.Errorf("requests = %d, want %d", got, events)
	}
	checkSaid(t, n, log, events)
}

func TestReceiverThatIsGoneLosesNothingUnsaid(t *testing.T) {
	const events = 10
	n := newNotifier(t)
	p := newProxy(t, serve(t, n))
	p.down()
	rec, log := p.through(recorder.Config{MaxAttempts: 3, Backoff: promptly})
	recordSome(rec, events)
	drain(t, rec)
	checkStats(t, rec, recorder.Stats{Failed: events, Retries: 2 * events})
	n.checkStatuses(t)
	checkSaid(t, n, log, events)
	for _, loss := range log.losses() {
		if _, ok := errors.AsType[*net.OpError](loss.err); !ok {
			t.Errorf("loss = %v, want one that wraps %T", loss.err, new(net.OpError))
		}
	}
}

// A third of the connections lose the request, another third of the others the answer.
func TestStormLosesNothingUnsaid(t *testing.T) {
	const events = 300
	n := newNotifier(t)
	p := newProxy(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		n.ServeHTTP(w, r)
	})))
	for _, spec := range []string{
		`{"type": "limit_data", "stream": "upstream", "toxicity": 0.33, "attributes": {"bytes": 200}}`,
		`{"type": "reset_peer", "stream": "downstream", "toxicity": 0.33, "attributes": {"timeout": 0}}`,
	} {
		if _, err := p.Toxics.AddToxicJson(strings.NewReader(spec)); err != nil {
			t.Fatal(err)
		}
	}
	rec, log := p.through(recorder.Config{MaxAttempts: 3, Backoff: promptly})
	recordSome(rec, events)
	drain(t, rec)

	got := rec.Stats()
	if sum := got.Delivered + got.Duplicates + got.Failed; sum != events {
		t.Errorf("Stats() = %+v, which adds up to %d, want %d", got, sum, events)
	}
	if got.Delivered == 0 || got.Duplicates == 0 || got.Failed == 0 {
		t.Errorf("Stats() = %+v, want some of each outcome", got)
	}
	if said := len(log.losses()); said != int(got.Failed) {
		t.Errorf("losses logged = %d, want %d", said, got.Failed)
	}
	if taken := len(n.events()); taken < int(got.Delivered+got.Duplicates) {
		t.Errorf("events taken = %d, want at least the %d that are counted so", taken, got.Delivered+got.Duplicates)
	}
	checkSaid(t, n, log, events)
}

// A blackhole is a toxic that drops, without a word to either end, what is sent on the connections
// that it has swallowed, and lets through what is sent on later ones.
type blackhole struct{}

// What all blackholes share: a proxy makes its toxics itself, from their type alone.
var opened, swallowed atomic.Int64

// NewState numbers the connections.
func (*blackhole) NewState() any { return opened.Add(1) }

func (*blackhole) Pipe(stub *toxics.ToxicStub) {
	for {
		select {
		case <-stub.Interrupt:
			return
		case chunk := <-stub.Input:
			if chunk == nil {
				stub.Close()
				return
			}
			if stub.State.(int64) > swallowed.Load() {
				stub.Output <- chunk
			}
		}
	}
}

func TestSilentlyDeadConnectionIsReplaced(t *testing.T) {
	toxics.Register("blackhole", new(blackhole))
	for name, test := range map[string]struct {
		serve   func(testing.TB, http.Handler) *server
		timeout time.Duration
		pause   time.Duration
	}{
		"HTTP/1.1": {serve, time.Second, time.Millisecond},
		// A timeout leaves the connection to the other requests on it. That it is dead is known when
		// a ping has gone unanswered for a second, which is sent after a second of silence.
		"HTTP/2": {serveTLS, 2 * time.Second, 700 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNotifier(t)
			receiver := test.serve(t, n)
			p := newProxy(t, receiver)
			p.ail("blackhole", "upstream", "")
			log := new(journal)
			config := recorder.Config{
				Webhook: "http://" + p.Listen, Timeout: test.timeout,
				Backoff: recorder.Backoff{Min: test.pause, Max: test.pause}, Logger: slog.New(log),
			}
			if receiver.TLS != nil {
				config.Webhook, config.TLS = "https://"+p.Listen, trust(receiver)
			}
			rec := newRecorder(t, config)
			stop := start(t, rec)
			recordSome(rec, 1)
			eventually(t, "the first event", func() bool { return rec.Stats().Delivered == 1 })
			swallowed.Store(opened.Load())
			adapt(rec).Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Reason1", "Syncing", "in sync")
			stop()

			n.checkStatuses(t, 202, 202)
			checkStats(t, rec, recorder.Stats{Delivered: 2, Retries: 1})
			if got := receiver.opened.Load(); got != 2 {
				t.Errorf("connections = %d, want 2", got)
			}
			checkSaid(t, n, log, 2)
		})
	}
}
