package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// roundTrip makes a function a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A timeline writes a line for each attempt and each wait of one Post. It is Post's transport, which
// shows it the attempts, and its log handler, which shows it the waits. Post calls both from its own
// goroutine, so there is no lock.
type timeline struct {
	out     io.Writer
	next    http.RoundTripper
	timeout time.Duration // of an attempt
	start   time.Time

	attempts int
	began    time.Duration // when the last attempt did
	failure  error         // what it failed with, while it has no line of its own
}

func (t *timeline) line(at time.Duration, format string, args ...any) {
	fmt.Fprintf(t.out, "%7.3fs  %s\n", at.Seconds(), fmt.Sprintf(format, args...))
}

func (t *timeline) RoundTrip(req *http.Request) (*http.Response, error) {
	t.attempts++
	t.began = time.Since(t.start)
	resp, err := t.next.RoundTrip(req)
	if t.failure = err; err == nil {
		t.line(t.began, "attempt %d  %s", t.attempts, status(resp))
	}
	return resp, err
}

// status is the code of an answer with its name and, where it has a sound one, its Retry-After. No
// other text of the receiver's is shown: it might repeat what is secret.
func status(resp *http.Response) string {
	text := strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode))
	after := resp.Header.Get("Retry-After")
	_, noNumber := strconv.Atoi(after)
	_, noDate := http.ParseTime(after)
	if noNumber == nil || noDate == nil {
		text += ", Retry-After: " + after
	}
	return text
}

// unanswered writes the line of the last attempt if it had no answer. The recorder has redacted
// what is secret in shown, so a failure that stands there word for word may be shown too.
func (t *timeline) unanswered(shown error) {
	switch {
	case t.failure == nil:
		return
	case errors.Is(t.failure, context.DeadlineExceeded):
		t.line(t.began, "attempt %d  no answer within %v", t.attempts, t.timeout)
	case errors.Is(shown, context.Canceled):
		t.line(t.began, "attempt %d  interrupted", t.attempts)
	case strings.Contains(shown.Error(), t.failure.Error()):
		t.line(t.began, "attempt %d  %v", t.attempts, t.failure)
	default:
		t.line(t.began, "attempt %d  no answer", t.attempts)
	}
	t.failure = nil
}

// outcome writes the last line.
func (t *timeline) outcome(text string) {
	attempts := "1 attempt"
	if t.attempts != 1 {
		attempts = fmt.Sprintf("%d attempts", t.attempts)
	}
	fmt.Fprintf(t.out, "%s (%s in %.3fs)\n", text, attempts, time.Since(t.start).Seconds())
}

// Enabled leaves out all but the retries: Post returns the rest.
func (t *timeline) Enabled(_ context.Context, level slog.Level) bool { return level == slog.LevelDebug }

// Handle writes the wait that a retry begins with, after the line of the attempt that failed.
func (t *timeline) Handle(_ context.Context, record slog.Record) error {
	var wait time.Duration
	record.Attrs(func(a slog.Attr) bool {
		switch value := a.Value.Any().(type) {
		case error:
			t.unanswered(value)
		case time.Duration:
			wait = value
		}
		return true
	})
	t.line(time.Since(t.start), "wait %v", cmp.Or(wait.Round(time.Millisecond), wait))
	return nil
}

func (t *timeline) WithAttrs([]slog.Attr) slog.Handler { return t }

func (t *timeline) WithGroup(string) slog.Handler { return t }
