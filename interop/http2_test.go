package interop

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"example.com/recorder"
)

// senders is how many goroutines post at once to a receiver of HTTP/2.
const senders = 16

// A tally is a receiver that counts what it has processed, by message.
type tally struct {
	mu    sync.Mutex
	times map[string]int
}

// take counts an event, and returns how many there have been.
func (p *tally) take(body io.Reader) (taken int) {
	var event recorder.Event
	if err := json.NewDecoder(body).Decode(&event); err != nil {
		event.Message = err.Error() // which check finds
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.times == nil {
		p.times = make(map[string]int)
	}
	p.times[event.Message]++
	for _, times := range p.times {
		taken += times
	}
	return taken
}

// check compares what was processed with what was posted, each once.
func (p *tally) check(t *testing.T, messages []string) {
	t.Helper()
	want := make(map[string]int)
	for _, message := range messages {
		want[message] = 1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if diff := gocmp.Diff(want, p.times); diff != "" {
		t.Errorf("how often each event was processed (-want +got):\n%s", diff)
	}
}

// postFromAll has all senders post a number of events each at once, and returns the messages.
func postFromAll(t *testing.T, rec *recorder.Recorder, each int) []string {
	t.Helper()
	// An attempt that fails ends with an error at once: before this is over, no wait of an hour can be.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var messages []string
	var posting sync.WaitGroup
	for sender := range senders {
		var own []string
		for i := range each {
			own = append(own, fmt.Sprintf("event %d of sender %d", i, sender))
		}
		messages = append(messages, own...)
		posting.Go(func() {
			for _, message := range own {
				if err := rec.Post(ctx, about(message)); err != nil {
					t.Errorf("Post(%s) = %v, want nil", message, err)
				}
			}
		})
	}
	posting.Wait()
	return messages
}

// postFirst posts one event, so that there is a connection which all others are sent over.
func postFirst(t *testing.T, rec *recorder.Recorder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := rec.Post(ctx, about("first")); err != nil {
		t.Fatalf("Post(first) = %v, want nil", err)
	}
}

// patiently makes a recorder whose bounds end nothing but a hang.
func patiently(t *testing.T, config recorder.Config) *recorder.Recorder {
	t.Helper()
	config.Timeout, config.DrainTimeout = patience, patience
	return newRecorder(t, config)
}

// about is an event that its message tells from all others.
func about(message string) recorder.Event {
	return recorder.Event{
		InvolvedObject: recorder.ObjectReference{Kind: "ConfigMap", Namespace: "apps", Name: "web"},
		Reason:         "Synced", Message: message,
	}
}

// A server of net/http says GOAWAY when an answer tells to close the connection. It ignores the
// requests that come after that, and net/http posts them again on another connection: seven times, so
// that the six connections which go away here are not too many, even for one that meets them all.
func TestConnectionsThatGoAwayLoseNothing(t *testing.T) {
	for each, between := range map[int]int{2: 5, 25: 60} {
		t.Run(fmt.Sprintf("after %d requests", between), func(t *testing.T) {
			processed := new(tally)
			var gone atomic.Int64
			receiver := serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Proto != "HTTP/2.0" {
					t.Errorf("protocol = %q, want HTTP/2.0", r.Proto)
				}
				if processed.take(r.Body)%between == 0 {
					gone.Add(1)
					w.Header().Set("Connection", "close")
				}
				w.WriteHeader(http.StatusAccepted)
			}))
			log := new(journal)
			rec := patiently(t, recorder.Config{
				Webhook: receiver.URL, TLS: trust(receiver), Backoff: never, Logger: slog.New(log),
			})
			postFirst(t, rec)
			messages := append(postFromAll(t, rec, each), "first")
			drain(t, rec)
			processed.check(t, messages)
			checkStats(t, rec, recorder.Stats{Delivered: uint64(len(messages))})
			if got := len(log.records); got != 0 {
				t.Errorf("lines logged = %d, want 0", got)
			}
			if got := gone.Load(); got != 6 {
				t.Errorf("connections told to go away = %d, want 6", got)
			}
		})
	}
}

// What a GOAWAY says was not processed is posted again at once; what it says was, is answered yet.
func TestRequestsBeyondAGoAwayArePostedAgain(t *testing.T) {
	for _, finished := range []int{0, 1, 4, senders - 1, senders} {
		t.Run(fmt.Sprintf("%d of %d finished", finished, senders), func(t *testing.T) {
			processed := new(tally)
			away := newGoingAway(t, processed, finished)
			log := new(journal)
			rec := patiently(t, recorder.Config{
				Webhook: away.url, TLS: away.trust, Backoff: never, Logger: slog.New(log),
			})
			postFirst(t, rec)
			messages := append(postFromAll(t, rec, 1), "first")
			drain(t, rec)
			processed.check(t, messages)
			checkStats(t, rec, recorder.Stats{Delivered: 1 + senders})
			if got, want := away.requests(), 1+senders+(senders-finished); got != want {
				t.Errorf("requests = %d, want %d", got, want)
			}
			if got := len(log.records); got != 0 {
				t.Errorf("lines logged = %d, want 0", got)
			}
		})
	}
}

// With one stream to a connection, senders open as many connections as they need.
func TestOneStreamAtATimeIsEnough(t *testing.T) {
	const each = 5
	processed := new(tally)
	receiver := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Proto != "HTTP/2.0" {
			t.Errorf("protocol = %q, want HTTP/2.0", r.Proto)
		}
		processed.take(r.Body)
		w.WriteHeader(http.StatusAccepted)
	}))
	receiver.EnableHTTP2 = true
	receiver.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
	receiver.StartTLS()
	log := new(journal)
	rec := patiently(t, recorder.Config{
		Webhook: receiver.URL, TLS: trust(receiver), Backoff: never, Logger: slog.New(log),
	})
	messages := postFromAll(t, rec, each)
	drain(t, rec)
	processed.check(t, messages)
	checkStats(t, rec, recorder.Stats{Delivered: senders * each})
	if got := len(log.records); got != 0 {
		t.Errorf("lines logged = %d, want 0", got)
	}
}

// A goingAway is a receiver of bare HTTP/2. On its first connection it answers one request, waits
// for one of each sender, says GOAWAY, and finishes some of these alone. Other connections answer all.
type goingAway struct {
	url       string
	trust     *tls.Config
	processed *tally
	finished  int

	mu    sync.Mutex
	conns []net.Conn
	seen  int // requests
}

func newGoingAway(t *testing.T, processed *tally, finished int) *goingAway {
	model := serveTLS(t, http.NotFoundHandler()) // for its certificate: nothing is posted to it
	config := &tls.Config{Certificates: model.TLS.Certificates, NextProtos: []string{http2.NextProtoTLS}}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	g := &goingAway{
		url: "https://" + listener.Addr().String(), trust: trust(model), processed: processed, finished: finished,
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			first := g.add(conn)
			serving.Go(func() { g.serve(conn, first) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		g.close()
		serving.Wait()
	})
	return g
}

// add keeps a connection, and reports whether it is the first.
func (g *goingAway) add(conn net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns = append(g.conns, conn)
	return len(g.conns) == 1
}

func (g *goingAway) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range g.conns {
		conn.Close()
	}
}

func (g *goingAway) requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen
}

// serve deals with a connection until the client closes it. What cannot be written is no fault here:
// a connection may be given up before it has been used, and a sender that has no answer fails the test.
func (g *goingAway) serve(conn net.Conn, first bool) {
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	_ = framer.WriteSettings()
	bodies := make(map[uint32][]byte)
	if first {
		if stream, ok := g.next(framer, bodies); ok {
			g.answer(framer, stream, bodies[stream])
			g.goAway(framer, bodies, stream)
		}
	}
	for {
		stream, ok := g.next(framer, bodies)
		if !ok {
			return
		}
		g.answer(framer, stream, bodies[stream])
	}
}

// next waits for the end of a request. It reports false when the connection is closed.
func (g *goingAway) next(framer *http2.Framer, bodies map[uint32][]byte) (stream uint32, ok bool) {
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return 0, false
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.DataFrame:
			bodies[frame.StreamID] = append(bodies[frame.StreamID], frame.Data()...)
			if frame.StreamEnded() {
				g.mu.Lock()
				g.seen++
				g.mu.Unlock()
				return frame.StreamID, true
			}
		}
	}
}

// goAway lets one request of each sender come in, and all but those to be finished go away.
func (g *goingAway) goAway(framer *http2.Framer, bodies map[uint32][]byte, last uint32) {
	var streams []uint32
	for range senders {
		stream, ok := g.next(framer, bodies)
		if !ok {
			return
		}
		streams = append(streams, stream)
	}
	slices.Sort(streams)
	finished := streams[:g.finished]
	if len(finished) > 0 {
		last = finished[len(finished)-1]
	}
	_ = framer.WriteGoAway(last, http2.ErrCodeNo, nil)
	for _, stream := range finished {
		g.answer(framer, stream, bodies[stream])
	}
}

// answer processes a request and says so.
func (g *goingAway) answer(framer *http2.Framer, stream uint32, body []byte) {
	g.processed.take(bytes.NewReader(body))
	var header bytes.Buffer
	_ = hpack.NewEncoder(&header).WriteField(hpack.HeaderField{Name: ":status", Value: "202"})
	_ = framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: header.Bytes(), EndHeaders: true, EndStream: true,
	})
}
