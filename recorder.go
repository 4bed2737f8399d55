// Package recorder posts Kubernetes events as JSON to a webhook, such as that of Flux's
// notification-controller, without ever holding up a reconcile loop.
//
// A [Recorder] is made with [New]. Most controllers call [Recorder.Record], which puts an event into
// a bounded queue and returns, and let the controller manager run [Recorder.Start], which delivers
// the queue:
//
//	rec, err := recorder.New(recorder.Config{Webhook: url, Controller: "app-controller"})
//	...
//	err = mgr.Add(rec)
//	...
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
// An event that is lost is counted in [Stats], and its object, reason and cause are logged. Neither
// logs nor errors show more of the webhook than its scheme and host, nor any header.
package recorder

// This file holds events, their queue and the adapters for client-go; retry.go the retry loop and
// HTTP; backoff.go the waits.

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
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// The severities of an [Event], as Flux names them.
const (
	SeverityInfo  = "info"
	SeverityError = "error"
	SeverityTrace = "trace" // never posted
)

// The defaults of [Config]. Config.withDefaults is the one place that applies them.
const (
	defaultTimeout      = 5 * time.Second
	defaultMaxAttempts  = 5
	defaultMinWait      = time.Second
	defaultMaxWait      = 30 * time.Second
	defaultJitter       = 0.5
	defaultQueueSize    = 1024
	defaultWorkers      = 4
	defaultDrainTimeout = 10 * time.Second
)

const (
	// maxMessage is the longest message in characters that Flux's Event schema admits.
	maxMessage = 39_000
	// keptOfMessage is how much of each end of a longer one is kept. The marker takes the rest.
	keptOfMessage = maxMessage/2 - 30
	// maxQueueSize keeps the memory that New reserves for the queue within 5 GB.
	maxQueueSize = 1 << 24
	// annotationPrefix is that of the annotations which an object adds to its events' metadata.
	annotationPrefix = "event.toolkit.fluxcd.io/"
)

// The errors that Record, and nothing else, refuses an event with. Compare with [errors.Is].
var (
	// ErrQueueFull says that the queue has no room, or none for an event that is no error.
	ErrQueueFull = errors.New("recorder: queue is full")
	// ErrStopped says that Start has been told to stop.
	ErrStopped = errors.New("recorder: stopped")
)

// errDrainTimeout is the cause that ends attempts still under way when the time to drain is over.
var errDrainTimeout = errors.New("not delivered before the drain timeout")

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
	// Nothing but RoundTrip is called on it, by many goroutines at once. When the request's context is
	// over it must return, and so must reads of the body: no attempt ends before they do.
	Transport http.RoundTripper

	// Timeout bounds one attempt. Default 5s.
	Timeout time.Duration

	// MaxAttempts bounds the requests that one event costs, the first included. Default 5.
	MaxAttempts int

	// Backoff is the schedule of the waits between attempts. Default 1s doubling to 30s, jitter 0.5.
	Backoff Backoff

	// QueueSize is how many events may wait, over all workers; three quarters of it, rounded up,
	// are for all events, the rest is for error events alone. Default 1024, at most 16,777,216. New
	// reserves some 250 bytes for each.
	QueueSize int

	// Workers is how many events may be under way at once. Default 4. With one worker all events are
	// delivered in the order of the calls, and an event that needs retries holds up every other one.
	Workers int

	// DrainTimeout is how long Start goes on delivering what is queued when it is told to stop.
	// Default 10s, well within the 30s that controller-runtime gives its runnables.
	DrainTimeout time.Duration

	// Logger is told of each lost event at Error, of refusals by the queue and of a related object
	// that cannot be described at Warn, and of retries at Debug. Nil: silent.
	Logger *slog.Logger
}

// withDefaults returns c with the defaults in the place of zero values.
func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, defaultMaxAttempts)
	c.QueueSize = cmp.Or(c.QueueSize, defaultQueueSize)
	c.Workers = cmp.Or(c.Workers, defaultWorkers)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, defaultDrainTimeout)
	if c.Backoff == (Backoff{}) {
		c.Backoff.Jitter = defaultJitter
	}
	c.Backoff.Max = cmp.Or(c.Backoff.Max, max(defaultMaxWait, c.Backoff.Min))
	c.Backoff.Min = cmp.Or(c.Backoff.Min, min(defaultMinWait, c.Backoff.Max))
	if c.Instance == "" {
		c.Instance, _ = os.Hostname() // An event without an instance is better than no recorder.
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// validate names the first field that cannot be worked with. It sees c with its defaults.
func (c Config) validate() error {
	jitter := c.Backoff.Jitter
	for _, rule := range []struct {
		broken bool
		text   string
	}{
		{c.TLS != nil && c.Transport != nil, "TLS is for the transport that Transport replaces: set one of them"},
		{isNil(c.Transport), "Transport is a nil pointer"},
		{c.Timeout < 0, "Timeout is negative"},
		{c.MaxAttempts < 0, "MaxAttempts is negative"},
		{c.Backoff.Max < max(c.Backoff.Min, 0), "Backoff.Max is negative or below Backoff.Min"},
		{c.Backoff.Min < 0, "Backoff.Min is negative"},
		{!(jitter >= 0 && jitter <= 1), "Backoff.Jitter is not within 0 to 1"}, // nor is NaN
		{c.QueueSize < 0 || c.QueueSize > maxQueueSize, "QueueSize is negative or above 16777216"},
		{c.Workers < 0, "Workers is negative"},
		{c.DrainTimeout < 0, "DrainTimeout is negative"},
	} {
		if rule.broken {
			return errors.New("recorder: Config." + rule.text)
		}
	}
	return nil
}

// isNil reports whether value is a nil pointer.
func isNil(value any) bool {
	v := reflect.ValueOf(value)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Stats counts what became of the events given to a [Recorder]. Each event ends in exactly one of
// Delivered, Duplicates, Rejected, Failed and Dropped; before that it is in Queued or under way.
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
// [Recorder.Record] and have [Recorder.Start] run by a controller manager. All methods are safe for
// concurrent use.
type Recorder struct {
	webhook *webhook // nil: every call is a no-op
	config  Config   // with its defaults

	delivered, duplicates, rejected, failed, dropped atomic.Uint64
	refusals                                         atomic.Uint64 // those of dropped that Record refused

	started atomic.Bool

	mu      sync.Mutex          // guards all that follows
	wake    *sync.Cond          // what idle workers wait for: an event more, or the stop
	stopped bool                // no more events are taken
	queued  int                 // events that wait, at most Config.QueueSize: in queue or parked
	queue   []Event             // a ring of Config.QueueSize; what waits in it is numbered from out to in
	in, out uint64              // the next event to be put into queue, and the next to leave it
	parked  map[object][]*Event // the objects in the workers' hands, each with what came up meanwhile
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

// New makes a Recorder, or says which field of the configuration is wrong, without quoting the
// webhook. It starts no goroutine and opens no connection.
func New(config Config) (*Recorder, error) {
	c := config.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	r := &Recorder{config: c, parked: make(map[object][]*Event)}
	r.wake = sync.NewCond(&r.mu)
	if c.Webhook == "" {
		return r, nil
	}
	var err error
	if r.webhook, err = newWebhook(c); err != nil {
		return nil, err
	}
	r.config.Webhook, r.config.Header, r.config.Transport = "", nil, nil // so that a printed Recorder shows no secret
	r.queue = make([]Event, c.QueueSize)
	// Start closes idle connections when it ends; this is for a recorder that only ever posts.
	runtime.AddCleanup(r, func(closeIdle func()) { closeIdle() }, r.webhook.closeIdle)
	return r, nil
}

// Post sends the event now and returns when the receiver has it, which it also has when it answers
// that it had it before, or when it cannot be delivered. It makes up to Config.MaxAttempts attempts
// within ctx, and returns without a further request once ctx is over. It does not need Start.
//
// The error wraps its cause: a [*StatusError] for an answer, the transport's error where there was
// none, and for a ctx that is over both ctx.Err() and [context.Cause], with the failure of the last
// attempt beside them.
func (r *Recorder) Post(ctx context.Context, e Event) error {
	if r.ignores(e.Severity) {
		return nil
	}
	if err := r.complete(&e); err != nil {
		return r.lose(&r.rejected, e.object(), e.Reason, err)
	}
	e.Message = shorten(e.Message)
	return r.post(ctx, e)
}

// Record puts the event into the queue and returns without waiting, whatever the receiver does. It
// takes a copy of all that the caller might change later. Events of one object (kind, namespace and
// name) are delivered in the order of the calls.
//
// It may be called before Start. The error is [ErrQueueFull], [ErrStopped], or says what is wrong
// with the event; it has been counted and, but for a number of refusals, logged already, so that
// most callers may ignore it.
func (r *Recorder) Record(e Event) error {
	if r.ignores(e.Severity) {
		return nil
	}
	if err := r.complete(&e); err != nil {
		return r.lose(&r.rejected, e.object(), e.Reason, err)
	}
	// Asked twice: here, so that a refusal copies nothing, and when the event is put into the queue,
	// since the copy is made without holding up other callers.
	r.mu.Lock()
	err := r.refusal(e.Severity)
	r.mu.Unlock()
	if err == nil {
		e.Message = shorten(e.Message)
		e.Metadata = maps.Clone(e.Metadata)
		if e.RelatedObject != nil {
			related := *e.RelatedObject
			e.RelatedObject = &related
		}
		err = r.enqueue(e)
	}
	if err != nil {
		r.dropped.Add(1)
		// Each power of two gets a line: a flood of refusals must not become one in the log.
		if n := r.refusals.Add(1); n&(n-1) == 0 {
			r.config.Logger.LogAttrs(context.Background(), slog.LevelWarn, "event refused", slog.Any("object", e.object()),
				slog.String("reason", e.Reason), slog.Any("error", err), slog.Uint64("refusals", n))
		}
	}
	return err
}

// ignores reports whether an event is none of the recorder's business.
func (r *Recorder) ignores(severity string) bool {
	return r.webhook == nil || severity == SeverityTrace
}

// complete fills in the defaults, or says what the event lacks. It allocates nothing.
func (r *Recorder) complete(e *Event) error {
	// Plain conditions here, since cmp.Or, which takes a slice, shows in what Record costs.
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
		e.ReportingController = r.config.Controller
	}
	if e.ReportingInstance == "" {
		e.ReportingInstance = r.config.Instance
	}
	return nil
}

// shorten cuts the middle out of a message that is too long, at character boundaries. The end stays,
// since that is where an error text often comes to the point. A byte that is not UTF-8 counts as one
// character, which is what it becomes in JSON.
func shorten(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	count := utf8.RuneCountInString(message)
	if count <= maxMessage {
		return message
	}
	head, tail := 0, len(message)
	for range keptOfMessage {
		_, size := utf8.DecodeRuneInString(message[head:])
		head += size
		_, size = utf8.DecodeLastRuneInString(message[:tail])
		tail -= size
	}
	return fmt.Sprintf("%s ... [%d characters left out] ... %s", message[:head], count-2*keptOfMessage, message[tail:])
}

// post delivers one event, and counts and logs what became of it.
func (r *Recorder) post(ctx context.Context, e Event) error {
	about := e.object()
	body, err := json.Marshal(e)
	if err != nil {
		return r.lose(&r.rejected, about, e.Reason, fmt.Errorf("encode event: %w", err))
	}
	result, err := r.webhook.deliver(ctx, about, body)
	if err != nil {
		err = fmt.Errorf("%s: %w", r.webhook.target, err)
	}
	switch result {
	case delivered:
		r.delivered.Add(1)
		return nil
	case duplicate:
		r.duplicates.Add(1)
		return nil
	case rejected:
		return r.lose(&r.rejected, about, e.Reason, err)
	default:
		return r.lose(&r.failed, about, e.Reason, err)
	}
}

// lose counts and logs a lost event, and returns the error that says so.
func (r *Recorder) lose(count *atomic.Uint64, about object, reason string, cause error) error {
	count.Add(1)
	err := fmt.Errorf("recorder: %w", cause)
	r.config.Logger.LogAttrs(context.Background(), slog.LevelError, "event lost", slog.Any("object", about),
		slog.String("reason", reason), slog.Any("error", err))
	return err
}

// Stats returns the counts so far. They add up to the events given whenever none is under way.
func (r *Recorder) Stats() Stats {
	stats := Stats{
		Delivered:  r.delivered.Load(),
		Duplicates: r.duplicates.Load(),
		Rejected:   r.rejected.Load(),
		Failed:     r.failed.Load(),
		Dropped:    r.dropped.Load(),
	}
	if r.webhook != nil {
		stats.Retries = r.webhook.retries.Load()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	stats.Queued = r.queued
	return stats
}

// Start delivers the queue until ctx is over, and then what is still queued, within
// Config.DrainTimeout. It returns nil if all that was queued has come to its end by then, and
// otherwise cancels the attempts under way, counts the rest as dropped, and says how many events
// were lost to that. From the stop on, Record refuses events.
//
// A Recorder is started once; a second call is an error. Start owns all goroutines of the recorder:
// one for each of Config.Workers, gone when it returns. It satisfies controller-runtime's
// manager.Runnable.
func (r *Recorder) Start(ctx context.Context) error {
	if r.started.Swap(true) {
		return errors.New("recorder: Start called a second time")
	}
	// Attempts outlive ctx by the time to drain.
	delivery, cutOff := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cutOff(nil)
	var inFlight, waiting atomic.Uint64
	var workers sync.WaitGroup
	for range r.config.Workers {
		workers.Go(func() { r.work(delivery, &inFlight, &waiting) })
	}

	<-ctx.Done()
	r.stop()
	drain := time.AfterFunc(r.config.DrainTimeout, func() { cutOff(errDrainTimeout) })
	defer drain.Stop()
	workers.Wait()
	if r.webhook != nil {
		r.webhook.closeIdle()
	}
	if lost := inFlight.Load() + waiting.Load(); lost > 0 {
		return fmt.Errorf("recorder: %d events lost at stop: %d left in the queue, %d cut off under way: %w",
			lost, waiting.Load(), inFlight.Load(), errDrainTimeout)
	}
	return nil
}

// NeedLeaderElection returns false: every replica delivers its own events, as one that is not the
// leader may have some too. It satisfies controller-runtime's manager.LeaderElectionRunnable.
func (r *Recorder) NeedLeaderElection() bool { return false }

// refusal says why an event cannot be queued now, or is nil. The caller holds mu.
func (r *Recorder) refusal(severity string) error {
	room := r.config.QueueSize
	if severity != SeverityError {
		room -= room / 4 // so that failures are still taken when routine news no longer is
	}
	switch {
	case r.stopped:
		return ErrStopped
	case r.queued >= room:
		return ErrQueueFull
	}
	return nil
}

// enqueue puts e, to which nobody else refers, into the queue, or says why not.
func (r *Recorder) enqueue(e Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refusal(e.Severity); err != nil {
		return err
	}
	*r.slot(r.in) = e
	r.in++
	r.queued++
	r.wake.Signal()
	return nil
}

// slot is the place in the queue of the event with that number. The caller holds mu.
func (r *Recorder) slot(number uint64) *Event { return &r.queue[number%uint64(len(r.queue))] }

// stop refuses further events and lets the workers end when they have emptied the queue.
func (r *Recorder) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.wake.Broadcast()
}

// work delivers events until there are none left after the stop. What is left once ctx is over is
// dropped. What that cuts off and drops is counted in inFlight and waiting.
func (r *Recorder) work(ctx context.Context, inFlight, waiting *atomic.Uint64) {
	for {
		e, ok := r.take()
		if !ok {
			return
		}
		for ok {
			if ctx.Err() != nil {
				waiting.Add(1)
				r.lose(&r.dropped, e.object(), e.Reason, context.Cause(ctx))
			} else if err := r.post(ctx, e); errors.Is(err, errDrainTimeout) {
				inFlight.Add(1)
			}
			e, ok = r.next(e.object())
		}
	}
}

// take waits for an event and puts its object into the caller's hands. An event whose object another
// worker has in hand is parked there, so that no worker waits for another. Record must not wait for a
// long row of these: the lock is free after each, and a slice that grows copies no more than pointers.
//
// It reports false when there are no events left after the stop.
func (r *Recorder) take() (Event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		for r.out == r.in {
			if r.stopped {
				return Event{}, false
			}
			r.wake.Wait()
		}
		e := *r.slot(r.out)
		*r.slot(r.out) = Event{} // The queue lives on; what the event holds must not.
		r.out++
		about := e.object()
		parked, inHand := r.parked[about]
		if !inHand {
			r.parked[about] = nil
			r.queued--
			return e, true
		}
		late := e
		r.parked[about] = append(parked, &late)
		r.mu.Unlock()
		r.mu.Lock()
	}
}

// next returns the object's next event, if one was parked meanwhile; it is older than all that is in
// the queue. Otherwise it lets go of the object and reports false.
func (r *Recorder) next(about object) (Event, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	parked := r.parked[about]
	if len(parked) == 0 {
		delete(r.parked, about)
		return Event{}, false
	}
	e := parked[0]
	parked[0] = nil // as in take
	r.parked[about] = parked[1:]
	r.queued--
	return *e, true
}

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
// either. Next is called before that for each event, whatever becomes of it: usually it is the method
// AnnotatedEventf of the manager's own event recorder. It may be nil. It is given what the call was,
// with three exceptions: the annotations are merged with those of the object, Trace has become
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
// object. Annotations become the event's metadata, under those of regarding that begin with
// "event.toolkit.fluxcd.io/". An eventtype of Warning makes it an error and Trace makes it a Normal
// event for next alone; every other one makes it info. The message is note, formatted with args if
// there are any.
//
// It does not wait. What became of the event is in the log and in [Recorder.Stats].
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
		a.recorder.lose(&a.recorder.rejected, object{}, reason, fmt.Errorf("no reference to the %T: %w", regarding, err))
		return
	}
	if !absent(related) {
		if ref, err := a.refer(related); err == nil {
			event.RelatedObject = &ref
		} else {
			a.recorder.config.Logger.LogAttrs(context.Background(), slog.LevelWarn, "event without its related object",
				slog.Any("object", event.object()), slog.String("reason", reason), slog.Any("error", err))
		}
	}
	_ = a.recorder.Record(event) // which has counted and logged what it refuses
}

// refer describes an object that is there.
func (a *EventRecorder[T]) refer(object T) (ObjectReference, error) {
	if absent(object) {
		return ObjectReference{}, errors.New("it is nil")
	}
	return a.reference(object)
}

// absent reports whether object is nil, a nil pointer, or the zero value of what has no nil.
func absent(object any) bool {
	v := reflect.ValueOf(object)
	return !v.IsValid() || v.IsZero()
}

// merge returns annotations with those that the object adds to its events. The map that it was given
// stays as it was.
func merge(annotations map[string]string, object any) map[string]string {
	annotated, ok := object.(interface{ GetAnnotations() map[string]string })
	if !ok || absent(object) {
		return annotations
	}
	merged, copied := annotations, false
	for key, value := range annotated.GetAnnotations() {
		if !strings.HasPrefix(key, annotationPrefix) {
			continue
		}
		if !copied {
			merged, copied = make(map[string]string, len(annotations)), true
			maps.Copy(merged, annotations)
		}
		merged[key] = value
	}
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
