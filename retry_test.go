package recorder

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// TestMain gives all tests one environment, which net/http reads once, and has no goroutine survive.
func TestMain(m *testing.M) {
	os.Setenv("HTTP_PROXY", "http://proxy.invalid:3128")
	os.Setenv("NO_PROXY", ".svc.cluster.local,receiver.test")
	goleak.VerifyTestMain(m)
}

// roundTrip makes a function a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// answer is a response as a transport would return it.
func answer(code int, body string) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: -1}
}

// A script is a transport that plays one outcome for each request, and notes when each came. A
// request beyond its end fails the test.
type script struct {
	t        testing.TB
	outcomes []string
	header   http.Header // of each answer

	mu       sync.Mutex
	requests []time.Time
	bodies   []string
}

// errReset stands for a connection that the receiver has reset.
var errReset = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

var errorsByName = map[string]error{
	"refused":     &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
	"reset":       errReset,
	"EOF":         io.ErrUnexpectedEOF,
	"unresolved":  &net.DNSError{Err: "no such host", Name: "receiver.test", IsNotFound: true},
	"untrusted":   &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
	"unknown CA":  x509.UnknownAuthorityError{},
	"wrong host":  x509.HostnameError{Certificate: &x509.Certificate{}, Host: "receiver.test"},
	"expired":     x509.CertificateInvalidError{Reason: x509.Expired},
	"plain HTTP":  tls.RecordHeaderError{Msg: "no TLS", RecordHeader: [5]byte([]byte("HTTP/"))},
	"not TLS":     tls.RecordHeaderError{Msg: "no TLS", RecordHeader: [5]byte([]byte("SSH-2"))},
	"mismatch":    http.ErrSchemeMismatch,
	"no response": nil,
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil || req.ContentLength != int64(len(body)) {
		s.t.Errorf("request body = %d bytes, %v, want %d, nil", len(body), err, req.ContentLength)
	}
	s.mu.Lock()
	s.requests = append(s.requests, time.Now())
	s.bodies = append(s.bodies, string(body))
	n := len(s.requests)
	s.mu.Unlock()
	if n > len(s.outcomes) {
		s.t.Errorf("request %d, want %d at the most", n, len(s.outcomes))
		return answer(404, ""), nil
	}
	outcome := s.outcomes[n-1]
	if outcome == "timeout" {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	code, body2, _ := strings.Cut(outcome, " ")
	if status, err := strconv.Atoi(code); err == nil {
		resp := answer(status, body2)
		resp.Header = s.header
		return resp, nil
	}
	err, known := errorsByName[outcome]
	if !known {
		s.t.Errorf("no outcome is named %q", outcome)
	}
	return nil, err
}

// waits returns the time between each request and the next.
func (s *script) waits() []time.Duration {
	var waits []time.Duration
	for i := 1; i < len(s.requests); i++ {
		waits = append(waits, s.requests[i].Sub(s.requests[i-1]))
	}
	return waits
}

func testEvent(name string) Event {
	return Event{InvolvedObject: ObjectReference{Kind: "App", Namespace: "prod", Name: name}, Reason: "Tested", Message: "message of " + name}
}

// steady is a schedule without chance: 1s, 2s, 4s, 8s, 8s, ...
var steady = Backoff{Min: time.Second, Max: 8 * time.Second}

const s = time.Second

// The loop's specification: what the transport comes to, attempt by attempt, and what is made of it.
func TestPostFollowsTheOutcomeTable(t *testing.T) {
	tests := map[string]struct {
		script string
		waits  []time.Duration // between the starts of the requests
		after  time.Duration   // from the last request to the return
		stats  Stats
		err    string // empty: delivered
		is     error
	}{
		"taken at once":                          {script: "202", stats: Stats{Delivered: 1}},
		"any 2xx is taken":                       {script: "299", stats: Stats{Delivered: 1}},
		"208 is a duplicate":                     {script: "208", stats: Stats{Duplicates: 1}},
		"429 is a duplicate":                     {script: "429", stats: Stats{Duplicates: 1}},
		"429 after 503":                          {script: "503, 429", waits: []time.Duration{s}, stats: Stats{Duplicates: 1, Retries: 1}},
		"429 after a reset":                      {script: "reset, 429", waits: []time.Duration{s}, stats: Stats{Duplicates: 1, Retries: 1}},
		"taken but the answer was lost":          {script: "timeout, 429", waits: []time.Duration{6 * s}, stats: Stats{Duplicates: 1, Retries: 1}},
		"429 on the last attempt":                {script: "500, 502, 503, 504, 429", waits: []time.Duration{s, 2 * s, 4 * s, 8 * s}, stats: Stats{Duplicates: 1, Retries: 4}},
		"408 is tried again":                     {script: "408, 202", waits: []time.Duration{s}, stats: Stats{Delivered: 1, Retries: 1}},
		"600 is tried again":                     {script: "600, 202", waits: []time.Duration{s}, stats: Stats{Delivered: 1, Retries: 1}},
		"a refused connection is tried again":    {script: "refused, 202", waits: []time.Duration{s}, stats: Stats{Delivered: 1, Retries: 1}},
		"an early end is tried again":            {script: "EOF, 202", waits: []time.Duration{s}, stats: Stats{Delivered: 1, Retries: 1}},
		"an unknown host is tried again":         {script: "unresolved, 202", waits: []time.Duration{s}, stats: Stats{Delivered: 1, Retries: 1}},
		"a broken TLS record is tried again":     {script: "not TLS, 202", waits: []time.Duration{s}, stats: Stats{Delivered: 1, Retries: 1}},
		"timeouts back off":                      {script: "timeout, timeout, 202", waits: []time.Duration{6 * s, 7 * s}, stats: Stats{Delivered: 1, Retries: 2}},
		"always 503: five requests, four waits":  {script: "503, 503, 503, 503, 503", waits: []time.Duration{s, 2 * s, 4 * s, 8 * s}, stats: Stats{Failed: 1, Retries: 4}, err: "gave up after 5 attempts: status 503 Service Unavailable"},
		"always late: the worst case":            {script: "timeout, timeout, timeout, timeout, timeout", waits: []time.Duration{6 * s, 7 * s, 9 * s, 13 * s}, after: 5 * s, stats: Stats{Failed: 1, Retries: 4}, err: "gave up after 5 attempts: no answer within 5s: context deadline exceeded", is: context.DeadlineExceeded},
		"the last cause is told":                 {script: "refused, 503 database unavailable, timeout, timeout, reset", waits: []time.Duration{s, 2 * s, 9 * s, 13 * s}, stats: Stats{Failed: 1, Retries: 4}, err: "gave up after 5 attempts: read tcp: connection reset by peer", is: syscall.ECONNRESET},
		"the last answer is told":                {script: "reset, reset, reset, reset, 503 database unavailable", waits: []time.Duration{s, 2 * s, 4 * s, 8 * s}, stats: Stats{Failed: 1, Retries: 4}, err: "gave up after 5 attempts: status 503 Service Unavailable: database unavailable"},
		"404 is final":                           {script: "404", stats: Stats{Rejected: 1}, err: "status 404 Not Found"},
		"501 is final":                           {script: "501", stats: Stats{Rejected: 1}, err: "status 501 Not Implemented"},
		"425 is final":                           {script: "425 too early", stats: Stats{Rejected: 1}, err: "status 425 Too Early: too early"},
		"101 is final":                           {script: "101", stats: Stats{Rejected: 1}, err: "status 101 Switching Protocols"},
		"302 is final, and its body unread":      {script: "302 moved to http://elsewhere.test/token", stats: Stats{Rejected: 1}, err: "status 302 Found"},
		"an unknown code is final":               {script: "99", stats: Stats{Rejected: 1}, err: "status 99"},
		"final after a retry":                    {script: "503, 400", waits: []time.Duration{s}, stats: Stats{Rejected: 1, Retries: 1}, err: "status 400 Bad Request"},
		"an untrusted certificate is final":      {script: "untrusted", stats: Stats{Rejected: 1}, err: "tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		"an unknown authority is final":          {script: "unknown CA", stats: Stats{Rejected: 1}, err: "x509: certificate signed by unknown authority"},
		"another host's certificate is final":    {script: "wrong host", stats: Stats{Rejected: 1}, err: "x509: certificate is not valid for any names, but wanted to match receiver.test"},
		"an expired certificate is final":        {script: "expired", stats: Stats{Rejected: 1}, err: "x509: certificate has expired or is not yet valid: "},
		"plain HTTP on a TLS port is final":      {script: "plain HTTP", stats: Stats{Rejected: 1}, err: "tls: no TLS"},
		"so it is when http.Client says it":      {script: "mismatch", stats: Stats{Rejected: 1}, err: "http: server gave HTTP response to HTTPS client", is: http.ErrSchemeMismatch},
		"neither response nor error is final":    {script: "no response", stats: Stats{Rejected: 1}, err: "the transport returned neither a response nor an error"},
		"a second answer does not make a retry":  {script: "202, 202", stats: Stats{Delivered: 1}},
		"nor does one after a final answer":      {script: "404, 202", stats: Stats{Rejected: 1}, err: "status 404 Not Found"},
		"the waits stop growing at the schedule": {script: "500, 500, 500, 500, 202", waits: []time.Duration{s, 2 * s, 4 * s, 8 * s}, stats: Stats{Delivered: 1, Retries: 4}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport := &script{t: t, outcomes: strings.Split(test.script, ", ")}
				r := mustNew(t, Config{Webhook: "http://receiver.test/", Transport: transport, Backoff: steady})
				err := r.Post(t.Context(), testEvent("a"))
				returned := time.Now()

				if diff := gocmp.Diff(test.waits, transport.waits()); diff != "" {
					t.Errorf("waits (-want +got):\n%s", diff)
				}
				if after := returned.Sub(transport.requests[len(transport.requests)-1]); after != test.after {
					t.Errorf("Post returned %v after the last request, want %v", after, test.after)
				}
				if got := r.Stats(); got != test.stats {
					t.Errorf("Stats() = %+v, want %+v", got, test.stats)
				}
				want := ""
				if test.err != "" {
					want = "recorder: http://receiver.test: " + test.err
				}
				if got := text(err); !strings.HasPrefix(got, want) || (want == "") != (err == nil) {
					t.Errorf("Post() = %q, want %q", got, want)
				}
				if test.is != nil && !errors.Is(err, test.is) {
					t.Errorf("errors.Is(%v, %v) = false, want true", err, test.is)
				}
				var status *StatusError
				if got, want := errors.As(err, &status), strings.Contains(test.err, "status "); got != want {
					t.Errorf("errors.As(%v, *StatusError) = %t, want %t", err, got, want)
				}
				for _, body := range transport.bodies {
					if body != transport.bodies[0] {
						t.Errorf("body = %q, want that of the first attempt, %q", body, transport.bodies[0])
					}
				}
			})
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// The same once more, exhaustively: every script of up to five outcomes, against a reading of the
// design's table. What follows the first outcome that ends the loop is left out: it is never played.
func TestEveryScriptOfUpToFiveOutcomes(t *testing.T) {
	const timeout, cancelled = 5 * time.Second, "cancelled"
	again := []string{"408", "500", "reset", "timeout"}
	ends := []string{"202", "429", "501", "404", "302", "cancelled before the wait", "cancelled during the wait"}
	type oracle struct {
		waits []time.Duration
		end   time.Duration
		stats Stats
		last  string
	}
	predict := func(script []string) (want oracle) {
		var now time.Duration
		for i, outcome := range script {
			if i > 0 {
				now += s << (i - 1)
				want.waits = append(want.waits, now)
				want.stats.Retries++
			}
			want.last = outcome
			switch outcome {
			case "202":
				want.stats.Delivered = 1
			case "429":
				want.stats.Duplicates = 1
			case "404", "501", "302":
				want.stats.Rejected = 1
			case "cancelled before the wait":
				want.stats.Failed = 1
			case "cancelled during the wait":
				want.stats.Failed = 1
				if i < 4 {
					now += s << i / 2 // in the middle of it
				}
			case "timeout":
				now += timeout
			}
			if i == 4 && slices.Contains(again, outcome) {
				want.stats.Failed = 1
			}
		}
		want.end = now
		return want
	}
	run := func(t *testing.T, outcomes []string) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		start := time.Now()
		errCause := errors.New(cancelled)
		transport := &script{t: t}
		for _, outcome := range outcomes {
			if strings.HasPrefix(outcome, cancelled) {
				outcome = "503"
			}
			transport.outcomes = append(transport.outcomes, outcome)
		}
		rt := roundTrip(func(req *http.Request) (*http.Response, error) {
			n := len(transport.requests)
			switch outcomes[n] {
			case "cancelled before the wait":
				cancel(errCause)
			case "cancelled during the wait": // after the fifth attempt there is none
				time.AfterFunc(s<<n/2, func() { cancel(errCause) })
			}
			return transport.RoundTrip(req)
		})
		r := mustNew(t, Config{Webhook: "http://receiver.test/", Transport: rt, Backoff: Backoff{Min: s, Max: time.Hour}})
		err := r.Post(ctx, testEvent("a"))
		end := time.Since(start)

		want := predict(outcomes)
		var waits []time.Duration
		for _, at := range transport.requests[1:] {
			waits = append(waits, at.Sub(start))
		}
		if !slices.Equal(waits, want.waits) || end != want.end || r.Stats() != want.stats {
			t.Errorf("%q: requests at %v, end at %v, %+v, want %v, %v, %+v", outcomes, waits, end, r.Stats(), want.waits, want.end, want.stats)
		}
		if lost := want.stats.Failed+want.stats.Rejected == 1; lost != (err != nil) {
			t.Errorf("%q: Post() = %v, want an error: %t", outcomes, err, lost)
		}
		stoppedByUs := want.last == "cancelled before the wait" || want.last == "cancelled during the wait" && len(outcomes) < 5
		if got := errors.Is(err, errCause) && errors.Is(err, context.Canceled); got != stoppedByUs {
			t.Errorf("%q: Post() = %v, want both reasons of the context in it: %t", outcomes, err, stoppedByUs)
		}
		if status := (*StatusError)(nil); strings.HasPrefix(want.last, cancelled) && !errors.As(err, &status) {
			t.Errorf("%q: Post() = %v, want the last failure in it", outcomes, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		scripts := 0
		prefixes := [][]string{nil}
		for length := 1; length <= 5; length++ {
			var longer [][]string
			for _, prefix := range prefixes {
				for _, outcome := range ends {
					run(t, append(slices.Clone(prefix), outcome))
					scripts++
				}
				for _, outcome := range again {
					longer = append(longer, append(slices.Clone(prefix), outcome))
				}
			}
			prefixes = longer
		}
		for _, script := range prefixes {
			run(t, script)
			scripts++
		}
		if want := 7*(1+4+16+64+256) + 1024; scripts != want {
			t.Errorf("%d scripts, want %d", scripts, want)
		}
	})
}
