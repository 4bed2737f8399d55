package recorder

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// capture returns a transport that takes every event, and the bodies it took.
func capture(t testing.TB) (http.RoundTripper, *[]string) {
	var bodies []string
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("request body: %v", err)
		}
		bodies = append(bodies, string(body))
		return answer(http.StatusAccepted, ""), nil
	}), &bodies
}

// A wireCall is a call of Flux's recorder with the body that it posted, from testdata/wire.
type wireCall struct {
	Action, Controller, Eventtype, Instance, Name, NoteGo, Payload, Reason string
	Annotations                                                            map[string]string
	Args                                                                   []any
	Regarding                                                              ObjectReference
	Related                                                                *ObjectReference
	Timestamp                                                              time.Time
}

func wireCalls(t testing.TB) []wireCall {
	files, _ := filepath.Glob("testdata/wire/*.json")
	if len(files) != 5 {
		t.Fatalf("testdata/wire has %d calls, want 5", len(files))
	}
	var calls []wireCall
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var call wireCall
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&call); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		calls = append(calls, call)
	}
	return calls
}

func TestPostWritesTheBytesThatFluxWrites(t *testing.T) {
	for _, call := range wireCalls(t) {
		t.Run(call.Name, func(t *testing.T) {
			note, err := strconv.Unquote(call.NoteGo)
			if err != nil {
				t.Fatal(err)
			}
			if len(call.Args) > 0 {
				note = fmt.Sprintf(note, call.Args...)
			}
			event := Event{
				InvolvedObject:      call.Regarding,
				RelatedObject:       call.Related,
				Severity:            map[string]string{"Warning": SeverityError}[call.Eventtype],
				Timestamp:           call.Timestamp.Add(999 * time.Millisecond).In(time.FixedZone("", 3*3600)),
				Message:             note,
				Reason:              call.Reason,
				Action:              call.Action,
				Metadata:            call.Annotations,
				ReportingController: call.Controller,
				ReportingInstance:   call.Instance,
			}
			transport, bodies := capture(t)
			r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport})
			if err := r.Post(t.Context(), event); err != nil {
				t.Fatalf("Post() = %v, want nil", err)
			}
			if diff := cmp.Diff([]string{call.Payload}, *bodies); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewNamesTheFieldThatIsWrong(t *testing.T) {
	const ok = "http://receiver.test"
	plain := roundTrip(nil)
	tests := []struct {
		config Config
		field  string
	}{
		{Config{Timeout: -1}, "Config.Timeout"},
		{Config{MaxAttempts: -1}, "Config.MaxAttempts"},
		{Config{QueueSize: -1}, "Config.QueueSize"},
		{Config{QueueSize: 1<<24 + 1}, "Config.QueueSize"},
		{Config{QueueSize: math.MaxInt}, "Config.QueueSize"},
		{Config{Workers: -1}, "Config.Workers"},
		{Config{DrainTimeout: -1}, "Config.DrainTimeout"},
		{Config{Backoff: Backoff{Min: 2 * s, Max: s}}, "Config.Backoff.Max"},
		{Config{Backoff: Backoff{Max: -1}}, "Config.Backoff.Max"},
		{Config{Backoff: Backoff{Min: -1}}, "Config.Backoff.Min"},
		{Config{Backoff: Backoff{Min: -2, Max: -1}}, "Config.Backoff.Max"},
		{Config{Backoff: Backoff{Jitter: 2}}, "Config.Backoff.Jitter"},
		{Config{Backoff: Backoff{Jitter: -0.1}}, "Config.Backoff.Jitter"},
		{Config{Backoff: Backoff{Jitter: math.NaN()}}, "Config.Backoff.Jitter"},
		{Config{TLS: &tls.Config{}, Transport: plain}, "Config.TLS"},
		{Config{Webhook: "h"}, "Config.Webhook"},
		{Config{Webhook: "/x"}, "Config.Webhook"},
		{Config{Webhook: "//h/x"}, "Config.Webhook"},
		{Config{Webhook: "ftp://h"}, "Config.Webhook"},
		{Config{Webhook: "http://"}, "Config.Webhook"},
		{Config{Webhook: "http:h"}, "Config.Webhook"},
		{Config{Webhook: "http://:80"}, "Config.Webhook"},
		{Config{Webhook: " http://h"}, "Config.Webhook"},
		{Config{Webhook: "http://h/secret "}, "Config.Webhook"},
		{Config{Webhook: "http://h/secret\n"}, "Config.Webhook"},
		{Config{Webhook: "http://h:0/secret"}, "Config.Webhook"},
		{Config{Webhook: "http://h:65536/secret"}, "Config.Webhook"},
		{Config{Webhook: "http://h:99999999999999999999/secret"}, "Config.Webhook"},
		{Config{Webhook: "http://h:secret"}, "Config.Webhook"},
		{Config{Webhook: "http://a b/secret"}, "Config.Webhook"},
		{Config{Webhook: "http://ann:se%ret@h/"}, "Config.Webhook"},
		{Config{Header: http.Header{"X-A": {"secret\r\nX-B: c"}}}, "Config.Header"},
		{Config{Header: http.Header{"X-A": {"ok", "secret\x00"}}}, "Config.Header"},
		{Config{Header: http.Header{"X A": {"secret"}}}, "Config.Header"},
		{Config{Header: http.Header{"": {"secret"}}}, "Config.Header"},
		{Config{Header: http.Header{"host": {"secret"}}}, "Config.Header"},
		{Config{Header: http.Header{"Content-Length": {"1"}}}, "Config.Header"},
		{Config{Header: http.Header{"Transfer-Encoding": {"chunked"}}}, "Config.Header"},
		{Config{Header: http.Header{"Trailer": {"secret"}}}, "Config.Header"},
	}
	for _, test := range tests {
		webhook := test.config.Webhook
		test.config.Webhook = stdcmp.Or(webhook, ok)
		r, err := New(test.config)
		if r != nil || !strings.HasPrefix(text(err), "recorder: "+test.field+" ") {
			t.Errorf("New(%+v) = %v, %v, want an error about %s", test.config, r, err, test.field)
		}
		if got := text(err); strings.Contains(got, "secret") || strings.Contains(got, "\n") || webhook != "" && strings.Contains(got, webhook+"/") {
			t.Errorf("New(%+v) = %q, want one line that quotes neither the webhook nor a value", test.config, got)
		}
	}
}

func TestNewTakesEveryUsableWebhook(t *testing.T) {
	for _, webhook := range []string{
		"http://h", "https://h", "HTTP://h", "http://h:1", "http://h:65535", "http://h:", "http://[::1]:80/x", "http://[fe80::1%25eth0]/",
		"http://notification-controller.flux-system.svc.cluster.local./", "http://127.0.0.1/a%20b?c=d", "http://b\u00fccher.test/", "http://u:p@h/",
	} {
		if _, err := New(Config{Webhook: webhook}); err != nil {
			t.Errorf("New(%q) = %v, want no error", webhook, err)
		}
	}
}

func TestZeroSettingsGetTheirDefaults(t *testing.T) {
	host, _ := os.Hostname()
	got := mustNew(t, Config{Webhook: "http://receiver.test"}).config
	if got.Logger == nil {
		t.Error("Logger = nil, want one that is silent")
	}
	got.Logger = nil
	want := Config{
		Webhook: "http://receiver.test", Instance: host, Timeout: 5 * s, MaxAttempts: 5,
		Backoff: Backoff{Min: s, Max: 30 * s, Jitter: 0.5}, QueueSize: 1024, Workers: 4, DrainTimeout: 10 * s,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	for given, want := range map[Backoff]Backoff{
		{Min: time.Minute}:          {Min: time.Minute, Max: time.Minute},
		{Min: 2 * s}:                {Min: 2 * s, Max: 30 * s},
		{Max: time.Millisecond}:     {Min: time.Millisecond, Max: time.Millisecond},
		{Max: 8 * s}:                {Min: s, Max: 8 * s},
		{Jitter: 1}:                 {Min: s, Max: 30 * s, Jitter: 1},
		{Min: 1, Max: 2, Jitter: 0}: {Min: 1, Max: 2},
	} {
		if got := mustNew(t, Config{Backoff: given}).config.Backoff; got != want {
			t.Errorf("Backoff %+v became %+v, want %+v", given, got, want)
		}
	}
}

func TestARecorderWithoutAWebhookDoesNothing(t *testing.T) {
	r := mustNew(t, Config{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		t.Error("a request was made")
		return nil, errReset
	})})
	forwarded := 0
	events := NewEventRecorder(r, func(string) (ObjectReference, error) { t.Error("a reference was made"); return ObjectReference{}, nil },
		func(string, string, map[string]string, string, string, string, string, ...any) { forwarded++ })
	ctx, stop := context.WithCancel(t.Context())
	started := make(chan error)
	go func() { started <- r.Start(ctx) }()
	for _, e := range []Event{{}, testEvent("a")} {
		if err := r.Post(t.Context(), e); err != nil {
			t.Errorf("Post() = %v, want nil", err)
		}
		if err := r.Record(e); err != nil {
			t.Errorf("Record() = %v, want nil", err)
		}
	}
	events.Eventf("object", "", "Normal", "Reason", "Action", "note")
	stop()
	if err := <-started; err != nil {
		t.Errorf("Start() = %v, want nil", err)
	}
	if got := r.Stats(); got != (Stats{}) || forwarded != 1 {
		t.Errorf("Stats() = %+v with %d events forwarded, want none counted and 1", got, forwarded)
	}
}

func TestEventsAreCheckedAndCompleted(t *testing.T) {
	related := ObjectReference{Kind: "Source", Name: "git"}
	tests := map[string]struct {
		change func(*Event)
		body   string // what the body must contain
		err    string
	}{
		"defaults": {func(*Event) {}, `"severity":"info","timestamp":"2000-01-01T00:00:00Z","message":"message of a","reason":"Tested","action":"","reportingController":"controller","reportingInstance":"pod"}`, ""},
		"own values": {func(e *Event) {
			e.Severity, e.ReportingController, e.ReportingInstance = SeverityError, "mine", "me"
			e.Timestamp = time.Date(2026, 3, 1, 2, 3, 4, 999, time.FixedZone("", -3600))
		}, `"severity":"error","timestamp":"2026-03-01T03:03:04Z","message":"message of a","reason":"Tested","action":"","reportingController":"mine","reportingInstance":"me"}`, ""},
		"cluster-scoped":              {func(e *Event) { e.InvolvedObject = ObjectReference{Kind: "Namespace", Name: "prod", APIVersion: "v1"} }, `{"involvedObject":{"kind":"Namespace","name":"prod","apiVersion":"v1"},`, ""},
		"custom resource":             {func(e *Event) { e.InvolvedObject.APIVersion = "group/v1beta1" }, `"apiVersion":"group/v1beta1"`, ""},
		"related":                     {func(e *Event) { e.RelatedObject = &related }, `"relatedObject":{"kind":"Source","name":"git"}`, ""},
		"no kind":                     {func(e *Event) { e.InvolvedObject.Kind = "" }, "", "recorder: event without InvolvedObject.Kind"},
		"no name":                     {func(e *Event) { e.InvolvedObject.Name = "" }, "", "recorder: event without InvolvedObject.Name"},
		"an unknown severity":         {func(e *Event) { e.Severity = "Warning" }, "", `recorder: event with Severity "Warning", which is none of info, error and trace`},
		"a year that JSON cannot say": {func(e *Event) { e.Timestamp = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "", "recorder: encode event: "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport, bodies := capture(t)
				var log bytes.Buffer
				r := mustNew(t, Config{Webhook: "http://receiver.test", Controller: "controller", Instance: "pod", Transport: transport, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				e := testEvent("a")
				test.change(&e)
				err := r.Post(t.Context(), e)
				if test.err == "" {
					if err != nil || len(*bodies) != 1 || !strings.Contains((*bodies)[0], test.body) || r.Stats() != (Stats{Delivered: 1}) || log.Len() != 0 {
						t.Errorf("Post() = %v, posted %q, logged %q, want %s", err, *bodies, log.String(), test.body)
					}
					return
				}
				if !strings.HasPrefix(text(err), test.err) || len(*bodies) != 0 || r.Stats() != (Stats{Rejected: 1}) {
					t.Errorf("Post() = %v, posted %q, %+v, want %s and nothing posted", err, *bodies, r.Stats(), test.err)
				}
				if got := strings.Count(log.String(), "\n"); got != 1 || !strings.Contains(log.String(), "level=ERROR msg=\"event lost\" object.kind=") || !strings.Contains(log.String(), "reason=Tested error=") {
					t.Errorf("logged %q, want one line with object, reason and cause", log.String())
				}
			})
		})
	}
}

func TestRecordRefusesAnInvalidEventAtOnce(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test"})
	if err := r.Record(Event{}); !strings.Contains(text(err), "Kind") || r.Stats() != (Stats{Rejected: 1}) {
		t.Errorf("Record() = %v, %+v, want an error about the kind, counted as rejected", err, r.Stats())
	}
}

func TestTraceEventsAreNotPosted(t *testing.T) {
	transport, bodies := capture(t)
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport})
	e := Event{Severity: SeverityTrace}
	if err1, err2 := r.Post(t.Context(), e), r.Record(e); err1 != nil || err2 != nil || len(*bodies) != 0 || r.Stats() != (Stats{}) {
		t.Errorf("Post() = %v, Record() = %v, %d posted, %+v, want nothing", err1, err2, len(*bodies), r.Stats())
	}
}

func TestAnOverlongMessageLosesItsMiddle(t *testing.T) {
	for name, unit := range map[string]string{"ASCII": "x", "four bytes": "\U0001f600", "invalid": "\xff", "escaped": "<"} {
		for _, length := range []int{0, 1, 38_999, 39_000, 39_001, 5_000_000} {
			transport, bodies := capture(t)
			r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport})
			e := testEvent("a")
			e.Message = strings.Repeat(unit, length)
			if length > 10 {
				e.Message = "start" + e.Message[5*len(unit):len(e.Message)-3*len(unit)] + "end"
			}
			if err := r.Post(t.Context(), e); err != nil {
				t.Fatalf("Post() = %v, want nil", err)
			}
			var got Event
			if err := json.Unmarshal([]byte((*bodies)[0]), &got); err != nil {
				t.Fatal(err)
			}
			if want := strings.ReplaceAll(e.Message, "\xff", "\ufffd"); length <= 39_000 {
				if got.Message != want {
					t.Errorf("%s, %d characters: the message was changed", name, length)
				}
				continue
			}
			marker := regexp.MustCompile(` \.\.\. \[(\d+) characters left out\] \.\.\. `).FindStringSubmatchIndex(got.Message)
			if marker == nil {
				t.Fatalf("%s, %d characters: no marker in the message", name, length)
			}
			missing, _ := strconv.Atoi(got.Message[marker[2]:marker[3]])
			head, tail := got.Message[:marker[0]], got.Message[marker[1]:]
			kept := utf8.RuneCountInString(head) + utf8.RuneCountInString(tail)
			if n := utf8.RuneCountInString(got.Message); n > 39_000 || n < 38_900 || kept+missing != length {
				t.Errorf("%s, %d characters: %d with the marker, %d kept and %d missing", name, length, n, kept, missing)
			}
			if !strings.HasPrefix(head, "start") || !strings.HasSuffix(tail, "end") || !utf8.ValidString(got.Message) {
				t.Errorf("%s, %d characters: want both ends kept, and valid UTF-8", name, length)
			}
		}
	}
}
