package recorder

// This file moves bytes to a webhook: the retry loop, one attempt of it, what an attempt's outcome
// means, and the transport. It knows nothing of events but the name that they go by in the log.

import (
	"bytes"
	"cmp"
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
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
)

// What the receiver may cost us, beside the attempt's timeout.
const (
	maxSnippet      = 512                    // bytes of an answer that are shown
	maxDrain        = 8 << 10                // bytes of an answer that are read
	maxHeader       = 64 << 10               // bytes of an answer's header
	drainTime       = 100 * time.Millisecond // for the rest of an answer that needs no reading
	idleConnTimeout = 90 * time.Second       // as in [http.DefaultTransport]
	minPing         = 100 * time.Millisecond // for the sake of receivers, with timeouts below 200ms
	minSecret       = 4                      // bytes; what is shorter hides nothing and stands everywhere
)

// An outcome is what an attempt came to, and so what happens next.
type outcome int

const (
	delivered outcome = iota // the receiver took the event
	duplicate                // the receiver has had the event before: as good as delivered
	retry                    // it may go better next time
	rejected                 // it will go no better next time
	stopped                  // the caller's context is over
)

// StatusError is the answer of a receiver that did not take an event. Find it with [errors.As].
type StatusError struct {
	// StatusCode is the answer's HTTP status code.
	StatusCode int

	// Snippet is the start of the answer's body, at most 512 bytes of printable text on one line.
	// It is empty for a redirect, whose body repeats the target. What it repeats word for word of the
	// webhook or of Config.Header is blotted out, from four bytes on.
	Snippet string
}

// Error gives the status code, its name where it has one, and the snippet.
func (e *StatusError) Error() string {
	text := "status " + strconv.Itoa(e.StatusCode)
	if name := http.StatusText(e.StatusCode); name != "" {
		text += " " + name
	}
	if e.Snippet != "" {
		text += ": " + e.Snippet
	}
	return text
}

// A webhook is a receiver, the way to it, and how patiently it is tried. It does not change once it
// is made, but for the count, and is safe for concurrent use.
type webhook struct {
	config    Config
	url       *url.URL    // without user info, which has become a header
	target    string      // all of the URL that may be shown
	header    http.Header // of every request
	transport http.RoundTripper
	closeIdle func()
	redact    *strings.Replacer
	retries   atomic.Uint64
}

// deliver posts body until the receiver has it or refuses it, or the attempts are used up, or ctx
// is over. The error is nil if the receiver has it.
func (w *webhook) deliver(ctx context.Context, about object, body []byte) (outcome, error) {
	var last error
	for attempt := 1; ; attempt++ {
		result, err := w.postOnce(ctx, body)
		switch {
		case result == delivered || result == duplicate:
			return result, nil
		case result == rejected:
			return result, err
		case ctx.Err() != nil:
			return stopped, ended(ctx, err, last)
		case attempt == w.config.MaxAttempts:
			return result, fmt.Errorf("gave up after %d attempts: %w", attempt, err)
		}
		pause := w.config.Backoff.Delay(attempt)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= pause {
			return stopped, fmt.Errorf("%w before attempt %d could be made: %w", context.DeadlineExceeded, attempt+1, err)
		}
		w.config.Logger.LogAttrs(ctx, slog.LevelDebug, "event not delivered yet", slog.Any("object", about),
			slog.Int("attempt", attempt), slog.Duration("wait", pause), slog.Any("error", err))
		if !sleep(ctx, pause) {
			return stopped, ended(ctx, err)
		}
		w.retries.Add(1)
		last = err
	}
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
	attempt, cancel := context.WithTimeout(ctx, w.config.Timeout)
	defer cancel()

	// RoundTrip and not http.Client.Do: that would follow redirects, and put the URL into its errors.
	resp, err := w.transport.RoundTrip(w.request(attempt, body))
	if err != nil && resp != nil && resp.Body != nil {
		resp.Body.Close() // against the contract of a RoundTripper, and no reason to leak
	}
	switch {
	case same(err, ctx.Err()), same(err, context.Cause(ctx)):
		return stopped, nil
	case err != nil && ctx.Err() != nil:
		return stopped, w.conceal(err)
	case err != nil && attempt.Err() != nil:
		return retry, fmt.Errorf("no answer within %v: %w", w.config.Timeout, w.conceal(err))
	case err != nil:
		return classifyError(err), w.conceal(err)
	case resp == nil:
		return rejected, errors.New("the transport returned neither a response nor an error")
	}

	result := classify(resp.StatusCode)
	if result == delivered || result == duplicate {
		// The outcome stands since the header came. What has not followed soon costs the connection,
		// which could be used again after the whole answer alone, and not the caller's time.
		if resp.Body != http.NoBody {
			defer time.AfterFunc(drainTime, cancel).Stop()
		}
		w.finish(resp)
		return result, nil
	}
	return result, &StatusError{StatusCode: resp.StatusCode, Snippet: w.finish(resp)}
}

// same reports whether err is target and says no more.
func same(err, target error) bool {
	return err != nil && errors.Is(err, target) && err.Error() == target.Error()
}

// request makes the request of one attempt, with a reader of its own: a transport may go on reading
// after it has answered. What requests share, nobody ever changes.
func (w *webhook) request(ctx context.Context, body []byte) *http.Request {
	req := new(http.Request).WithContext(ctx)
	req.Method = http.MethodPost
	req.URL = w.url
	req.Host = w.url.Host
	req.Header = w.header
	req.ContentLength = int64(len(body))
	// Not a type of our own: net/http sends what it knows to be in memory in one write with the header.
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
	if w.config.Transport != nil {
		return req.Clone(ctx) // Many a wrapper changes the request that it is given.
	}
	return req
}

// finish reads the start of an answer within the attempt's timeout, closes it on every path, and
// returns what may be shown of it.
func (w *webhook) finish(resp *http.Response) string {
	if resp.Body == nil || resp.Body == http.NoBody {
		return ""
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 {
		return "" // After 101 the body is the connection itself.
	}
	start, _ := io.ReadAll(io.LimitReader(resp.Body, maxDrain))
	if resp.StatusCode < 400 {
		return "" // Of a success there is nothing to show; a redirect repeats its target.
	}
	return w.snippet(string(start))
}

// snippet makes a foreign text fit to be shown: short, on one line, printable and without secrets.
func (w *webhook) snippet(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, w.redact.Replace(text))
	text = strings.Join(strings.Fields(text), " ")
	return strings.ToValidUTF8(text[:min(len(text), maxSnippet)], "")
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

// classifyError says what it means that there was no answer. What waiting does not mend is
// rejected: a certificate, or a receiver that does not speak TLS.
func classifyError(err error) outcome {
	var notTLS tls.RecordHeaderError
	switch {
	case is[*tls.CertificateVerificationError](err), is[x509.UnknownAuthorityError](err),
		is[x509.HostnameError](err), is[x509.CertificateInvalidError](err):
		return rejected
	case errors.As(err, &notTLS) && string(notTLS.RecordHeader[:]) == "HTTP/":
		return rejected
	case errors.Is(err, http.ErrSchemeMismatch): // the same, as http.Client says it
		return rejected
	default:
		return retry
	}
}

// is reports whether err is a T or wraps one.
func is[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}

// newWebhook makes the way to c.Webhook. Of a malformed address it only says what is wrong: the
// error of url.Parse would quote it.
func newWebhook(c Config) (*webhook, error) {
	u, err := url.Parse(c.Webhook)
	switch {
	case err != nil || strings.TrimSpace(c.Webhook) != c.Webhook:
		return nil, errors.New("recorder: Config.Webhook is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("recorder: Config.Webhook is not an http or https URL")
	case u.Hostname() == "":
		return nil, errors.New("recorder: Config.Webhook has no host")
	}
	if port, err := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16); err != nil || port == 0 {
		return nil, errors.New("recorder: Config.Webhook has a port that is not within 1 to 65535")
	}
	w := &webhook{config: c, url: u, target: u.Scheme + "://" + u.Host, header: make(http.Header)}
	for name, values := range c.Header {
		name = http.CanonicalHeaderKey(name)
		w.header[name] = append(w.header[name], values...)
	}
	if err := w.check(); err != nil {
		return nil, err
	}
	password, _ := u.User.Password()
	if u.User != nil && w.header.Get("Authorization") == "" {
		(&http.Request{Header: w.header}).SetBasicAuth(u.User.Username(), password)
	}
	w.redact = redactor(u, w.header)
	u.User = nil
	if w.header.Get("Content-Type") == "" {
		w.header.Set("Content-Type", "application/json")
	}
	// This entry is not sent. It lets the transport repeat a request at once, without costing an
	// attempt, when a kept connection turns out to be closed. The receiver drops a second copy.
	w.header["X-Idempotency-Key"] = nil

	w.transport, w.closeIdle = c.Transport, func() {}
	if w.transport == nil {
		own := newTransport(c.TLS, c.Timeout)
		w.transport, w.closeIdle = own, own.CloseIdleConnections
	}
	return w, nil
}

// check finds what net/http would refuse at each request, or leave out without a word, and a key that
// all events would share.
func (w *webhook) check() error {
	for _, name := range []string{"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Upgrade", "X-Idempotency-Key"} {
		if w.header.Values(name) != nil {
			return fmt.Errorf("recorder: Config.Header may not set %s", name)
		}
	}
	// A transport checks the header before it looks at the context, so with one that is over it goes
	// no further. Its error may quote a name, which may be a secret in the wrong place.
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := new(http.Transport).RoundTrip(w.request(over, nil)); !errors.Is(err, context.Canceled) {
		return errors.New("recorder: Config.Header has a malformed name, or a value with a line break or control character")
	}
	return nil
}

// newTransport makes the recorder's own transport. It shares nothing with [http.DefaultTransport].
func newTransport(config *tls.Config, timeout time.Duration) *http.Transport {
	return &http.Transport{
		Proxy:           proxyFromEnvironment,
		DialContext:     (&net.Dialer{Timeout: timeout}).DialContext,
		TLSClientConfig: config.Clone(),
		// A connection in the making outlives the attempt that asked for it, so it needs bounds of its own.
		TLSHandshakeTimeout: timeout,
		// As many as there are senders: with fewer, each burst would open connections anew.
		MaxIdleConnsPerHost:    math.MaxInt,
		IdleConnTimeout:        idleConnTimeout,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		// An HTTP/2 connection survives the timeout of a request on it. A ping that goes unanswered
		// by the time the attempt is over makes sure that the next one does not meet a dead one.
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: max(timeout/2, minPing),
			PingTimeout:     max(timeout/2, minPing),
		},
	}
}

// proxyFromEnvironment is [http.ProxyFromEnvironment], except that a trailing dot of the host, which
// only tells a resolver that the name is complete, does not keep NO_PROXY from matching it.
func proxyFromEnvironment(req *http.Request) (*url.URL, error) {
	if host, dotted := strings.CutSuffix(req.URL.Hostname(), "."); dotted {
		dotless := *req.URL
		dotless.Host = strings.ReplaceAll(dotless.Host, host+".", host)
		req = &http.Request{URL: &dotless}
	}
	return http.ProxyFromEnvironment(req)
}

// redactor blots out what must not be shown: the webhook's user info, path and query and the values
// of the header, whole and in pieces, as they were given and as they are sent. A receiver may repeat
// any of it ("Cannot POST /services/T0"), and so may the error of a caller's Transport.
func redactor(u *url.URL, header http.Header) *strings.Replacer {
	user, _ := url.PathUnescape(u.User.String())
	query, _ := url.QueryUnescape(u.RawQuery)
	secrets := []string{u.User.String(), user, u.EscapedPath(), u.Path, u.RawQuery, query}
	for _, values := range header {
		secrets = append(secrets, values...)
	}
	for _, whole := range secrets {
		secrets = append(secrets, strings.FieldsFunc(whole, func(c rune) bool { return strings.ContainsRune("/?&=:;, ", c) })...)
	}
	// The longest first, since the first that matches is the one that is blotted out.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, secret := range secrets {
		if len(secret) >= minSecret && !strings.Contains(u.Host, secret) { // the host is shown anyway
			pairs = append(pairs, secret, "[redacted]")
		}
	}
	return strings.NewReplacer(pairs...)
}

// conceal makes the text of an error fit to be shown: it may be the receiver's, or that of a caller's
// Transport. What the error wraps is still found.
func (w *webhook) conceal(err error) error {
	if text := w.snippet(err.Error()); text != err.Error() {
		return &concealed{text, err}
	}
	return err
}

// A concealed error is one whose own text must not be shown.
type concealed struct {
	text  string
	cause error
}

func (e *concealed) Error() string { return e.text }
func (e *concealed) Unwrap() error { return e.cause }
