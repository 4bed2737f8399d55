package recorder

// This file posts bytes to a webhook: the retry loop, one attempt of it, what an attempt's outcome
// means, and the transport.

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits on what a receiver may cost us, besides the attempt's timeout.
const (
	maxSnippet      = 512                    // bytes of an answer that are shown
	maxDrain        = 8 << 10                // bytes of an answer that are read
	maxHeader       = 64 << 10               // bytes of an answer's header
	drainTime       = 100 * time.Millisecond // to drain the answer of a success
	idleConnTimeout = 90 * time.Second       // as in [http.DefaultTransport]
	minPing         = 100 * time.Millisecond // spares receivers if the timeout is below 200ms
	minSecret       = 4                      // letters and digits; shorter words are too common to redact
)

// An outcome is what an attempt came to, and so what happens next.
type outcome int

const (
	delivered outcome = iota // the receiver took the event
	duplicate                // the receiver has had the event before: as good as delivered
	retry                    // may succeed next time
	rejected                 // will fail again
	stopped                  // the caller's context is over
)

// StatusError is the answer of a receiver that did not take an event. Find it with [errors.As].
type StatusError struct {
	// StatusCode is the answer's HTTP status code.
	StatusCode int

	// Snippet is the start of the answer's body, at most 512 bytes of printable text on one line.
	// It is empty for a redirect, whose body repeats the target. Words of the webhook and of
	// the header are redacted, from four letters and digits on, in any case.
	Snippet string
}

// Error gives the status code, its name where it has one, and the snippet.
func (e *StatusError) Error() string {
	text := strings.TrimSpace(fmt.Sprintf("status %d %s", e.StatusCode, http.StatusText(e.StatusCode)))
	if e.Snippet != "" {
		text += ": " + e.Snippet
	}
	return text
}

// A webhook is a receiver, the way to it, and how patiently it is tried. It does not change once it
// is made, and is safe for concurrent use.
type webhook struct {
	request   *http.Request  // what every attempt sends a copy of
	secrets   *regexp.Regexp // what must not be shown
	transport http.RoundTripper
	foreign   bool // the transport may change the requests that it is given, as many do
	timeout   time.Duration
	attempts  int
	backoff   Backoff
	logger    *slog.Logger
	retries   *atomic.Uint64
}

// deliver posts body until the receiver has it or refuses it, or the attempts are used up, or ctx
// is over. The error is nil if the receiver has it. About names the body in the log.
func (w *webhook) deliver(ctx context.Context, about slog.LogValuer, body []byte) (outcome, error) {
	var last error
	for attempt := 1; ; attempt++ {
		result, err := w.postOnce(ctx, body)
		switch {
		case result == delivered, result == duplicate, result == rejected:
			return result, err
		case ctx.Err() != nil:
			return stopped, ended(ctx, err, last)
		case attempt == w.attempts:
			return result, fmt.Errorf("gave up after %s: %w", count(attempt, "attempt"), err)
		}
		pause := w.backoff.Delay(attempt)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= pause {
			return stopped, fmt.Errorf("%w before attempt %d could be made: %w", context.DeadlineExceeded, attempt+1, err)
		}
		w.logger.LogAttrs(ctx, slog.LevelDebug, "event not delivered yet", slog.Any("object", about.LogValue()),
			slog.Int("attempt", attempt), slog.Duration("wait", pause), slog.Any("error", err))
		if !sleep(ctx, pause) {
			return stopped, ended(ctx, err)
		}
		w.retries.Add(1)
		last = err
	}
}

// count says how many things there are.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// ended says that the caller's context is over, why, and what failed before that, the latest first.
func ended(ctx context.Context, failures ...error) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); cause != err {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	for _, failure := range failures {
		if failure != nil {
			err = fmt.Errorf("%w, after an attempt that failed: %w", err, failure)
		}
	}
	return err
}

// sleep waits for d and reports whether ctx is still on after that.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// postOnce makes one attempt: no request if ctx is over already, else exactly one. The error is nil
// if the receiver has the event, or if there is nothing to say but that ctx is over.
func (w *webhook) postOnce(ctx context.Context, body []byte) (outcome, error) {
	if ctx.Err() != nil {
		return stopped, nil
	}
	attempt, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()

	// RoundTrip and not http.Client.Do: that would follow redirects, and put the URL into its errors.
	resp, err := w.transport.RoundTrip(w.copy(attempt, body))
	if err != nil && resp != nil && resp.Body != nil {
		resp.Body.Close() // against the contract of a RoundTripper, and no reason to leak
	}
	switch {
	case err != nil:
		return w.unanswered(ctx, attempt, err)
	case resp == nil:
		return rejected, errors.New("the transport returned neither a response nor an error")
	}
	result := classify(resp.StatusCode)
	if result == delivered || result == duplicate {
		// The header settles the outcome. The body is drained so that the connection can be used again,
		// but briefly: a slow one may cost the connection, not the caller's time.
		if resp.Body != http.NoBody {
			limit := time.AfterFunc(drainTime, cancel)
			defer limit.Stop()
		}
		w.drain(resp)
		return result, nil
	}
	return result, &StatusError{StatusCode: resp.StatusCode, Snippet: w.drain(resp)}
}

// unanswered classifies an attempt that got an error and no answer.
func (w *webhook) unanswered(ctx, attempt context.Context, err error) (outcome, error) {
	shown := &concealed{w.redact(err.Error()), err}
	switch {
	case same(err, ctx.Err()), same(err, context.Cause(ctx)):
		return stopped, nil
	case ctx.Err() != nil:
		return stopped, shown
	case attempt.Err() != nil:
		return retry, fmt.Errorf("no answer within %v: %w", w.timeout, shown)
	default:
		return classifyError(err), shown
	}
}

// same reports whether err is target and says no more.
func same(err, target error) bool {
	return err != nil && errors.Is(err, target) && err.Error() == target.Error()
}

// copy makes the request of one attempt, with a reader of its own: a transport may go on reading
// after it has answered. What requests share is never changed.
func (w *webhook) copy(ctx context.Context, body []byte) *http.Request {
	req := w.request.WithContext(ctx)
	if w.foreign {
		req = w.request.Clone(ctx)
	}
	req.ContentLength = int64(len(body))
	// Not a type of our own: net/http sends what it knows to be in memory in one write with the header.
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
	return req
}

// drain reads the start of an answer within the attempt's timeout, closes it on every path, and
// returns what may be shown of it.
func (w *webhook) drain(resp *http.Response) string {
	if resp.Body == nil || resp.Body == http.NoBody {
		return ""
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 {
		return "" // After 101 the body is the connection itself.
	}
	start, err := io.ReadAll(io.LimitReader(resp.Body, maxDrain))
	if resp.StatusCode < 400 {
		return "" // Of a success there is nothing to show; a redirect repeats its target.
	}
	if err != nil || len(start) == maxDrain {
		// The last word may be the first half of a secret.
		start = bytes.TrimRightFunc(start, func(c rune) bool { return !apart(c) || c == '%' || c == utf8.RuneError })
	}
	return w.redact(string(start))
}

// classify says what a status code means. 429 is how notification-controller answers an event that
// it already has (fluxcd/notification-controller sets Retry-After beside it, which is therefore not
// looked at); 208 is the code that RFC 5842 section 7.1 has for that.
func classify(code int) outcome {
	switch {
	case code == http.StatusTooManyRequests, code == http.StatusAlreadyReported:
		return duplicate
	case code >= 200 && code <= 299:
		return delivered
	case code == http.StatusRequestTimeout, code >= 500 && code != http.StatusNotImplemented:
		return retry
	default:
		return rejected
	}
}

// classifyError classifies a transport error. What a retry cannot fix is rejected: a certificate, or a
// receiver that does not speak TLS.
func classifyError(err error) outcome {
	var header tls.RecordHeaderError
	if errors.As(err, &header) && string(header.RecordHeader[:]) == "HTTP/" || errors.Is(err, http.ErrSchemeMismatch) ||
		errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(x509.UnknownAuthorityError)) ||
		errors.As(err, new(x509.HostnameError)) || errors.As(err, new(x509.CertificateInvalidError)) {
		return rejected
	}
	return retry
}

// newWebhook makes a webhook that posts copies of req, and shows no more of address and of req's
// header than scheme and host.
func newWebhook(req *http.Request, address string) *webhook {
	secrets := []string{address, req.URL.EscapedPath()} // as it was given, and as it is sent
	for _, values := range req.Header {
		secrets = append(secrets, values...)
	}
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	// This entry is not sent. It lets the transport repeat a request at once, without costing an
	// attempt, when a kept connection turns out to be closed. The receiver drops a second copy.
	req.Header["X-Idempotency-Key"] = nil
	return &webhook{request: req, secrets: redactor(secrets, req.URL.Scheme+" "+req.URL.Host)}
}

// newTransport makes the recorder's own transport. It shares nothing with [http.DefaultTransport].
//
// A trailing dot of the host only tells a resolver that the name is complete. It must not keep
// NO_PROXY from matching it.
func newTransport(u *url.URL, timeout time.Duration) *http.Transport {
	dotless := *u
	dotless.Host = strings.Replace(u.Host, u.Hostname(), strings.TrimSuffix(u.Hostname(), "."), 1)
	asked := &http.Request{URL: &dotless}
	return &http.Transport{
		Proxy:       func(*http.Request) (*url.URL, error) { return http.ProxyFromEnvironment(asked) },
		DialContext: (&net.Dialer{Timeout: timeout}).DialContext,
		// A dial can outlive the attempt that started it, so it needs limits of its own.
		TLSHandshakeTimeout: timeout,
		// As many as there are senders: with fewer, each burst would open connections anew.
		MaxIdleConnsPerHost:    math.MaxInt,
		IdleConnTimeout:        idleConnTimeout,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		// An HTTP/2 connection survives the timeout of a request on it. An unanswered ping closes it
		// within about one timeout, so that the next attempt gets a live one.
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: max(timeout/2, minPing),
			PingTimeout:     max(timeout/2, minPing),
		},
	}
}

// redactor matches the words of secrets: runs of letters and digits, in any case, as they were given
// and without their escapes. A receiver that echoes a path ("Cannot POST /services/T0") may escape what
// separates its words differently. Words of shown are never redacted. No word needs quoting: it has
// letters, digits and "%" alone.
func redactor(secrets []string, shown string) *regexp.Regexp {
	harmless := strings.FieldsFunc(strings.ToLower(shown), apart)
	words := []string{`\z.`} // Nothing matches this, and an empty list would match everywhere.
	for _, secret := range secrets {
		for _, piece := range strings.FieldsFunc(secret, func(c rune) bool { return apart(c) && c != '%' }) {
			decoded, _ := url.PathUnescape(piece)
			found := strings.FieldsFunc(piece+" "+decoded+" "+strings.ToLower(decoded), apart)
			found = append(found, piece) // as well: each of its parts may be below minSecret
			for _, word := range found {
				if utf8.RuneCountInString(word) >= minSecret && !slices.Contains(harmless, strings.ToLower(word)) {
					words = append(words, word)
				}
			}
		}
	}
	// The longest first, since the first that matches is the one that is redacted.
	slices.SortFunc(words, func(a, b string) int { return len(b) - len(a) })
	return regexp.MustCompile("(?i)" + strings.Join(words, "|"))
}

// apart reports whether c separates words.
func apart(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }

// redact makes outside text safe to show: without secrets, printable, on one line, and short.
func (w *webhook) redact(text string) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	text = strings.Join(strings.FieldsFunc(text, func(c rune) bool { return c == ' ' || !unicode.IsPrint(c) }), " ")
	text = w.secrets.ReplaceAllLiteralString(text, "[redacted]")
	return strings.ToValidUTF8(text[:min(len(text), maxSnippet)], "")
}

// A concealed error is one whose own text must not be shown: it may be the receiver's, or that of a
// caller's Transport. What it wraps is still found.
type concealed struct {
	text  string
	cause error
}

func (e *concealed) Error() string { return e.text }
func (e *concealed) Unwrap() error { return e.cause }
