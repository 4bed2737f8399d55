package interop

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"example.com/recorder"
)

// patience bounds every wait for something that is going to happen. It is there to end a hang, so no
// machine is too busy for it.
const patience = 2 * time.Minute

var (
	// promptly is for tests in which attempts fail.
	promptly = recorder.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	// never is for tests in which none does: were one to wait, the time to drain would be over first.
	never = recorder.Backoff{Min: time.Hour, Max: time.Hour}
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m)
}

// newRecorder makes a recorder that needs no Start in order to be let go.
func newRecorder(t testing.TB, config recorder.Config) *recorder.Recorder {
	t.Helper()
	config.DrainTimeout = cmp.Or(config.DrainTimeout, patience)
	rec, err := recorder.New(config)
	if err != nil {
		t.Fatalf("New(%+v) = %v, want no error", config, err)
	}
	return rec
}

// adapt makes the adapter that controllers call, without anything behind it.
func adapt(rec *recorder.Recorder) *recorder.EventRecorder[runtime.Object] {
	return recorder.NewEventRecorder(rec, refer, nil)
}

// refer describes an object of client-go's scheme, and any other that names its own kind.
var refer = references(scheme.Scheme)

// configMap is the object of most events here.
func configMap(name string, annotations map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "apps", Annotations: annotations}}
}

// drain starts a recorder that has been told to stop already: it delivers what is queued and
// returns, so that every event has come to its end.
func drain(t testing.TB, rec *recorder.Recorder) {
	t.Helper()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := rec.Start(over); err != nil {
		t.Errorf("Start(context that is over) = %v, want nil", err)
	}
}

// start runs a recorder, or a manager, until the test ends, or until the returned function is
// called, which waits for its end.
func start(t testing.TB, runnable manager.Runnable) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- runnable.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start(ctx) of %T = %v, want nil", runnable, err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// checkStats compares all counts of a recorder at once.
func checkStats(t testing.TB, rec *recorder.Recorder, want recorder.Stats) {
	t.Helper()
	if got := rec.Stats(); got != want {
		t.Errorf("Stats() = %+v, want %+v", got, want)
	}
}

// eventually waits until done holds.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v for: %s", patience, what)
		}
	}
}

// receive waits for n values.
func receive[T any](t testing.TB, values <-chan T, n int) []T {
	t.Helper()
	deadline := time.After(patience)
	var got []T
	for len(got) < n {
		select {
		case value := <-values:
			got = append(got, value)
		case <-deadline:
			t.Fatalf("waited %v: got %d of %T, want %d", patience, len(got), values, n)
		}
	}
	return got
}

// A server is an HTTP server on a free port of the loopback that counts its connections.
type server struct {
	*httptest.Server
	opened atomic.Int64
}

// serve runs a server until the test ends, without TLS.
func serve(t testing.TB, handler http.Handler) *server {
	s := newServer(t, handler)
	s.Start()
	return s
}

// serveTLS runs a server that speaks TLS and HTTP/2.
func serveTLS(t testing.TB, handler http.Handler) *server {
	s := newServer(t, handler)
	s.EnableHTTP2 = true
	s.StartTLS()
	return s
}

func newServer(t testing.TB, handler http.Handler) *server {
	s := &server{Server: httptest.NewUnstartedServer(handler)}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.opened.Add(1)
		}
	}
	t.Cleanup(s.Close)
	return s
}

// trust is the configuration of a client that trusts a server and nobody else.
func trust(s *server) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &tls.Config{RootCAs: pool}
}

// A journal is a slog.Handler that keeps what a recorder logs.
type journal struct {
	// onRetry, unless nil, is called with the number of retries so far when an attempt has failed
	// and before the next: the recorder waits for it.
	onRetry func(retries int)

	mu      sync.Mutex
	records []slog.Record
	retries int
}

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler       { return j }
func (j *journal) WithGroup(string) slog.Handler            { return j }

func (j *journal) Handle(_ context.Context, record slog.Record) error {
	j.mu.Lock()
	j.records = append(j.records, record)
	if record.Level == slog.LevelDebug {
		j.retries++
	}
	retries := j.retries
	j.mu.Unlock()
	if record.Level == slog.LevelDebug && j.onRetry != nil {
		j.onRetry(retries)
	}
	return nil
}

// A loss is a line of the journal about an event that was lost.
type loss struct {
	reason string
	err    error
}

// losses are the lines at Error.
func (j *journal) losses() []loss { return j.at(slog.LevelError) }

func (j *journal) at(level slog.Level) []loss {
	j.mu.Lock()
	defer j.mu.Unlock()
	var losses []loss
	for _, record := range j.records {
		if record.Level != level {
			continue
		}
		var l loss
		record.Attrs(func(attr slog.Attr) bool {
			switch attr.Key {
			case "reason":
				l.reason = attr.Value.String()
			case "error", "err": // the latter is logr's
				l.err, _ = attr.Value.Any().(error)
			}
			return true
		})
		losses = append(losses, l)
	}
	return losses
}
