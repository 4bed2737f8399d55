package interop

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"example.com/recorder"
)

// A tally counts how often each body has come. It ends a connection after every endAfter requests, if
// that is above zero: over HTTP/2 net/http's server then sends a GOAWAY.
type tally struct {
	endAfter int64
	requests atomic.Int64

	mu     sync.Mutex
	bodies map[string]int
	major  map[int]int // requests by version of the protocol
}

func (c *tally) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // and so not counted: the sender has given this request up
	}
	c.mu.Lock()
	if c.bodies == nil {
		c.bodies, c.major = make(map[string]int), make(map[int]int)
	}
	c.bodies[string(body)]++
	c.major[r.ProtoMajor]++
	c.mu.Unlock()
	if n := c.requests.Add(1); c.endAfter > 0 && n%c.endAfter == 0 {
		w.Header().Set("Connection", "close")
	}
	w.WriteHeader(http.StatusAccepted)
}

// check makes sure that n bodies have come over HTTP/2, each of them once.
func (c *tally) check(t *testing.T, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.bodies) != n || c.major[2] != n {
		t.Errorf("bodies that came = %d in %d requests over HTTP/2, want %d and %[3]d", len(c.bodies), c.major[2], n)
	}
	for body, times := range c.bodies {
		if times != 1 {
			t.Errorf("%s came %d times, want once", body, times)
		}
	}
}

const (
	senders   = 16
	perSender = 40
)

// send has 16 senders post at once, none of whose events may cost a wait: it would be one of an hour.
func send(t *testing.T, receiver *server) {
	t.Helper()
	rec := newRecorder(t, recorder.Config{
		Webhook: receiver.URL, TLS: trust(receiver), Timeout: patience, Backoff: never,
	})
	var all sync.WaitGroup
	for range senders {
		name := rand.Text()
		all.Go(func() {
			for i := range perSender {
				event := recorder.Event{
					InvolvedObject: recorder.ObjectReference{Kind: "App", Name: name},
					Message:        fmt.Sprint(i),
				}
				if err := rec.Post(t.Context(), event); err != nil {
					t.Errorf("Post() = %v, want nil", err)
				}
			}
		})
	}
	all.Wait()
	checkStats(t, rec, recorder.Stats{Delivered: senders * perSender})
	drain(t, rec)
}

func TestAConnectionThatEndsWithGOAWAYCostsNoAttempt(t *testing.T) {
	c := &tally{endAfter: 5}
	receiver := serveTLS(t, c)
	send(t, receiver)
	c.check(t, senders*perSender)
	// While one connection ends, no sender can have more than one request on it.
	if got, least := receiver.opened.Load(), int64(senders*perSender)/(c.endAfter+senders); got < least {
		t.Errorf("connections = %d, want at least %d: they did not end", got, least)
	}
}

func TestAReceiverThatTakesOneStreamAtATime(t *testing.T) {
	c := new(tally)
	receiver := newServer(t, c)
	receiver.EnableHTTP2 = true
	receiver.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
	receiver.StartTLS()
	send(t, receiver)
	c.check(t, senders*perSender)
}
