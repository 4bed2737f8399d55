package recorder

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// knownFailures leads from each kind of failure that systems doing this job have had to the tests that
// show it. Those of interop/ run against the real peers.
var knownFailures = []struct{ failure, tests string }{
	{"a receiver that hangs, refuses or fails holds up the caller", "TestRecordNeverWaits TestRecordTakesNoTime"},
	{"a hung receiver and a flood of events take all memory", "TestMemoryIsBoundedByTheQueue TestWhatARefusalCosts"},
	{"429 is taken for an order to come back later", "TestPostFollowsTheOutcomeTable TestALongAnswerCostsAFewKiB"},
	{"Retry-After has the caller sleep for hours", "TestRetryAfterIsNeverRead"},
	{"a backoff overflows, shrinks or exceeds its maximum", "TestDelayDoublesFromMinToMax TestDelayStaysWithinItsBoundsWithAnyJitter TestDelayIsSpreadAtTheCap FuzzDelay"},
	{"a retry sends an empty or truncated body", "TestEveryAttemptCarriesTheSameBody"},
	{"a body is reused while the transport still reads it", "TestABodyStillBeingReadIsNotTouched"},
	{"a keep-alive connection is closed as the next request arrives", "TestAConnectionClosedWhileIdleCostsNoAttempt"},
	{"unread answers leak a connection each", "TestSmallAnswersKeepTheConnection"},
	{"a slow or endless answer holds up the caller", "TestASlowAnswerIsWaitedForOnlyIfItSaysWhatIsWrong TestALongAnswerCostsAFewKiB TestAnAnswerThatDoesNotComeEndsWithTheAttempt FuzzAnswer"},
	{"concurrent senders open a connection for each event", "TestSendersShareTheirConnections"},
	{"a connection dies without a word", "TestADeadConnectionIsReplaced"},
	{"a redirect turns the POST into a GET elsewhere", "TestARedirectIsNotFollowed"},
	{"errors and logs show the webhook's secrets", "TestNoSecretIsShown TestSnippetIsShortPrintableAndOnOneLine TestNewNamesTheFieldThatIsWrong FuzzNew"},
	{"a cancelled call goes on, or forgets why it failed", "TestPostIsOverWhenItsContextIs"},
	{"one slow attempt uses up the time of all", "TestEachAttemptHasItsOwnTimeout"},
	{"the last cause is lost when the attempts are used up", "TestPostFollowsTheOutcomeTable TestAClosedPortIsTriedAgain"},
	{"what cannot get better is tried again", "TestWhatTLSRefusesIsFinal TestClassifyKnowsEveryCode"},
	{"an over-long message is refused or cut within a character", "TestAnOverlongMessageLosesItsMiddle FuzzPost"},
	{"the attempts are miscounted", "TestEveryScriptOfUpToFiveOutcomes"},
	{"recording while stopping panics or loses events", "TestRecordingWhileStoppingLosesNoCount TestAStoppedRecorderRefuses"},
	{"a stop loses the queue, or never ends", "TestStopDrainsWhatItCan"},
	{"each recorder leaves goroutines and descriptors behind", "TestAThousandRecordersLeaveNothingBehind TestIdleConnectionsGoWithTheRecorder"},
	{"a failing object holds up the others, or loses its order", "TestAFailingEventHoldsUpItsOwnObjectAlone TestEventsOfOneObjectKeepTheirOrder"},
	{"nil or odd objects and annotations make it panic", "TestEventRecorderMakesEvents"},
	{"a percent sign garbles the message", "TestEventRecorderMakesEvents TestLegacyEventRecorderMakesEvents"},
	{"cluster-scoped objects are refused", "TestEventsAreCheckedAndCompleted"},
	{"events that differ in their token are merged", "interop/limiter_test.go"},
	{"nonsense in the configuration shows at run time", "TestNewNamesTheFieldThatIsWrong"},
	{"after an outage all senders come back at once", "TestTenThousandRecordersComeBackSpread"},
}

func TestEveryKnownFailureHasItsTest(t *testing.T) {
	var source []byte
	for _, file := range []string{"recorder_test.go", "retry_test.go"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, data...)
	}
	for _, known := range knownFailures {
		for _, test := range strings.Fields(known.tests) {
			_, err := os.Stat(test)
			if err != nil && !bytes.Contains(source, []byte("\nfunc "+test+"(")) {
				t.Errorf("%s: there is no %s", known.failure, test)
			}
		}
	}
	if len(knownFailures) != 30 {
		t.Errorf("%d kinds of failure, want 30", len(knownFailures))
	}
}

func TestTheReadmeExampleCompiles(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("bench_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(source), "func readmeExample(")
	_, body, _ = strings.Cut(body, "{\n")
	body, _, _ = strings.Cut(body, "\n}\n")
	want := "```go\n" + strings.ReplaceAll(strings.TrimPrefix(body, "\t"), "\n\t", "\n") + "\n```\n"
	if !strings.Contains(string(readme), want) {
		t.Errorf("README.md has no block\n%s", want)
	}
}

func mustNew(t testing.TB, c Config) *Recorder {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatalf("New() = %v, want no error", err)
	}
	return r
}

// BenchEvent and Discard are for bench_test.go, which is in another package.

func BenchEvent() Event {
	return Event{
		InvolvedObject: ObjectReference{
			Kind: "Kustomization", Namespace: "flux-system", Name: "webapp", UID: "e076e315-5a48-41c3-81c8-8d8bdee7d74d",
			APIVersion: "kustomize.toolkit.fluxcd.io/v1", ResourceVersion: "12345",
		},
		Severity:  SeverityInfo,
		Timestamp: time.Date(2026, 3, 1, 2, 3, 4, 0, time.UTC),
		Message:   "Reconciliation finished in 1.2s, next run in 10m0s",
		Reason:    "ReconciliationSucceeded",
		Metadata: map[string]string{
			"kustomize.toolkit.fluxcd.io/revision":       "main@sha1:0123456789abcdef",
			"kustomize.toolkit.fluxcd.io/originRevision": "v1",
		},
		ReportingController: "kustomize-controller",
		ReportingInstance:   "kustomize-controller-7d5c",
	}
}

// Discard empties the queue as workers do, but for the posting.
func (r *Recorder) Discard() {
	for {
		select {
		case e := <-r.ready:
			r.queued.Add(-1)
			r.release(e)
		default:
			return
		}
	}
}

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
		{Config{Backoff: Backoff{Min: -1, Max: 1}}, "Config.Backoff.Min"},
		{Config{Backoff: Backoff{Jitter: 2}}, "Config.Backoff.Jitter"},
		{Config{Backoff: Backoff{Jitter: -0.1}}, "Config.Backoff.Jitter"},
		{Config{Backoff: Backoff{Jitter: math.NaN()}}, "Config.Backoff.Jitter"},
		{Config{TLS: &tls.Config{}, Transport: noFields{}}, "Config.TLS"},
		{Config{Transport: (*http.Transport)(nil)}, "Config.Transport"},
		{Config{Transport: roundTrip(nil)}, "Config.Transport"},
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
		{Config{Webhook: "http://h:80:90/"}, "Config.Webhook"},
		{Config{Webhook: "http://a\u202eb/secret"}, "Config.Webhook"},
		{Config{Webhook: "http://a%00b/secret"}, "Config.Webhook"},
		{Config{Webhook: "http://h:secret"}, "Config.Webhook"},
		{Config{Webhook: "http://a b/secret"}, "Config.Webhook"},
		{Config{Webhook: "http://ann:se%ret@h/"}, "Config.Webhook"},
		{Config{Header: http.Header{"X-A": {"secret\r\nX-B: c"}}}, "Config.Header"},
		{Config{Header: http.Header{"X-A": {"ok", "secret\x00"}}}, "Config.Header"},
		{Config{Header: http.Header{"Authorization: Bearer secret": {"x"}}}, "Config.Header"},
		{Config{Header: http.Header{"": {"secret"}}}, "Config.Header"},
		{Config{Header: http.Header{"host": {"secret"}}}, "Config.Header"},
		{Config{Header: http.Header{"Content-Length": {"1"}}}, "Config.Header"},
		{Config{Header: http.Header{"Transfer-Encoding": {"chunked"}}}, "Config.Header"},
		{Config{Header: http.Header{"Trailer": {"secret"}}}, "Config.Header"},
		{Config{Header: http.Header{"Connection": {"keep-alive, secret"}}}, "Config.Header"},
		{Config{Header: http.Header{"Upgrade": {"secret"}}}, "Config.Header"},
		{Config{Header: http.Header{"X-Idempotency-Key": {"secret"}}}, "Config.Header"},
		{Config{Header: http.Header{"idempotency-key": {"secret"}}}, "Config.Header"},
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

// noFields is a transport that is its zero value, as many are.
type noFields struct{}

func (noFields) RoundTrip(*http.Request) (*http.Response, error) { return answer(202, ""), nil }

func TestNewTakesTheLimitsThemselves(t *testing.T) {
	for _, config := range []Config{{Transport: noFields{}}, {QueueSize: 1 << 24}, {QueueSize: 1}, {Workers: 1}, {MaxAttempts: 1}, {Timeout: 1}, {DrainTimeout: 1}, {Backoff: Backoff{Min: 1, Max: 1, Jitter: 1}}} {
		if _, err := New(config); err != nil {
			t.Errorf("New(%+v) = %v, want no error", config, err)
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
		Instance: host, Timeout: 5 * s, MaxAttempts: 5,
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
	for range 2 {
		if err := r.Run(t.Context(), func(context.Context) error { return errReset }); err != errReset {
			t.Errorf("Run() = %v, want what main returned", err)
		}
	}
	if got := r.Stats(); got != (Stats{}) || forwarded != 1 {
		t.Errorf("Stats() = %+v with %d events forwarded, want none counted and 1", got, forwarded)
	}
}

func TestPostWithoutAContextIsRefused(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: noFields{}})
	var none context.Context
	if err := r.Post(none, testEvent("a")); text(err) != "recorder: nil context" || r.Stats() != (Stats{Rejected: 1}) {
		t.Errorf("Post(nil) = %v, %+v, want an error, counted as rejected", err, r.Stats())
	}
}

// retry.go posts bytes: it must be readable, and testable, without the file above it.
func TestRetryKnowsNeitherEventsNorSettings(t *testing.T) {
	source, err := os.ReadFile("retry.go")
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`\b(Config|Event)\b|encoding/json`).FindAll(source, -1); found != nil {
		t.Errorf("retry.go mentions %s", found)
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
				if cause := (*json.MarshalerError)(nil); errors.As(err, &cause) != strings.Contains(test.err, "encode") {
					t.Errorf("Post() = %v, want the encoder's error in it if it is that", err)
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

func TestRecordShortensTooAndEachEndByItsOwnCharacters(t *testing.T) {
	transport, bodies := capture(t)
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport, Workers: 1})
	narrow, wide := strings.Repeat("x", 30_000), strings.Repeat("\u6f22", 30_000)
	want := []string{
		narrow[:19_470] + " ... [21060 characters left out] ... " + wide[:3*19_470],
		wide[:3*19_470] + " ... [21060 characters left out] ... " + narrow[:19_470],
	}
	for _, message := range []string{narrow + wide, wide + narrow} {
		e := testEvent("a")
		e.Message = message
		if err := r.Record(e); err != nil {
			t.Fatalf("Record() = %v, want nil", err)
		}
	}
	start(t, r)()
	for i, want := range want {
		if len(*bodies) != 2 || !strings.Contains((*bodies)[i], `"`+want+`"`) {
			t.Errorf("posted %d events, want %.40s... in the one at %d", len(*bodies), want, i)
		}
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
			if n := utf8.RuneCountInString(got.Message); n > 39_000 || kept != 2*19_470 || kept+missing != length {
				t.Errorf("%s, %d characters: %d with the marker, %d kept and %d missing", name, length, n, kept, missing)
			}
			if !strings.HasPrefix(head, "start") || !strings.HasSuffix(tail, "end") || !utf8.ValidString(got.Message) {
				t.Errorf("%s, %d characters: want both ends kept, and valid UTF-8", name, length)
			}
		}
	}
}

// The queue.

// start runs Start and returns a function that stops it and returns what it returned.
func start(t testing.TB, r *Recorder) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	t.Cleanup(cancel)
	return func() error {
		cancel()
		return <-ended
	}
}

// logTo returns a logger for a test to look into.
func logTo(log *syncBuffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A syncBuffer may be written and read at once.
type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// messageOf returns the message of a posted event.
func messageOf(t testing.TB, req *http.Request) string {
	var e Event
	if err := json.NewDecoder(req.Body).Decode(&e); err != nil {
		t.Errorf("body: %v", err)
	}
	return e.Message
}

// sum adds up the events that have come to an end.
func (s Stats) sum() uint64 { return s.Delivered + s.Duplicates + s.Rejected + s.Failed + s.Dropped }

func TestRecordNeverWaits(t *testing.T) {
	hung := roundTrip(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	})
	silent := rawReceiver(t, func(conn net.Conn) { io.Copy(io.Discard, conn) })
	busy := newReceiver(t, false, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	for name, config := range map[string]Config{
		"never answers": {Webhook: silent},
		"closed port":   {Webhook: "http://127.0.0.1:1"},
		"always 503":    {Webhook: busy.URL},
		"queue full":    {Webhook: "http://receiver.test", Transport: hung, QueueSize: 1},
	} {
		t.Run(name, func(t *testing.T) {
			config.Timeout, config.Backoff = time.Hour, Backoff{Min: time.Hour, Max: time.Hour}
			config.DrainTimeout = time.Millisecond
			r := mustNew(t, config)
			stop := start(t, r)
			took := make([][]time.Duration, 50)
			var callers sync.WaitGroup
			for i := range took {
				callers.Go(func() {
					e := testEvent(strconv.Itoa(i))
					for range 1000 {
						begin := time.Now()
						r.Record(e)
						took[i] = append(took[i], time.Since(begin))
					}
				})
			}
			callers.Wait()
			stop()
			all := slices.Concat(took...)
			slices.Sort(all)
			t.Logf("Record: median %v, 99.9th percentile %v, most %v", all[len(all)/2], all[len(all)*999/1000], all[len(all)-1])
			if most := all[len(all)-1]; most > hang {
				t.Errorf("Record took %v", most)
			}
			if got := r.Stats(); got.sum() != 50_000 || got.Queued != 0 {
				t.Errorf("Stats() = %+v, want 50000 in all", got)
			}
		})
	}
}

// In fake time a call that waits for anything at all takes time, or never returns.
func TestRecordTakesNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})})
		stop := start(t, r)
		begin := time.Now()
		for range 2000 {
			r.Record(testEvent("a"))
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("2000 calls took %v, want none", took)
		}
		stop()
	})
}

func TestMemoryIsBoundedByTheQueue(t *testing.T) {
	release := make(chan struct{})
	r := mustNew(t, Config{Webhook: "http://receiver.test", QueueSize: 100, Workers: 1, DrainTimeout: time.Millisecond,
		Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			select {
			case <-release:
			case <-req.Context().Done():
			}
			return nil, context.Canceled
		})})
	goroutines := runtime.NumGoroutine()
	stop := start(t, r)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var accepted uint64
	for i := range 100_000 {
		e := testEvent(strconv.Itoa(i % 7))
		e.Message = strings.Repeat("x", 32<<10)
		if err := r.Record(e); err == nil {
			accepted++
		} else if err != ErrQueueFull {
			t.Fatalf("Record() = %v, want ErrQueueFull", err)
		}
	}
	if got := runtime.NumGoroutine() - goroutines; got > 2 { // the worker, and start's own
		t.Errorf("%d goroutines more, want the worker and Start", got)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if got, want := int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(100*33<<10+1<<20); got > want {
		t.Errorf("the heap grew by %d bytes, want at most %d", got, want)
	}
	if accepted < 75 || accepted > 76 { // the worker may have taken one by the time of the last
		t.Errorf("%d events accepted, want three quarters of the queue and the one under way", accepted)
	}
	close(release)
	stop()
	if got := r.Stats(); got.sum() != 100_000 {
		t.Errorf("Stats() = %+v, want 100000 in all", got)
	}
}

func TestTheLastQuarterIsForErrors(t *testing.T) {
	for _, test := range []struct{ size, routine int }{{1, 1}, {2, 2}, {3, 3}, {4, 3}, {7, 6}, {8, 6}, {100, 75}, {1024, 768}} {
		r := mustNew(t, Config{Webhook: "http://receiver.test", QueueSize: test.size})
		record := func(severity string) (n int) {
			e := testEvent("a")
			e.Severity = severity
			for r.Record(e) == nil {
				n++
			}
			return n
		}
		info, errs, more := record(SeverityInfo), record(SeverityError), record("")
		if info != test.routine || info+errs != test.size || more != 0 {
			t.Errorf("queue of %d took %d routine events, then %d errors and %d more, want %d, %d and none", test.size, info, errs, more, test.routine, test.size-test.routine)
		}
		if got, want := r.Stats(), (Stats{Queued: test.size, Dropped: 3}); got != want {
			t.Errorf("Stats() = %+v, want %+v", got, want)
		}
	}
}

func TestEventsOfOneObjectKeepTheirOrder(t *testing.T) {
	const objects, each = 10, 40
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		arrived := map[string][]string{}
		underWay := map[string]bool{}
		r := mustNew(t, Config{Webhook: "http://receiver.test", MaxAttempts: 100, DrainTimeout: time.Hour,
			Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
				message := messageOf(t, req)
				object, number, _ := strings.Cut(message, "/")
				mu.Lock()
				if underWay[object] {
					t.Errorf("two events of %s under way at once", object)
				}
				underWay[object] = true
				code, delay := 202, time.Duration(random.IntN(100))*time.Millisecond
				if random.IntN(4) == 0 {
					code = 502
				} else {
					arrived[object] = append(arrived[object], number)
				}
				mu.Unlock()
				time.Sleep(delay)
				mu.Lock()
				underWay[object] = false
				mu.Unlock()
				return answer(code, ""), nil
			})})
		stop := start(t, r)
		want := map[string][]string{}
		for n := range each {
			for o := range objects {
				e := testEvent(fmt.Sprint("object", o))
				e.Message = fmt.Sprintf("object%d/%d", o, n)
				if err := r.Record(e); err != nil {
					t.Errorf("Record() = %v, want nil", err)
				}
				want[fmt.Sprint("object", o)] = append(want[fmt.Sprint("object", o)], strconv.Itoa(n))
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err := stop(); err != nil {
			t.Errorf("Start() = %v, want nil", err)
		}
		if diff := cmp.Diff(want, arrived); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
		if got := r.Stats(); got.Delivered != objects*each || got.Retries == 0 {
			t.Errorf("Stats() = %+v, want %d delivered with retries", got, objects*each)
		}
	})
}

// Object a's first event fails for three seconds; two more of a's and one of b's follow.
func TestAFailingEventHoldsUpItsOwnObjectAlone(t *testing.T) {
	for workers, want := range map[int][]string{
		4: {"b1 0s", "c1 0s", "a1 3s", "a2 3s", "a3 3s"},
		2: {"b1 0s", "c1 0s", "a1 3s", "a2 3s", "a3 3s"},
		1: {"a1 3s", "b1 3s", "c1 3s", "a2 3s", "a3 3s"}, // objects take turns
	} {
		t.Run(fmt.Sprint(workers, " workers"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var mu sync.Mutex
				var arrived []string
				r := mustNew(t, Config{Webhook: "http://receiver.test", Workers: workers, Backoff: Backoff{Min: s, Max: s},
					Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
						message, now := messageOf(t, req), time.Since(begin)
						if message == "a1" && now < 3*s {
							return answer(503, ""), nil
						}
						mu.Lock()
						defer mu.Unlock()
						arrived = append(arrived, message+" "+now.String())
						return answer(202, ""), nil
					})})
				for _, message := range []string{"a1", "a2", "b1", "a3", "c1"} {
					e := testEvent(message[:1])
					e.Message = message
					r.Record(e)
				}
				stop := start(t, r)
				if err := stop(); err != nil {
					t.Errorf("Start() = %v, want nil", err)
				}
				if workers > 1 {
					slices.SortStableFunc(arrived, func(a, b string) int { return strings.Compare(a[3:], b[3:]) })
					slices.Sort(arrived[:2])
				}
				if diff := cmp.Diff(want, arrived); diff != "" {
					t.Errorf("arrivals (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestRecordTakesASnapshot(t *testing.T) {
	transport, bodies := capture(t)
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport})
	e := testEvent("a")
	e.Metadata = map[string]string{"key": "before"}
	e.RelatedObject = &ObjectReference{Kind: "Source", Name: "before"}
	if err := r.Record(e); err != nil {
		t.Fatalf("Record() = %v, want nil", err)
	}
	stop := start(t, r)
	e.Metadata["key"], e.Metadata["other"], e.RelatedObject.Name, e.Message = "after", "after", "after", "after"
	stop()
	want := []string{`"metadata":{"key":"before"}`, `"relatedObject":{"kind":"Source","name":"before"}`, `"message":"message of a"`}
	for _, want := range want {
		if len(*bodies) != 1 || !strings.Contains((*bodies)[0], want) {
			t.Errorf("bodies = %q, want one with %s", *bodies, want)
		}
	}
}

func TestTheTimestampIsThatOfTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, bodies := capture(t)
		r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport})
		r.Record(testEvent("a"))
		time.Sleep(time.Hour)
		start(t, r)()
		if len(*bodies) != 1 || !strings.Contains((*bodies)[0], `"timestamp":"2000-01-01T00:00:00Z"`) {
			t.Errorf("bodies = %q, want the time of the call", *bodies)
		}
	})
}

func TestEachEventWakesAnIdleWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			time.Sleep(s)
			return answer(202, ""), nil
		})})
		stop := start(t, r)
		for round := range uint64(2) {
			synctest.Wait()
			for _, name := range []string{"a", "b", "c", "d"} {
				r.Record(testEvent(name))
			}
			time.Sleep(s)
			synctest.Wait()
			if got, want := r.Stats(), (Stats{Delivered: 4 * (round + 1)}); got != want {
				t.Errorf("Stats() = %+v one second after four events met four idle workers, want %+v", got, want)
			}
		}
		stop()
	})
}

func TestStopDrainsWhatItCan(t *testing.T) {
	taking := func(d time.Duration) roundTrip {
		return func(req *http.Request) (*http.Response, error) {
			select {
			case <-time.After(d):
				return answer(202, ""), nil
			case <-req.Context().Done():
				return nil, req.Context().Err()
			}
		}
	}
	refused := roundTrip(func(*http.Request) (*http.Response, error) { return nil, errorsByName["refused"] })
	for name, test := range map[string]struct {
		transport roundTrip
		drain     time.Duration
		took      time.Duration
		want      Stats
		err       string
	}{
		"time enough":      {taking(20 * time.Millisecond), 10 * s, 500 * time.Millisecond, Stats{Delivered: 100}, ""},
		"just time enough": {taking(20 * time.Millisecond), 500*time.Millisecond + 1, 500 * time.Millisecond, Stats{Delivered: 100}, ""},
		"too little": {taking(20 * time.Millisecond), 310 * time.Millisecond, 310 * time.Millisecond, Stats{Delivered: 60, Failed: 4, Dropped: 36},
			"recorder: 40 events lost at stop: not delivered before the drain timeout"},
		"receiver down": {refused, 3500 * time.Millisecond, 3500 * time.Millisecond, Stats{Failed: 4, Dropped: 96, Retries: 8},
			"recorder: 100 events lost at stop: not delivered before the drain timeout"},
		"receiver down, time to give up": {refused, time.Hour, 25 * 15 * s, Stats{Failed: 100, Retries: 400}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log syncBuffer
				r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: test.transport, DrainTimeout: test.drain, Backoff: steady,
					Logger: slog.New(slog.NewTextHandler(&log, nil))})
				for i := range 100 {
					if err := r.Record(testEvent(fmt.Sprint("object", i))); err != nil {
						t.Errorf("Record() = %v, want nil", err)
					}
				}
				begin := time.Now()
				err := start(t, r)()
				if took := time.Since(begin); text(err) != test.err || took != test.took {
					t.Errorf("Start() = %q after %v, want %q after %v", text(err), took, test.err, test.took)
				}
				if got, again := r.Stats(), r.Stats(); got != test.want || again != got {
					t.Errorf("Stats() = %+v, then %+v, want %+v", got, again, test.want)
				}
				if errors.Is(err, errDrainTimeout) != (test.err != "") {
					t.Errorf("errors.Is(%v, errDrainTimeout) = %t", err, test.err == "")
				}
				if got, want := strings.Count(log.String(), `level=ERROR msg="event lost" object.kind=App`), int(test.want.Failed+test.want.Dropped); got != want || strings.Count(log.String(), "\n") != want {
					t.Errorf("%d losses logged, want %d and nothing else:\n%.500s", got, want, log.String())
				}
			})
		})
	}
}

func TestStopTellsOfASingleLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: &script{t: t, outcomes: []string{"timeout"}}, Timeout: time.Hour})
		r.Record(testEvent("a"))
		if err := start(t, r)(); !strings.HasPrefix(text(err), "recorder: 1 event lost at stop: ") {
			t.Errorf("Start() = %v, want an error about one event", err)
		}
	})
}

// With one object alone, every worker is after the same chain.
func TestWorkersDoNotOvertakeEachOther(t *testing.T) {
	last := -1
	r := mustNew(t, Config{Webhook: "http://receiver.test", Workers: 16, QueueSize: 40_000, DrainTimeout: time.Hour, Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
		if n, _ := strconv.Atoi(messageOf(t, req)); n != last+1 {
			t.Errorf("event %d came after event %d", n, last)
		}
		last++
		return answer(202, ""), nil
	})})
	for n := range 30_000 {
		e := testEvent("a")
		e.Message = strconv.Itoa(n)
		if err := r.Record(e); err != nil {
			t.Fatalf("Record() = %v, want nil", err)
		}
	}
	if err := start(t, r)(); err != nil || last != 29_999 {
		t.Errorf("Start() = %v after event %d, want nil after event 29999", err, last)
	}
}

func TestAStoppedRecorderRefuses(t *testing.T) {
	transport, _ := capture(t)
	var log syncBuffer
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport, Logger: logTo(&log)})
	start(t, r)()
	for range 5 {
		if err := r.Record(testEvent("a")); err != ErrStopped {
			t.Errorf("Record() = %v, want ErrStopped", err)
		}
	}
	if err := r.Start(t.Context()); text(err) != "recorder: started a second time" {
		t.Errorf("Start() = %v, want an error", err)
	}
	if err := r.Post(t.Context(), testEvent("a")); err != nil {
		t.Errorf("Post() = %v, want nil: it does not need Start", err)
	}
	if got, want := r.Stats(), (Stats{Dropped: 5, Delivered: 1}); got != want {
		t.Errorf("Stats() = %+v, want %+v", got, want)
	}
	for n, want := range map[int]int{1: 1, 2: 1, 3: 0, 4: 1, 5: 0} {
		line := fmt.Sprintf(`level=WARN msg="event refused" object.kind=App object.namespace=prod object.name=a reason=Tested error="recorder: stopped" total=%d`+"\n", n)
		if got := strings.Count(log.String(), line); got != want {
			t.Errorf("refusal %d is logged %d times, want %d:\n%s", n, got, want, log.String())
		}
	}
}

// Run drains after main has returned, however that was, and not when its context is over.
func TestRunOutlivesMain(t *testing.T) {
	errMain := errors.New("main failed")
	for name, test := range map[string]struct {
		config  Config
		started bool
		main    error
		want    []error
		stats   Stats
	}{
		"main ends":                      {Config{}, false, nil, nil, Stats{Delivered: 2}},
		"main fails":                     {Config{}, false, errMain, []error{errMain}, Stats{Delivered: 2}},
		"no time to drain":               {Config{DrainTimeout: 1}, false, nil, []error{errDrainTimeout}, Stats{Failed: 1, Dropped: 1}},
		"main fails, no time to drain":   {Config{DrainTimeout: 1}, false, errMain, []error{errMain, errDrainTimeout}, Stats{Failed: 1, Dropped: 1}},
		"run before":                     {Config{}, true, nil, []error{errStarted}, Stats{Dropped: 2}},
		"run before, main fails as well": {Config{}, true, errMain, []error{errMain, errStarted}, Stats{Dropped: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				test.config.Webhook = "http://receiver.test"
				test.config.Transport = roundTrip(func(req *http.Request) (*http.Response, error) {
					select {
					case <-time.After(s):
						return answer(202, ""), nil
					case <-req.Context().Done():
						return nil, req.Context().Err()
					}
				})
				r := mustNew(t, test.config)
				if test.started {
					start(t, r)()
				}
				err := r.Run(ctx, func(got context.Context) error {
					if got != ctx {
						t.Error("main was given another context")
					}
					cancel()
					time.Sleep(time.Minute)
					r.Record(testEvent("a"))
					r.Record(testEvent("a"))
					return test.main
				})
				if (err == nil) != (test.want == nil) {
					t.Errorf("Run() = %v, want %v", err, test.want)
				}
				for _, want := range test.want {
					if !errors.Is(err, want) {
						t.Errorf("Run() = %v, want an error that is %v", err, want)
					}
				}
				if got := r.Stats(); got != test.stats {
					t.Errorf("Stats() = %+v, want %+v", got, test.stats)
				}
			})
		})
	}
}

func TestRunDrainsBeforeAPanicGoesOn(t *testing.T) {
	transport, bodies := capture(t)
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport})
	defer func() {
		if got := recover(); got != "main" || len(*bodies) != 1 {
			t.Errorf("recovered %v with %d events posted, want main's panic after one", got, len(*bodies))
		}
	}()
	r.Run(t.Context(), func(context.Context) error {
		r.Record(testEvent("a"))
		panic("main")
	})
}

// However many events two busy objects have, a quiet one waits for one of each at the most.
func TestObjectsTakeTurns(t *testing.T) {
	const took = 5 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var mu sync.Mutex
		ahead := map[string]int{} // events of each object that arrived before the quiet one's
		var quiet time.Duration
		r := mustNew(t, Config{Webhook: "http://receiver.test", Workers: 2, Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			message := messageOf(t, req)
			mu.Lock()
			defer mu.Unlock()
			if now := time.Since(begin); message == "message of quiet" {
				quiet = now
			} else if now < took {
				ahead[message]++
			}
			mu.Unlock()
			time.Sleep(took)
			mu.Lock()
			return answer(202, ""), nil
		})})
		for range 300 {
			r.Record(testEvent("busy1"))
			r.Record(testEvent("busy2"))
		}
		r.Record(testEvent("quiet"))
		if err := start(t, r)(); err != nil {
			t.Errorf("Start() = %v, want nil", err)
		}
		if diff := cmp.Diff(map[string]int{"message of busy1": 1, "message of busy2": 1}, ahead); diff != "" || quiet != took {
			t.Errorf("the quiet object's event came after %v, want %v; ahead of it (-want +got):\n%s", quiet, took, diff)
		}
		if got, want := time.Since(begin), 301*took; got != want {
			t.Errorf("601 events took %v, want %v", got, want)
		}
	})
}

func TestRefusalsAreLoggedLogarithmically(t *testing.T) {
	var log syncBuffer
	r := mustNew(t, Config{Webhook: "http://receiver.test", QueueSize: 1, Logger: logTo(&log)})
	for range 100_001 {
		r.Record(testEvent("a"))
	}
	if got := strings.Count(log.String(), "\n"); got != 17 {
		t.Errorf("%d lines for 100000 refusals, want 17", got)
	}
}

func TestNothingIsLoggedForWhatWasDelivered(t *testing.T) {
	var log syncBuffer
	transport := &script{t: t, outcomes: []string{"202", "429", "208"}}
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport, Logger: logTo(&log)})
	for range 3 {
		r.Record(testEvent("a"))
	}
	start(t, r)()
	if log.String() != "" || r.Stats() != (Stats{Delivered: 1, Duplicates: 2}) {
		t.Errorf("logged %q, %+v, want nothing", log.String(), r.Stats())
	}
}

func TestRetriesAreLoggedAtDebug(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncBuffer
		r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: &script{t: t, outcomes: []string{"503 busy", "202"}}, Backoff: steady, Logger: logTo(&log)})
		r.Post(t.Context(), testEvent("a"))
		want := `level=DEBUG msg="event not delivered yet" object.kind=App object.namespace=prod object.name=a attempt=1 wait=1s error="status 503 Service Unavailable: busy"` + "\n"
		if got := log.String(); !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("logged %q, want %q", got, want)
		}
	})
}

func TestRecordingWhileStoppingLosesNoCount(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 50
	}
	transport := roundTrip(func(*http.Request) (*http.Response, error) { return answer(202, ""), nil })
	for range rounds {
		r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport, QueueSize: 64})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- r.Start(ctx) }()
		var accepted atomic.Uint64
		var callers sync.WaitGroup
		for i := range 64 {
			callers.Go(func() {
				for range 3 {
					switch err := r.Record(testEvent(strconv.Itoa(i % 5))); err {
					case nil:
						accepted.Add(1)
					case ErrStopped, ErrQueueFull:
					default:
						t.Errorf("Record() = %v, want nil, ErrStopped or ErrQueueFull", err)
					}
				}
				if i == 32 {
					cancel()
				}
			})
		}
		callers.Wait()
		if err := <-ended; err != nil {
			t.Fatalf("Start() = %v, want nil", err)
		}
		if got := r.Stats(); got.Delivered != accepted.Load() || got.sum() != 64*3 || got.Queued != 0 {
			t.Fatalf("Stats() = %+v, want %d delivered and %d in all", got, accepted.Load(), 64*3)
		}
		cancel()
	}
}

func TestAThousandRecordersLeaveNothingBehind(t *testing.T) {
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc/self/fd here")
		}
		return len(entries)
	}
	rec := newReceiver(t, false, func(_ int, w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		w.WriteHeader(202)
	})
	goroutines, files := runtime.NumGoroutine(), descriptors()
	for range 1000 {
		r := mustNew(t, Config{Webhook: rec.URL, QueueSize: 8, Timeout: hang, DrainTimeout: hang})
		r.Record(testEvent("a"))
		if err := start(t, r)(); err != nil || r.Stats() != (Stats{Delivered: 1}) {
			t.Fatalf("Start() = %v, %+v, want one event delivered", err, r.Stats())
		}
	}
	eventually(t, fmt.Sprintf("%d goroutines and %d descriptors", goroutines, files), func() bool {
		return runtime.NumGoroutine() <= goroutines && descriptors() <= files
	})
}

func TestNoGoroutineRunsBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := mustNew(t, Config{Webhook: "http://receiver.test"})
		r.Record(testEvent("a")) // A goroutine that was left would be a deadlock to synctest.
	})
}

// With 60 attempts the shortest waits add up to 15.5s and 54 times 15s, which is 825s.
func TestALongOutageLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var mu sync.Mutex
		arrived := map[string][]string{}
		r := mustNew(t, Config{Webhook: "http://receiver.test", MaxAttempts: 60, DrainTimeout: time.Hour,
			Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
				if time.Since(begin) < 825*s {
					return nil, errorsByName["refused"]
				}
				mu.Lock()
				defer mu.Unlock()
				message := messageOf(t, req)
				arrived[message[:2]] = append(arrived[message[:2]], message)
				return answer(202, ""), nil
			})})
		stop := start(t, r)
		want := map[string][]string{}
		for n := range 100 {
			e := testEvent(fmt.Sprint("o", n%7))
			e.Message = fmt.Sprintf("o%d, %d", n%7, n)
			want[e.Message[:2]] = append(want[e.Message[:2]], e.Message)
			if err := r.Record(e); err != nil {
				t.Errorf("Record() = %v, want nil", err)
			}
			time.Sleep(5 * s)
		}
		if err := stop(); err != nil {
			t.Errorf("Start() = %v, want nil", err)
		}
		if diff := cmp.Diff(want, arrived); diff != "" {
			t.Errorf("arrivals (-want +got):\n%s", diff)
		}
	})
}

func TestLeaderElectionIsNotNeeded(t *testing.T) {
	if mustNew(t, Config{}).NeedLeaderElection() {
		t.Error("NeedLeaderElection() = true, want false")
	}
}

func TestWhatARefusalCosts(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test", QueueSize: 1})
	e := BenchEvent()
	e.RelatedObject = &ObjectReference{Kind: "Source", Name: "git"}
	e.Message = strings.Repeat("x", maxMessage+1) // would have to be shortened
	r.Record(e)
	if got := testing.AllocsPerRun(1000, func() { r.Record(e) }); got != 0 {
		t.Errorf("a refused Record allocates %v times, want 0", got)
	}
}

// Ten thousand recorders have one event each when their receiver goes down for ten seconds. The
// README gives the figures that this logs.
func TestTenThousandRecordersComeBackSpread(t *testing.T) {
	const recorders, outage, window = 10_000, 10 * s, 100 * time.Millisecond
	for jitter, bound := range map[float64]int{0: recorders, 0.5: 2500} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var mu sync.Mutex
			var retries []time.Duration // when each request but the first of each recorder came
			var delivered uint64
			transport := roundTrip(func(*http.Request) (*http.Response, error) {
				now := time.Since(begin)
				if now > 0 {
					mu.Lock()
					defer mu.Unlock()
					retries = append(retries, now)
				}
				if now < outage {
					return nil, errorsByName["refused"]
				}
				return answer(202, ""), nil
			})
			var senders sync.WaitGroup
			for range recorders {
				r := mustNew(t, Config{Webhook: "http://receiver.test", QueueSize: 1, MaxAttempts: 6, Transport: transport,
					Backoff: Backoff{Min: s, Max: 30 * s, Jitter: jitter}})
				senders.Go(func() {
					if r.Post(t.Context(), testEvent("a")) == nil {
						atomic.AddUint64(&delivered, 1)
					}
				})
			}
			senders.Wait()
			took := time.Since(begin)
			slices.Sort(retries)
			most, first := 0, 0
			for last := range retries {
				for retries[last]-retries[first] >= window {
					first++
				}
				most = max(most, last-first+1)
			}
			if delivered != recorders || most > bound || took > 31*s {
				t.Errorf("jitter %v: %d delivered in %v, at most %d requests in %v, want all, within 31s, at most %d", jitter, delivered, took, most, window, bound)
			}
			t.Logf("jitter %v: at most %d retries in any %v, all delivered after %v", jitter, most, window, took.Round(100*time.Millisecond))
		})
	}
}

// FuzzPost has any event either refused or posted as valid JSON that says the same.
func FuzzPost(f *testing.F) {
	f.Add("App", "prod", "web", "info", "message", "Reason", "key", "value", int64(1_700_000_000))
	f.Add("", "", "", "trace", "\xff\u2028<&>", "", "", "\x00", int64(-1))
	f.Add("K", "", "x", "", strings.Repeat("\U0001f600", 39_001), "100%", "a\nb", "", int64(1<<40))
	f.Fuzz(func(t *testing.T, kind, namespace, name, severity, message, reason, key, value string, unix int64) {
		transport, bodies := capture(t)
		r := mustNew(t, Config{Webhook: "http://receiver.test", Controller: "c", Instance: "i", QueueSize: 1, Transport: transport})
		e := Event{
			InvolvedObject: ObjectReference{Kind: kind, Namespace: namespace, Name: name}, Severity: severity,
			Timestamp: time.Unix(unix, 0), Message: message, Reason: reason, Metadata: map[string]string{key: value},
		}
		if err := r.Post(t.Context(), e); err != nil || severity == SeverityTrace {
			if len(*bodies) != 0 {
				t.Errorf("Post() = %v, and posted %q", err, *bodies)
			}
			return
		}
		var got Event
		if err := json.Unmarshal([]byte((*bodies)[0]), &got); err != nil {
			t.Fatalf("body %q: %v", (*bodies)[0], err)
		}
		valid := func(s string) string { return string([]rune(s)) } // each stray byte becomes U+FFFD
		want := e
		want.InvolvedObject = ObjectReference{Kind: valid(kind), Namespace: valid(namespace), Name: valid(name)}
		want.Severity, want.Reason, want.Metadata = stdcmp.Or(severity, SeverityInfo), valid(reason), map[string]string{valid(key): valid(value)}
		want.Timestamp, want.ReportingController, want.ReportingInstance = e.Timestamp.UTC(), "c", "i"
		if want.Message = valid(message); utf8.RuneCountInString(message) > maxMessage {
			if n := utf8.RuneCountInString(got.Message); n > maxMessage {
				t.Errorf("message of %d characters, want at most %d", n, maxMessage)
			}
			want.Message = got.Message
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("posted (-want +got):\n%s", diff)
		}
	})
}

// FuzzNew has any webhook either refused without being quoted, or fit to be posted to.
func FuzzNew(f *testing.F) {
	for _, webhook := range []string{"", "h", "/x", "ftp://h", "http://", " http://h", "http://u:p@h:80/x?y#z", "http://[::1%25a]", "http://h:99999", "http://h\n", "http://%41/"} {
		f.Add(webhook)
	}
	f.Fuzz(func(t *testing.T, webhook string) {
		transport, bodies := capture(t)
		r, err := New(Config{Webhook: webhook, QueueSize: 1, Transport: transport})
		if err != nil {
			if got, plain := err.Error(), strings.NewReplacer(webhook, ""); len(webhook) > 10 && plain.Replace(got) != got || strings.Contains(got, "\n") {
				t.Errorf("New(%q) = %v, want one line that does not quote the webhook", webhook, err)
			}
			return
		}
		if err := r.Post(t.Context(), testEvent("a")); err != nil || (len(*bodies) == 1) != (webhook != "") {
			t.Errorf("Post() to %q = %v, want nil", webhook, err)
		}
	})
}

// The adapters.

// A kubeObject is as much of a Kubernetes object as the adapters look at.
type kubeObject struct {
	name        string
	annotations map[string]string
}

func (o *kubeObject) GetAnnotations() map[string]string { return o.annotations }

var errNoReference = errors.New("no kind is registered")

// refer is a reference function that knows kubeObjects, and strings, which have no metadata.
func refer(o any) (ObjectReference, error) {
	switch o := o.(type) {
	case *kubeObject:
		return ObjectReference{Kind: "App", Namespace: "prod", Name: o.name}, nil
	case string:
		return ObjectReference{Kind: "Text", Name: o}, nil
	}
	return ObjectReference{}, errNoReference
}

func TestEventRecorderMakesEvents(t *testing.T) {
	app := &kubeObject{name: "web", annotations: map[string]string{"event.toolkit.fluxcd.io/team": "ops", "event.toolkit.fluxcd.io/both": "object", "other/x": "y"}}
	plain := &kubeObject{name: "web"}
	type call struct {
		regarding, related any
		annotations        map[string]string
		eventtype, note    string
		args               []any
	}
	type posted struct {
		severity, message, related string
		metadata                   map[string]string
	}
	tests := map[string]struct {
		call    call
		posted  *posted // nil: nothing
		forward string  // eventtype, note and args as they must reach next
		log     string
	}{
		"normal":                       {call{plain, nil, nil, "Normal", "all %d ready", []any{3}}, &posted{"info", "all 3 ready", "", nil}, "Normal|all %d ready|[3]", ""},
		"warning":                      {call{plain, nil, nil, "Warning", "failed", nil}, &posted{"error", "failed", "", nil}, "Warning|failed|[]", ""},
		"any other type":               {call{plain, nil, nil, "", "x", nil}, &posted{"info", "x", "", nil}, "|x|[]", ""},
		"trace":                        {call{plain, nil, nil, "Trace", "x", nil}, nil, "Normal|x|[]", ""},
		"percent sign":                 {call{plain, nil, nil, "Normal", "disk 100% full", nil}, &posted{"info", "disk 100% full", "", nil}, "Normal|%s|[disk 100% full]", ""},
		"percent escape":               {call{plain, nil, nil, "Normal", "%2Fpath %!s %d %v 100%", nil}, &posted{"info", "%2Fpath %!s %d %v 100%", "", nil}, "Normal|%s|[%2Fpath %!s %d %v 100%]", ""},
		"too few args":                 {call{plain, nil, nil, "Normal", "%d %d", []any{1}}, &posted{"info", "1 %!d(MISSING)", "", nil}, "Normal|%d %d|[1]", ""},
		"too many args":                {call{plain, nil, nil, "Normal", "x", []any{1}}, &posted{"info", "x%!(EXTRA int=1)", "", nil}, "Normal|x|[1]", ""},
		"annotations":                  {call{plain, nil, map[string]string{"a": "b"}, "Normal", "x", nil}, &posted{"info", "x", "", map[string]string{"a": "b"}}, "Normal|x|[]", ""},
		"the object's go over":         {call{app, nil, map[string]string{"a": "b", "event.toolkit.fluxcd.io/both": "call"}, "Normal", "x", nil}, &posted{"info", "x", "", map[string]string{"a": "b", "event.toolkit.fluxcd.io/team": "ops", "event.toolkit.fluxcd.io/both": "object"}}, "Normal|x|[]", ""},
		"the object's alone":           {call{app, nil, nil, "Normal", "x", nil}, &posted{"info", "x", "", map[string]string{"event.toolkit.fluxcd.io/team": "ops", "event.toolkit.fluxcd.io/both": "object"}}, "Normal|x|[]", ""},
		"the object's with empty ones": {call{app, nil, map[string]string{}, "Normal", "x", nil}, &posted{"info", "x", "", map[string]string{"event.toolkit.fluxcd.io/team": "ops", "event.toolkit.fluxcd.io/both": "object"}}, "Normal|x|[]", ""},
		"no metadata":                  {call{"text", nil, nil, "Normal", "x", nil}, &posted{"info", "x", "", nil}, "Normal|x|[]", ""},
		"related":                      {call{plain, "source", nil, "Normal", "x", nil}, &posted{"info", "x", "source", nil}, "Normal|x|[]", ""},
		"related without a reference":  {call{plain, 7, nil, "Normal", "x", nil}, &posted{"info", "x", "", nil}, "Normal|x|[]", `level=WARN msg="event without its related object" object.kind=App object.namespace=prod object.name=web reason=Reason error="no kind is registered"`},
		"related nil pointer":          {call{plain, (*kubeObject)(nil), nil, "Normal", "x", nil}, &posted{"info", "x", "", nil}, "Normal|x|[]", ""},
		"nil":                          {call{nil, nil, nil, "Normal", "x", nil}, nil, "Normal|x|[]", `level=ERROR msg="event lost" object.kind="" object.namespace="" object.name="" reason=Reason error="recorder: no reference to the <nil>: it is nil"`},
		"nil pointer":                  {call{(*kubeObject)(nil), nil, nil, "Normal", "x", nil}, nil, "Normal|x|[]", `error="recorder: no reference to the *recorder.kubeObject: it is nil"`},
		"without a reference":          {call{7, nil, nil, "Normal", "x", nil}, nil, "Normal|x|[]", `error="recorder: no reference to the int: no kind is registered"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			transport, bodies := capture(t)
			var log syncBuffer
			r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport, Logger: logTo(&log)})
			var forwarded []string
			events := NewEventRecorder(r, refer, func(regarding, related any, annotations map[string]string, eventtype, reason, action, note string, args ...any) {
				if regarding != test.call.regarding || related != test.call.related || reason != "Reason" || action != "Action" {
					t.Errorf("next was given %v, %v, %s, %s, want those of the call", regarding, related, reason, action)
				}
				if test.posted != nil {
					if diff := cmp.Diff(test.posted.metadata, annotations, cmpopts()); diff != "" {
						t.Errorf("annotations for next (-want +got):\n%s", diff)
					}
				}
				forwarded = append(forwarded, fmt.Sprint(eventtype, "|", note, "|", args))
			})
			given := maps.Clone(test.call.annotations)
			events.AnnotatedEventf(test.call.regarding, test.call.related, test.call.annotations, test.call.eventtype, "Reason", "Action", test.call.note, test.call.args...)
			if diff := cmp.Diff(given, test.call.annotations); diff != "" {
				t.Errorf("the caller's map was changed (-before +after):\n%s", diff)
			}
			start(t, r)()
			if diff := cmp.Diff([]string{test.forward}, forwarded); diff != "" {
				t.Errorf("calls of next (-want +got):\n%s", diff)
			}
			if !strings.Contains(log.String(), test.log) || (test.log == "") != (log.String() == "") {
				t.Errorf("logged %q, want %q", log.String(), test.log)
			}
			if test.posted == nil {
				want := Stats{}
				if test.log != "" {
					want.Rejected = 1
				}
				if len(*bodies) != 0 || r.Stats() != want {
					t.Errorf("posted %q, %+v, want nothing and %+v", *bodies, r.Stats(), want)
				}
				return
			}
			if len(*bodies) != 1 {
				t.Fatalf("posted %q, want one event", *bodies)
			}
			var e Event
			if err := json.Unmarshal([]byte((*bodies)[0]), &e); err != nil {
				t.Fatal(err)
			}
			got := posted{e.Severity, e.Message, "", e.Metadata}
			if e.RelatedObject != nil {
				got.related = e.RelatedObject.Name
			}
			if diff := cmp.Diff(*test.posted, got, cmp.AllowUnexported(posted{})); diff != "" || e.Reason != "Reason" || e.Action != "Action" {
				t.Errorf("posted %s (-want +got):\n%s", (*bodies)[0], diff)
			}
		})
	}
}

// cmpopts takes an empty map for none, as JSON does.
func cmpopts() cmp.Option {
	return cmp.FilterValues(func(a, b map[string]string) bool { return len(a)+len(b) == 0 }, cmp.Ignore())
}

// A recordHandler is a slog.Handler that is given each record as it is.
type recordHandler struct {
	slog.Handler
	handle func(slog.Record)
}

func (h recordHandler) Handle(_ context.Context, record slog.Record) error {
	h.handle(record)
	return nil
}

func TestTheLogHasTheCauseItself(t *testing.T) {
	var causes []error
	logger := slog.New(recordHandler{slog.NewTextHandler(io.Discard, nil), func(record slog.Record) {
		record.Attrs(func(attr slog.Attr) bool {
			if err, ok := attr.Value.Any().(error); ok {
				causes = append(causes, err)
			}
			return true
		})
	}})
	r := mustNew(t, Config{Webhook: "http://receiver.test", Logger: logger})
	NewEventRecorder(r, refer, nil).Eventf(7, nil, "Normal", "Reason", "", "x")
	if len(causes) != 1 || !errors.Is(causes[0], errNoReference) {
		t.Errorf("logged the errors %v, want one that wraps %v", causes, errNoReference)
	}
}

func TestNextMayKeepTheAnnotations(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test"})
	var kept map[string]string
	events := NewEventRecorder(r, refer, func(_, _ any, annotations map[string]string, _, _, _, _ string, _ ...any) { kept = annotations })
	annotations := map[string]string{"revision": "1"}
	events.AnnotatedEventf("object", nil, annotations, "Normal", "Reason", "", "x")
	annotations["revision"] = "2"
	if kept["revision"] != "1" {
		t.Errorf("next was given revision %s, want 1, as it was at the call", kept["revision"])
	}
}

func TestAdaptersWithoutNext(t *testing.T) {
	transport, bodies := capture(t)
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport, Workers: 1})
	NewEventRecorder(r, refer, nil).Eventf("object", nil, "Normal", "Reason", "Action", "100%")
	NewLegacyEventRecorder(r, refer, nil).Event("object", "Normal", "Reason", "100%")
	start(t, r)()
	if len(*bodies) != 2 || !strings.Contains((*bodies)[0], `"message":"100%","reason":"Reason","action":"Action"`) || !strings.Contains((*bodies)[1], `"message":"100%","reason":"Reason","action":""`) {
		t.Errorf("posted %q, want both events", *bodies)
	}
}

func TestTheZeroValueOfAnObjectThatIsNoPointerIsNone(t *testing.T) {
	transport, bodies := capture(t)
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport})
	identity := func(o ObjectReference) (ObjectReference, error) { return o, nil }
	NewEventRecorder(r, identity, nil).Eventf(ObjectReference{Kind: "App", Name: "web"}, ObjectReference{}, "Normal", "Reason", "", "x")
	start(t, r)()
	if len(*bodies) != 1 || strings.Contains((*bodies)[0], "relatedObject") {
		t.Errorf("posted %q, want one event without a related object", *bodies)
	}
}

func TestLegacyEventRecorderMakesEvents(t *testing.T) {
	transport, bodies := capture(t)
	r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport, Workers: 1})
	var forwarded []string
	events := NewLegacyEventRecorder(r, refer, func(object any, annotations map[string]string, eventtype, reason, messageFmt string, args ...any) {
		forwarded = append(forwarded, fmt.Sprint(object, annotations, eventtype, reason, " ", fmt.Sprintf(messageFmt, args...)))
	})
	events.Event("text", "Normal", "A", "100% %d")
	events.Eventf("text", "Warning", "B", "%d%%", 50)
	events.AnnotatedEventf("text", map[string]string{"k": "v"}, "Trace", "C", "traced %s", "x")
	events.AnnotatedEventf("text", map[string]string{"k": "v"}, "Normal", "D", "noted")
	start(t, r)()
	wantForwarded := []string{"textmap[]NormalA 100% %d", "textmap[]WarningB 50%", "textmap[k:v]NormalC traced x", "textmap[k:v]NormalD noted"}
	if diff := cmp.Diff(wantForwarded, forwarded); diff != "" {
		t.Errorf("calls of next (-want +got):\n%s", diff)
	}
	for i, want := range []string{`"info",`, `"error",`, `"info",`} {
		if i >= len(*bodies) || !strings.Contains((*bodies)[i], `"severity":`+want) {
			t.Fatalf("posted %q, want severity %s in event %d", *bodies, want, i)
		}
	}
	for i, want := range []string{`"message":"100% %d"`, `"message":"50%"`, `"metadata":{"k":"v"}`} {
		if len(*bodies) != 3 || !strings.Contains((*bodies)[i], want) {
			t.Errorf("posted %q, want %s in event %d of 3", *bodies, want, i)
		}
	}
}

func TestEntriesAreUsedAgain(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test"})
	for range 1000 {
		r.Record(testEvent("a"))
		r.Discard()
	}
	unused := 0
	for e := r.unused; e != nil; e = e.next {
		unused++
	}
	if unused != 64 {
		t.Errorf("%d entries are unused after 1000 events one after another, want the first batch, 64", unused)
	}
}

// An entry keeps its map for the next event, which must not find anything in it.
func TestMapsAreUsedAgain(t *testing.T) {
	r := mustNew(t, Config{Webhook: "http://receiver.test"})
	large := map[string]string{}
	for i := range 9 {
		large[strconv.Itoa(i)] = "v"
	}
	eight := maps.Clone(large)
	delete(eight, "8")
	for i, test := range []struct {
		metadata map[string]string
		keeps    bool
	}{
		{map[string]string{"a": "1", "b": "2"}, true},
		{map[string]string{"b": "3"}, true},
		{nil, true},
		{eight, true},
		{large, false}, // To clear a large map takes long, each time, however little is in it.
		{nil, false},
		{map[string]string{"c": "4"}, true},
	} {
		event := testEvent("a")
		event.Metadata = test.metadata
		r.Record(event)
		e := <-r.ready
		if !maps.Equal(e.Metadata, test.metadata) {
			t.Errorf("event %d has Metadata %v, want %v", i, e.Metadata, test.metadata)
		}
		r.queued.Add(-1)
		r.release(e)
		if got := r.unused.Metadata; len(got) != 0 || (got != nil) != test.keeps {
			t.Errorf("after event %d its entry has the map %#v, want an empty one: %t", i, got, test.keeps)
		}
	}
}

// Record asks twice whether there is room, and others may record in between.
func TestRoomIsCheckedUnderTheLock(t *testing.T) {
	for _, want := range []error{ErrQueueFull, ErrStopped} {
		r := mustNew(t, Config{Webhook: "http://receiver.test", QueueSize: 1})
		event := testEvent("a")
		if want == ErrStopped {
			r.stopped.Store(true)
		} else {
			r.Record(event)
		}
		if err := r.enqueue(&event); err != want {
			t.Errorf("enqueue() = %v, want %v", err, want)
		}
	}
}

// The transport answers at once, so that what is counted is the recorder's own part: net/http adds
// some forty to each attempt.
func TestAllocationCeilings(t *testing.T) {
	accepted := &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody}
	r := mustNew(t, Config{Webhook: "http://receiver.test"})
	r.webhook.transport = roundTrip(func(*http.Request) (*http.Response, error) { return accepted, nil })
	event := BenchEvent()
	events := NewEventRecorder(r, func(*kubeObject) (ObjectReference, error) { return event.InvolvedObject, nil }, nil)
	app := &kubeObject{name: "webapp"}
	for _, test := range []struct {
		name    string
		call    func()
		ceiling float64
	}{
		{"Post", func() { r.Post(t.Context(), event) }, 19},    // 16 without -race
		{"Record", func() { r.Record(event); r.Discard() }, 0}, // once every entry has its map
		{"AnnotatedEventf", func() {
			events.AnnotatedEventf(app, nil, event.Metadata, "Normal", event.Reason, "", "finished in %s", "1.2s")
			r.Discard()
		}, 4},
		{"AnnotatedEventf of plain text", func() {
			events.AnnotatedEventf(app, nil, event.Metadata, "Normal", event.Reason, "", "finished")
			r.Discard()
		}, 0},
		{"the end of an answer without a body", func() { r.webhook.drain(accepted) }, 0},
		{"Delay", func() { r.config.Backoff.Delay(4) }, 0},
	} {
		if got := testing.AllocsPerRun(500, test.call); got > test.ceiling {
			t.Errorf("%s allocates %v times, want at most %v", test.name, got, test.ceiling)
		} else {
			t.Logf("%s allocates %v times", test.name, got)
		}
	}
	if got := r.Stats(); got.Dropped+got.Rejected+got.Failed != 0 {
		t.Errorf("Stats() = %+v, want no event lost", got)
	}
}
