package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/recorder"
)

func TestBurst(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		codes []int // of the answers, the last one over and over
		args  []string
		want  result
	}{
		"taken": {[]int{202}, nil, result{0, `receiver: http://HOST
3 of 3 posted: 3 delivered, 0 duplicate, 0 lost; median TIME, worst TIME
`, ""}},
		"known": {[]int{429}, nil, result{0, `receiver: http://HOST
3 of 3 posted: 0 delivered, 3 duplicate, 0 lost; median TIME, worst TIME
`, ""}},
		"lost": {[]int{400}, nil, result{1, `receiver: http://HOST
3 of 3 posted: 0 delivered, 0 duplicate, 3 lost; median TIME, worst TIME
`, "postevent: 3 of 3 events lost, the first: recorder: http://HOST: status 400 Bad Request: because of / \n"}},
		"taken, quietly": {[]int{202}, []string{"-q"}, result{}},
		"lost, quietly": {[]int{400}, []string{"-q"}, result{1, "",
			"postevent: 3 of 3 events lost, the first: recorder: http://HOST: status 400 Bad Request: because of / \n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newReceiver(t, test.codes...)
			args := append([]string{"-webhook", server.URL, "-n=3", "-every=1ms", "-message=m"}, test.args...)
			got := postevent(t, "", args...)
			got.stdout, got.stderr = still(got.stdout), still(got.stderr)
			test.want.stderr = strings.Replace(test.want.stderr, " \n", "\n", 1)
			if got != test.want {
				t.Errorf("postevent(%q) = %+v, want %+v", args, got, test.want)
			}
			var messages []string
			for _, body := range server.got() {
				var event recorder.Event
				if err := json.Unmarshal([]byte(body), &event); err != nil {
					t.Error(err)
				}
				messages = append(messages, event.Message)
			}
			slices.Sort(messages)
			if want := []string{"m (1 of 3)", "m (2 of 3)", "m (3 of 3)"}; !slices.Equal(messages, want) {
				t.Errorf("messages = %q, want %q", messages, want)
			}
		})
	}
}

func TestQuietOne(t *testing.T) {
	t.Parallel()
	if got, want := postevent(t, "", "-q", "-webhook", newReceiver(t, 202).URL), (result{}); got != want {
		t.Errorf("postevent -q = %+v, want %+v", got, want)
	}
}

// The events do not wait for a receiver that does not answer, up to those that may be under way.
func TestBurstDoesNotWaitForAnswers(t *testing.T) {
	t.Parallel()
	const count = maxUnderWay + 8
	arrived, answer := make(chan bool, count), make(chan bool)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- true
		<-answer
	}))
	defer server.Close()
	ended := make(chan result)
	go func() {
		ended <- postevent(t, "", "-webhook", server.URL, fmt.Sprint("-n=", count), "-every=1ms")
	}()
	for range maxUnderWay {
		<-arrived
	}
	if len(arrived) > 0 {
		t.Errorf("%d events arrived without an answer, want %d", maxUnderWay+len(arrived), maxUnderWay)
	}
	close(answer)
	got := <-ended
	if want := fmt.Sprintf("%d of %[1]d posted: %[1]d delivered, 0 duplicate, 0 lost;", count); got.code != 0 || !strings.Contains(got.stdout, want) {
		t.Errorf("postevent = %+v, want %q", got, want)
	}
}

func TestInterruptedBurst(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		interrupt()
		<-r.Context().Done()
	}))
	defer server.Close()
	var stdout, stderr strings.Builder
	args := []string{"-webhook", server.URL, "-timeout=1h", "-n=3", "-every=1h"}
	code := run(ctx, args, strings.NewReader(""), &stdout, &stderr)
	const want = "1 of 3 posted: 0 delivered, 0 duplicate, 1 lost;"
	const wantError = "postevent: 1 of 1 events lost, the first: "
	if code != 1 || !strings.Contains(stdout.String(), want) || !strings.HasPrefix(stderr.String(), wantError) {
		t.Errorf("interrupted run = %d, %q, %q, want 1, %q and %q", code, &stdout, &stderr, want, wantError)
	}
}

// writerFunc makes a function a writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(data []byte) (int, error) { return f(data) }

func TestBurstInterruptedBetweenTwoEvents(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	var out strings.Builder
	b := &burst{rec: accepting(t), progress: true, out: writerFunc(func(data []byte) (int, error) {
		interrupt() // the first event is over
		return out.Write(data)
	})}
	err := b.post(ctx, recorder.Event{InvolvedObject: recorder.ObjectReference{Kind: "App", Name: "web"}}, 3, time.Hour)
	if want := "interrupted after 1 of 3 events"; err == nil || err.Error() != want {
		t.Errorf("post() = %v, want %s", err, want)
	}
	if want := "\r1 of 3\r1 of 3 posted: 1 delivered, 0 duplicate, 0 lost;"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("output = %q, want %q", &out, want)
	}
}

// accepting makes a recorder whose receiver takes everything.
func accepting(t *testing.T) *recorder.Recorder {
	t.Helper()
	rec, err := recorder.New(recorder.Config{Webhook: "http://receiver.test", Transport: roundTrip(
		func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody}, nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// Progress is for people who watch: each step overwrites the one before, and the summary the last.
func TestProgress(t *testing.T) {
	t.Parallel()
	rec := accepting(t)
	event := recorder.Event{InvolvedObject: recorder.ObjectReference{Kind: "App", Name: "web"}}
	for _, test := range []struct {
		progress bool
		want     string
	}{
		{false, `^2 of 2 posted: 2 delivered, .*\n$`},
		{true, `^\r1 of 2\r2 of 2\r2 of 2 posted: 4 delivered, .*\n$`}, // with those of the first
	} {
		var out strings.Builder
		b := &burst{rec: rec, out: &out, progress: test.progress}
		if err := b.post(t.Context(), event, 2, time.Millisecond); err != nil {
			t.Errorf("post() = %v, want nil", err)
		}
		if !regexp.MustCompile(test.want).MatchString(out.String()) {
			t.Errorf("output with progress %v = %q, want %s", test.progress, &out, test.want)
		}
	}
}

func TestTerminal(t *testing.T) {
	device, err := os.Open(os.DevNull) // a character device, as a terminal is
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	regular, err := os.Open("burst_test.go")
	if err != nil {
		t.Fatal(err)
	}
	defer regular.Close()
	if !terminal(device) || terminal(regular) || terminal(new(strings.Builder)) {
		t.Errorf("terminal(device, file, buffer) = %v, %v, %v, want true, false, false",
			terminal(device), terminal(regular), terminal(new(strings.Builder)))
	}
}
