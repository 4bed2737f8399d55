package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/recorder"
)

// An answer is how a receiver in fake time answers the event of one number, on every attempt.
type answer struct {
	code  int
	after time.Duration
}

// A seriesReceiver is a transport to a receiver that answers with the n-th of answers what bears the
// number n, or else with the last of them.
type seriesReceiver struct {
	t       *testing.T
	answers []answer
	start   time.Time
	under   atomic.Int64
	most    atomic.Int64                  // that were under way at once
	came    chan map[string]time.Duration // after start, by message
}

func (r *seriesReceiver) RoundTrip(req *http.Request) (*http.Response, error) {
	defer r.under.Add(-1)
	for now := r.under.Add(1); ; {
		most := r.most.Load()
		if now <= most || r.most.CompareAndSwap(most, now) {
			break
		}
	}
	var event recorder.Event
	if err := json.NewDecoder(req.Body).Decode(&event); err != nil {
		r.t.Errorf("body of request: %v", err)
	}
	came := <-r.came
	came[event.Message] = time.Since(r.start)
	r.came <- came
	var number, of int
	if _, err := fmt.Sscanf(event.Message, "(%d of %d)", &number, &of); err != nil {
		r.t.Errorf("message = %q, want its number", event.Message)
	}
	with := r.answers[min(max(number, 1), len(r.answers))-1]
	select {
	case <-time.After(with.after):
		return &http.Response{StatusCode: with.code, Body: http.NoBody}, nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// postTo posts a series to the receiver. The context is over after the given time, if that is not zero.
func (r *seriesReceiver) postTo(n int, every, end time.Duration, stdout io.Writer) error {
	r.start = time.Now()
	r.came = make(chan map[string]time.Duration, 1)
	r.came <- make(map[string]time.Duration)
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	if end > 0 {
		defer time.AfterFunc(end, cancel).Stop()
	}
	return postSeries(ctx, &options{
		config: recorder.Config{
			Webhook:     "http://receiver.test/",
			Transport:   r,
			Timeout:     time.Hour,
			MaxAttempts: 2,
			Backoff:     recorder.Backoff{Min: 2 * time.Second},
		},
		event: recorder.Event{InvolvedObject: recorder.ObjectReference{Kind: "App", Name: "web"}},
		n:     n,
		every: every,
	}, stdout)
}

func TestSeries(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for name, test := range map[string]struct {
		answers []answer
		n       int
		every   time.Duration
		end     time.Duration // when the context is over; 0: not before all is done
		want    string        // the summary
		err     string
		most    int64         // that are under way at once
		took    time.Duration // for all of it
	}{
		"one": {
			[]answer{{202, 20 * ms}}, 1, s, 0,
			"sent 1 of 1: 1 delivered, 0 duplicate, 0 lost; median 0.020s, worst 0.020s", "", 1, 20 * ms,
		},
		"a receiver keeps up": {
			[]answer{{202, 30 * ms}, {202, 10 * ms}, {202, 20 * ms}}, 3, s, 0,
			"sent 3 of 3: 3 delivered, 0 duplicate, 0 lost; median 0.020s, worst 0.030s", "", 1, 2*s + 20*ms,
		},
		"median of two": {
			[]answer{{202, 10 * ms}, {202, 20 * ms}}, 2, s, 0,
			"sent 2 of 2: 2 delivered, 0 duplicate, 0 lost; median 0.015s, worst 0.020s", "", 1, s + 20*ms,
		},
		"a receiver is slow": {
			[]answer{{202, 10 * s}}, 4, s, 0,
			"sent 4 of 4: 4 delivered, 0 duplicate, 0 lost; median 10.000s, worst 10.000s", "", 4, 13 * s,
		},
		"only the first is slow": {
			[]answer{{202, 10 * s}, {202, ms}}, 4, s, 0,
			"sent 4 of 4: 4 delivered, 0 duplicate, 0 lost; median 0.001s, worst 10.000s", "", 2, 10 * s,
		},
		"one of each": {
			[]answer{{202, ms}, {429, 3 * ms}, {404, 9 * s}}, 3, s, 0,
			"sent 3 of 3: 1 delivered, 1 duplicate, 1 lost; median 0.002s, worst 0.003s",
			"lost 1 of 3, the first one: http://receiver.test: status 404 Not Found", 1, 11 * s,
		},
		"all lost": {
			[]answer{{404, ms}, {503, ms}}, 2, s, 0, "sent 2 of 2: 0 delivered, 0 duplicate, 2 lost",
			"lost 2 of 2, the first one: http://receiver.test: status 404 Not Found", 1, 3*s + 2*ms,
		},
		"more than can be under way": {
			[]answer{{202, 10 * s}}, 300, ms, 0,
			"sent 300 of 300: 300 delivered, 0 duplicate, 0 lost; median 10.000s, worst 19.744s", "", 256,
			20*s + 43*ms,
		},
		"interrupted between two": {
			[]answer{{202, ms}}, 10, s, 2500 * ms,
			"sent 3 of 10: 3 delivered, 0 duplicate, 0 lost; median 0.001s, worst 0.001s",
			"interrupted: sent 3 of 10 and lost 0 of these", 1, 2500 * ms,
		},
		"interrupted while one is under way": {
			[]answer{{202, 600 * ms}}, 10, s, 2500 * ms,
			"sent 3 of 10: 2 delivered, 0 duplicate, 1 lost; median 0.600s, worst 0.600s",
			"interrupted: sent 3 of 10 and lost 1 of these", 1, 2500 * ms,
		},
		"interrupted while the last is under way": {
			[]answer{{202, 600 * ms}}, 3, s, 2500 * ms,
			"sent 3 of 3: 2 delivered, 0 duplicate, 1 lost; median 0.600s, worst 0.600s",
			"lost 1 of 3, the first one: http://receiver.test: context canceled", 1, 2500 * ms,
		},
		"interrupted while some have not begun": {
			[]answer{{202, s}}, 300, ms, 500 * ms, "sent 256 of 300: 0 delivered, 0 duplicate, 256 lost",
			"interrupted: sent 256 of 300 and lost 256 of these", 256, 500 * ms,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				receiver := &seriesReceiver{t: t, answers: test.answers}
				var stdout strings.Builder
				err := receiver.postTo(test.n, test.every, test.end, &stdout)
				if err == nil && test.err != "" || err != nil && err.Error() != test.err {
					t.Errorf("postSeries(%d) = %v, want %q", test.n, err, test.err)
				}
				if got := stdout.String(); got != test.want+"\n" {
					t.Errorf("postSeries(%d) wrote %q, want %q", test.n, got, test.want)
				}
				if took := time.Since(receiver.start); took != test.took || receiver.most.Load() != test.most {
					t.Errorf("postSeries(%d) took %v with at most %d under way, want %v and %d",
						test.n, took, receiver.most.Load(), test.took, test.most)
				}
			})
		})
	}
}

// TestSeriesSchedule shows that each event comes when it is due, whatever became of those before.
func TestSeriesSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &seriesReceiver{t: t, answers: []answer{{202, time.Minute}, {404, 0}, {202, 0}}}
		var stdout strings.Builder
		if err := receiver.postTo(4, 3*time.Second, 0, &stdout); err == nil {
			t.Errorf("postSeries(4) = nil, want an error")
		}
		got := fmt.Sprint(<-receiver.came)
		if want := "map[(1 of 4):0s (2 of 4):3s (3 of 4):6s (4 of 4):9s]"; got != want {
			t.Errorf("events came at %s, want %s", got, want)
		}
	})
}

// fakeTerminal is an output with a mode of its own.
type fakeTerminal struct {
	strings.Builder
	fs.FileInfo
	mode fs.FileMode
	err  error
}

func (f *fakeTerminal) Stat() (fs.FileInfo, error) { return f, f.err }

func (f *fakeTerminal) Mode() fs.FileMode { return f.mode }

func TestTerminal(t *testing.T) {
	pipe, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer out.Close()
	for name, test := range map[string]struct {
		out  io.Writer
		want bool
	}{
		"terminal":     {&fakeTerminal{mode: fs.ModeDevice | fs.ModeCharDevice}, true},
		"file":         {&fakeTerminal{}, false},
		"block device": {&fakeTerminal{mode: fs.ModeDevice}, false},
		"closed":       {&fakeTerminal{mode: fs.ModeDevice | fs.ModeCharDevice, err: os.ErrClosed}, false},
		"pipe":         {out, false},
		"no file":      {new(strings.Builder), false},
	} {
		if got := terminal(test.out); got != test.want {
			t.Errorf("terminal(%s) = %t, want %t", name, got, test.want)
		}
	}
}

// TestProgress has events end where no progress is due at the same time.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &seriesReceiver{t: t, answers: []answer{{429, 50 * time.Millisecond}, {202, 0}}}
		out := &fakeTerminal{mode: fs.ModeDevice | fs.ModeCharDevice}
		if err := receiver.postTo(2, 250*time.Millisecond, 0, out); err != nil {
			t.Errorf("postSeries(2) = %v, want no error", err)
		}
		want := "\rsent 1 of 2: 0 delivered, 1 duplicate, 0 lost\rsent 1 of 2: 0 delivered, 1 duplicate, 0 lost" +
			"\rsent 2 of 2: 1 delivered, 1 duplicate, 0 lost; median 0.025s, worst 0.050s\n"
		if got := out.String(); got != want {
			t.Errorf("postSeries(2) wrote %q to a terminal, want %q", got, want)
		}
	})
}

// messages returns the messages of bodies, in order.
func messages(t *testing.T, bodies []string) []string {
	t.Helper()
	var found []string
	for _, body := range bodies {
		var event recorder.Event
		if err := json.Unmarshal([]byte(body), &event); err != nil {
			t.Fatal(err)
		}
		found = append(found, event.Message)
	}
	slices.Sort(found)
	return found
}

func TestSeriesOfTheCommand(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want []string // messages; none: they begin with that of the default event
	}{
		"a message":  {[]string{"-message=m"}, []string{"m (1 of 3)", "m (2 of 3)", "m (3 of 3)"}},
		"no message": {[]string{"-message="}, []string{"(1 of 3)", "(2 of 3)", "(3 of 3)"}},
		"of a file": {
			[]string{"-f=-"}, []string{`a <b> & "c" (1 of 3)`, `a <b> & "c" (2 of 3)`, `a <b> & "c" (3 of 3)`},
		},
		"default": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newReceiver(t, 202)
			args := append([]string{"-n=3", "-every=1ms", "-webhook", server.URL}, test.args...)
			got := postevent(t, fullEvent, args...)
			want := result{0, "receiver: http://HOST\n" +
				"sent 3 of 3: 3 delivered, 0 duplicate, 0 lost; median TIME, worst TIME\n", ""}
			if got.stdout = still(got.stdout); got != want {
				t.Errorf("postevent(%q) = %+v, want %+v", args, got, want)
			}
			dry := postevent(t, fullEvent, append(args, "-dry-run")...)
			for source, bodies := range map[string][]string{
				"requests": server.got(),
				"dry run":  strings.Split(strings.TrimSpace(dry.stdout), "\n"),
			} {
				found := messages(t, bodies)
				if test.want != nil && !slices.Equal(found, test.want) {
					t.Errorf("messages of %s = %q, want %q", source, found, test.want)
				}
				if len(slices.Compact(found)) != 3 {
					t.Errorf("messages of %s = %q, want 3 that differ", source, found)
				}
			}
		})
	}
}

func TestEvery(t *testing.T) {
	for every, want := range map[string]time.Duration{"": time.Second, "-every=1ms": time.Millisecond} {
		args := slices.DeleteFunc([]string{"-n=2", every}, func(arg string) bool { return arg == "" })
		o, err := parse(args, strings.NewReader(""), io.Discard)
		if err != nil || o.n != 2 || o.every != want {
			t.Errorf("parse(%q) = %+v, %v, want 2 every %v", args, o, err, want)
		}
	}
}

// TestSeriesInProcess is for the race detector, which does not see into the binary.
func TestSeriesInProcess(t *testing.T) {
	t.Parallel()
	server := newReceiver(t, 202, 429, 404, 202)
	var stdout, stderr strings.Builder
	args := []string{"-n=20", "-every=1ms", "-timeout=" + hang.String(), "-webhook", server.URL}
	code := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	want := "receiver: http://HOST\nsent 20 of 20: 18 delivered, 1 duplicate, 1 lost; median TIME, worst TIME\n"
	wantErr := "postevent: lost 1 of 20, the first one: http://HOST: status 404 Not Found: because of /\n"
	if still(stdout.String()) != want || still(stderr.String()) != wantErr || code != 1 {
		t.Errorf("run(%q) = %d, %q, %q, want 1, %q, %q", args, code, &stdout, &stderr, want, wantErr)
	}
}

// TestLongMessageNumbered shows that the number outlives the cut in a message that is too long.
func TestLongMessageNumbered(t *testing.T) {
	t.Parallel()
	got := postevent(t, "", "-n=2", "-dry-run", "-message="+strings.Repeat("m", 50_000))
	found := messages(t, strings.Split(strings.TrimSpace(got.stdout), "\n"))
	if len(found) != 2 || !strings.HasSuffix(found[0], "m (1 of 2)") || !strings.HasSuffix(found[1], "m (2 of 2)") {
		t.Errorf("postevent -n=2 with a long message = %.9q, want 2 messages that end with their number", found)
	}
}

func TestSeriesInterrupted(t *testing.T) {
	t.Parallel()
	got := interrupted(t, 0, "-n=9", "-every=1h")
	want := result{
		code:   1,
		stdout: "receiver: http://HOST\nsent 1 of 9: 0 delivered, 0 duplicate, 1 lost\n",
		stderr: "postevent: interrupted: sent 1 of 9 and lost 1 of these\n",
	}
	if got != want {
		t.Errorf("interrupted postevent -n=9 = %+v, want %+v", got, want)
	}
}
