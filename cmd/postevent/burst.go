package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"example.com/recorder"
)

// maxUnderWay is how many of the events of a burst may be under way at once. With a receiver that does
// not keep up, later ones wait for their turn, and that counts in their time.
const maxUnderWay = 64

// A burst is many events, one after another, whether or not the receiver keeps up.
type burst struct {
	rec      *recorder.Recorder
	out      io.Writer
	progress bool // out is a terminal

	mu      sync.Mutex
	took    []time.Duration // from when each event was due until its outcome was known
	failure error           // of the first event that was lost
}

// post posts count events that differ in the number which their messages end with, and writes the
// summary. It ends early when ctx is over.
func (b *burst) post(ctx context.Context, event recorder.Event, count int, every time.Duration) error {
	var underWay sync.WaitGroup
	turns := make(chan struct{}, maxUnderWay)
	message, start := event.Message, time.Now()
	for i := range count {
		due := start.Add(time.Duration(i) * every)
		if !wait(ctx, due) || !begin(ctx, turns) {
			break
		}
		event.Message = fmt.Sprintf("%s (%d of %d)", message, i+1, count)
		next := event
		underWay.Go(func() {
			err := b.rec.Post(ctx, next)
			<-turns
			b.done(time.Since(due), err, count)
		})
	}
	underWay.Wait()
	return b.summary(count)
}

// wait waits for a time and reports whether ctx is still on by then.
func wait(ctx context.Context, due time.Time) bool {
	select {
	case <-time.After(time.Until(due)):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// begin waits for a turn and reports whether it has got one.
func begin(ctx context.Context, turns chan<- struct{}) bool {
	select {
	case turns <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// done is told of the outcome of an event.
func (b *burst) done(took time.Duration, err error, count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.took = append(b.took, took)
	if b.failure == nil {
		b.failure = err
	}
	if b.progress {
		fmt.Fprintf(b.out, "\r%d of %d", len(b.took), count)
	}
}

// summary writes what became of the events. The error says how many were lost or never posted.
func (b *burst) summary(count int) error {
	if b.progress {
		fmt.Fprint(b.out, "\r")
	}
	stats := b.rec.Stats()
	lost := stats.Rejected + stats.Failed
	var median, worst time.Duration
	if slices.Sort(b.took); len(b.took) > 0 {
		median, worst = b.took[len(b.took)/2], b.took[len(b.took)-1]
	}
	fmt.Fprintf(b.out, "%d of %d posted: %d delivered, %d duplicate, %d lost; median %.3fs, worst %.3fs\n",
		len(b.took), count, stats.Delivered, stats.Duplicates, lost, median.Seconds(), worst.Seconds())
	switch {
	case b.failure != nil:
		return fmt.Errorf("%d of %d events lost, the first: %w", lost, len(b.took), b.failure)
	case len(b.took) < count:
		return fmt.Errorf("interrupted after %d of %d events", len(b.took), count)
	}
	return nil
}

// terminal reports whether out is one, as far as its kind of file tells.
func terminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
