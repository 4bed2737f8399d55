package recorder

// This file says how long to wait between two attempts. It knows nothing of HTTP.

import (
	"math/rand/v2"
	"time"
)

// Backoff is an exponential schedule of waits with a bound: Min, then twice as long each time, up
// to Max. Jitter only ever shortens a wait, so Max is a hard limit.
//
// It is a value without state, safe for concurrent use. [New] replaces the zero value by the
// defaults; the methods do not.
type Backoff struct {
	// Min is the wait before the first retry. Default 1s, or Max where that is less.
	Min time.Duration

	// Max is the longest wait. Default 30s, or Min where that is more.
	Max time.Duration

	// Jitter is the share of each wait, from 0 to 1, that is left to chance: with 0.5 a wait of 8s
	// lasts between 4s and 8s, so that senders which failed together do not come back together.
	// It is 0.5 in the default schedule and 0 as soon as Min or Max is set without it.
	Jitter float64
}

// Delay returns the wait before the given retry, counted from 1; a lower number counts as 1. With Min
// and Max above zero, Min at most Max, and Jitter from 0 to 1, it is above zero and at most Max.
func (b Backoff) Delay(retry int) time.Duration {
	wait := b.Max
	// Max is halved instead of Min doubled: a shift to the right cannot overflow, and one by more
	// than 63 places is zero, which sends every later retry to Max.
	if doublings := max(retry, 1) - 1; b.Min <= b.Max>>doublings {
		wait = b.Min << doublings
	}
	wait -= time.Duration(rand.Float64() * b.Jitter * float64(wait))
	// Near the longest Duration, float64 rounding must not make the wait zero or negative.
	return min(max(wait, 1), b.Max)
}
