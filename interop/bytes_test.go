package interop

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	fluxevents "github.com/fluxcd/pkg/runtime/events"
	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	gocmpopts "github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"example.com/recorder"
)

// maxMessage is the longest message that the schema of Flux's Event admits, in characters.
const maxMessage = 39_000

// A call is one call of a recorder's AnnotatedEventf.
type call struct {
	regarding, related              runtime.Object
	annotations                     map[string]string
	eventtype, reason, action, note string
	args                            []any
}

func (c call) on(r events.AnnotatedEventRecorder) {
	r.AnnotatedEventf(c.regarding, c.related, c.annotations, c.eventtype, c.reason, c.action, c.note, c.args...)
}

// A mailbox is a receiver that keeps what it is sent, as it came.
type mailbox struct {
	mu    sync.Mutex
	posts []post
}

// A post is a request as far as the two recorders have to agree on it. The time is left out.
type post struct {
	Method, Target, ContentType, Body string
	Length                            int64
	time                              time.Time
}

func (m *mailbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}
	p := post{Method: r.Method, Target: r.RequestURI, ContentType: r.Header.Get("Content-Type"), Length: r.ContentLength}
	p.Body, p.time = timeless(string(body))
	m.mu.Lock()
	m.posts = append(m.posts, p)
	m.mu.Unlock()
	w.WriteHeader(http.StatusAccepted)
}

// empty returns what has come since it was emptied last.
func (m *mailbox) empty() []post {
	m.mu.Lock()
	defer m.mu.Unlock()
	posts := m.posts
	m.posts = nil
	return posts
}

var timestamp = regexp.MustCompile(`"timestamp":"([^"]*)"`)

// timeless takes the time out of a body. The first match is the field itself: a text ahead of it
// could not hold quotes that are not escaped.
func timeless(body string) (string, time.Time) {
	at := timestamp.FindStringSubmatchIndex(body)
	if at == nil {
		return body, time.Time{}
	}
	stamp, _ := time.Parse("2006-01-02T15:04:05Z", body[at[2]:at[3]])
	return body[:at[2]] + body[at[3]:], stamp
}

// A pair is Flux's recorder and ours, posting to one mailbox.
type pair struct {
	mailbox   *mailbox
	webhook   string
	transport http.RoundTripper // of ours, or nil for its own
	flux      fluxevents.Recorder
}

func newPair(t testing.TB) *pair {
	p := &pair{mailbox: new(mailbox)}
	p.webhook = serve(t, p.mailbox).URL + "/events?tenant=a%20b"
	var err error
	p.flux, err = fluxevents.NewRecorder(logr.FromSlogHandler(slog.DiscardHandler), p.webhook, "app-controller",
		fluxevents.WithScheme(scheme.Scheme), fluxevents.WithRetryMax(0))
	if err != nil {
		t.Fatalf("NewRecorder(%q) = %v, want no error", p.webhook, err)
	}
	return p
}

// byFlux returns what Flux's recorder posts for a call.
func (p *pair) byFlux(c call) []post {
	c.on(p.flux)
	return p.mailbox.empty()
}

// byUs returns what the adapter posts for a call, what the recorder counts, and what it logs.
func (p *pair) byUs(t testing.TB, c call) ([]post, recorder.Stats, *journal) {
	t.Helper()
	log := new(journal)
	rec := newRecorder(t, recorder.Config{
		Webhook:    p.webhook,
		Controller: "app-controller",
		Transport:  p.transport,
		Backoff:    never,
		Logger:     slog.New(log),
	})
	c.on(adapt(rec))
	drain(t, rec)
	return p.mailbox.empty(), rec.Stats(), log
}

// checkSame has both recorders post, ours a call and Flux's the same one unless it has to be put
// differently for Flux to get it right, and compares the requests.
func (p *pair) checkSame(t *testing.T, ours, theirs call) {
	t.Helper()
	before := time.Now().Truncate(time.Second)
	want := p.byFlux(theirs)
	got, stats, _ := p.byUs(t, ours)
	if len(want) != 1 {
		t.Fatalf("Flux posts %d events for %+v, want 1", len(want), theirs)
	}
	checkTime(t, got, before)
	checkPosts(t, ours, got, want)
	if want := (recorder.Stats{Delivered: 1}); stats != want {
		t.Errorf("Stats() = %+v, want %+v", stats, want)
	}
}

// checkPosts compares what was posted for a call in all but the time.
func checkPosts(t *testing.T, ours call, got, want []post) {
	t.Helper()
	if diff := gocmp.Diff(want, got, gocmpopts.IgnoreUnexported(post{})); diff != "" {
		t.Errorf("adapter posts for %.300v (-Flux, +adapter):\n%.3000s", ours, diff)
	}
}

// checkTime wants posts to be stamped in whole seconds of UTC, within the test.
func checkTime(t *testing.T, posts []post, before time.Time) {
	t.Helper()
	for _, p := range posts {
		if p.time.Before(before) || p.time.After(time.Now()) {
			t.Errorf("timestamp = %v, want one from %v to now, in whole seconds of UTC", p.time, before)
		}
	}
}

// The objects that events are about.

func custom(apiVersion, kind, name string) *unstructured.Unstructured {
	object := new(unstructured.Unstructured)
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	object.SetNamespace("apps")
	object.SetName(name)
	object.SetUID("e076e315-5a48-41c3-81c8-8d8bdee7d74d")
	object.SetResourceVersion("12345")
	return object
}

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "web-0", Namespace: "apps", UID: "77d2", ResourceVersion: "9",
		Annotations: map[string]string{"kubernetes.io/psp": "restricted"},
	}}
}

func TestBodiesAreThoseOfFlux(t *testing.T) {
	annotated := configMap("web", map[string]string{
		"event.toolkit.fluxcd.io/image": "ghcr.io/org/app:6.5.0",
		"event.toolkit.fluxcd.io/env":   "object",
		"app.kubernetes.io/name":        "web",
	})
	field := &corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: "apps", Name: "web-0", UID: "77d2",
		ResourceVersion: "9", FieldPath: "spec.containers{web}",
	}
	web := configMap("web", nil)
	for name, c := range map[string]call{
		"core object": {regarding: pod(), note: "started"},
		"custom resource of a beta version": {
			regarding: custom("apps.example.com/v1beta1", "App", "web"), note: "started"},
		"reference with a field path": {regarding: field, note: "started"},
		"reference of kind and name": {
			regarding: &corev1.ObjectReference{Kind: "App", Namespace: "apps", Name: "web"}, note: "started"},

		"related object": {
			regarding: web, related: custom("source.toolkit.fluxcd.io/v1", "GitRepository", "source"), note: "fetched"},
		"related reference that is empty": {regarding: web, related: new(corev1.ObjectReference), note: "fetched"},
		"related object of no known kind": {regarding: web, related: &unregistered{}, note: "fetched"},
		"related object without namespace": {
			regarding: web, related: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, note: "scheduled"},

		"empty annotations": {regarding: web, annotations: map[string]string{}, note: "n"},
		"annotations of the call": {
			regarding: web, annotations: map[string]string{"b": "<&>", "a": "\u2028 tab\t", "c": "", "": "no key"}, note: "n"},
		"annotations of the object": {regarding: annotated, note: "n"},
		"annotations of both": {
			regarding:   annotated,
			annotations: map[string]string{"event.toolkit.fluxcd.io/env": "call", "apps/revision": "main@sha1:0123"}, note: "n"},
		"annotations with the text of other fields": {
			regarding: web, annotations: map[string]string{"timestamp": "2026-01-01T00:00:00Z"}, note: `"timestamp":"now"`},

		"warning":                  {regarding: web, eventtype: corev1.EventTypeWarning, reason: "Failed", action: "Syncing", note: "no"},
		"event type of no meaning": {regarding: web, eventtype: "Alarm", note: "n"},
		"all texts empty":          {regarding: web},
		"texts with escapes": {
			regarding: web, reason: "<Reason>", action: "a\\b", note: "<html> & \"quotes\" \\ \u2028\u2029 \x01 \x7f é 漢 😀"},
		"texts that are not UTF-8": {regarding: web, reason: "bad \xff", action: "\xc3", note: "bad \xff\xfe bytes \xc3"},

		"note with args": {regarding: web, note: "%s is %d%% done", args: []any{"web", 100}},
		"too few args":   {regarding: web, note: "%s and %s", args: []any{"one"}},
		"too many args":  {regarding: web, note: "%s", args: []any{"one", "two", 3}},
		"wrong args":     {regarding: web, note: "%d %v %w", args: []any{"one", nil, errors.New("cause")}},
		"args that hold verbs": {
			regarding: web, note: "%s", args: []any{"disk 100% full %s %d"}},
		"args but no verb": {regarding: web, note: "done", args: []any{}},

		"longest message":          {regarding: web, note: strings.Repeat("x", maxMessage)},
		"longest message of runes": {regarding: web, note: strings.Repeat("😀", maxMessage)},
		"longest message of bytes": {regarding: web, note: strings.Repeat("\xff", maxMessage)},
	} {
		t.Run(name, func(t *testing.T) {
			newPair(t).checkSame(t, c, c)
		})
	}
}

// unregistered is an object whose kind nobody knows.
type unregistered struct{ corev1.ConfigMap }

func (u *unregistered) DeepCopyObject() runtime.Object { return &unregistered{*u.DeepCopy()} }

func TestNeitherPosts(t *testing.T) {
	for name, test := range map[string]struct {
		call call
		want recorder.Stats
		says string
	}{
		"trace": {
			call: call{regarding: configMap("web", nil), eventtype: eventv1.EventTypeTrace, note: "n"},
		},
		"no kind": {
			call: call{regarding: &corev1.ObjectReference{Namespace: "apps", Name: "web"}, note: "n"},
			want: recorder.Stats{Rejected: 1},
			says: "InvolvedObject.Kind",
		},
		"no name": {
			call: call{regarding: configMap("", nil), note: "n"},
			want: recorder.Stats{Rejected: 1},
			says: "InvolvedObject.Name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			if got := p.byFlux(test.call); len(got) != 0 {
				t.Errorf("Flux posts %+v, want nothing", got)
			}
			got, stats, log := p.byUs(t, test.call)
			if len(got) != 0 {
				t.Errorf("adapter posts %+v, want nothing", got)
			}
			if stats != test.want {
				t.Errorf("Stats() = %+v, want %+v", stats, test.want)
			}
			losses := log.losses()
			if uint64(len(losses)) != test.want.Rejected {
				t.Errorf("losses logged = %v, want %d", losses, test.want.Rejected)
			}
			for _, loss := range losses {
				if !strings.Contains(loss.err.Error(), test.says) {
					t.Errorf("loss = %v, want one that names %s", loss.err, test.says)
				}
			}
		})
	}
}

// Below are the places where the adapter differs from Flux's recorder on purpose.

func TestNoteWithoutArgsIsNoFormat(t *testing.T) {
	for _, note := range []string{"100%", "disk 100% full", "%2Fpath", "%!s", "%d %v", "100%%"} {
		t.Run(note, func(t *testing.T) {
			p := newPair(t)
			ours := call{regarding: configMap("web", nil), reason: "Full", note: note}
			right := ours
			right.note, right.args = "%s", []any{note}
			p.checkSame(t, ours, right)

			if got, want := message(t, p.byFlux(ours)), fmt.Sprintf(note, []any(nil)...); got != want {
				t.Errorf("Flux's message for %q = %q, want %q: the difference is gone", note, got, want)
			}
		})
	}
}

func TestMessageBeyondTheSchemaLosesItsMiddle(t *testing.T) {
	for name, char := range map[string]string{"ASCII": "x", "four bytes": "😀", "not UTF-8": "\xff", "escaped": "<"} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			c := call{regarding: configMap("web", nil), note: "start" + strings.Repeat(char, maxMessage-7) + "end"}
			if got, want := utf8.RuneCountInString(message(t, p.byFlux(c))), maxMessage+1; got != want {
				t.Errorf("characters that Flux posts = %d, want %d: the difference is gone", got, want)
			}
			posts, stats, _ := p.byUs(t, c)
			checkShortened(t, message(t, posts), c.note)
			if want := (recorder.Stats{Delivered: 1}); stats != want {
				t.Errorf("Stats() = %+v, want %+v", stats, want)
			}
		})
	}
}

var marker = regexp.MustCompile(`^(?s)(.*) \.\.\. \[(\d+) characters left out\] \.\.\. (.*)$`)

// checkShortened wants got to be full without its middle, and to say how much that was.
func checkShortened(t *testing.T, got, full string) {
	t.Helper()
	full = string([]rune(full)) // what is not UTF-8 becomes U+FFFD, byte by byte
	if n := utf8.RuneCountInString(got); n > maxMessage {
		t.Errorf("characters of a shortened message = %d, want at most %d", n, maxMessage)
	}
	parts := marker.FindStringSubmatch(got)
	if parts == nil {
		t.Fatalf("shortened message = %.60q..., want a marker in it", got)
	}
	head, tail := parts[1], parts[3]
	missing := utf8.RuneCountInString(full) - utf8.RuneCountInString(head) - utf8.RuneCountInString(tail)
	if parts[2] != fmt.Sprint(missing) {
		t.Errorf("characters said to be left out = %s, want %d", parts[2], missing)
	}
	if !strings.HasPrefix(full, head) || !strings.HasSuffix(full, tail) {
		t.Errorf("shortened message = %.60q...%q, want both ends of the full one", head, tail[max(0, len(tail)-60):])
	}
	if head, tail := utf8.RuneCountInString(head), utf8.RuneCountInString(tail); head != tail || head < maxMessage*49/100 {
		t.Errorf("characters kept = %d and %d, want nearly half the limit each", head, tail)
	}
}

func TestClusterScopedObjectIsPosted(t *testing.T) {
	for kind, object := range map[string]runtime.Object{
		"Namespace":   &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "apps"}},
		"ClusterRole": &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "apps"}},
		"Tenant":      &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "Tenant", APIVersion: "example.com/v1beta1"}, ObjectMeta: metav1.ObjectMeta{Name: "apps"}},
	} {
		t.Run(kind, func(t *testing.T) {
			p := newPair(t)
			c := call{regarding: object, reason: "Created", note: "created"}
			if got := p.byFlux(c); len(got) != 0 {
				t.Errorf("Flux posts %+v, want nothing: the difference is gone", got)
			}
			posts, stats, _ := p.byUs(t, c)
			if want := (recorder.Stats{Delivered: 1}); stats != want {
				t.Errorf("Stats() = %+v, want %+v", stats, want)
			}
			got := decode(t, posts).InvolvedObject
			want, err := refer(object)
			if err != nil {
				t.Fatal(err)
			}
			if got != (corev1.ObjectReference{Kind: kind, APIVersion: want.APIVersion, Name: "apps"}) {
				t.Errorf("involvedObject = %+v, want %+v", got, want)
			}
		})
	}
}

func TestFailingReferenceIsForwardedAndCounted(t *testing.T) {
	p := newPair(t)
	for name, test := range map[string]struct {
		object runtime.Object
		flux   bool // can be asked without a panic
	}{
		"unknown kind":    {&unregistered{}, true},
		"nil":             {nil, true},
		"nil of its type": {(*corev1.ConfigMap)(nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			c := call{regarding: test.object, annotations: map[string]string{"a": "b"}, reason: "Synced", note: "in sync"}
			if test.flux {
				kube := events.NewFakeRecorder(1)
				flux, err := fluxevents.NewRecorder(logr.FromSlogHandler(slog.DiscardHandler), p.webhook, "app-controller",
					fluxevents.WithScheme(scheme.Scheme), fluxevents.WithEventRecorder(kube))
				if err != nil {
					t.Fatal(err)
				}
				c.on(flux)
				if got := len(kube.Events) + len(p.mailbox.empty()); got != 0 {
					t.Errorf("events from Flux = %d, want 0: the difference is gone", got)
				}
			}

			log := new(journal)
			rec := newRecorder(t, recorder.Config{Webhook: p.webhook, Backoff: never, Logger: slog.New(log)})
			kube := events.NewFakeRecorder(1)
			c.on(recorder.NewEventRecorder(rec, refer, kube.AnnotatedEventf))
			drain(t, rec)
			if got := len(kube.Events); got != 1 {
				t.Errorf("events forwarded = %d, want 1", got)
			}
			if got := p.mailbox.empty(); len(got) != 0 {
				t.Errorf("adapter posts %+v, want nothing", got)
			}
			checkStats(t, rec, recorder.Stats{Rejected: 1})
			if got := log.losses(); len(got) != 1 || got[0].reason != "Synced" || got[0].err == nil {
				t.Errorf("losses logged = %v, want one with its reason and cause", got)
			}
		})
	}
}

// decode reads the one event that was posted.
func decode(t *testing.T, posts []post) eventv1.Event {
	t.Helper()
	if len(posts) != 1 {
		t.Fatalf("posted %d events, want 1", len(posts))
	}
	var event eventv1.Event
	if err := json.Unmarshal([]byte(strings.Replace(posts[0].Body, `"timestamp":""`, `"timestamp":null`, 1)), &event); err != nil {
		t.Fatalf("body = %.200s: %v", posts[0].Body, err)
	}
	return event
}

func message(t *testing.T, posts []post) string {
	t.Helper()
	return decode(t, posts).Message
}

// The fields of the two structs and their JSON names are the same, in the same order, so that a
// field which Flux adds is noticed.
func TestFieldsAreThoseOfFlux(t *testing.T) {
	for _, test := range []struct{ got, want any }{
		{recorder.Event{}, eventv1.Event{}},
		{recorder.ObjectReference{}, corev1.ObjectReference{}},
	} {
		fields := func(v any) (fields []string) {
			for field := range reflect.TypeOf(v).Fields() {
				name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
				fields = append(fields, field.Name+" "+name+" "+options)
			}
			return fields
		}
		if diff := gocmp.Diff(fields(test.want), fields(test.got)); diff != "" {
			t.Errorf("fields of %T (-Flux, +recorder):\n%s", test.got, diff)
		}
	}
}

func FuzzBodiesAreThoseOfFlux(f *testing.F) {
	f.Add("ConfigMap", "apps", "web", "Normal", "Synced", "Syncing", "in sync", "", byte(0), "", "", "", false)
	f.Add("App", "apps", "web", "Warning", "Failed", "Syncing", "%s: %d", "cause", byte(2), "k", "v", "event.toolkit.fluxcd.io/k", false)
	f.Add("App", "", "web", "Normal", "Full", "", "disk 100% full", "", byte(0), "apps/revision", "v1", "k", false)
	f.Add("App", "apps", "web", "Trace", "Full", "", "%", "", byte(1), "", "", "", false)
	f.Add("", "apps", "web", "", "", "", "", "", byte(3), "\xff", "\u2028", "event.toolkit.fluxcd.io/", true)
	f.Add("App", "apps", "", "", "", "", "", "", byte(4), "", "", "", false)
	f.Add("App", "apps", "web", "Normal", "\xff", "<", "<\xff😀", "", byte(8), "", "", "", true)
	f.Add("App", "apps", "web", "Normal", `"timestamp":"`, "", "%v", "\\\"", byte(5), "timestamp", "x", "event.toolkit.fluxcd.io/\xff", true)

	p := newPair(f)
	own := http.DefaultTransport.(*http.Transport).Clone()
	f.Cleanup(own.CloseIdleConnections)
	p.transport = own // A connection for each of a million calls would use up the ports.

	// The lowest two bits of shape are the number of args, the next says that there is a related
	// object, and the next that the note is to become longer than the schema admits.
	f.Fuzz(func(t *testing.T, kind, namespace, name, eventtype, reason, action, note, arg string, shape byte,
		key, value, objectKey string, bare bool) {
		object := func(namespace string) runtime.Object {
			if bare {
				return &corev1.ObjectReference{Kind: kind, APIVersion: "example.com/v1", Namespace: namespace, Name: name}
			}
			return &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{Kind: kind, APIVersion: "example.com/v1"},
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{objectKey: value}},
			}
		}
		ours := call{
			regarding: object(namespace), eventtype: eventtype, reason: reason, action: action, note: note,
			args: []any{arg, len(arg), nil}[:shape&3],
		}
		if key != "" {
			ours.annotations = map[string]string{key: value}
		}
		if shape&4 != 0 {
			ours.related = object(namespace)
		}
		if shape&8 != 0 {
			note = cmp.Or(note, "-")
			ours.note = strings.Repeat(note, maxMessage/utf8.RuneCountInString(note)+1)
		}

		// What Flux gets right: it must not be given a bare note that is taken for a format, nor an
		// object without namespace.
		const nowhere = "nowhere"
		theirs := ours
		if len(ours.args) == 0 {
			theirs.note, theirs.args = "%s", []any{ours.note}
		}
		theirs.regarding = object(cmp.Or(namespace, nowhere))
		want := p.byFlux(theirs)
		for i := range want {
			if namespace == "" {
				want[i].Body = strings.Replace(want[i].Body, `"namespace":"nowhere",`, "", 1)
				want[i].Length -= int64(len(`"namespace":"nowhere",`))
			}
		}

		before := time.Now().Truncate(time.Second)
		got, stats, _ := p.byUs(t, ours)
		checkTime(t, got, before)
		wantStats := recorder.Stats{Delivered: uint64(len(want))}
		if len(want) == 0 && eventtype != eventv1.EventTypeTrace {
			wantStats.Rejected = 1
		}
		if stats != wantStats {
			t.Errorf("Stats() = %+v, want %+v", stats, wantStats)
		}
		if len(want) == 1 && len(got) == 1 {
			if full := message(t, want); utf8.RuneCountInString(full) > maxMessage {
				checkShortened(t, message(t, got), full)
				want[0], got[0] = want[0].withoutMessage(), got[0].withoutMessage()
			}
		}
		checkPosts(t, ours, got, want)
	})
}

var messageField = regexp.MustCompile(`"message":"(\\.|[^"\\])*"`)

// withoutMessage is a post with an empty message. As with the time, the first match is the field.
func (p post) withoutMessage() post {
	at := messageField.FindStringIndex(p.Body)
	p.Length -= int64(at[1] - at[0])
	p.Body = p.Body[:at[0]] + `"message":""` + p.Body[at[1]:]
	return p
}
