package interop

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"example.com/recorder"
)

// A responder is a journal that answers each line of the given levels with a call of its own.
type responder struct {
	journal
	respond func(level slog.Level)
}

func (r *responder) Handle(ctx context.Context, record slog.Record) error {
	err := r.journal.Handle(ctx, record)
	r.respond(record.Level)
	return err
}

// Refusals are logged at powers of two. With the event that answers each, a line is followed by one
// more refusal, and by another line for the first of all alone.
func TestLoggerMayRecordWhenTheQueueIsFull(t *testing.T) {
	var rec *recorder.Recorder
	log := new(responder)
	log.respond = func(slog.Level) {
		if err := rec.Record(about("refused")); !errors.Is(err, recorder.ErrQueueFull) {
			t.Errorf("Record(event) while a refusal is logged = %v, want %v", err, recorder.ErrQueueFull)
		}
		_ = rec.Stats() // nor is any lock held
	}
	rec = patiently(t, recorder.Config{Webhook: "http://receiver/", QueueSize: 4, Logger: slog.New(log)})
	for i := range 3 {
		if err := rec.Record(about(fmt.Sprint(i))); err != nil {
			t.Errorf("Record(event %d) = %v, want nil", i, err)
		}
	}
	for i, want := range []uint64{3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17} {
		if err := rec.Record(about(fmt.Sprint(i))); !errors.Is(err, recorder.ErrQueueFull) {
			t.Errorf("Record(event %d) = %v, want %v", i, err, recorder.ErrQueueFull)
		}
		checkStats(t, rec, recorder.Stats{Dropped: want, Queued: 3})
	}
	if got := len(log.at(slog.LevelWarn)); got != 5 { // at 1, 2, 4, 8, 16
		t.Errorf("refusals logged = %d, want 5", got)
	}
}

// An event about each loss is one more event, and no more than that, whether it is queued or posted.
func TestLoggerMayRecordWhatWasLost(t *testing.T) {
	const refused = 5
	for name, respond := range map[string]func(*recorder.Recorder) error{
		"Record": func(rec *recorder.Recorder) error { return rec.Record(about("lost")) },
		// The recorder waits for its Logger, and so the worker for this one.
		"Post": func(rec *recorder.Recorder) error {
			_ = rec.Post(context.Background(), about("lost")) // which is logged in its turn
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64
			receiver := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if requests.Add(1) <= refused {
					http.Error(w, "no", http.StatusForbidden)
				}
			}))
			var rec *recorder.Recorder
			log := new(responder)
			log.respond = func(slog.Level) {
				if err := respond(rec); err != nil {
					t.Errorf("%s(event) while a loss is logged = %v, want nil", name, err)
				}
			}
			rec = patiently(t, recorder.Config{
				Webhook: receiver.URL, Workers: 1, Backoff: never, Logger: slog.New(log),
			})
			stop := start(t, rec)
			if err := rec.Record(about("first")); err != nil {
				t.Errorf("Record(first) = %v, want nil", err)
			}
			eventually(t, "an event to be taken", func() bool { return rec.Stats().Delivered == 1 })
			stop()
			checkStats(t, rec, recorder.Stats{Rejected: refused, Delivered: 1})
			if got := len(log.losses()); got != refused {
				t.Errorf("losses logged = %d, want %d", got, refused)
			}
		})
	}
}

// With a receiver that takes nothing, each loss is answered by an event that is lost. That goes on
// until the stop, when the last is answered by three refusals, of which two are logged.
func TestLoggerThatRecordsIsStopped(t *testing.T) {
	requests := make(chan struct{}, 3)
	receiver := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case requests <- struct{}{}:
		default:
		}
		http.Error(w, "no", http.StatusForbidden)
	}))
	var rec *recorder.Recorder
	log := new(responder)
	log.respond = func(slog.Level) { _ = rec.Record(about("lost")) }
	rec = patiently(t, recorder.Config{Webhook: receiver.URL, Workers: 4, Backoff: never, Logger: slog.New(log)})
	stop := start(t, rec)
	if err := rec.Record(about("first")); err != nil {
		t.Errorf("Record(first) = %v, want nil", err)
	}
	receive(t, requests, 3)
	stop()
	lost := len(log.losses())
	checkStats(t, rec, recorder.Stats{Rejected: uint64(lost), Dropped: 3})
	if lost < 3 {
		t.Errorf("losses logged = %d, want 3 or more", lost)
	}
	if got := len(log.at(slog.LevelWarn)); got != 2 {
		t.Errorf("refusals logged = %d, want 2", got)
	}
}

// A receiver of HTTP/1.0 ends its answer by closing the connection, unless both sides agree to keep it.
func TestReceiverOfHTTP10(t *testing.T) {
	const events = 5
	for name, test := range map[string]struct {
		answer      string
		connections int64
		want        recorder.Stats
	}{
		"202":           {"HTTP/1.0 202 Accepted\r\n\r\n", events, recorder.Stats{Delivered: events}},
		"202 with body": {"HTTP/1.0 202 Accepted\r\n\r\naccepted\n", events, recorder.Stats{Delivered: events}},
		"202, empty": {
			"HTTP/1.0 202 Accepted\r\nContent-Length: 0\r\n\r\n", events, recorder.Stats{Delivered: events},
		},
		"429": {
			"HTTP/1.0 429 Too Many Requests\r\nRetry-After: 300\r\n\r\nlater\n", events,
			recorder.Stats{Duplicates: events},
		},
		"403": {"HTTP/1.0 403 Forbidden\r\n\r\nno\n", events, recorder.Stats{Rejected: events}},
		"202, kept": {
			"HTTP/1.0 202 Accepted\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", 1,
			recorder.Stats{Delivered: events},
		},
	} {
		t.Run(name, func(t *testing.T) {
			receiver := newOldReceiver(t, test.answer, test.connections == 1)
			rec := patiently(t, recorder.Config{Webhook: receiver.url, Workers: 1, Backoff: never})
			for i := range events {
				if err := rec.Record(about(fmt.Sprint(i))); err != nil {
					t.Errorf("Record(event %d) = %v, want nil", i, err)
				}
			}
			drain(t, rec)
			checkStats(t, rec, test.want)
			if got := receiver.requests.Load(); got != events {
				t.Errorf("requests = %d, want %d", got, events)
			}
			if got := receiver.connections.Load(); got != test.connections {
				t.Errorf("connections = %d, want %d", got, test.connections)
			}
		})
	}
}

// An oldReceiver gives the same answer to each request, word for word.
type oldReceiver struct {
	url                   string
	connections, requests atomic.Int64
}

func newOldReceiver(t *testing.T, answer string, keep bool) *oldReceiver {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	receiver := &oldReceiver{url: "http://" + listener.Addr().String()}
	serve := func(conn net.Conn) {
		defer conn.Close()
		requests := bufio.NewReader(conn)
		for again := true; again; again = keep {
			req, err := http.ReadRequest(requests)
			if err != nil {
				return // the client has closed the connection
			}
			_, _ = io.Copy(io.Discard, req.Body)
			receiver.requests.Add(1)
			_, _ = io.WriteString(conn, answer)
		}
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			receiver.connections.Add(1)
			serving.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
	return receiver
}

// The zone of an address is for the dialer: the receiver is not told of it (RFC 6874 section 4).
func TestZoneIsDialledAndNotSent(t *testing.T) {
	hosts := make(chan string, 1)
	receiver := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hosts <- r.Host
		user, password, _ := r.BasicAuth()
		http.Error(w, fmt.Sprintf("%s %s %s %s", r.Host, r.RequestURI, user, password), http.StatusForbidden)
	}))
	dialled := make(chan string, 1)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled <- address
		return new(net.Dialer).DialContext(ctx, network, receiver.Listener.Addr().String())
	}}
	t.Cleanup(transport.CloseIdleConnections)
	log := new(journal)
	rec := patiently(t, recorder.Config{
		Webhook:   "http://user-7f3a:password-91c4@[fe80::1%25lo]:8080/path-5be2?token=query-d8e6",
		Transport: transport, Backoff: never, Logger: slog.New(log),
	})
	if err := rec.Record(about("first")); err != nil {
		t.Errorf("Record(first) = %v, want nil", err)
	}
	drain(t, rec)
	checkStats(t, rec, recorder.Stats{Rejected: 1})
	if got, want := <-dialled, "[fe80::1%lo]:8080"; got != want {
		t.Errorf("address dialled = %q, want %q", got, want)
	}
	if got, want := <-hosts, "[fe80::1]:8080"; got != want {
		t.Errorf("Host = %q, want %q", got, want)
	}
	losses := log.losses()
	if len(losses) != 1 {
		t.Fatalf("losses logged = %v, want one", losses)
	}
	text := losses[0].err.Error()
	if got := secretsIn(text); got != "" {
		t.Errorf("error = %q, which shows %s", text, got)
	}
	want := "recorder: http://[fe80::1%lo]:8080: status 403 Forbidden: [fe80::1]:8080 /"
	if !strings.HasPrefix(text, want) {
		t.Errorf("error = %q, want it to begin with %q", text, want)
	}
}

// A certificate is for an address without a zone, which TLS.ServerName has to give.
func TestCertificatesHaveNoZone(t *testing.T) {
	for name, test := range map[string]struct {
		serverName string
		want       recorder.Stats
	}{
		"as the webhook has it": {"", recorder.Stats{Rejected: 1}},
		"named without it":      {"::1", recorder.Stats{Delivered: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			receiver := serveTLS(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			config := trust(receiver)
			config.ServerName = test.serverName
			transport := &http.Transport{TLSClientConfig: config}
			transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, receiver.Listener.Addr().String())
			}
			t.Cleanup(transport.CloseIdleConnections)
			log := new(journal)
			rec := patiently(t, recorder.Config{
				Webhook: "https://[::1%25lo]/", Transport: transport, Backoff: never, Logger: slog.New(log),
			})
			if err := rec.Record(about("first")); err != nil {
				t.Errorf("Record(first) = %v, want nil", err)
			}
			drain(t, rec)
			checkStats(t, rec, test.want)
			for _, loss := range log.losses() {
				if !errors.As(loss.err, new(x509.HostnameError)) {
					t.Errorf("loss logged = %v, want one that wraps %T", loss.err, x509.HostnameError{})
				}
			}
		})
	}
}

// The recorder's own transport takes a zone too, where the machine has an address with one.
func TestZoneOfTheLoopback(t *testing.T) {
	listener, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	loopback := ""
	interfaces, err := net.Interfaces()
	for _, one := range interfaces {
		if one.Flags&net.FlagLoopback != 0 {
			loopback = one.Name
		}
	}
	if err != nil || loopback == "" {
		t.Skipf("no interface of the loopback here: %v", err)
	}
	hosts := make(chan string, 1)
	receiver := newServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host }))
	receiver.Listener.Close()
	receiver.Listener = listener
	receiver.Start()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	rec := patiently(t, recorder.Config{
		Webhook: "http://[::1%25" + url.PathEscape(loopback) + "]:" + port + "/", Backoff: never,
	})
	if err := rec.Record(about("first")); err != nil {
		t.Errorf("Record(first) = %v, want nil", err)
	}
	drain(t, rec)
	checkStats(t, rec, recorder.Stats{Delivered: 1})
	if got, want := receive(t, hosts, 1)[0], "[::1]:"+port; got != want {
		t.Errorf("Host = %q, want %q", got, want)
	}
}
