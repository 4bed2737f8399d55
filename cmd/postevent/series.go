package main

// This file posts an event many times, and sums up what became of it.

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

const (
	maxSeries     = 100_000
	maxUnderWay   = 256 // events of a series at once
	defaultEvery  = time.Second
	progressEvery = 100 * time.Millisecond
)

// A series is n posts of one event, each with its number in the message, so that the receiver does not
// take them for one. None waits for an earlier one unless maxUnderWay are under way.
type series struct {
	recorder *recorder.Recorder
	event    recorder.Event
	n        int
	every    time.Duration

	times []time.Duration // of the events that the receiver has
	lost  error           // why the first is that it has not
}

// A turn is when an event is to be posted.
type turn struct {
	number int
	due    time.Time
}

// An outcome is what became of an event, and how long after it was due.
type outcome struct {
	took time.Duration
	err  error
}

// postSeries posts the event n times and writes a summary; if stdout is a terminal, also how far it is.
// The error says that events are lost, or that ctx was over before all were sent.
func postSeries(ctx context.Context, o *options, stdout io.Writer) error {
	rec, err := recorder.New(o.config)
	if err != nil {
		return err
	}
	s := &series{recorder: rec, event: o.event, n: o.n, every: o.every}
	outcomes := s.start(ctx)
	var progress <-chan time.Time
	line := "" // what starts a line anew
	if terminal(stdout) {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		progress, line = ticker.C, "\r"
	}
	for outcomes != nil {
		select {
		case done, ok := <-outcomes:
			if !ok {
				outcomes = nil
				break
			}
			s.add(done)
		case <-progress:
			fmt.Fprint(stdout, line, s.counts())
		}
	}
	fmt.Fprint(stdout, line, s.counts(), s.spread(), "\n") // longer than any progress, so that it covers it
	return s.err()
}

// start has the events posted, and returns where their outcomes come. It is closed behind the last.
func (s *series) start(ctx context.Context) <-chan outcome {
	// Both have room for all, so that neither the schedule nor a sender waits, not for a terminal either.
	turns := make(chan turn, s.n)
	outcomes := make(chan outcome, s.n)
	var senders sync.WaitGroup
	for range min(s.n, maxUnderWay) {
		senders.Go(func() {
			for next := range turns {
				if ctx.Err() != nil {
					return
				}
				err := s.recorder.Post(ctx, numbered(s.event, next.number, s.n))
				outcomes <- outcome{time.Since(next.due), err}
			}
		})
	}
	go func() {
		schedule(ctx, s.n, s.every, turns)
		senders.Wait()
		close(outcomes)
	}()
	return outcomes
}

// schedule gives n turns, one at once and the others each a time apart, until ctx is over.
func schedule(ctx context.Context, n int, every time.Duration, turns chan<- turn) {
	defer close(turns)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for number := 1; ; number++ {
		turns <- turn{number, time.Now()}
		if number == n {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// numbered is the event with its number in the message.
func numbered(event recorder.Event, number, n int) recorder.Event {
	if n == 0 {
		return event
	}
	if event.Message != "" {
		event.Message += " "
	}
	event.Message += fmt.Sprintf("(%d of %d)", number, n)
	return event
}

// add takes note of an outcome. A lost event has no time: how long it took says more of -attempts or of who
// interrupts than of the receiver.
func (s *series) add(done outcome) {
	if done.err == nil {
		s.times = append(s.times, done.took)
	} else if s.lost == nil {
		s.lost = done.err
	}
}

// counts says how many events have come to what.
func (s *series) counts() string {
	stats := s.recorder.Stats()
	lost := stats.Rejected + stats.Failed
	sent := stats.Delivered + stats.Duplicates + lost
	return fmt.Sprintf("sent %d of %d: %d delivered, %d duplicate, %d lost",
		sent, s.n, stats.Delivered, stats.Duplicates, lost)
}

// spread says what the events took that the receiver has.
func (s *series) spread() string {
	if len(s.times) == 0 {
		return ""
	}
	slices.Sort(s.times)
	median := (s.times[(len(s.times)-1)/2] + s.times[len(s.times)/2]) / 2
	return fmt.Sprintf("; median %.3fs, worst %.3fs", median.Seconds(), s.times[len(s.times)-1].Seconds())
}

// err says why the receiver does not have all events.
func (s *series) err() error {
	stats := s.recorder.Stats()
	lost := stats.Rejected + stats.Failed
	sent := stats.Delivered + stats.Duplicates + lost
	switch {
	case sent < uint64(s.n):
		return fmt.Errorf("interrupted: sent %d of %d and lost %d of these", sent, s.n, lost)
	case lost > 0:
		return fmt.Errorf("lost %d of %d, the first one: %s", lost, s.n, explain(s.lost))
	}
	return nil
}

// terminal reports whether out is a terminal, where a line can be written anew.
func terminal(out io.Writer) bool {
	file, ok := out.(interface{ Stat() (os.FileInfo, error) })
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
