package soak

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/recorder"
)

// A mood is what a receiver makes of its requests for a while.
type mood int

const (
	well     mood = iota // answers 202, or 429 where it has the event
	slow                 // does so after up to twice the timeout of an attempt
	hung                 // does not answer
	failing              // answers that it may go better next time
	refusing             // answers that it will go no better next time
	closing              // closes the connection ahead of its answer, or in it
	talking              // comes to no end with its answer
	gone                 // closes all connections, and its port
	moods
)

// What a receiver answers when it is failing, and when it is refusing.
var (
	failures = []int{408, 500, 502, 503, 504, 599}
	refusals = []int{301, 307, 400, 401, 403, 404, 413, 501}
)

// longestMood is long enough for an event to use up its attempts.
const longestMood = 4 * attemptTimeout

// A receiver takes events and tells duplicates, as notification-controller does, if its mood is
// such. It knows what has come.
type receiver struct {
	t       *testing.T
	address string
	tls     *tls.Config // nil: plain HTTP/1.1, otherwise HTTP/2
	trusted *x509.CertPool
	end     func() // of the changes of mood
	ended   sync.WaitGroup

	mu       sync.Mutex
	chance   *rand.Rand
	mood     mood
	presence *presence // nil: gone
	tracks   map[string]*track
	arrivals int
}

// A presence is what there is of a receiver between its coming and its going.
type presence struct {
	server  http.Server
	running sync.WaitGroup
	over    context.Context
	leave   context.CancelFunc
}

// A track is what has come of the events of an object, which are numbered from one.
type track struct {
	last    int
	late    []int // came after a later one
	arrived map[int]bool
	taken   map[int]bool
}

// newReceiver makes a receiver with moods. It is to be closed.
func newReceiver(t *testing.T, secure bool, chance *rand.Rand) *receiver {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{t: t, address: listener.Addr().String(), chance: child(chance), tracks: make(map[string]*track)}
	if secure {
		lender := httptest.NewTLSServer(http.NotFoundHandler())
		defer lender.Close()
		r.tls = &tls.Config{Certificates: lender.TLS.Certificates}
		r.trusted = x509.NewCertPool()
		r.trusted.AddCert(lender.Certificate())
	}
	r.come(listener)
	ctx, cancel := context.WithCancel(context.Background())
	r.end = cancel
	moody := child(chance)
	r.ended.Go(func() {
		for ctx.Err() == nil {
			next := well
			if moody.IntN(2) == 0 {
				next = mood(moody.IntN(int(moods)))
			}
			r.turn(next)
			pass(ctx, upTo(moody, longestMood))
		}
	})
	return r
}

func (r *receiver) close() {
	r.end()
	r.ended.Wait()
	r.turn(gone)
}

// config is what a recorder needs in order to post to the receiver.
func (r *receiver) config() recorder.Config {
	if r.tls == nil {
		return recorder.Config{Webhook: "http://" + r.address}
	}
	return recorder.Config{Webhook: "https://" + r.address, TLS: &tls.Config{RootCAs: r.trusted}}
}

// turn changes the mood. One goroutine at a time does so.
func (r *receiver) turn(next mood) {
	r.mu.Lock()
	present := r.presence
	r.mood = next
	if next == gone {
		r.presence = nil // before a connection is closed: a sender that sees it closed goes on
	}
	r.mu.Unlock()
	switch {
	case next == gone && present != nil:
		present.leave()
		present.server.Close()
		present.running.Wait()
	case next != gone && present == nil:
		listener, err := net.Listen("tcp", r.address)
		for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); {
			pass(context.Background(), 10*time.Millisecond) // a client's end of some connection may have the port
			listener, err = net.Listen("tcp", r.address)
		}
		if err != nil {
			r.t.Errorf("receiver cannot come back: %v", err)
			return
		}
		r.come(listener)
	}
}

func (r *receiver) come(listener net.Listener) {
	p := new(presence)
	p.over, p.leave = context.WithCancel(context.Background())
	p.server.ErrorLog = log.New(io.Discard, "", 0)
	p.server.TLSConfig = r.tls.Clone()
	p.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(p, w, req) })
	r.mu.Lock()
	r.presence = p
	r.mu.Unlock()
	p.running.Go(func() {
		if r.tls == nil {
			_ = p.server.Serve(listener)
		} else {
			_ = p.server.ServeTLS(listener, "", "")
		}
	})
}

// An arrival is how the receiver means to deal with a request.
type arrival struct {
	mood  mood
	known bool // the event was taken before
	wait  time.Duration
	code  int
	half  bool
}

// note takes down a request, unless the receiver has gone or nobody waits for its answer any more.
func (r *receiver) note(p *presence, req *http.Request, e recorder.Event) (arrival, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	about := r.tracks[e.InvolvedObject.Name]
	if r.presence != p || req.Context().Err() != nil || about == nil {
		return arrival{}, false
	}
	p.running.Add(1)
	r.arrivals++
	number, err := strconv.Atoi(strings.TrimPrefix(e.Reason, "Event"))
	switch {
	case err != nil:
		r.t.Errorf("%s: an event arrived with reason %q, want a number", e.InvolvedObject.Name, e.Reason)
	case number < about.last:
		about.late = append(about.late, number)
	}
	about.last = max(about.last, number)
	about.arrived[number] = true

	a := arrival{
		mood: r.mood, known: about.taken[number],
		wait: upTo(r.chance, 2*attemptTimeout), half: r.chance.IntN(2) == 0,
	}
	takes := false
	switch a.mood {
	case well, slow, talking:
		takes = true
	case hung, closing:
		takes = a.half
	case failing:
		takes = a.half
		a.code = oneOf(r.chance, failures...)
	case refusing:
		a.code = oneOf(r.chance, refusals...)
	}
	if takes {
		about.taken[number] = true
	}
	return a, true
}

func (r *receiver) serve(p *presence, w http.ResponseWriter, req *http.Request) {
	var e recorder.Event
	if json.NewDecoder(req.Body).Decode(&e) != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = io.Copy(io.Discard, req.Body) // from here on a client that leaves is noticed
	a, ok := r.note(p, req, e)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	defer p.running.Done()
	client, cancel := context.WithCancel(req.Context())
	defer cancel()
	defer context.AfterFunc(p.over, cancel)()

	answer := func() {
		if a.known {
			w.Header().Set("Retry-After", "300")
			http.Error(w, "Too Many Requests", http.StatusTooManyRequests)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
	switch a.mood {
	case well:
		answer()
	case slow:
		if !pass(client, a.wait) {
			panic(http.ErrAbortHandler)
		}
		answer()
	case hung:
		<-client.Done()
		panic(http.ErrAbortHandler)
	case failing, refusing:
		w.Header().Set("Retry-After", "3600")
		w.Header().Set("Location", "/elsewhere")
		http.Error(w, "no", a.code)
	case closing:
		if a.half {
			w.Header().Set("Content-Length", "100")
			answer()
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	case talking:
		answer()
		for client.Err() == nil {
			if _, err := w.Write(make([]byte, 1024)); err != nil {
				return
			}
		}
	}
}

// expect has the receiver keep the track of an object.
func (r *receiver) expect(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tracks[name] = &track{arrived: make(map[int]bool), taken: make(map[int]bool)}
}

// settle returns the track of an object, which ends there.
func (r *receiver) settle(name string) *track {
	r.mu.Lock()
	defer r.mu.Unlock()
	about := r.tracks[name]
	delete(r.tracks, name)
	return about
}
