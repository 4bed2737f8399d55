package interop

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	corev1 "k8s.io/api/core/v1"

	"example.com/recorder"
)

// What notification-controller limits events to.
const (
	window  = 5 * time.Minute // in which it takes the same event once
	maxBody = 3 << 20
)

// A notifier receives events as notification-controller does: it reads the event, drops what it
// does not keep of the metadata, has the limiter tell duplicates, and answers 202.
type notifier struct {
	store   limiter.Store
	handler http.Handler

	mu      sync.Mutex
	taken   []eventv1.Event
	answers []answer
}

// An answer is what was answered, whether or not it was received.
type answer struct {
	status     int
	retryAfter string
}

type eventKey struct{}

func newNotifier(t testing.TB) *notifier {
	store, err := memorystore.New(&memorystore.Config{Tokens: 1, Interval: window})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close(context.Background()) })
	n := &notifier{store: store}
	limit, err := httplimit.NewMiddleware(store, limitKey)
	if err != nil {
		t.Fatal(err)
	}
	n.handler = readEvent(limit.Handle(http.HandlerFunc(n.take)))
	return n
}

func (n *notifier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	noted := &notedWriter{ResponseWriter: w}
	n.handler.ServeHTTP(noted, r)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers = append(n.answers, answer{noted.status, w.Header().Get("Retry-After")})
}

// take accepts an event that the limiter has let through.
func (n *notifier) take(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	n.taken = append(n.taken, r.Context().Value(eventKey{}).(eventv1.Event))
	n.mu.Unlock()
	w.WriteHeader(http.StatusAccepted)
}

// events are those that were accepted, in order.
func (n *notifier) events() []eventv1.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.taken[:len(n.taken):len(n.taken)]
}

// statuses are those of all answers, in order.
func (n *notifier) statuses() []int {
	n.mu.Lock()
	defer n.mu.Unlock()
	var statuses []int
	for _, answer := range n.answers {
		statuses = append(statuses, answer.status)
	}
	return statuses
}

func (n *notifier) checkStatuses(t *testing.T, want ...int) {
	t.Helper()
	if diff := gocmp.Diff(want, n.statuses()); diff != "" {
		t.Errorf("answers (-want, +got):\n%s", diff)
	}
}

type notedWriter struct {
	http.ResponseWriter
	status int
}

func (w *notedWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// readEvent puts the event into the request's context.
func readEvent(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if tooLong := new(http.MaxBytesError); errors.As(err, &tooLong) {
			http.Error(w, "too long", http.StatusRequestEntityTooLarge)
			return
		}
		var event eventv1.Event
		if err != nil || json.Unmarshal(body, &event) != nil {
			http.Error(w, "not an event", http.StatusBadRequest)
			return
		}
		group := event.InvolvedObject.GroupVersionKind().Group
		for key := range event.Metadata {
			if !strings.HasPrefix(key, eventv1.Group+"/") && !strings.HasPrefix(key, group+"/") {
				delete(event.Metadata, key)
			}
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), eventKey{}, event)))
	})
}

// limitKey is equal for events that are the same.
func limitKey(r *http.Request) (string, error) {
	event := r.Context().Value(eventKey{}).(eventv1.Event)
	object := event.InvolvedObject
	group := object.GroupVersionKind().Group
	parts := []string{object.Kind, object.Name, object.Namespace, event.Message}
	for _, key := range []string{eventv1.MetaRevisionKey, eventv1.MetaOriginRevisionKey, eventv1.MetaTokenKey} {
		if value, ok := event.Metadata[group+"/"+key]; ok {
			parts = append(parts, key+"="+value)
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "\x00")))), nil
}

// losing is a receiver whose answer is lost for those requests, counted from one, that lose names.
// The request has been dealt with by then, and the connection is broken.
func losing(next http.Handler, lose func(request int64) bool) http.Handler {
	var requests atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lose(requests.Add(1)) {
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

// The answer that a duplicate gets makes a general retry client wait for most of the window.
func TestDuplicatesAreToldToComeBackLater(t *testing.T) {
	n := newNotifier(t)
	webhook := serve(t, n).URL
	event := `{"involvedObject":{"kind":"App","namespace":"apps","name":"web"},"message":"in sync"}`
	for range 2 {
		resp, err := http.Post(webhook, "application/json", strings.NewReader(event))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusAccepted {
			continue
		}
		if len(body) != 18 {
			t.Errorf("bytes of the answer = %d, want 18", len(body))
		}
		if again, _ := retryablehttp.DefaultRetryPolicy(context.Background(), resp, nil); !again {
			t.Error("DefaultRetryPolicy(429) = false, want true")
		}
		if pause := retryablehttp.DefaultBackoff(time.Second, 30*time.Second, 0, resp); pause < window-time.Minute {
			t.Errorf("DefaultBackoff(429) = %v, want about %v", pause, window)
		}
	}
	n.checkStatuses(t, 202, 429)
}

func TestDuplicatesEndAtOnce(t *testing.T) {
	n := newNotifier(t)
	rec := newRecorder(t, recorder.Config{Webhook: serve(t, n).URL, Backoff: never})
	events := adapt(rec)
	for range 5 {
		events.Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "in sync")
	}
	drain(t, rec) // within its ten seconds: neither Retry-After nor the backoff of an hour is waited for
	n.checkStatuses(t, 202, 429, 429, 429, 429)
	checkStats(t, rec, recorder.Stats{Delivered: 1, Duplicates: 4})
	for _, got := range n.answers[1:] {
		until, err := http.ParseTime(got.retryAfter)
		if err != nil || time.Until(until) < window-time.Minute {
			t.Errorf("Retry-After = %q, want a date in about %v", got.retryAfter, window)
		}
	}
}

func TestLostAnswerMakesADuplicate(t *testing.T) {
	first := func(request int64) bool { return request == 1 }
	for name, test := range map[string]struct {
		receiver func(*notifier) http.Handler
		before   int // other events that are delivered before
		timeout  time.Duration
		statuses []int
		want     recorder.Stats
	}{
		"new connection breaks": {
			receiver: func(n *notifier) http.Handler { return losing(n, first) },
			statuses: []int{202, 429},
			want:     recorder.Stats{Duplicates: 1, Retries: 1},
		},
		"two connections break": {
			receiver: func(n *notifier) http.Handler { return losing(n, func(r int64) bool { return r <= 2 }) },
			statuses: []int{202, 429, 429},
			want:     recorder.Stats{Duplicates: 1, Retries: 2},
		},
		// The transport repeats the request itself, and no attempt is counted.
		"kept connection breaks": {
			receiver: func(n *notifier) http.Handler { return losing(n, func(r int64) bool { return r == 2 }) },
			before:   1,
			statuses: []int{202, 202, 429},
			want:     recorder.Stats{Delivered: 1, Duplicates: 1},
		},
		"answer is late": {
			receiver: func(n *notifier) http.Handler {
				var requests atomic.Int64
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					n.ServeHTTP(w, r)
					if first(requests.Add(1)) {
						<-r.Context().Done()
					}
				})
			},
			timeout:  time.Second,
			statuses: []int{202, 429},
			want:     recorder.Stats{Duplicates: 1, Retries: 1},
		},
		// A gateway before the receiver gives up on it.
		"503 instead": {
			receiver: func(n *notifier) http.Handler {
				var requests atomic.Int64
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if first(requests.Add(1)) {
						n.ServeHTTP(httptest.NewRecorder(), r)
						w.Header().Set("Retry-After", "3600")
						http.Error(w, "no answer from the receiver", http.StatusServiceUnavailable)
						return
					}
					n.ServeHTTP(w, r)
				})
			},
			statuses: []int{202, 429},
			want:     recorder.Stats{Duplicates: 1, Retries: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotifier(t)
			log := new(journal)
			rec := newRecorder(t, recorder.Config{
				Webhook: serve(t, test.receiver(n)).URL, Workers: 1,
				Timeout: cmp.Or(test.timeout, patience), Backoff: promptly, Logger: slog.New(log),
			})
			for i := range test.before {
				adapt(rec).Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "before %d", i)
			}
			adapt(rec).Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "in sync")
			drain(t, rec)
			n.checkStatuses(t, test.statuses...)
			checkStats(t, rec, test.want)
			if got := log.losses(); len(got) != 0 {
				t.Errorf("losses logged = %v, want none", got)
			}
			if got := n.events(); got[len(got)-1].Message != "in sync" {
				t.Errorf("last event taken = %+v, want that of the call", got[len(got)-1])
			}
		})
	}
}

func TestTwoThousandDuplicatesUseOneConnection(t *testing.T) {
	const duplicates = 2_000
	n := newNotifier(t)
	receiver := serve(t, n)
	rec := newRecorder(t, recorder.Config{Webhook: receiver.URL, QueueSize: 2 * duplicates, Backoff: never})
	events := adapt(rec)
	for range 1 + duplicates {
		events.Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "in sync")
	}
	drain(t, rec)
	checkStats(t, rec, recorder.Stats{Delivered: 1, Duplicates: duplicates})
	if got := len(n.statuses()); got != 1+duplicates {
		t.Errorf("requests = %d, want %d", got, 1+duplicates)
	}
	if got := receiver.opened.Load(); got != 1 {
		t.Errorf("connections = %d, want 1", got)
	}
}

func TestWhatTellsEventsApartIsLeftAlone(t *testing.T) {
	type metadata = map[string]string
	for name, test := range map[string]struct {
		first, second metadata
		third         metadata // the same as one of them
	}{
		"token": {
			metadata{"apps.example.com/token": "1"}, metadata{"apps.example.com/token": "2"},
			metadata{"apps.example.com/token": "2"}},
		"revision": {
			metadata{"apps.example.com/revision": "v1"}, metadata{"apps.example.com/revision": "v2"},
			metadata{"apps.example.com/revision": "v1"}},
		"origin revision": {
			nil, metadata{"apps.example.com/originRevision": "v2"},
			metadata{"apps.example.com/originRevision": "v2"}},
		"nothing but a key of another group": {
			metadata{"apps.example.com/token": "1"}, metadata{"other.example.com/token": "2"},
			metadata{"other.example.com/token": "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNotifier(t)
			rec := newRecorder(t, recorder.Config{Webhook: serve(t, n).URL, Backoff: never})
			for _, annotations := range []metadata{test.first, test.second, test.third} {
				adapt(rec).AnnotatedEventf(custom("apps.example.com/v1", "App", "web"), nil, annotations,
					corev1.EventTypeNormal, "Synced", "Syncing", "in sync")
			}
			drain(t, rec)
			n.checkStatuses(t, 202, 202, 429)
			checkStats(t, rec, recorder.Stats{Delivered: 2, Duplicates: 1})
		})
	}
}

func TestFailingLimiterIsRetried(t *testing.T) {
	n := newNotifier(t)
	if err := n.store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	log := new(journal)
	rec := newRecorder(t, recorder.Config{
		Webhook: serve(t, n).URL, MaxAttempts: 3, Backoff: promptly, Logger: slog.New(log),
	})
	adapt(rec).Eventf(configMap("web", nil), nil, corev1.EventTypeNormal, "Synced", "Syncing", "in sync")
	drain(t, rec)
	n.checkStatuses(t, 500, 500, 500)
	checkStats(t, rec, recorder.Stats{Failed: 1, Retries: 2})
	checkLoss(t, log, http.StatusInternalServerError)
}

func TestEventBeyondTheReceiversLimitIsRejected(t *testing.T) {
	n := newNotifier(t)
	log := new(journal)
	rec := newRecorder(t, recorder.Config{Webhook: serve(t, n).URL, Backoff: never, Logger: slog.New(log)})
	adapt(rec).AnnotatedEventf(configMap("web", nil), nil, map[string]string{"event.toolkit.fluxcd.io/diff": strings.Repeat("x", maxBody)},
		corev1.EventTypeNormal, "Synced", "Syncing", "in sync")
	drain(t, rec)
	n.checkStatuses(t, 413)
	checkStats(t, rec, recorder.Stats{Rejected: 1})
	checkLoss(t, log, http.StatusRequestEntityTooLarge)
}

// checkLoss wants one line about one event that was lost to a status.
func checkLoss(t *testing.T, log *journal, want int) {
	t.Helper()
	got := log.losses()
	if len(got) != 1 {
		t.Fatalf("losses logged = %v, want 1", got)
	}
	status, ok := errors.AsType[*recorder.StatusError](got[0].err)
	if !ok || status.StatusCode != want {
		t.Errorf("loss = %v, want status %d", got[0].err, want)
	}
}
