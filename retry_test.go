package recorder

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
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
		"199 is final, and its body unread":      {script: "199 soon", stats: Stats{Rejected: 1}, err: "status 199"},
		"302 is final, and its body unread":      {script: "302 moved to http://elsewhere.test/token", stats: Stats{Rejected: 1}, err: "status 302 Found"},
		"300 is final, and its body unread":      {script: "300 see http://elsewhere.test/token", stats: Stats{Rejected: 1}, err: "status 300 Multiple Choices"},
		"399 is final, and its body unread":      {script: "399 see http://elsewhere.test/token", stats: Stats{Rejected: 1}, err: "status 399"},
		"400 is final, and says why":             {script: "400 no such field", stats: Stats{Rejected: 1}, err: "status 400 Bad Request: no such field"},
		"an unknown code is final":               {script: "99", stats: Stats{Rejected: 1}, err: "status 99"},
		"final after a retry":                    {script: "503, 400", waits: []time.Duration{s}, stats: Stats{Rejected: 1, Retries: 1}, err: "status 400 Bad Request"},
		"an untrusted certificate is final":      {script: "untrusted", stats: Stats{Rejected: 1}, err: "tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		"an unknown authority is final":          {script: "unknown CA", stats: Stats{Rejected: 1}, err: "x509: certificate signed by unknown authority"},
		"another host's certificate is final":    {script: "wrong host", stats: Stats{Rejected: 1}, err: "x509: certificate is not valid for any names, but wanted to match receiver.test"},
		"an expired certificate is final":        {script: "expired", stats: Stats{Rejected: 1}, err: "x509: certificate has expired or is not yet valid:"},
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
				if got := text(err); got != want {
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

func TestClassifyKnowsEveryCode(t *testing.T) {
	want := func(code int) outcome {
		switch {
		case code == 208 || code == 429:
			return duplicate
		case code >= 200 && code < 300:
			return delivered
		case code == 408 || code >= 500 && code != 501:
			return retry
		}
		return rejected
	}
	for code := 0; code <= 1000; code++ {
		if got := classify(code); got != want(code) {
			t.Errorf("classify(%d) = %d, want %d", code, got, want(code))
		}
	}
}

func TestDelayDoublesFromMinToMax(t *testing.T) {
	tests := []struct {
		backoff Backoff
		retry   int
		want    time.Duration
	}{
		{Backoff{Min: s, Max: 30 * s}, 1, s},
		{Backoff{Min: s, Max: 30 * s}, 2, 2 * s},
		{Backoff{Min: s, Max: 30 * s}, 5, 16 * s},
		{Backoff{Min: s, Max: 30 * s}, 6, 30 * s},
		{Backoff{Min: s, Max: 32 * s}, 6, 32 * s},
		{Backoff{Min: s, Max: 30 * s}, 33, 30 * s},
		{Backoff{Min: s, Max: 30 * s}, 64, 30 * s},
		{Backoff{Min: s, Max: 30 * s}, 65, 30 * s},
		{Backoff{Min: s, Max: 30 * s}, 1000, 30 * s},
		{Backoff{Min: s, Max: 30 * s}, math.MaxInt, 30 * s},
		{Backoff{Min: s, Max: 30 * s}, 0, s},
		{Backoff{Min: s, Max: 30 * s}, math.MinInt, s},
		{Backoff{Min: s, Max: s}, 7, s},
		{Backoff{Min: 1, Max: math.MaxInt64}, 1, 1},
		{Backoff{Min: 1, Max: math.MaxInt64}, 63, 1 << 62},
		{Backoff{Min: 1, Max: math.MaxInt64}, 64, math.MaxInt64},
		{Backoff{Min: time.Hour, Max: math.MaxInt64}, 22, time.Hour << 21},
		{Backoff{Min: time.Hour, Max: math.MaxInt64}, 23, math.MaxInt64},
		{Backoff{}, 3, 0},
	}
	for _, test := range tests {
		if got := test.backoff.Delay(test.retry); got != test.want {
			t.Errorf("%+v.Delay(%d) = %v, want %v", test.backoff, test.retry, got, test.want)
		}
	}
}

func TestDelayStaysWithinItsBoundsWithAnyJitter(t *testing.T) {
	retries := []int{1, 2, 33, 63, 64, 1000, math.MaxInt}
	for _, minimum := range []time.Duration{1, 2, time.Microsecond, s, time.Hour} {
		for _, maximum := range []time.Duration{minimum, 2 * minimum, 30 * time.Hour, 1<<53 + 3, math.MaxInt64 - 1, math.MaxInt64} {
			for _, jitter := range []float64{0, 0.1, 0.5, 1 - 1e-16, 1, 7, -7, math.NaN()} {
				b := Backoff{Min: minimum, Max: maximum, Jitter: jitter}
				plain := Backoff{Min: minimum, Max: maximum}
				last := time.Duration(0)
				for _, retry := range retries {
					whole := plain.Delay(retry)
					if whole < last || whole < 1 || whole > maximum {
						t.Errorf("%+v.Delay(%d) = %v, want within %v and %v", plain, retry, whole, last, maximum)
					}
					last = whole
					for range 50 {
						got := b.Delay(retry)
						if got < 1 || got > maximum {
							t.Errorf("%+v.Delay(%d) = %v, want above 0 and at most %v", b, retry, got, maximum)
						}
						if within := jitter >= 0 && jitter <= 0.5; within && float64(got) < float64(whole)*(1-jitter)-1 {
							t.Errorf("%+v.Delay(%d) = %v, want at least %v of %v", b, retry, got, 1-jitter, whole)
						}
					}
				}
			}
		}
	}
}

func TestDelayIsSpreadAtTheCap(t *testing.T) {
	b := Backoff{Min: s, Max: 30 * s, Jitter: 0.5}
	var buckets [10]int
	for range 10_000 {
		buckets[min(int((b.Delay(9)-15*s)/(1500*time.Millisecond)), 9)]++
	}
	for i, n := range buckets { // each expects 1,000 with a standard deviation of 30
		if n < 800 || n > 1200 {
			t.Errorf("%d of 10000 delays in tenth %d of the range from 15s to 30s, want about 1000", n, i)
		}
	}
}

func TestRetryAfterIsNeverRead(t *testing.T) {
	for _, values := range [][]string{
		{"3600"}, {"9223372037"}, {"-5"}, {"abc"}, {""}, {"Fri, 01 Jan 2099 00:00:00 GMT"}, {"1", "3600"}, {"0"},
	} {
		t.Run(strings.Join(values, " and "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport := &script{t: t, outcomes: []string{"503", "503", "429"}, header: http.Header{"Retry-After": values}}
				r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport, Backoff: steady})
				start := time.Now()
				if err := r.Post(t.Context(), testEvent("a")); err != nil {
					t.Errorf("Post() = %v, want nil", err)
				}
				if got, want := time.Since(start), 3*s; got != want {
					t.Errorf("Post took %v, want %v", got, want)
				}
			})
		})
	}
}

func TestPostIsOverWhenItsContextIs(t *testing.T) {
	errWhy := errors.New("the pod is evicted")
	hang := roundTrip(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, context.Cause(req.Context())
	})
	failing := roundTrip(func(*http.Request) (*http.Response, error) { return answer(503, "busy"), nil })
	ownError := roundTrip(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, errReset
	})
	errLookalike := errors.New("context canceled")
	lookalike := roundTrip(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, errLookalike
	})
	wrapped := roundTrip(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, fmt.Errorf("%w: %w", errReset, req.Context().Err())
	})
	cancelAfter := func(d time.Duration) func(context.Context) (context.Context, func()) {
		return func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			if d == 0 {
				cancel(errWhy)
			}
			timer := time.AfterFunc(d, func() { cancel(errWhy) })
			return ctx, func() { timer.Stop(); cancel(nil) }
		}
	}
	deadlineIn := func(d time.Duration) func(context.Context) (context.Context, func()) {
		return func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithTimeoutCause(ctx, d, errWhy)
			return ctx, cancel
		}
	}
	tests := map[string]struct {
		first, then roundTrip
		context     func(context.Context) (context.Context, func())
		requests    int
		took        time.Duration
		is          []error
		status      bool
		text        string
	}{
		"cancelled before":              {first: hang, context: cancelAfter(0), is: []error{context.Canceled, errWhy}, text: "context canceled: the pod is evicted"},
		"deadline before":               {first: hang, context: deadlineIn(-1), is: []error{context.DeadlineExceeded, errWhy}, text: "context deadline exceeded: the pod is evicted"},
		"cancelled awaiting the header": {first: hang, context: cancelAfter(2 * s), requests: 1, took: 2 * s, is: []error{context.Canceled, errWhy}, text: "context canceled: the pod is evicted"},
		"deadline awaiting the header":  {first: hang, context: deadlineIn(2 * s), requests: 1, took: 2 * s, is: []error{context.DeadlineExceeded, errWhy}, text: "context deadline exceeded: the pod is evicted"},
		"the transport's own words":     {first: ownError, context: cancelAfter(2 * s), requests: 1, took: 2 * s, is: []error{context.Canceled, errWhy, errReset}, text: "context canceled: the pod is evicted, after an attempt that failed: read tcp: connection reset by peer"},
		"a word that only looks alike":  {first: lookalike, context: cancelAfter(2 * s), requests: 1, took: 2 * s, is: []error{context.Canceled, errWhy, errLookalike}, text: "context canceled: the pod is evicted, after an attempt that failed: context canceled"},
		"a wrapped word of it":          {first: wrapped, context: cancelAfter(2 * s), requests: 1, took: 2 * s, is: []error{context.Canceled, errWhy, errReset}, text: "context canceled: the pod is evicted, after an attempt that failed: read tcp: connection reset by peer: context canceled"},
		"its own words after a failure": {first: failing, then: ownError, context: cancelAfter(time.Hour + s), requests: 2, took: time.Hour + s, is: []error{context.Canceled, errWhy, errReset}, status: true, text: "context canceled: the pod is evicted, after an attempt that failed: read tcp: connection reset by peer, after an attempt that failed: status 503"},
		"cancelled in a wait":           {first: failing, context: cancelAfter(20 * time.Minute), requests: 1, took: 20 * time.Minute, is: []error{context.Canceled, errWhy}, status: true, text: "context canceled: the pod is evicted, after an attempt that failed: status 503 Service Unavailable: busy"},
		"cancelled in the next attempt": {first: failing, then: hang, context: cancelAfter(time.Hour + s), requests: 2, took: time.Hour + s, is: []error{context.Canceled, errWhy}, status: true, text: "context canceled: the pod is evicted, after an attempt that failed: status 503 Service Unavailable: busy"},
		"deadline within the next wait": {first: failing, context: deadlineIn(time.Hour - 1), requests: 1, is: []error{context.DeadlineExceeded}, status: true, text: "context deadline exceeded before attempt 2 could be made: status 503 Service Unavailable: busy"},
		"deadline as the wait ends":     {first: failing, context: deadlineIn(time.Hour), requests: 1, is: []error{context.DeadlineExceeded}, status: true, text: "context deadline exceeded before attempt 2 could be made: status 503 Service Unavailable: busy"},
		"deadline just after the wait":  {first: failing, then: hang, context: deadlineIn(time.Hour + 1), requests: 2, took: time.Hour + 1, is: []error{context.DeadlineExceeded, errWhy}, status: true, text: "context deadline exceeded: the pod is evicted, after an attempt that failed: status 503"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests := 0
				r := mustNew(t, Config{
					Webhook: "http://receiver.test",
					Backoff: Backoff{Min: time.Hour, Max: time.Hour},
					Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
						requests++
						if requests == 1 {
							return test.first(req)
						}
						return test.then(req)
					}),
				})
				ctx, stop := test.context(t.Context())
				defer stop()
				start := time.Now()
				err := r.Post(ctx, testEvent("a"))
				if took := time.Since(start); took != test.took || requests != test.requests {
					t.Errorf("Post took %v and %d requests, want %v and %d", took, requests, test.took, test.requests)
				}
				for _, is := range test.is {
					if !errors.Is(err, is) {
						t.Errorf("errors.Is(%q, %q) = false, want true", err, is)
					}
				}
				var status *StatusError
				if errors.As(err, &status) != test.status {
					t.Errorf("errors.As(%q, *StatusError) = %t, want %t", err, !test.status, test.status)
				}
				if want := "recorder: http://receiver.test: " + test.text; !strings.HasPrefix(text(err), want) {
					t.Errorf("Post() = %q, want %q", err, want)
				}
				want := Stats{Failed: 1, Retries: uint64(max(test.requests-1, 0))}
				if got := r.Stats(); got != want {
					t.Errorf("Stats() = %+v, want %+v", got, want)
				}
			})
		})
	}
}

func TestTheContextOfARequestEndsWithTheAttempt(t *testing.T) {
	var attempt context.Context
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
		attempt = req.Context()
		return answer(404, ""), nil
	})})
	r.Post(t.Context(), testEvent("a"))
	if attempt.Err() == nil {
		t.Error("the request's context is still on, want it over: it would be kept until the timeout")
	}
}

func TestEachAttemptHasItsOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := &script{t: t, outcomes: []string{"timeout", "202"}}
		r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport, Timeout: 100 * time.Millisecond, Backoff: steady})
		if err := r.Post(t.Context(), testEvent("a")); err != nil {
			t.Errorf("Post() = %v, want nil", err)
		}
		if got, want := transport.waits(), []time.Duration{1100 * time.Millisecond}; !slices.Equal(got, want) {
			t.Errorf("waits = %v, want %v", got, want)
		}
	})
}

// slowBody yields a byte at a time, and ends with the request.
type slowBody struct {
	ctx    context.Context
	every  time.Duration
	closed *atomic.Int64
}

func (b slowBody) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.every):
		p[0] = '.'
		return 1, nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b slowBody) Close() error {
	b.closed.Add(1)
	return nil
}

func TestASlowAnswerIsWaitedForOnlyIfItSaysWhatIsWrong(t *testing.T) {
	for code, want := range map[int]struct {
		outcome outcome
		took    time.Duration
	}{202: {delivered, 100 * time.Millisecond}, 429: {duplicate, 100 * time.Millisecond}, 404: {rejected, 5 * s}, 503: {retry, 5 * s}} {
		synctest.Test(t, func(t *testing.T) {
			var closed atomic.Int64
			r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
				resp := answer(code, "")
				resp.Body = slowBody{req.Context(), 30 * time.Millisecond, &closed}
				return resp, nil
			})})
			start := time.Now()
			got, err := r.webhook.postOnce(t.Context(), nil)
			if took := time.Since(start); got != want.outcome || took != want.took || closed.Load() != 1 {
				t.Errorf("%d: outcome %d in %v, body closed %d times, want %d in %v, once", code, got, took, closed.Load(), want.outcome, want.took)
			}
			if status := (*StatusError)(nil); errors.As(err, &status) && status.Snippet != strings.Repeat(".", 166) {
				t.Errorf("%d: snippet = %q, want the 166 bytes that came", code, status.Snippet)
			}
		})
	}
}

// noReadBody fails the test when it is read.
type noReadBody struct {
	t      *testing.T
	closed *bool
}

func (b noReadBody) Read([]byte) (int, error) {
	b.t.Error("the body was read")
	return 0, io.EOF
}

func (b noReadBody) Close() error {
	*b.closed = true
	return nil
}

func TestTheBodyOfA1xxIsClosedUnread(t *testing.T) {
	for _, code := range []int{101, 199} {
		var closed bool
		r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: code, Body: noReadBody{t, &closed}}, nil
		})})
		var status *StatusError
		if err := r.Post(t.Context(), testEvent("a")); !errors.As(err, &status) || !closed {
			t.Errorf("Post() = %v after %d with the body closed: %t, want a *StatusError and true", err, code, closed)
		}
	}
}

func TestAnAnswerMayHaveNoBody(t *testing.T) {
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		for code, want := range map[int]string{202: "", 404: "recorder: http://receiver.test: status 404 Not Found"} {
			r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: code, Body: body}, nil
			})})
			if err := r.Post(t.Context(), testEvent("a")); text(err) != want {
				t.Errorf("Post() = %q, want %q", text(err), want)
			}
		}
	}
}

func TestSnippetIsShortPrintableAndOnOneLine(t *testing.T) {
	const secretToken = "xoxb-1234"
	r := mustNew(t, Config{
		Webhook: "http://ann:pass%20word@receiver.test/services/T0/TOK%45N?key=va%6Cue&b=2",
		Header:  http.Header{"X-Auth": {"Bearer " + secretToken, "1"}},
	})
	tests := map[string]struct{ body, want string }{
		"plain":                  {"database unavailable", "database unavailable"},
		"empty":                  {"", ""},
		"lines and tabs":         {"<html>\r\n\t<h1>Bad</h1>\n</html>\n", "<html> <h1>Bad</h1> </html>"},
		"escape sequences":       {"\x1b[31mred\x00\x7f", "[31mred"},
		"direction overrides":    {"a\u202eb", "a b"},
		"not UTF-8":              {"a\xffb", "a\ufffdb"},
		"long":                   {strings.Repeat("x", 600), strings.Repeat("x", 512)},
		"cut within a character": {"xx" + strings.Repeat("漢", 300), "xx" + strings.Repeat("漢", 170)},
		"a run of invalid bytes": {strings.Repeat("\xff", 600), "\ufffd"},
		"the path":               {"Cannot POST /services/T0/TOKEN", "Cannot POST /[redacted]/T0/[redacted]"},
		"the escaped path":       {"Cannot POST /services/T0/TOK%45N", "Cannot POST /[redacted]/T0/[redacted]"},
		"a part of the path":     {"no hook TOKEN", "no hook [redacted]"},
		"the query":              {"bad ?key=va%6Cue&b=2.", "bad ?key=[redacted]&b=2."},
		"four letters":           {"bad word", "bad [redacted]"},
		"a value of the query":   {"bad value", "bad [redacted]"},
		"the user info":          {"ann:pass word pass%20word", "ann:[redacted] [redacted] [redacted]"},
		"a header":               {"Bearer xoxb-1234", "[redacted] [redacted]-[redacted]"},
		"a part of a header":     {"bad xoxb-1234 1", "bad [redacted]-[redacted] 1"},
		"the user info as sent":  {"Basic YW5uOnBhc3Mgd29yZA==", "[redacted] [redacted]=="},
		"the host may be shown":  {"receiver.test", "receiver.test"},
		"secret beyond the cut":  {strings.Repeat("y", 505) + "TOKENTOKEN", strings.Repeat("y", 505) + "[redact"},
	}
	for name, test := range tests {
		if got := r.webhook.redact(test.body); got != test.want {
			t.Errorf("%s: redact(%q) = %q, want %q", name, test.body, got, test.want)
		}
	}
}

// A receiver repeats a secret in its own spelling. Whatever that is, no word of it is shown, and what
// stands beside it is.
func TestNoSpellingShowsASecret(t *testing.T) {
	r := mustNew(t, Config{
		Webhook: "http://us%3Cer:pass%26word@receiver.test/services/T0K&EN/B0%20tok/x%3Cy%3Esecretpart/%6Didd%6Ce?api-key=Q-U-ERY4&sig=ab%2Bcdef%2Fgh",
		Header:  http.Header{"X-Token": {`xoxb<"1234">&tail`}},
	})
	given := map[string][]string{
		"path":      {"/services/T0K&EN/B0 tok/x<y>secretpart/middle", "services", "secretpart", "middle"},
		"raw path":  {"/services/T0K&EN/B0%20tok/x%3Cy%3Esecretpart/%6Didd%6Ce", "services", "secretpart", "6didd", "idd%6ce"},
		"query":     {"api-key=Q-U-ERY4&sig=ab+cdef/gh", "ery4", "cdef"},
		"user info": {`us<er:pass&word`, "pass", "word"},
		"header":    {`xoxb<"1234">&tail`, "xoxb", "1234", "tail"},
	}
	inJSON := func(text string) string {
		data, _ := json.Marshal(text)
		return string(data)
	}
	for spelling, spell := range map[string]func(string) string{
		"raw":          func(text string) string { return text },
		"JSON":         inJSON,
		"JSON in JSON": func(text string) string { return inJSON(inJSON(text)) },
		"HTML":         html.EscapeString,
		"percent":      url.QueryEscape,
		"lower percent": func(text string) string {
			return regexp.MustCompile("%..").ReplaceAllStringFunc(url.PathEscape(text), strings.ToLower)
		},
		"lower": strings.ToLower,
		"upper": strings.ToUpper,
	} {
		for part, words := range given {
			got := strings.ToLower(r.webhook.redact("before " + spell(words[0]) + " after"))
			for _, word := range words[1:] {
				if strings.Contains(got, word) {
					t.Errorf("%s in %s: shown is %q, want no %q in it", part, spelling, got, word)
				}
			}
			if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
				t.Errorf("%s in %s: shown is %q, want what stands beside it as well", part, spelling, got)
			}
		}
	}
}

func TestTheHostIsShownThoughItIsInThePathToo(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test/receiver/TOKEN"})
	if got, want := r.webhook.redact("receiver.test knows no TOKEN"), "receiver.test knows no [redacted]"; got != want {
		t.Errorf("redact() = %q, want %q", got, want)
	}
}

// What an answer is cut off in may be the first half of a secret, which is no word that is looked for.
func TestNoFirstHalfOfASecretIsShown(t *testing.T) {
	for name, test := range map[string]struct {
		body io.Reader
		want string
	}{
		"the answer breaks off":     {io.MultiReader(strings.NewReader("no s3cr3ttok"), iotest.ErrReader(errReset)), "no "},
		"within an escape":          {io.MultiReader(strings.NewReader("no s3cr3tt%6"), iotest.ErrReader(errReset)), "no "},
		"within a character":        {io.MultiReader(strings.NewReader("no s3cr3ttok\xc3"), iotest.ErrReader(errReset)), "no "},
		"it is longer than is read": {strings.NewReader("no" + strings.Repeat(" ", maxDrain-5) + "s3cr3ttoken"), "no "},
		"it is whole":               {strings.NewReader("no s3cr3ttoken, no s3cr3ttok"), "no [redacted], no s3cr3ttok"},
	} {
		resp := answer(http.StatusBadRequest, "")
		resp.Body = io.NopCloser(test.body)
		r := mustNew(t, Config{Webhook: "http://receiver.test/s3cr3ttoken", Transport: roundTrip(
			func(*http.Request) (*http.Response, error) { return resp, nil })})
		var status *StatusError
		if err := r.Post(t.Context(), testEvent("a")); !errors.As(err, &status) || status.Snippet != test.want && status.Snippet+" " != test.want {
			t.Errorf("%s: Post() = %v, want a snippet of %q", name, err, test.want)
		}
	}
}

// net/http escapes a path that is not ASCII, and a receiver shows it as it came.
func TestAPathIsRedactedAsItIsSent(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test/tökensécret/İstanbul"})
	for _, shown := range []string{"/tökensécret/İstanbul", "/t%C3%B6kens%C3%A9cret/%C4%B0stanbul", "/t%c3%b6kens%c3%a9cret/%c4%b0stanbul"} {
		if got, want := r.webhook.redact("no "+shown), "no /[redacted]/[redacted]"; got != want {
			t.Errorf("redact(%q) = %q, want %q", "no "+shown, got, want)
		}
	}
}

// keeping is a log handler that formats its lines later, as one that hands them to a goroutine does.
type keeping struct {
	mu      sync.Mutex
	records []slog.Record
}

func (k *keeping) Enabled(context.Context, slog.Level) bool { return true }
func (k *keeping) WithAttrs([]slog.Attr) slog.Handler       { return k }
func (k *keeping) WithGroup(string) slog.Handler            { return k }

func (k *keeping) Handle(_ context.Context, record slog.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.records = append(k.records, record.Clone())
	return nil
}

func TestALineThatIsFormattedLaterNamesItsObject(t *testing.T) {
	log := new(keeping)
	code := http.StatusServiceUnavailable
	r := mustNew(t, Config{Webhook: "http://receiver.test", Backoff: quick, Logger: slog.New(log), Workers: 1,
		Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			defer func() { code = http.StatusBadRequest }()
			return answer(code, ""), nil
		})})
	if err := r.Run(t.Context(), func(context.Context) error { return r.Record(testEvent("a")) }); err != nil {
		t.Fatalf("Run() = %v, want nil", err)
	}
	if len(log.records) != 2 {
		t.Fatalf("%d lines, want 2: a retry and the loss", len(log.records))
	}
	for _, record := range log.records {
		var text bytes.Buffer
		if err := slog.NewTextHandler(&text, nil).Handle(t.Context(), record); err != nil || !strings.Contains(text.String(), "object.name=a") {
			t.Errorf("line = %s, error %v, want object.name=a in it", &text, err)
		}
	}
}

func TestASecretThatBeginsWithAnotherIsRedactedWhole(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test/", Header: http.Header{"X-Token": {"open", "opensesame"}}})
	if got, want := r.webhook.redact("opensesame open"), "[redacted] [redacted]"; got != want {
		t.Errorf("redact() = %q, want %q", got, want)
	}
}

func TestStatusErrorSaysWhatTheReceiverSaid(t *testing.T) {
	for want, err := range map[string]StatusError{
		"status 404 Not Found":              {StatusCode: 404},
		"status 799":                        {StatusCode: 799},
		"status 503 Service Unavailable: x": {StatusCode: 503, Snippet: "x"},
	} {
		if got := err.Error(); got != want {
			t.Errorf("Error() = %q, want %q", got, want)
		}
	}
}

// The tests from here on use real sockets, since the network is what they are about.

// A receiver is a server on loopback that counts connections, those closed, and requests.
type receiver struct {
	*httptest.Server
	connections, closed, requests atomic.Int64
}

// newReceiver starts a receiver, over TLS and HTTP/2 if secure. The handler is told which request
// it is about, from one.
func newReceiver(t testing.TB, secure bool, handle func(n int, w http.ResponseWriter, req *http.Request)) *receiver {
	rec := &receiver{}
	rec.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		handle(int(rec.requests.Add(1)), w, req)
	}))
	rec.Config.ErrorLog = log.New(io.Discard, "", 0)
	rec.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			rec.connections.Add(1)
		case http.StateClosed:
			rec.closed.Add(1)
		}
	}
	rec.EnableHTTP2 = secure
	if secure {
		rec.StartTLS()
	} else {
		rec.Start()
	}
	t.Cleanup(rec.Close)
	return rec
}

// trust is a TLS configuration that knows the receiver's certificate.
func (rec *receiver) trust() *tls.Config {
	if rec.TLS == nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AddCert(rec.Certificate())
	return &tls.Config{RootCAs: roots}
}

// hang ends what would hang. It is long enough for a busy machine not to show in a verdict.
const hang = 2 * time.Minute

// eventually waits for what happens on its own time.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hang); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", hang, what)
		}
	}
}

// quick is a schedule for tests in real time.
var quick = Backoff{Min: time.Millisecond, Max: time.Millisecond}

// withMetadata makes an event whose body is a little longer than size.
func withMetadata(size int) Event {
	e := testEvent("a")
	e.Metadata = map[string]string{"data": strings.Repeat("x", size)}
	return e
}

func TestEveryAttemptCarriesTheSameBody(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for _, size := range []int{300, 200 << 10} {
			t.Run(fmt.Sprintf("HTTP/2 %t, %d bytes", secure, size), func(t *testing.T) {
				var bodies []string
				rec := newReceiver(t, secure, func(n int, w http.ResponseWriter, req *http.Request) {
					body, err := io.ReadAll(req.Body)
					if err != nil || int64(len(body)) != req.ContentLength {
						t.Errorf("read %d bytes of %d, %v", len(body), req.ContentLength, err)
					}
					if got, want := req.ProtoMajor == 2, secure; got != want {
						t.Errorf("%s, want HTTP/2: %t", req.Proto, want)
					}
					bodies = append(bodies, string(body))
					w.WriteHeader(map[int]int{1: 503, 2: 503, 3: 202}[n])
				})
				r := mustNew(t, Config{Webhook: rec.URL, TLS: rec.trust(), Timeout: hang, Backoff: quick})
				defer r.closeIdle()
				if err := r.Post(t.Context(), withMetadata(size)); err != nil {
					t.Fatalf("Post() = %v, want nil", err)
				}
				if len(bodies) != 3 || len(bodies[0]) < size || bodies[1] != bodies[0] || bodies[2] != bodies[0] {
					t.Errorf("%d bodies, want the same three times", len(bodies))
				}
				if got := rec.connections.Load(); got != 1 {
					t.Errorf("%d connections, want 1", got)
				}
			})
		}
	}
}

func TestABodyStillBeingReadIsNotTouched(t *testing.T) {
	var byBody sync.Map
	rec := newReceiver(t, false, func(_ int, w http.ResponseWriter, req *http.Request) {
		start := make([]byte, 256)
		io.ReadFull(req.Body, start)
		if _, seen := byBody.LoadOrStore(string(start), true); !seen {
			w.WriteHeader(502) // before the body is read, while the transport still writes it
			return
		}
		io.Copy(io.Discard, req.Body)
		w.WriteHeader(202)
	})
	r := mustNew(t, Config{Webhook: rec.URL, Timeout: hang, Backoff: quick})
	defer r.closeIdle()
	var senders sync.WaitGroup
	for i := range 16 {
		senders.Go(func() {
			e := withMetadata(2 << 20)
			e.InvolvedObject.Name = strconv.Itoa(i)
			ctx := t.Context()
			if i%4 == 0 { // cancelled in mid-upload
				cancelled, cancel := context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
				ctx = cancelled
			}
			if err := r.Post(ctx, e); err != nil && i%4 != 0 {
				t.Errorf("Post() = %v, want nil", err)
			}
		})
	}
	senders.Wait()
	if got := r.Stats(); got.Delivered+got.Failed != 16 || got.Delivered < 12 {
		t.Errorf("Stats() = %+v, want all delivered but those cancelled", got)
	}
}

func TestAConnectionClosedWhileIdleCostsNoAttempt(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var server sync.WaitGroup
	defer server.Wait()
	server.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			// One answer for each connection; the next request on it meets a closed one.
			if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				io.Copy(io.Discard, req.Body)
				io.WriteString(conn, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
			}
			conn.Close()
		}
	})
	r := mustNew(t, Config{Webhook: "http://" + listener.Addr().String(), Timeout: hang, Backoff: Backoff{Min: time.Minute, Max: time.Minute}})
	for range 100 {
		if err := r.Post(t.Context(), testEvent("a")); err != nil {
			t.Fatalf("Post() = %v, want nil", err)
		}
	}
	if got := r.Stats(); got.Delivered != 100 || got.Retries != 0 {
		t.Errorf("Stats() = %+v, want 100 delivered without a retry", got)
	}
	r.closeIdle()
	listener.Close()
}

// A pipeListener accepts connections within this process, which do without the network's time.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	conn, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (l pipeListener) Close() error   { close(l); return nil }
func (l pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// In fake time, since the rest of an answer that is a success is not waited for long.
func TestSmallAnswersKeepTheConnection(t *testing.T) {
	for _, code := range []int{200, 202, 429, 400, 503} {
		for _, size := range []int{0, 18, 4096, 5000} {
			t.Run(fmt.Sprintf("%d with %d bytes", code, size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					listener := make(pipeListener)
					n := 0
					server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
						io.Copy(io.Discard, req.Body)
						if n++; code == 503 && n%2 == 0 {
							w.WriteHeader(202)
							return
						}
						w.WriteHeader(code)
						io.WriteString(w, strings.Repeat("x", size))
					})}
					go server.Serve(listener)
					defer server.Close()
					r := mustNew(t, Config{Webhook: "http://localhost", Backoff: quick})
					defer r.closeIdle()
					connections := 0
					r.webhook.transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
						connections++
						client, server := net.Pipe()
						listener <- server
						return client, nil
					}
					for range 50 {
						if err := r.Post(t.Context(), testEvent("a")); (err != nil) != (code == 400) {
							t.Fatalf("Post() = %v", err)
						}
						synctest.Wait() // for the connection to be idle
					}
					if connections != 1 {
						t.Errorf("%d connections for 50 events, want 1", connections)
					}
				})
			})
		}
	}
}

func TestEightKiBAreRead(t *testing.T) {
	for size, connections := range map[int]int64{8 << 10: 1, 8<<10 + 1: 5} {
		rec := newReceiver(t, false, func(_ int, w http.ResponseWriter, req *http.Request) {
			io.Copy(io.Discard, req.Body)
			w.Header().Set("Content-Length", strconv.Itoa(size))
			w.WriteHeader(400)
			io.WriteString(w, strings.Repeat("x", size))
		})
		r := mustNew(t, Config{Webhook: rec.URL, Timeout: hang})
		for range 5 {
			r.Post(t.Context(), testEvent("a"))
		}
		r.closeIdle()
		if got := rec.connections.Load(); got != connections {
			t.Errorf("%d connections for 5 answers of %d bytes, want %d", got, size, connections)
		}
	}
}

func TestALongAnswerCostsAFewKiB(t *testing.T) {
	for name, chunk := range map[string]string{"endless": strings.Repeat("x", 4096), "a megabyte": strings.Repeat("x", 1<<20)} {
		for code, want := range map[int]outcome{429: duplicate, 500: retry, 202: delivered} {
			t.Run(fmt.Sprintf("%s, %d", name, code), func(t *testing.T) {
				var sent atomic.Int64
				over := make(chan struct{})
				rec := newReceiver(t, false, func(_ int, w http.ResponseWriter, req *http.Request) {
					defer close(over)
					w.WriteHeader(code)
					for {
						n, err := io.WriteString(w, chunk)
						if sent.Add(int64(n)); err != nil || name != "endless" {
							return
						}
					}
				})
				r := mustNew(t, Config{Webhook: rec.URL, MaxAttempts: 1})
				if got, err := r.webhook.postOnce(t.Context(), nil); got != want {
					t.Errorf("postOnce() = %d, %v, want %d", got, err, want)
				}
				<-over // the connection was closed on it
			})
		}
	}
}

func TestAnAnswerThatDoesNotComeEndsWithTheAttempt(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":             "",
		"half a status line":  "HTTP/1.1 20",
		"headers without end": "HTTP/1.1 202 Accepted\r\n" + strings.Repeat("X-A: b\r\n", 1000),
	} {
		t.Run(name, func(t *testing.T) {
			address := rawReceiver(t, func(conn net.Conn) {
				http.ReadRequest(bufio.NewReader(conn))
				io.WriteString(conn, answer)
				io.Copy(io.Discard, conn)
			})
			r := mustNew(t, Config{Webhook: address, Timeout: 50 * time.Millisecond, MaxAttempts: 1})
			if err := r.Post(t.Context(), testEvent("a")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Post() = %v, want a timeout after 50ms", err)
			}
		})
	}
	t.Run("too long a header", func(t *testing.T) {
		address := rawReceiver(t, func(conn net.Conn) {
			http.ReadRequest(bufio.NewReader(conn))
			io.WriteString(conn, "HTTP/1.1 202 Accepted\r\n")
			for {
				if _, err := io.WriteString(conn, strings.Repeat("X-A: b\r\n", 1000)); err != nil {
					return
				}
			}
		})
		r := mustNew(t, Config{Webhook: address, Timeout: time.Minute, MaxAttempts: 1})
		if err := r.Post(t.Context(), testEvent("a")); !strings.Contains(text(err), "exceeded") {
			t.Errorf("Post() = %v, want an error about the header's length", err)
		}
	})
}

// rawReceiver starts a receiver that is no HTTP server: serve is given each connection.
func rawReceiver(t testing.TB, serve func(net.Conn)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			running.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, conn := range conns { // those that the sender still keeps
			conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return "http://" + listener.Addr().String()
}

func TestSendersShareTheirConnections(t *testing.T) {
	rec := newReceiver(t, false, func(_ int, w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		w.WriteHeader(202)
	})
	r := mustNew(t, Config{Webhook: rec.URL})
	defer r.closeIdle()
	var senders sync.WaitGroup
	for range 16 {
		senders.Go(func() {
			for range 100 {
				if err := r.Post(t.Context(), testEvent("a")); err != nil {
					t.Errorf("Post() = %v, want nil", err)
				}
			}
		})
	}
	senders.Wait()
	if got := rec.connections.Load(); got > 160 { // a dial may lose the race with a connection that comes free
		t.Errorf("%d connections for 16 senders with 100 events each, want about 16", got)
	}
}

// A connection that has silently died is found out by the attempt's timeout over HTTP/1.1, and over
// HTTP/2, where the connection outlives the attempt, by a ping.
func TestADeadConnectionIsReplaced(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %t", secure), func(t *testing.T) {
			t.Parallel()
			rec := newReceiver(t, secure, func(_ int, w http.ResponseWriter, req *http.Request) {
				io.Copy(io.Discard, req.Body)
				w.WriteHeader(202)
			})
			var dead atomic.Bool // connections made before it was set let nothing more through
			through := rawReceiver(t, func(client net.Conn) {
				server, err := net.Dial("tcp", rec.Listener.Addr().String())
				if err != nil {
					return
				}
				defer server.Close()
				old := !dead.Load()
				var back sync.WaitGroup
				pass := func(to, from net.Conn) {
					buffer := make([]byte, 4096)
					for {
						n, err := from.Read(buffer)
						if err != nil {
							to.Close()
							return
						}
						if !old || !dead.Load() {
							to.Write(buffer[:n])
						}
					}
				}
				back.Go(func() { pass(client, server) })
				pass(server, client)
				back.Wait()
			})
			if secure {
				through = strings.Replace(through, "http:", "https:", 1)
			}
			r := mustNew(t, Config{Webhook: through, TLS: rec.trust(), Timeout: 3 * s, Backoff: Backoff{Min: 100 * time.Millisecond, Max: 100 * time.Millisecond}})
			defer r.closeIdle()
			if err := r.Post(t.Context(), testEvent("a")); err != nil {
				t.Fatalf("Post() = %v, want nil", err)
			}
			dead.Store(true)
			if err := r.Post(t.Context(), testEvent("b")); err != nil {
				t.Errorf("Post() = %v, want nil", err)
			}
			if got, want := r.Stats(), (Stats{Delivered: 2, Retries: 1}); got != want {
				t.Errorf("Stats() = %+v, want %+v", got, want)
			}
		})
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	for _, code := range []int{301, 302, 303, 307, 308} {
		elsewhere := newReceiver(t, false, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) })
		rec := newReceiver(t, false, func(_ int, w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Location", elsewhere.URL+"/secret-target")
			w.WriteHeader(code)
			io.WriteString(w, elsewhere.URL+"/secret-target")
		})
		r := mustNew(t, Config{Webhook: rec.URL})
		err := r.Post(t.Context(), testEvent("a"))
		r.closeIdle()
		var status *StatusError
		if !errors.As(err, &status) || *status != (StatusError{StatusCode: code}) {
			t.Errorf("%d: Post() = %v, want a StatusError without a snippet", code, err)
		}
		if rec.requests.Load() != 1 || elsewhere.requests.Load() != 0 {
			t.Errorf("%d: %d requests and %d to the target, want 1 and 0", code, rec.requests.Load(), elsewhere.requests.Load())
		}
	}
}

func TestWhatTLSRefusesIsFinal(t *testing.T) {
	rec := newReceiver(t, true, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) })
	plain := newReceiver(t, false, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) })
	wrongHost := rec.trust()
	wrongHost.ServerName = "elsewhere.test"
	for name, test := range map[string]struct {
		webhook string
		tls     *tls.Config
		text    string
	}{
		"unknown authority":        {rec.URL, nil, "certificate signed by unknown authority"},
		"wrong host":               {rec.URL, wrongHost, "not elsewhere.test"},
		"plain HTTP on a TLS port": {strings.Replace(plain.URL, "http:", "https:", 1), nil, "first record does not look like a TLS handshake"},
	} {
		r := mustNew(t, Config{Webhook: test.webhook, TLS: test.tls, Backoff: Backoff{Min: time.Hour, Max: time.Hour}})
		err := r.Post(t.Context(), testEvent("a"))
		if !strings.Contains(text(err), test.text) || r.Stats() != (Stats{Rejected: 1}) {
			t.Errorf("%s: Post() = %v, %+v, want %q and one rejection", name, err, r.Stats(), test.text)
		}
	}
	if rec.requests.Load()+plain.requests.Load() != 0 {
		t.Errorf("%d requests, want none", rec.requests.Load()+plain.requests.Load())
	}
}

func TestAClosedPortIsTriedAgain(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	r := mustNew(t, Config{Webhook: "http://" + listener.Addr().String(), Backoff: quick})
	err = r.Post(t.Context(), testEvent("a"))
	var op *net.OpError
	if !errors.As(err, &op) || !errors.Is(err, syscall.ECONNREFUSED) || r.Stats() != (Stats{Failed: 1, Retries: 4}) {
		t.Errorf("Post() = %v, %+v, want a refused connection after four retries", err, r.Stats())
	}
}

func TestNoSecretIsShown(t *testing.T) {
	secrets := []string{"annika", "pass", "/services", "TEAM", "TOKEN", "sesame", "xoxb", "YW5uaWthOnBhc3M="}
	repeat := func(req *http.Request) string {
		return fmt.Sprintf("Cannot POST %s with %v as %s", req.URL, req.Header, req.URL.Path)
	}
	status := func(code int) roundTrip {
		return func(req *http.Request) (*http.Response, error) { return answer(code, repeat(req)), nil }
	}
	for name, transport := range map[string]http.RoundTripper{
		"refused": nil,
		"an http.Client's error": roundTrip(func(req *http.Request) (*http.Response, error) {
			return nil, &url.Error{Op: "Post", URL: req.URL.String() + req.Header.Get("Authorization"), Err: errReset}
		}),
		"404": status(404), "503": status(503), "302": status(302), "101": status(101), "429": status(429),
	} {
		for _, authority := range []string{"annika:pass@127.0.0.1:1", "127.0.0.1:1"} {
			var log bytes.Buffer
			r := mustNew(t, Config{
				Webhook:   "http://" + authority + "/services/TEAM/TOKEN?token=sesame",
				Header:    http.Header{"X-Auth": {"Bearer xoxb-1234"}},
				Transport: transport,
				Backoff:   quick,
				Logger:    slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			})
			err := r.Post(t.Context(), testEvent("object"))
			for _, secret := range secrets {
				for _, shown := range []string{text(err), log.String(), fmt.Sprintf("%+v", r)} {
					if strings.Contains(shown, secret) {
						t.Errorf("%s: %q shows %q", name, shown, secret)
					}
				}
			}
			if name == "429" {
				continue
			}
			if !strings.Contains(text(err), "http://127.0.0.1:1") || !strings.Contains(log.String(), `"http://127.0.0.1:1`) && !strings.Contains(log.String(), "http://127.0.0.1:1:") {
				t.Errorf("%s: Post() = %v, logged %s, want scheme and host in both", name, err, log.String())
			}
			if name == "an http.Client's error" && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("errors.Is(%v, ECONNRESET) = false, want true", err)
			}
		}
	}
}

func TestUserInfoBecomesAHeader(t *testing.T) {
	tests := map[string]struct {
		userinfo string
		header   http.Header
		want     http.Header
	}{
		"none":                {"", nil, http.Header{"Content-Type": {"application/json"}}},
		"user and password":   {"ann:p%40ss@", nil, http.Header{"Content-Type": {"application/json"}, "Authorization": {"Basic YW5uOnBAc3M="}}},
		"user alone":          {"ann@", nil, http.Header{"Content-Type": {"application/json"}, "Authorization": {"Basic YW5uOg=="}}},
		"a header goes first": {"ann:pass@", http.Header{"authorization": {"Bearer t"}}, http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer t"}}},
		"headers of the caller's": {"", http.Header{"Content-Type": {"application/cloudevents+json"}, "x-many": {"1", "2"}, "X-Many": {"3"}},
			http.Header{"Content-Type": {"application/cloudevents+json"}, "X-Many": {"1", "2", "3"}}},
	}
	for name, test := range tests {
		var got *http.Request
		r := mustNew(t, Config{Webhook: "http://" + test.userinfo + "receiver.test/path?q", Header: test.header,
			Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
				got = req
				return answer(202, ""), nil
			})})
		if err := r.Post(t.Context(), testEvent("a")); err != nil {
			t.Errorf("%s: Post() = %v, want nil", name, err)
		}
		values, marked := got.Header["X-Idempotency-Key"]
		if delete(got.Header, "X-Idempotency-Key"); !marked || values != nil {
			t.Errorf("%s: X-Idempotency-Key is %v, %t, want an entry without values", name, values, marked)
		}
		slices.Sort(got.Header["X-Many"])
		if diff := gocmp.Diff(test.want, got.Header); diff != "" {
			t.Errorf("%s: header (-want +got):\n%s", name, diff)
		}
		if got.Method != "POST" || got.URL.String() != "http://receiver.test/path?q" || got.Host != "receiver.test" {
			t.Errorf("%s: %s %s to %s, want POST to the webhook without its user info", name, got.Method, got.URL, got.Host)
		}
		body, err := got.GetBody()
		if err != nil {
			t.Fatal(err)
		}
		again, _ := io.ReadAll(body)
		first, _ := io.ReadAll(got.Body)
		if len(first) == 0 || !bytes.Equal(again, first) || got.ContentLength != int64(len(first)) {
			t.Errorf("%s: Body %q, GetBody %q, ContentLength %d, want the same", name, first, again, got.ContentLength)
		}
	}
}

// A wrapper that sets its token on the request that it is given breaks the contract, and is common.
func TestRequestsOfACallersTransportShareNoHeader(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
		if got := req.Header.Get("Authorization"); got != "" {
			t.Errorf("Authorization = %q, want none", got)
		}
		req.Header.Set("Authorization", "Bearer t")
		return answer(202, ""), nil
	})})
	var senders sync.WaitGroup
	for range 8 {
		senders.Go(func() { r.Post(context.Background(), testEvent("a")) })
	}
	senders.Wait()
}

// So does one that returns an answer beside its error, or that keeps to what it was cancelled with.
func TestTransportsThatBreakTheContract(t *testing.T) {
	var closed bool
	r := mustNew(t, Config{Webhook: "http://receiver.test/?a=1", MaxAttempts: 1, Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
		if req.URL.RawQuery != "a=1" {
			t.Errorf("query = %q, want that of the webhook", req.URL.RawQuery)
		}
		req.URL.RawQuery += "&token=t"
		return &http.Response{StatusCode: 202, Body: noReadBody{t, &closed}}, errReset
	})})
	for range 2 {
		if closed = false; !errors.Is(r.Post(t.Context(), testEvent("a")), errReset) || !closed {
			t.Errorf("body closed: %t, want true, and the transport's error", closed)
		}
	}
	bare := mustNew(t, Config{Webhook: "http://receiver.test", Transport: roundTrip(func(req *http.Request) (*http.Response, error) { return &http.Response{}, errReset }), MaxAttempts: 1})
	if err := bare.Post(t.Context(), testEvent("a")); !errors.Is(err, errReset) {
		t.Errorf("Post() = %v, want the transport's error", err)
	}
}

// A receiver and a proxy may put what they like into the error of a transport.
func TestATransportsErrorIsShortAndOnOneLine(t *testing.T) {
	address := rawReceiver(t, func(conn net.Conn) {
		http.ReadRequest(bufio.NewReader(conn))
		io.WriteString(conn, "HTTP/1.1 9\x1b99"+strings.Repeat("x", 60_000)+"\r\n\r\n")
	})
	r := mustNew(t, Config{Webhook: address, MaxAttempts: 1})
	if got := text(r.Post(t.Context(), testEvent("a"))); len(got) > 700 || strings.ContainsAny(got, "\x1b\n") || !strings.Contains(got, "malformed HTTP") {
		t.Errorf("Post() = %q, want one short line", got)
	}
}

// onlyRoundTrip has other methods that a transport may have, which are not the recorder's to call.
type onlyRoundTrip struct {
	roundTrip
	t *testing.T
}

func (o onlyRoundTrip) CloseIdleConnections() { o.t.Error("CloseIdleConnections was called") }

func TestACallersTransportIsLeftAlone(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: onlyRoundTrip{func(*http.Request) (*http.Response, error) { return answer(202, ""), nil }, t}})
	if err := r.Record(testEvent("a")); err != nil {
		t.Errorf("Record() = %v, want nil", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := r.Start(ctx); err != nil {
		t.Errorf("Start() = %v, want nil", err)
	}
}

func TestOwnTransport(t *testing.T) {
	config := &tls.Config{ServerName: "receiver.test"}
	r := mustNew(t, Config{Webhook: "https://receiver.test", TLS: config, Timeout: 8 * s})
	transport := r.webhook.transport.(*http.Transport)
	config.ServerName = "changed.test"
	if got := transport.TLSClientConfig.ServerName; got != "receiver.test" {
		t.Errorf("ServerName = %q, want a copy of the configuration", got)
	}
	type settings struct {
		Handshake, Idle, Ping, PingAnswer time.Duration
		IdlePerHost, IdleAll              int
		Header                            int64
		HTTP2, NoCompression              bool
	}
	got := settings{
		transport.TLSHandshakeTimeout, transport.IdleConnTimeout, transport.HTTP2.SendPingTimeout, transport.HTTP2.PingTimeout,
		transport.MaxIdleConnsPerHost, transport.MaxIdleConns, transport.MaxResponseHeaderBytes,
		transport.ForceAttemptHTTP2, transport.DisableCompression,
	}
	want := settings{8 * s, 90 * s, 4 * s, 4 * s, math.MaxInt, 0, 64 << 10, true, true}
	if got != want {
		t.Errorf("transport = %+v, want %+v", got, want)
	}
	short := newTransport(&url.URL{}, time.Millisecond)
	if got := [2]time.Duration{short.HTTP2.SendPingTimeout, short.HTTP2.PingTimeout}; got != [2]time.Duration{s / 10, s / 10} {
		t.Errorf("pings for a timeout of 1ms after %v, want 100ms each", got)
	}
}

func TestADialHasTheTimeout(t *testing.T) {
	rec := newReceiver(t, false, func(_ int, w http.ResponseWriter, _ *http.Request) {})
	if conn, err := newTransport(&url.URL{}, 1).DialContext(t.Context(), "tcp", rec.Listener.Addr().String()); err == nil {
		conn.Close()
		t.Error("DialContext() = a connection, want a timeout after 1ns")
	}
}

func TestATrailingDotDoesNotHideAHostFromNoProxy(t *testing.T) {
	for address, proxied := range map[string]bool{
		"http://notification-controller.flux-system.svc.cluster.local":       false,
		"http://notification-controller.flux-system.svc.cluster.local.":      false,
		"http://notification-controller.flux-system.svc.cluster.local.:8080": false,
		"http://receiver.test.:8080/":                                        false,
		"http://hooks.example.com/":                                          true,
		"http://hooks.example.com./":                                         true,
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		got, err := newTransport(u, s).Proxy(nil)
		if err != nil || (got != nil) != proxied {
			t.Errorf("Proxy() for %s = %v, %v, want one: %t", address, got, err, proxied)
		}
		if u.String() != address {
			t.Errorf("Proxy() for %s changed the URL to %s", address, u)
		}
	}
}

// A recorder that only ever posts is never stopped: its idle connections go when it does.
func TestIdleConnectionsGoWithTheRecorder(t *testing.T) {
	rec := newReceiver(t, false, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) })
	func() {
		r := mustNew(t, Config{Webhook: rec.URL})
		if err := r.Post(t.Context(), testEvent("a")); err != nil {
			t.Errorf("Post() = %v, want nil", err)
		}
	}()
	eventually(t, "the connection to be closed", func() bool {
		runtime.GC()
		return rec.closed.Load() == 1
	})
}

// FuzzAnswer has a receiver say anything at all.
func FuzzAnswer(f *testing.F) {
	for _, answer := range []string{
		"", "HTTP/1.1 202 Accepted\r\n\r\n", "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 300\r\nContent-Length: 18\r\n\r\nToo Many Requests\r\n",
		"HTTP/1.1 503 \r\nContent-Length: 99\r\n\r\n/TOKEN\x1b[2J", "HTTP/1.1 101 Switching Protocols\r\n\r\nxyz", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 302 Found\r\nLocation: http://h/\r\n\r\n",
		"HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\nx", "HTTP/0.9", "HTTP/1.1 99999 x\r\n\r\n", "\x16\x03\x01", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
	} {
		f.Add([]byte(answer))
	}
	var mu sync.Mutex
	var current []byte
	address := rawReceiver(f, func(conn net.Conn) {
		http.ReadRequest(bufio.NewReader(conn))
		mu.Lock()
		defer mu.Unlock()
		conn.Write(current)
	})
	f.Fuzz(func(t *testing.T, answer []byte) {
		mu.Lock()
		current = answer
		mu.Unlock()
		r := mustNew(t, Config{Webhook: address + "/TOKEN", QueueSize: 1, Timeout: s, MaxAttempts: 2, Backoff: quick})
		defer r.closeIdle()
		begin := time.Now()
		err := r.Post(t.Context(), testEvent("a"))
		if took := time.Since(begin); took > hang {
			t.Errorf("Post took %v, want at most two timeouts of 1s", took)
		}
		if got := text(err); len(got) > 2048 || strings.Contains(got, "TOKEN") {
			t.Errorf("Post() = %q, want a short error without the path", got)
		}
		if got := r.Stats(); got.sum() != 1 {
			t.Errorf("Stats() = %+v, want one event in all", got)
		}
	})
}

// FuzzDelay has any schedule that New takes keep its bounds.
func FuzzDelay(f *testing.F) {
	f.Add(int64(s), int64(30*s), 0.5, 1)
	f.Add(int64(1), int64(math.MaxInt64), 1.0, 64)
	f.Add(int64(0), int64(0), 0.0, -1)
	f.Fuzz(func(t *testing.T, minimum, maximum int64, jitter float64, retry int) {
		r, err := New(Config{QueueSize: 1, Backoff: Backoff{Min: time.Duration(minimum), Max: time.Duration(maximum), Jitter: jitter}})
		if err != nil {
			return
		}
		b := r.config.Backoff
		if got := b.Delay(retry); got <= 0 || got > b.Max {
			t.Errorf("%+v.Delay(%d) = %v, want above 0 and at most Max", b, retry, got)
		}
	})
}
