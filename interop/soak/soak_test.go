package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"example.com/recorder"
)

var (
	length = flag.Duration("soak", 3*time.Second, "how long TestSoak goes on")
	seed   = flag.Uint64("seed", 0, "of the choices made by TestSoak; 0: another one each time")
)

const (
	attemptTimeout = 300 * time.Millisecond
	patience       = 30 * time.Second
	longestRound   = 5 * time.Second
	lanes          = 4 // of recorders, one after the other
	heapGrowth     = 4 << 20
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSoak goes round by round. In each, recorders come and go in several lanes, while the receivers
// change their moods; as soon as a recorder has stopped, what became of every event given to it is
// looked into. Between two rounds nothing runs, and nothing may have grown.
//
// The seed settles what is chosen, but not how the goroutines take turns.
func TestSoak(t *testing.T) {
	chosen := *seed
	if chosen == 0 {
		chosen = rand.Uint64()
	}
	t.Logf("go test ./soak -race -v -soak %v -seed %d", *length, chosen)
	chance := rand.New(rand.NewPCG(chosen, 0))
	s := &soak{t: t}
	goroutines := runtime.NumGoroutine()
	begun := time.Now()
	var first, now usage
	for time.Since(begun) < *length && !t.Failed() {
		s.round(min(longestRound, *length/3), chance)
		s.rounds++
		now = measure(t, goroutines)
		if s.rounds == 1 {
			first = now // with all that is made once in a process
		}
		if now.descriptors > first.descriptors {
			t.Errorf("descriptors after round %d = %d, want %d as after the first", s.rounds, now.descriptors, first.descriptors)
		}
		// net/http keeps a dead HTTP/2 connection for as long as an idle one, which is 90s.
		if now.heap > first.heap+heapGrowth {
			t.Errorf("heap after round %d = %d bytes, want at most %d more than the %d after the first", s.rounds, now.heap, heapGrowth, first.heap)
		}
	}
	t.Logf("seed %d: %d rounds in %v, %d recorders, %d events in %d requests (%d late): %d delivered, %d duplicates, %d rejected, %d failed, "+
		"%d dropped, %d retries; stops %v beyond the time to drain; goroutines %d to %d, descriptors %d to %d, heap %d to %d KiB",
		chosen, s.rounds, time.Since(begun).Round(time.Second), s.recorders, s.events, s.arrivals, s.late,
		s.total.Delivered, s.total.Duplicates, s.total.Rejected, s.total.Failed, s.total.Dropped, s.total.Retries, s.overrun.Round(time.Millisecond),
		goroutines, now.goroutines, first.descriptors, now.descriptors, first.heap>>10, now.heap>>10)
}

// A soak is the sum of what has been so far.
type soak struct {
	t      *testing.T
	rounds int

	mu        sync.Mutex
	recorders int
	events    int
	arrivals  int
	late      int
	overrun   time.Duration // the longest
	total     recorder.Stats
}

// usage is what the process holds when nothing runs.
type usage struct {
	goroutines, descriptors int
	heap                    uint64
}

func measure(t *testing.T, goroutines int) usage {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for runtime.NumGoroutine() > goroutines {
		if !pass(ctx, 5*time.Millisecond) {
			stacks := make([]byte, 1<<16)
			t.Errorf("goroutines = %d, want %d:\n%s", runtime.NumGoroutine(), goroutines, stacks[:runtime.Stack(stacks, true)])
			break
		}
	}
	for range 2 { // since what the first finds may have to be cleaned up before it is free
		runtime.GC()
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	descriptors, _ := os.ReadDir("/proc/self/fd") // none where there is no such directory
	return usage{runtime.NumGoroutine(), len(descriptors), mem.HeapAlloc}
}

// round has recorders come and go for a while.
func (s *soak) round(d time.Duration, chance *rand.Rand) {
	receivers := []*receiver{newReceiver(s.t, false, chance), newReceiver(s.t, true, chance)}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var running sync.WaitGroup
	for range lanes {
		own := child(chance)
		running.Go(func() {
			for ctx.Err() == nil && !s.t.Failed() {
				s.live(ctx, receivers[own.IntN(len(receivers))], own)
			}
		})
	}
	running.Wait()
	for _, r := range receivers {
		r.close()
		s.arrivals += r.arrivals
	}
}

// live is the life of one recorder.
func (s *soak) live(round context.Context, r *receiver, chance *rand.Rand) {
	s.mu.Lock()
	s.recorders++
	b := &book{
		t: s.t, name: fmt.Sprintf("recorder-%d", s.recorders), receiver: r,
		events: make(map[id]*entry), givenUp: make(map[string]int),
	}
	s.mu.Unlock()

	config := r.config()
	config.Timeout = attemptTimeout
	config.MaxAttempts = 1 + chance.IntN(4)
	config.Backoff = recorder.Backoff{Min: time.Millisecond, Max: 50 * time.Millisecond, Jitter: 0.5}
	config.QueueSize = 4 << chance.IntN(7)
	config.Workers = 1 + chance.IntN(8)
	config.DrainTimeout = time.Millisecond + upTo(chance, time.Second)
	config.Logger = slog.New(b)
	rec, err := recorder.New(config)
	if err != nil {
		s.t.Errorf("New(%+v) = %v, want no error", config, err)
		return
	}

	calling, hangUp := context.WithCancel(context.Background())
	defer hangUp()
	var callers sync.WaitGroup
	for i := range 1 + chance.IntN(4) {
		own, objects := child(chance), 1+chance.IntN(3)
		callers.Go(func() { b.record(calling, rec, i, objects, own) })
	}
	own := child(chance)
	callers.Go(func() { b.post(calling, rec, own) })

	pass(round, upTo(chance, 50*time.Millisecond)) // Record comes before Start, too
	living, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- rec.Start(living) }()
	pass(round, upTo(chance, 2*time.Second))
	stopped := time.Now()
	stop()
	pass(context.Background(), upTo(chance, 50*time.Millisecond)) // and after it
	hangUp()
	err = <-ended
	overrun := time.Since(stopped) - config.DrainTimeout
	if overrun > patience/6 {
		s.t.Errorf("%s: Start returned %v after the time to drain was over, want at once", b.name, overrun)
	}
	callers.Wait()

	stats := rec.Stats()
	b.settle(stats, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events += b.given
	s.late += b.late
	s.overrun = max(s.overrun, overrun)
	s.total.Delivered += stats.Delivered
	s.total.Duplicates += stats.Duplicates
	s.total.Rejected += stats.Rejected
	s.total.Failed += stats.Failed
	s.total.Dropped += stats.Dropped
	s.total.Retries += stats.Retries
}

// A book is a recorder's account. It is its log as well.
type book struct {
	t        *testing.T
	name     string
	receiver *receiver

	mu       sync.Mutex
	objects  []string
	given    int // events that are to be counted
	invalid  int
	events   map[id]*entry
	givenUp  map[string]int // attempts that nobody waits for any more, by object
	late     int
	warnings int // lines about refusals
}

// An id is what an event is known by: its object, and its number or what is wrong with it.
type id struct{ object, reason string }

// An entry is what is known of an event.
type entry struct {
	refused bool    // by the queue
	losses  []error // the lines about its loss
}

func (b *book) Enabled(context.Context, slog.Level) bool { return true }
func (b *book) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *book) WithGroup(string) slog.Handler            { return b }

// Handle enters a line of the log.
func (b *book) Handle(_ context.Context, line slog.Record) error {
	var about id
	var cause error
	line.Attrs(func(attr slog.Attr) bool {
		switch attr.Key {
		case "object":
			for _, part := range attr.Value.Resolve().Group() {
				if part.Key == "name" {
					about.object = part.Value.String()
				}
			}
		case "reason":
			about.reason = attr.Value.String()
		case "error":
			cause, _ = attr.Value.Any().(error)
		}
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled) {
		b.givenUp[about.object]++
	}
	switch line.Level {
	case slog.LevelError:
		e := b.entry(about)
		e.losses = append(e.losses, cause)
	case slog.LevelWarn:
		b.warnings++
	}
	return nil
}

// entry finds or makes the entry of an event. The caller holds mu.
func (b *book) entry(of id) *entry {
	e := b.events[of]
	if e == nil {
		e = new(entry)
		b.events[of] = e
	}
	return e
}

// enter notes an event that was given to the recorder, and what Record said to it.
func (b *book) enter(e recorder.Event, refusal error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.given++
	b.entry(id{e.InvolvedObject.Name, e.Reason}).refused = refusal != nil
}

// object makes an object that nobody else has events of.
func (b *book) object(name string) recorder.Event {
	name = b.name + "-" + name
	b.receiver.expect(name)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects = append(b.objects, name)
	return recorder.Event{
		InvolvedObject: recorder.ObjectReference{Kind: "App", Namespace: "apps", Name: name},
		Message:        strings.Repeat("in sync; ", 20),
	}
}

// record is a caller with objects of its own. Most of its events are spread, some come in bursts,
// and a few are none that could be posted.
func (b *book) record(ctx context.Context, rec *recorder.Recorder, caller, objects int, chance *rand.Rand) {
	events := make([]recorder.Event, objects)
	for i := range events {
		events[i] = b.object(fmt.Sprintf("caller-%d-object-%d", caller, i))
	}
	burst := 0
	for number := 1; ctx.Err() == nil; number++ {
		e := events[chance.IntN(objects)]
		e.Reason = fmt.Sprintf("Event%d", number)
		e.Severity = oneOf(chance, recorder.SeverityInfo, recorder.SeverityInfo, recorder.SeverityError)
		switch chance.IntN(100) {
		case 0:
			e.Severity = recorder.SeverityTrace
			if err := rec.Record(e); err != nil {
				b.t.Errorf("%s: Record(trace event) = %v, want nil", b.name, err)
			}
		case 1:
			e.InvolvedObject.Name = ""
			if err := rec.Record(e); err == nil {
				b.t.Errorf("%s: Record(event without a name) = nil, want an error", b.name)
			}
			b.mu.Lock()
			b.given++
			b.invalid++
			b.mu.Unlock()
		case 2:
			burst = 1 + chance.IntN(200)
			fallthrough
		default:
			err := rec.Record(e)
			if err != nil && err != recorder.ErrQueueFull && err != recorder.ErrStopped {
				b.t.Errorf("%s: Record(event) = %v, want nil or a refusal", b.name, err)
			}
			b.enter(e, err)
		}
		if burst--; burst < 0 {
			burst = 0
			pass(ctx, upTo(chance, 10*time.Millisecond))
		}
	}
}

// post is a caller that waits for the outcome, though not always long enough.
func (b *book) post(ctx context.Context, rec *recorder.Recorder, chance *rand.Rand) {
	e := b.object("posted")
	for number := 1; ctx.Err() == nil; number++ {
		e.Reason = fmt.Sprintf("Event%d", number)
		b.enter(e, nil)
		call, cancel := context.WithTimeout(ctx, upTo(chance, 4*attemptTimeout))
		err := rec.Post(call, e)
		cancel()
		b.mu.Lock()
		if losses := len(b.entry(id{e.InvolvedObject.Name, e.Reason}).losses); (err != nil) != (losses == 1) {
			b.t.Errorf("%s: Post(%s) = %v, and %d lines about its loss", b.name, e.Reason, err, losses)
		}
		b.mu.Unlock()
		pass(ctx, upTo(chance, 10*time.Millisecond))
	}
}

// drained is how the loss of an event to the end of the time to drain reads.
const drained = "not delivered before the drain timeout"

// settle checks that every event has come to its end, and to one only: refused, lost with one line
// in the log, or taken by the receiver; and that Stats and Start say so.
func (b *book) settle(stats recorder.Stats, stopped error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	tracks := make(map[string]*track)
	for _, name := range b.objects {
		tracks[name] = b.receiver.settle(name)
	}
	var want recorder.Stats
	var taken uint64
	var refused, left, cutOff, invalid int
	for of, e := range b.events {
		if of.object == "" {
			want.Rejected += uint64(len(e.losses))
			invalid += len(e.losses)
			continue
		}
		var number int
		_, _ = fmt.Sscanf(of.reason, "Event%d", &number)
		about := tracks[of.object]
		arrived := about.arrived[number]
		delete(about.arrived, number)
		switch {
		case e.refused:
			want.Dropped++
			refused++
			if arrived || len(e.losses) > 0 {
				b.t.Errorf("%s: %v was refused, but arrived = %t and losses = %v", b.name, of, arrived, e.losses)
			}
		case len(e.losses) == 0:
			taken++
			if !about.taken[number] {
				b.t.Errorf("%s: %v was lost without a line in the log", b.name, of)
			}
		case len(e.losses) > 1:
			b.t.Errorf("%s: losses of %v = %v, want one", b.name, of, e.losses)
		default:
			loss := e.losses[0]
			status, answered := errors.AsType[*recorder.StatusError](loss)
			switch {
			case loss.Error() == "recorder: "+drained:
				want.Dropped++
				left++
			case answered && slices.Contains(refusals, status.StatusCode):
				want.Rejected++
			case answered && !slices.Contains(failures, status.StatusCode):
				b.t.Errorf("%s: loss of %v = %v, want none to an answer that says the receiver has it", b.name, of, loss)
			default:
				want.Failed++
				if strings.Contains(loss.Error(), drained) {
					cutOff++
				}
			}
		}
	}
	for name, about := range tracks {
		// A request that its sender has stopped to wait for may be on its way for a while yet.
		b.late += len(about.late)
		if len(about.late) > b.givenUp[name] {
			b.t.Errorf("%s: events of %s that came after later ones = %v, want at most %d, as many as attempts were given up",
				b.name, name, about.late, b.givenUp[name])
		}
		for number := range about.arrived {
			b.t.Errorf("%s: Event%d of %s arrived, which nobody has recorded", b.name, number, name)
		}
	}

	want.Delivered, want.Duplicates, want.Retries = stats.Delivered, stats.Duplicates, stats.Retries
	if stats != want || stats.Delivered+stats.Duplicates != taken {
		b.t.Errorf("%s: Stats() = %+v, want %+v and %d delivered or duplicates", b.name, stats, want, taken)
	}
	if sum := stats.Delivered + stats.Duplicates + stats.Rejected + stats.Failed + stats.Dropped; sum != uint64(b.given) {
		b.t.Errorf("%s: Stats() = %+v, which adds up to %d, want %d", b.name, stats, sum, b.given)
	}
	if invalid != b.invalid {
		b.t.Errorf("%s: lines about invalid events = %d, want %d", b.name, invalid, b.invalid)
	}
	if want := bits.Len(uint(refused)); b.warnings != want {
		b.t.Errorf("%s: lines about %d refusals = %d, want %d", b.name, refused, b.warnings, want)
	}
	lost := ""
	if left+cutOff > 0 {
		lost = fmt.Sprintf("recorder: %d events lost at stop: %s", left+cutOff, drained)
		lost = strings.Replace(lost, " 1 events ", " 1 event ", 1)
	}
	if got := text(stopped); got != lost {
		b.t.Errorf("%s: Start(ctx) = %q, want %q", b.name, got, lost)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// pass lets some time pass, and reports whether all of it did before ctx was over.
func pass(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// child makes choices of its own, which the parent's settle.
func child(parent *rand.Rand) *rand.Rand {
	return rand.New(rand.NewPCG(parent.Uint64(), parent.Uint64()))
}

func upTo(chance *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(chance.Int64N(int64(most)))
}

func oneOf[T any](chance *rand.Rand, values ...T) T { return values[chance.IntN(len(values))] }
