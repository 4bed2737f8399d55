package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-retryablehttp"
	"go.uber.org/goleak"

	"example.com/recorder"
)

var measure = flag.Bool("measure", false, "write docs/incident.json instead of comparing it")

// measureCommand is how to measure the incident, from the root of the repository.
const measureCommand = "go -C interop test -run '^TestMeasureIncident$' ./draw -measure"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// window is how long notification-controller knows an event, which is what its Retry-After comes to.
const window = 300 * time.Second

// A forgetful receiver takes the first event and does not answer it. It answers 429 while it knows the
// event, and takes it again after that. It is a transport for one client at a time.
type forgetful struct {
	begin    time.Time
	known    time.Time // until when
	attempts []attempt
	taken    int
}

func (f *forgetful) RoundTrip(req *http.Request) (*http.Response, error) {
	a := attempt{Number: len(f.attempts) + 1, At: duration(time.Since(f.begin))}
	io.Copy(io.Discard, req.Body)
	req.Body.Close()
	resp := &http.Response{StatusCode: http.StatusAccepted, Header: http.Header{}, Body: http.NoBody, Request: req}
	switch {
	case a.Number == 1:
		f.take()
		<-req.Context().Done()
		a.Took = duration(time.Since(f.begin)) - a.At
		a.Answer = "taken, no answer"
		f.attempts = append(f.attempts, a)
		return nil, req.Context().Err()
	case time.Now().Before(f.known):
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", "300")
		a.Answer = "429, Retry-After: 300"
	default:
		f.take()
		a.Answer = "202"
	}
	f.attempts = append(f.attempts, a)
	return resp, nil
}

func (f *forgetful) take() {
	f.taken++
	f.known = time.Now().Add(window)
}

// experience lets a client send an event and notes how that goes.
func experience(t *testing.T, c client, send func(receiver http.RoundTripper) error) client {
	synctest.Test(t, func(t *testing.T) {
		receiver := &forgetful{begin: time.Now()}
		if err := send(receiver); err != nil {
			t.Errorf("send by %s = %v, want no error", c.Name, err)
		}
		c.Returned = duration(time.Since(receiver.begin))
		c.Attempts, c.Taken = receiver.attempts, receiver.taken
	})
	return c
}

// postWithRecorder posts with the settings of cmd/postevent.
func postWithRecorder(receiver http.RoundTripper) error {
	rec, err := recorder.New(recorder.Config{
		Webhook:   "http://receiver.test",
		Transport: receiver,
		Timeout:   time.Second,
		Backoff:   recorder.Backoff{Min: 500 * time.Millisecond},
	})
	if err != nil {
		return err
	}
	return rec.Post(context.Background(), recorder.Event{
		InvolvedObject: recorder.ObjectReference{Kind: "App", Namespace: "prod", Name: "web"},
		Severity:       recorder.SeverityInfo,
		Reason:         "Deployed",
		Message:        "version 1.2.3 is live",
	})
}

// postWithRetries posts with a general retry client that is left as it comes, but for the timeout.
func postWithRetries(receiver http.RoundTripper) error {
	client := retryablehttp.NewClient()
	client.Logger = nil
	client.HTTPClient.Timeout = time.Second
	client.HTTPClient.Transport = receiver
	resp, err := client.Post("http://receiver.test", "application/json", []byte("{}"))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func TestMeasureIncident(t *testing.T) {
	v, err := version("..", "github.com/hashicorp/go-retryablehttp")
	if err != nil {
		t.Fatal(err)
	}
	ours := client{Name: "this recorder", Settings: "timeout 1s, Backoff.Min 500ms", Ours: true}
	general := client{Name: "go-retryablehttp " + v, Settings: "timeout 1s, else defaults"}
	got := incident{Command: measureCommand, Clients: []client{
		experience(t, ours, postWithRecorder),
		experience(t, general, postWithRetries),
	}}
	const file = docs + "/incident.json"
	if *measure {
		if err := writeJSON(file, got); err != nil {
			t.Fatal(err)
		}
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want incident
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("incident.json (-committed, +measured):\n%s", diff)
	}
}
