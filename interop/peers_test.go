package interop

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"example.com/recorder"
)

var lossEvent = recorder.Event{
	InvolvedObject: recorder.ObjectReference{Kind: "App", Namespace: "prod", Name: "web"},
	Reason:         "EventLost",
}

// An echo is a log handler that records an event for each event that is lost, also for those that it
// has recorded itself.
type echo struct {
	rec   *recorder.Recorder
	told  atomic.Int64
	depth atomic.Int64
	worst atomic.Int64
}

func (e *echo) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }
func (e *echo) WithAttrs([]slog.Attr) slog.Handler               { return e }
func (e *echo) WithGroup(string) slog.Handler                    { return e }

func (e *echo) Handle(context.Context, slog.Record) error {
	e.told.Add(1)
	e.worst.Store(max(e.worst.Load(), e.depth.Add(1)))
	defer e.depth.Add(-1)
	return e.rec.Record(lossEvent)
}

// A line for each power of two ends it: of three refusals in a row at least one has none.
func TestALoggerThatRecordsRefusalsComesToAnEnd(t *testing.T) {
	e := new(echo)
	e.rec = newRecorder(t, recorder.Config{Webhook: "http://receiver.test", QueueSize: 4, Logger: slog.New(e)})
	for range 3 { // for which there is room
		if err := e.rec.Record(lossEvent); err != nil {
			t.Errorf("Record() = %v, want nil", err)
		}
	}
	// The 1st and the 2nd refusal are logged, so that three come of one call, and then two of the
	// one that makes the 4th, and so on.
	for _, dropped := range []uint64{3, 5, 6, 7, 9, 10} {
		if err := e.rec.Record(lossEvent); err != recorder.ErrQueueFull {
			t.Errorf("Record() = %v, want %v", err, recorder.ErrQueueFull)
		}
		checkStats(t, e.rec, recorder.Stats{Dropped: dropped, Queued: 3})
	}
	if got := e.worst.Load(); got != 2 {
		t.Errorf("depth of the logger's calls = %d, want 2", got)
	}
}

// Each loss makes an event that is lost in its turn. That goes by way of the queue, so the stack does
// not grow, and it ends when the recorder stops.
func TestALoggerThatRecordsLossesDoesNotHoldUpTheStop(t *testing.T) {
	const losses = 50
	var requests atomic.Int64
	enough := make(chan bool, 1)
	receiver := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == losses {
			enough <- true
		}
		w.WriteHeader(http.StatusBadRequest)
	}))
	e := new(echo)
	e.rec = newRecorder(t, recorder.Config{Webhook: receiver.URL, DrainTimeout: patience, Logger: slog.New(e)})
	err := e.rec.Run(t.Context(), func(context.Context) error {
		_ = e.rec.Record(lossEvent)
		receive(t, enough, 1)
		return nil
	})
	if err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	// The last one's event is refused, as are those that come of its first two refusals.
	checkStats(t, e.rec, recorder.Stats{Rejected: uint64(requests.Load()), Dropped: 3})
	if got := e.worst.Load(); got > 3 {
		t.Errorf("depth of the logger's calls = %d, want at most 3", got)
	}
}

// raw serves connections that are each closed after one request and one answer.
func raw(t *testing.T, answer string) (webhook string, connections *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	connections = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = io.Copy(io.Discard, req.Body)
				_, _ = io.WriteString(conn, answer)
			}
			conn.Close()
		}
	}()
	return "http://" + listener.Addr().String(), connections
}

func TestAReceiverThatSpeaksHTTP10(t *testing.T) {
	for name, test := range map[string]struct {
		answer string
		want   recorder.Stats
	}{
		"taken, no length":         {"HTTP/1.0 202 Accepted\r\n\r\n", recorder.Stats{Delivered: 3}},
		"taken, length of nothing": {"HTTP/1.0 202 Accepted\r\nContent-Length: 0\r\n\r\n", recorder.Stats{Delivered: 3}},
		"known, body to the end":   {"HTTP/1.0 429 Too Many Requests\r\nRetry-After: 300\r\n\r\nToo Many Requests\n", recorder.Stats{Duplicates: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			webhook, connections := raw(t, test.answer)
			rec := newRecorder(t, recorder.Config{Webhook: webhook, Timeout: patience, Backoff: never})
			for range 3 {
				if err := rec.Post(t.Context(), lossEvent); err != nil {
					t.Errorf("Post() = %v, want nil", err)
				}
			}
			checkStats(t, rec, test.want)
			if got := connections.Load(); got != 3 {
				t.Errorf("connections = %d, want one for each event, 3", got)
			}
		})
	}
}

// The zone says which interface leads to the address. It is this host's own business: it is dialed,
// and not sent (RFC 6874 section 4).
func TestAWebhookWithAnIPv6Zone(t *testing.T) {
	hosts := make(chan string, 1)
	receiver := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host }))
	var dialed string
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed = address
		return new(net.Dialer).DialContext(ctx, network, receiver.Listener.Addr().String())
	}}
	defer transport.CloseIdleConnections()
	rec := newRecorder(t, recorder.Config{Webhook: "http://[fe80::1%25eth0]:9292/hook", Transport: transport})
	if err := rec.Post(t.Context(), lossEvent); err != nil {
		t.Fatalf("Post() = %v, want nil", err)
	}
	if want := "[fe80::1%eth0]:9292"; dialed != want {
		t.Errorf("address that was dialed = %s, want %s", dialed, want)
	}
	if got, want := <-hosts, "[fe80::1]:9292"; got != want {
		t.Errorf("Host that was sent = %s, want %s", got, want)
	}
	receiver.Close()
	transport.CloseIdleConnections()
	rec = newRecorder(t, recorder.Config{Webhook: "http://[fe80::1%25eth0]:9292/hook", Transport: transport, MaxAttempts: 1})
	err := rec.Post(t.Context(), lossEvent)
	if want := "recorder: http://[fe80::1%eth0]:9292: gave up after 1 attempt: "; err == nil || !strings.HasPrefix(fmt.Sprint(err), want) {
		t.Errorf("Post() to a closed port = %v, want %s...", err, want)
	}
}
