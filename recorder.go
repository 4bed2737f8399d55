// Package recorder posts Kubernetes events as JSON to a webhook, such as that of Flux's
// notification-controller, without ever holding up a reconcile loop.
//
// A [Recorder] is made with [New]. Most controllers call [Recorder.Record], which puts an event into
// a bounded queue and returns, and have [Recorder.Run] deliver the queue for as long as their manager
// runs:
//
//	rec, err := recorder.New(recorder.Config{Webhook: url, Controller: "app-controller"})
//	...
//	err = rec.Run(ctx, mgr.Start) // instead of mgr.Start(ctx)
//
// and in a reconciler
//
//	err = rec.Record(recorder.Event{
//		InvolvedObject: recorder.ObjectReference{Kind: "App", Namespace: "prod", Name: "web"},
//		Reason:         "Deployed",
//		Message:        "version 1.2.3 is live",
//	})
//
// [Recorder.Post] sends one event now and waits for the outcome. [NewEventRecorder] and
// [NewLegacyEventRecorder] make the recorder a client-go event recorder.
//
// # Attempts
//
// A receiver that has an event already answers 429 Too Many Requests, on any attempt. That means
// success, at once; Retry-After is never read. Timeouts, lost connections, 408, and 500 and above but
// 501 are tried again after a [Backoff]; every other answer is final. With the defaults an event costs at
// most 5 attempts of 5s each and waits of at most 1s, 2s, 4s and 8s, which makes 40s, and a receiver
// may be gone for 7.5s, the shortest sum of these waits, without an event being lost.
//
// # Losses
//
// [Stats] counts each lost event, and Config.Logger, if set, is told its object, reason and cause, of a
// run of refusals at every power of two. Neither logs nor errors show more of the webhook than its
// scheme and host, nor any header.
package recorder

// This file holds events, their queue and the adapters for client-go; retry.go posts bytes and tries
// again; backoff.go says how long to wait.

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"
)

// Events: what is posted, and what makes it fit to be.

// The severities of an [Event], as Flux names them.
const (
	SeverityInfo  = "info"
	SeverityError = "error"
	SeverityTrace = "trace" // never posted
)

const (
	// maxMessage is the longest message in characters that Flux's Event schema admits.
	maxMessage = 39_000
	// maxKept is the largest metadata whose map is used again, for another event.
	maxKept = 8
	// keptOfMessage is how much of each end of a longer one is kept. The marker takes the rest.
	keptOfMessage = maxMessage/2 - 30
)

// ObjectReference names an object as Kubernetes' core/v1 ObjectReference does, with the same JSON.
// It is a value. Kind and Name are required in an [Event]'s InvolvedObject; Namespace is empty for
// cluster-scoped objects.
type ObjectReference struct {
	Kind            string `json:"kind,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name,omitempty"`
	UID             string `json:"uid,omitempty"`
	APIVersion      string `json:"apiVersion,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	FieldPath       string `json:"fieldPath,omitempty"`
}

// Event is what happened to an object. It is posted as the JSON of an Event of Flux's API group
// event.toolkit.fluxcd.io/v1. It is a value; neither [Recorder.Post] nor [Recorder.Record] changes
// what it refers to, nor refers to it after having returned.
type Event struct {
	// InvolvedObject is what the event is about. Required.
	InvolvedObject ObjectReference `json:"involvedObject"`

	// RelatedObject is a second object that had a part in it, or nil.
	RelatedObject *ObjectReference `json:"relatedObject,omitempty"`

	// Severity is SeverityInfo, the default, SeverityError, or SeverityTrace, which is not posted.
	Severity string `json:"severity"`

	// Timestamp is when it happened; the zero value means now. It is posted in UTC and whole seconds.
	Timestamp time.Time `json:"timestamp"`

	// Message is for people. A message of more than 39,000 characters loses its middle.
	Message string `json:"message"`

	// Reason is for machines: one word in UpperCamelCase, such as "ReconciliationFailed".
	Reason string `json:"reason"`

	// Action is what was done to the object, such as "Reconciling".
	Action string `json:"action"`

	// Metadata is passed on to the alert. Of it notification-controller keeps only the keys under
	// "event.toolkit.fluxcd.io/" and under the API group of the involved object.
	Metadata map[string]string `json:"metadata,omitempty"`

	// ReportingController defaults to Config.Controller.
	ReportingController string `json:"reportingController"`

	// ReportingInstance defaults to Config.Instance.
	ReportingInstance string `json:"reportingInstance,omitempty"`
}

// An object is what an event is about: the key of the event's order and its name in the log.
type object struct{ kind, namespace, name string }

func (e *Event) object() object {
	return object{e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name}
}

// LogValue makes an object a group of attributes with the names that controllers use.
func (o object) LogValue() slog.Value {
	return slog.GroupValue(slog.String("kind", o.kind), slog.String("namespace", o.namespace), slog.String("name", o.name))
}

// complete fills in the defaults, or says what the event lacks. It allocates nothing for a valid one.
func (e *Event) complete(controller, instance string) error {
	// Not cmp.Or: the slice that it takes adds measurably to the cost of Record.
	if e.Severity == "" {
		e.Severity = SeverityInfo
	}
	switch {
	case e.InvolvedObject.Kind == "":
		return errors.New("event without InvolvedObject.Kind")
	case e.InvolvedObject.Name == "":
		return errors.New("event without InvolvedObject.Name")
	case e.Severity != SeverityInfo && e.Severity != SeverityError:
		return fmt.Errorf("event with Severity %q, which is none of info, error and trace", e.Severity)
	}
	if e.Timestamp.IsZero() {
		e.Timestamp = time.Now()
	}
	e.Timestamp = time.Unix(e.Timestamp.Unix(), 0).UTC() // cheaper than Truncate, which divides
	if e.ReportingController == "" {
		e.ReportingController = controller
	}
	if e.ReportingInstance == "" {
		e.ReportingInstance = instance
	}
	return nil
}

// shorten cuts the middle out of a message that is too long, at character boundaries. The end stays,
// since that is where an error text often comes to the point. A byte that is not UTF-8 counts as one
// character, which is what it becomes in JSON.
func shorten(message string) string {
	// Few are long enough in bytes to be counted.
	if len(message) <= maxMessage || utf8.RuneCountInString(message) <= maxMessage {
		return message
	}
	characters := []rune(message)
	missing := len(characters) - 2*keptOfMessage
	head, tail := characters[:keptOfMessage], characters[keptOfMessage+missing:]
	return fmt.Sprintf("%s ... [%d characters left out] ... %s", string(head), missing, string(tail))
}

// Settings: what a recorder is told, and what is made of it.

// Config says where events go and how. The zero value of every field is usable.
type Config struct {
	// Webhook is the absolute http or https URL that events are posted to. It is treated as a
	// secret: errors and logs show its scheme and host alone. User info in it becomes an
	// Authorization header, unless Header has one. Empty: every call is a no-op.
	Webhook string

	// Controller is the default for Event.ReportingController.
	Controller string

	// Instance is the default for Event.ReportingInstance. Empty: the host name, which is the
	// name of the pod.
	Instance string

	// Header is sent with each request, such as an Authorization. It is copied, and never shown.
	Header http.Header

	// TLS is for the recorder's own transport, which copies it. Nil: the defaults of crypto/tls. A
	// certificate that crypto/tls refuses is final; what a callback of yours refuses is tried again.
	TLS *tls.Config

	// Transport replaces the recorder's own transport; it is an error to set it together with TLS.
	// Only RoundTrip is called, concurrently. It and reads of the body must return once the request's
	// context is done, or the attempt hangs.
	Transport http.RoundTripper

	// Timeout bounds one attempt. Default 5s.
	Timeout time.Duration

	// MaxAttempts bounds the requests that one event costs, the first included. Default 5.
	MaxAttempts int

	// Backoff is the schedule of the waits between attempts. Default 1s doubling to 30s, jitter 0.5.
	Backoff Backoff

	// QueueSize is how many events may wait, over all workers; the last quarter, rounded down, is
	// reserved for error events. Default 1024, at most 16,777,216. New reserves 8 bytes for each; an
	// event that waits takes some 600 more, which are kept for later ones.
	QueueSize int

	// Workers is how many events may be in flight at once. Default 4. An event that needs retries
	// keeps its worker; with one worker it holds up every other event.
	Workers int

	// DrainTimeout is how long Run goes on delivering what is queued after main has returned, and
	// Start after its context is done. Default 10s. Kubernetes kills a pod that takes longer to stop
	// than its terminationGracePeriodSeconds, in which both the manager's own grace period and this
	// must fit.
	DrainTimeout time.Duration

	// Logger is told of each lost event at Error, of refusals by the queue and of a related object
	// that cannot be described at Warn, and of retries at Debug. Nil: silent.
	Logger *slog.Logger
}

// settled returns c with its defaults, or an error that names one field which is invalid.
func (c Config) settled() (Config, error) {
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 5)
	c.QueueSize = cmp.Or(c.QueueSize, 1024)
	c.Workers = cmp.Or(c.Workers, 4)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Backoff == (Backoff{}) {
		c.Backoff.Jitter = 0.5
	}
	c.Backoff.Max = cmp.Or(c.Backoff.Max, max(30*time.Second, c.Backoff.Min))
	c.Backoff.Min = cmp.Or(c.Backoff.Min, min(time.Second, c.Backoff.Max))
	if c.Instance == "" {
		c.Instance, _ = os.Hostname() // An event without an instance is better than no recorder.
	}
	jitter := c.Backoff.Jitter
	for rule, broken := range map[string]bool{
		"TLS is for the transport that Transport replaces: set one of them": c.TLS != nil && c.Transport != nil,
		"Transport is a nil pointer or func":                                isNil(c.Transport),
		"Timeout is negative":                                               c.Timeout < 0,
		"MaxAttempts is negative":                                           c.MaxAttempts < 0,
		"Backoff.Max is negative or below Backoff.Min":                      c.Backoff.Max < max(c.Backoff.Min, 0),
		"Backoff.Min is negative":                                           c.Backoff.Min < 0 && c.Backoff.Max >= 0,
		"Backoff.Jitter is not within 0 to 1":                               !(jitter >= 0 && jitter <= 1), // nor is NaN
		"QueueSize is negative or above 16777216":                           c.QueueSize < 0 || c.QueueSize > 1<<24,
		"Workers is negative":                                               c.Workers < 0,
		"DrainTimeout is negative":                                          c.DrainTimeout < 0,
	} {
		if broken {
			return c, errors.New("recorder: Config." + rule)
		}
	}
	return c, nil
}

// isNil reports whether value is a nil pointer or func.
func isNil(value any) bool {
	v := reflect.ValueOf(value)
	return (v.Kind() == reflect.Pointer || v.Kind() == reflect.Func) && v.IsNil()
}

// What net/http drops or HTTP/2 refuses, and keys that all events would share: a receiver that honours
// them would take the first event alone.
const unsendable = "Host Content-Length Transfer-Encoding Trailer Connection Upgrade Idempotency-Key X-Idempotency-Key"

// request makes the request that every attempt is a copy of. Its errors quote nothing, as those of
// net/url and net/http would.
func (c Config) request() (*http.Request, error) {
	req, err := http.NewRequest(http.MethodPost, c.Webhook, nil)
	if err != nil || strings.TrimSpace(c.Webhook) != c.Webhook || !usable(req.URL) {
		return nil, errors.New("recorder: Config.Webhook is not an http or https URL with a host and, if any, " +
			"a port within 1 to 65535")
	}
	for name, values := range c.Header {
		name = http.CanonicalHeaderKey(name)
		if slices.Contains(strings.Fields(unsendable), name) {
			return nil, fmt.Errorf("recorder: Config.Header may not set %s", name)
		}
		req.Header[name] = append(req.Header[name], values...)
	}
	// Let net/http validate the header: it does so first, and the cancelled context then stops it.
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := new(http.Transport).RoundTrip(req.WithContext(over)); !errors.Is(err, context.Canceled) {
		return nil, errors.New("recorder: Config.Header has a malformed name, or a value with " +
			"a line break or control character")
	}
	if user := req.URL.User; user != nil && req.Header.Get("Authorization") == "" {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	req.URL.User = nil
	return req, nil
}

// usable reports whether events can be posted to u.
func usable(u *url.URL) bool {
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16)
	unfit := func(c rune) bool { return !unicode.IsPrint(c) }
	return (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && err == nil && port > 0 &&
		(u.Host[0] == '[' || !strings.Contains(u.Hostname(), ":")) && !strings.ContainsFunc(u.Host, unfit)
}

// The recorder and its queue: each event ends in settle, wherever it came from.

// The errors that Record, and nothing else, refuses an event with. Compare with [errors.Is].
var (
	// ErrQueueFull says that the queue has no room, or none for an event that is no error.
	ErrQueueFull = errors.New("recorder: queue is full")
	// ErrStopped says that the recorder is draining its queue, or has.
	ErrStopped = errors.New("recorder: stopped")
)

var (
	errStarted      = errors.New("recorder: started a second time")
	errDrainTimeout = errors.New("not delivered before the drain timeout")
)

// dropped is the outcome of an event that no attempt was made for, beside those that attempts have.
const dropped = stopped + 1

// Stats counts what became of the events given to a [Recorder]. Each event ends in exactly one of
// Delivered, Duplicates, Rejected, Failed and Dropped; before that it is in Queued or in flight.
// Trace events and those given to a no-op recorder are in none.
type Stats struct {
	Delivered  uint64 // taken by the receiver
	Duplicates uint64 // answered 429 or 208: the receiver had it already
	Rejected   uint64 // invalid, or refused by the receiver for good
	Failed     uint64 // given up after all attempts, or because the context was over
	Dropped    uint64 // refused by the queue, or left in it at the end
	Retries    uint64 // attempts beyond the first of each event
	Queued     int    // waiting now
}

// A Recorder posts events to one webhook. Make one with [New]; most callers then use
// [Recorder.Record] and put [Recorder.Run] around their manager. All methods are safe for concurrent
// use.
//
// The events of an object form a chain. The oldest of each chain waits in ready, or is in the hands
// of a worker, which then makes the next of it ready: so an object's events stay in order, and objects
// take turns.
type Recorder struct {
	webhook   *webhook // nil: every call is a no-op
	closeIdle func()
	config    Config // with its defaults

	counts  [dropped + 1]atomic.Uint64
	retries atomic.Uint64
	started atomic.Bool
	ready   chan *entry // never blocks: it has room for all that may be queued

	mu      sync.Mutex        // guards what follows, sends to ready and its close
	stopped atomic.Bool       // no more events are taken; set under mu, read anywhere
	queued  atomic.Int64      // events that wait, at most Config.QueueSize; raised under mu
	chains  map[object]*entry // the oldest event of each object that has one
	unused  *entry            // a list of entries to be used again
}

// An entry is an event on its way, and a link in its object's chain.
type entry struct {
	Event
	next *entry
	last *entry // the newest of the chain; kept in the oldest alone
}

// LogValue is that of the object.
func (e *entry) LogValue() slog.Value { return e.object().LogValue() }

// New makes a Recorder, or says which field of the configuration is wrong, without quoting the
// webhook. It starts no goroutine and opens no connection.
func New(config Config) (*Recorder, error) {
	c, err := config.settled()
	if err != nil {
		return nil, err
	}
	r := &Recorder{closeIdle: func() {}, config: c, ready: make(chan *entry, c.QueueSize), chains: make(map[object]*entry)}
	if c.Webhook == "" {
		return r, nil
	}
	request, err := c.request()
	if err != nil {
		return nil, err
	}
	r.webhook = newWebhook(request, c.Webhook)
	r.webhook.timeout, r.webhook.attempts, r.webhook.backoff = c.Timeout, c.MaxAttempts, c.Backoff
	r.webhook.logger, r.webhook.retries = c.Logger, &r.retries
	if c.Transport != nil {
		r.webhook.transport, r.webhook.foreign = c.Transport, true
	} else {
		own := newTransport(request.URL, c.Timeout)
		own.TLSClientConfig = c.TLS.Clone()
		r.webhook.transport, r.closeIdle = own, own.CloseIdleConnections
		// Run closes idle connections when it ends; this is for a recorder that only ever posts.
		runtime.AddCleanup(r, (*http.Transport).CloseIdleConnections, own)
	}
	r.config.Webhook, r.config.Header, r.config.Transport = "", nil, nil // so that a printed Recorder shows no secret
	return r, nil
}

// Post sends the event now and returns once the receiver has it, a duplicate answer included, or
// delivery has failed. It makes up to Config.MaxAttempts attempts within ctx, and returns without a
// further request once ctx is done or its deadline would pass during the next wait. It needs neither
// Run nor Start, and overtakes what is queued.
//
// The error wraps its cause: a [*StatusError] for an answer, the transport's error where there was
// none, and for a ctx that is over both ctx.Err() and [context.Cause], with the failure of the last
// attempt beside them.
func (r *Recorder) Post(ctx context.Context, e Event) error {
	if r.ignores(e.Severity) {
		return nil
	}
	err := e.complete(r.config.Controller, r.config.Instance)
	if ctx == nil {
		err = errors.New("nil context")
	}
	if err != nil {
		return r.settle(rejected, &e, err)
	}
	e.Message = shorten(e.Message)
	return r.post(ctx, &entry{Event: e})
}

// Record puts the event into the queue and returns without waiting, whatever the receiver does. It
// takes a copy of all that the caller might change later. Events of one object (kind, namespace and
// name) are delivered in the order of the calls; objects take turns.
//
// It may be called before Run. The error is [ErrQueueFull], [ErrStopped], or says what is wrong
// with the event; it has been counted and, but for a number of refusals, logged already, so that
// most callers may ignore it.
func (r *Recorder) Record(e Event) error {
	if r.ignores(e.Severity) {
		return nil
	}
	if err := e.complete(r.config.Controller, r.config.Instance); err != nil {
		return r.settle(rejected, &e, err)
	}
	err := r.refusal(e.Severity) // asked here too, so that refusals neither wait for mu nor copy anything
	if err == nil {
		e.Message = shorten(e.Message)
		err = r.enqueue(&e)
	}
	if err != nil {
		return r.settle(dropped, &e, err)
	}
	return nil
}

// ignores reports whether an event is none of the recorder's business.
func (r *Recorder) ignores(severity string) bool {
	return r.webhook == nil || severity == SeverityTrace
}

// refusal says why the queue would not take an event of that severity, if so.
func (r *Recorder) refusal(severity string) error {
	room := r.config.QueueSize
	if severity != SeverityError {
		room -= room / 4 // so that failures are still taken when routine news no longer is
	}
	switch {
	case r.stopped.Load():
		return ErrStopped
	case r.queued.Load() >= int64(room):
		return ErrQueueFull
	}
	return nil
}

// enqueue makes a copy of e the newest event of its object, or says why the queue does not take it.
func (r *Recorder) enqueue(e *Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refusal(e.Severity); err != nil {
		return err
	}
	if r.unused == nil {
		more := make([]entry, 64) // in one batch, so that few events pay for an allocation
		for i := range more {
			more[i].next, r.unused = r.unused, &more[i]
		}
	}
	added := r.unused
	r.unused, added.next = added.next, nil
	own := added.Metadata // To fill it under mu costs callers less than to allocate a map outside.
	added.Event = *e
	if own == nil {
		added.Metadata = maps.Clone(e.Metadata)
	} else {
		added.Metadata = own
		maps.Copy(own, e.Metadata)
	}
	if e.RelatedObject != nil {
		added.RelatedObject = new(ObjectReference)
		*added.RelatedObject = *e.RelatedObject
	}
	r.queued.Add(1)
	if oldest := r.chains[added.object()]; oldest != nil {
		oldest.last.next = added
		oldest.last = added
	} else {
		r.makeReady(added, added)
	}
	return nil
}

// makeReady puts an object in line: oldest is next to be delivered, last its newest event. The caller
// holds mu.
func (r *Recorder) makeReady(oldest, last *entry) {
	oldest.last = last
	r.chains[oldest.object()] = oldest
	r.ready <- oldest
}

// release lets go of an event that a worker is done with. Its object goes to the back of the line, or
// is forgotten.
func (r *Recorder) release(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.next != nil {
		r.makeReady(e.next, e.last)
	} else {
		delete(r.chains, e.object())
		r.closeIfDone()
	}
	// The entry lives on, with its map unless that is large; what the event holds must not.
	own := e.Metadata
	if len(own) > maxKept {
		own = nil
	}
	clear(own)
	*e = entry{Event: Event{Metadata: own}, next: r.unused}
	r.unused = e
}

// closeIfDone closes ready, so that the workers end, once nothing more comes. The caller holds mu.
func (r *Recorder) closeIfDone() {
	if r.stopped.Load() && len(r.chains) == 0 {
		close(r.ready)
	}
}

// Run delivers the queue while main runs, and when main has returned what is still queued, within
// Config.DrainTimeout. In a controller it stands around the manager, rec.Run(ctx, mgr.Start), so that
// it outlives every reconciler: a manager that is told to stop goes on reconciling for a while.
//
// Ctx goes to main and stops nothing else. Run returns main's error. If the drain timed out, an error
// that says how many events were lost is joined to it; [errors.Is] finds both. From the moment that
// main returns, Record refuses events.
//
// A recorder is run once. If it has been started before, main runs all the same, and an error that
// says so is joined to main's. If main panics, the queue is drained before the panic goes on.
func (r *Recorder) Run(ctx context.Context, main func(context.Context) error) error {
	if r.startAgain() {
		return errors.Join(main(ctx), errStarted)
	}
	return r.run(ctx, main)
}

// startAgain takes note of a start and reports whether it is not the first. A no-op starts as often
// as it likes.
func (r *Recorder) startAgain() bool { return r.webhook != nil && r.started.Swap(true) }

// run is Run for the first time.
func (r *Recorder) run(ctx context.Context, main func(context.Context) error) (err error) {
	if r.webhook == nil {
		return main(ctx)
	}
	// Attempts in flight outlive ctx.
	delivery, cutOff := context.WithCancelCause(context.WithoutCancel(ctx))
	var lost atomic.Int64
	var workers sync.WaitGroup // all of the recorder's goroutines
	for range r.config.Workers {
		workers.Go(func() {
			for e := range r.ready {
				if errors.Is(r.handle(delivery, e), errDrainTimeout) {
					lost.Add(1)
				}
				r.release(e)
			}
		})
	}
	defer func() {
		drain := time.AfterFunc(r.config.DrainTimeout, func() { cutOff(errDrainTimeout) })
		r.mu.Lock()
		r.stopped.Store(true)
		r.closeIfDone()
		r.mu.Unlock()
		workers.Wait()
		drain.Stop()
		cutOff(nil)
		r.closeIdle()
		if n := int(lost.Load()); n > 0 {
			err = errors.Join(err, fmt.Errorf("recorder: %s lost at stop: %w", count(n, "event"), errDrainTimeout))
		}
	}()
	return main(ctx)
}

// Start is Run until ctx is done. It returns nil unless the drain timed out. A second call is an error.
//
// It satisfies controller-runtime's manager.Runnable, for events that do not come from reconcilers. A
// manager stops it before these and waits until it has drained, so that what they record meanwhile is
// refused; one that has lost its lease does not wait at all, so that the queue is lost.
func (r *Recorder) Start(ctx context.Context) error {
	if r.startAgain() {
		return errStarted
	}
	return r.run(ctx, func(context.Context) error {
		<-ctx.Done()
		return nil
	})
}

// NeedLeaderElection returns false: every replica delivers its own events, as one that is not the
// leader may have some too. It satisfies controller-runtime's manager.LeaderElectionRunnable, which
// has a manager stop the recorder before its reconcilers: see Start.
func (r *Recorder) NeedLeaderElection() bool { return false }

// handle delivers an event, or drops it after the drain timeout.
func (r *Recorder) handle(ctx context.Context, e *entry) error {
	r.queued.Add(-1)
	if ctx.Err() != nil {
		return r.settle(dropped, &e.Event, context.Cause(ctx))
	}
	return r.post(ctx, e)
}

// post delivers an event.
func (r *Recorder) post(ctx context.Context, e *entry) error {
	body, err := json.Marshal(&e.Event)
	if err != nil {
		return r.settle(rejected, &e.Event, fmt.Errorf("encode event: %w", err))
	}
	result, err := r.webhook.deliver(ctx, e, body)
	if err != nil {
		u := r.webhook.request.URL
		err = fmt.Errorf("%s://%s: %w", u.Scheme, u.Host, err)
	}
	return r.settle(result, &e.Event, err)
}

// settle is where every event ends: it is counted once and, if it is lost, logged. It returns the
// error that says why.
func (r *Recorder) settle(result outcome, e *Event, err error) error {
	total := r.counts[result].Add(1)
	if err == nil {
		return nil
	}
	level, text := slog.LevelError, "event lost"
	if err == ErrQueueFull || err == ErrStopped {
		// Each power of two gets a line: a flood of refusals must not become one in the log.
		if total&(total-1) != 0 {
			return err
		}
		level, text = slog.LevelWarn, "event refused"
	} else {
		err = fmt.Errorf("recorder: %w", err)
	}
	r.config.Logger.LogAttrs(context.Background(), level, text, slog.Any("object", e.object()),
		slog.String("reason", e.Reason), slog.Any("error", err), slog.Uint64("total", total))
	return err
}

// Stats returns the counts so far. They add up to the events given whenever none is under way.
func (r *Recorder) Stats() Stats {
	n := func(result outcome) uint64 { return r.counts[result].Load() }
	return Stats{Delivered: n(delivered), Duplicates: n(duplicate), Rejected: n(rejected),
		Failed: n(retry) + n(stopped), Dropped: n(dropped), Retries: r.retries.Load(), Queued: int(r.queued.Load())}
}

// Adapters: the recorder as client-go has it.

// annotationPrefix is that of the annotations which an object adds to its events' metadata.
const annotationPrefix = "event.toolkit.fluxcd.io/"

// errNone says that there is no object to refer to.
var errNone = errors.New("it is nil")

// EventRecorder is a [Recorder] with the methods of client-go's tools/events EventRecorder and
// AnnotatedEventRecorder, which it satisfies with T = runtime.Object. Make one with
// [NewEventRecorder]. It is safe for concurrent use if its two functions are.
type EventRecorder[T comparable] struct {
	recorder  *Recorder
	reference func(T) (ObjectReference, error)
	next      func(regarding, related T, annotations map[string]string, eventtype, reason, action, note string, args ...any)
}

// NewEventRecorder makes an event recorder that puts events into the queue of r, which must not be
// nil. Reference describes an object, as client-go's reference.GetReference does, and must not be nil
// either. Next is called first for every event, even one that is lost later: usually it is the method
// AnnotatedEventf of the manager's own event recorder. It may be nil. It gets the caller's arguments
// with three changes: the annotations are merged with those of the object, Trace has become
// Normal, and a note without args that has a percent sign is given as an argument to "%s".
func NewEventRecorder[T comparable](r *Recorder, reference func(T) (ObjectReference, error),
	next func(regarding, related T, annotations map[string]string, eventtype, reason, action, note string, args ...any),
) *EventRecorder[T] {
	return &EventRecorder[T]{r, reference, next}
}

// Eventf is AnnotatedEventf without annotations.
func (a *EventRecorder[T]) Eventf(regarding, related T, eventtype, reason, action, note string, args ...any) {
	a.AnnotatedEventf(regarding, related, nil, eventtype, reason, action, note, args...)
}

// AnnotatedEventf records an event about regarding; related is the zero value if there is no second
// object. The metadata is annotations, overridden by those of regarding that begin with
// "event.toolkit.fluxcd.io/". An eventtype of Warning makes it an error and Trace makes it a Normal
// event for next alone; every other one makes it info. The message is note, formatted with args if
// there are any, else verbatim: then %% stays %%.
//
// It does not wait. What became of the event is in [Recorder.Stats], and in the log if there is one.
func (a *EventRecorder[T]) AnnotatedEventf(regarding, related T, annotations map[string]string, eventtype, reason, action, note string, args ...any) {
	annotations = merge(annotations, regarding)
	severity := SeverityInfo
	switch eventtype {
	case "Warning":
		severity = SeverityError
	case "Trace":
		severity, eventtype = SeverityTrace, "Normal"
	}
	message := note
	if len(args) == 0 && strings.Contains(note, "%") {
		note, args = "%s", []any{note} // next formats in any case, and must come to the same text
	}
	if a.next != nil {
		// A copy, since client-go encodes the map later, when the caller may have changed it.
		a.next(regarding, related, maps.Clone(annotations), eventtype, reason, action, note, args...)
	}
	if a.recorder.ignores(severity) {
		return
	}
	if len(args) > 0 {
		message = fmt.Sprintf(note, args...)
	}
	event := Event{Severity: severity, Message: message, Reason: reason, Action: action, Metadata: annotations}
	var err error
	if event.InvolvedObject, err = a.refer(regarding); err != nil {
		_ = a.recorder.settle(rejected, &event, fmt.Errorf("no reference to the %T: %w", regarding, err))
		return
	}
	if ref, err := a.refer(related); err == nil {
		event.RelatedObject = new(ObjectReference)
		*event.RelatedObject = ref
	} else if err != errNone {
		a.recorder.config.Logger.LogAttrs(context.Background(), slog.LevelWarn, "event without its related object",
			slog.Any("object", event.object()), slog.String("reason", reason), slog.Any("error", err))
	}
	_ = a.recorder.Record(event) // which counts and logs what it refuses
}

// refer describes an object, if there is one.
func (a *EventRecorder[T]) refer(object T) (ObjectReference, error) {
	var none T
	if object == none || isNil(object) {
		return ObjectReference{}, errNone
	}
	return a.reference(object)
}

// merge returns annotations with those that the object adds to its events. The map that it was given
// stays as it was.
func merge(annotations map[string]string, object any) map[string]string {
	annotated, ok := object.(interface{ GetAnnotations() map[string]string })
	if !ok || isNil(object) {
		return annotations
	}
	added := maps.Clone(annotated.GetAnnotations())
	maps.DeleteFunc(added, func(key, _ string) bool { return !strings.HasPrefix(key, annotationPrefix) })
	if len(added) == 0 {
		return annotations
	}
	merged := make(map[string]string, len(annotations)+len(added))
	maps.Copy(merged, annotations)
	maps.Copy(merged, added)
	return merged
}

// LegacyEventRecorder is a [Recorder] with the methods of client-go's tools/record EventRecorder,
// which it satisfies with T = runtime.Object. Make one with [NewLegacyEventRecorder]. It is safe for
// concurrent use if its two functions are.
type LegacyEventRecorder[T comparable] struct {
	events *EventRecorder[T]
}

// NewLegacyEventRecorder is [NewEventRecorder] for client-go's older interface, which knows neither
// a related object nor an action.
func NewLegacyEventRecorder[T comparable](r *Recorder, reference func(T) (ObjectReference, error),
	next func(object T, annotations map[string]string, eventtype, reason, messageFmt string, args ...any),
) *LegacyEventRecorder[T] {
	events := NewEventRecorder(r, reference, nil)
	if next != nil {
		events.next = func(object, _ T, annotations map[string]string, eventtype, reason, _, note string, args ...any) {
			next(object, annotations, eventtype, reason, note, args...)
		}
	}
	return &LegacyEventRecorder[T]{events}
}

// Event records a message that is text and not a format.
func (a *LegacyEventRecorder[T]) Event(object T, eventtype, reason, message string) {
	a.AnnotatedEventf(object, nil, eventtype, reason, message)
}

// Eventf is AnnotatedEventf without annotations.
func (a *LegacyEventRecorder[T]) Eventf(object T, eventtype, reason, messageFmt string, args ...any) {
	a.AnnotatedEventf(object, nil, eventtype, reason, messageFmt, args...)
}

// AnnotatedEventf is [EventRecorder.AnnotatedEventf] without a related object and an action.
func (a *LegacyEventRecorder[T]) AnnotatedEventf(object T, annotations map[string]string, eventtype, reason, messageFmt string, args ...any) {
	var none T
	a.events.AnnotatedEventf(object, none, annotations, eventtype, reason, "", messageFmt, args...)
}
