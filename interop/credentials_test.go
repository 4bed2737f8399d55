package interop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/oauth2"

	"example.com/recorder"
)

// A scripted receiver answers with its codes, one after the other, and keeps what it got.
type scripted struct {
	*server
	mu             sync.Mutex
	bodies, tokens []string
}

func script(t *testing.T, codes ...int) *scripted {
	s := new(scripted)
	s.server = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("body of a request: %v", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.bodies = append(s.bodies, string(body))
		s.tokens = append(s.tokens, r.Header.Get("Authorization"))
		w.WriteHeader(codes[min(len(s.bodies), len(codes))-1])
		_, _ = io.WriteString(w, "an answer with a body")
	}))
	return s
}

// tokens is a source whose n-th token is token-n. The first calls fail, as many as failures says.
type tokens struct {
	failures, calls int64
	n               atomic.Int64
}

var errNoToken = errors.New("the token endpoint is gone")

func (s *tokens) Token() (*oauth2.Token, error) {
	n := s.n.Add(1)
	if n <= s.failures {
		return nil, errNoToken
	}
	return &oauth2.Token{AccessToken: fmt.Sprint("token-", n)}, nil
}

// transports are the ways to put two libraries around a transport.
var transports = map[string]struct {
	make           func(oauth2.TokenSource, *sdktrace.TracerProvider, http.RoundTripper) http.RoundTripper
	tokens, traced bool
}{
	"oauth2": {func(source oauth2.TokenSource, _ *sdktrace.TracerProvider, next http.RoundTripper) http.RoundTripper {
		return &oauth2.Transport{Source: source, Base: next}
	}, true, false},
	"otelhttp": {func(_ oauth2.TokenSource, traces *sdktrace.TracerProvider, next http.RoundTripper) http.RoundTripper {
		return otelhttp.NewTransport(next, otelhttp.WithTracerProvider(traces))
	}, false, true},
	"oauth2 around otelhttp": {func(source oauth2.TokenSource, traces *sdktrace.TracerProvider, next http.RoundTripper) http.RoundTripper {
		return &oauth2.Transport{Source: source, Base: otelhttp.NewTransport(next, otelhttp.WithTracerProvider(traces))}
	}, true, true},
	"otelhttp around oauth2": {func(source oauth2.TokenSource, traces *sdktrace.TracerProvider, next http.RoundTripper) http.RoundTripper {
		return otelhttp.NewTransport(&oauth2.Transport{Source: source, Base: next}, otelhttp.WithTracerProvider(traces))
	}, true, true},
}

// Each attempt gets a token and a span of its own, and sends the same bytes.
func TestTransportsOfOthersSeeEachAttempt(t *testing.T) {
	for name, test := range transports {
		t.Run(name, func(t *testing.T) {
			receiver := script(t, 503, 503, 202)
			next := http.DefaultTransport.(*http.Transport).Clone()
			defer next.CloseIdleConnections()
			spans := tracetest.NewSpanRecorder()
			traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
			rec := newRecorder(t, recorder.Config{
				Webhook: receiver.URL, Transport: test.make(new(tokens), traces, next), Timeout: patience, Backoff: promptly,
			})
			if err := rec.Post(t.Context(), lossEvent); err != nil {
				t.Fatalf("Post() = %v, want nil", err)
			}
			checkStats(t, rec, recorder.Stats{Delivered: 1, Retries: 2})
			want := []string{"", "", ""}
			if test.tokens {
				want = []string{"Bearer token-1", "Bearer token-2", "Bearer token-3"}
			}
			if !slices.Equal(receiver.tokens, want) {
				t.Errorf("Authorization of the requests = %q, want %q", receiver.tokens, want)
			}
			if len(slices.Compact(receiver.bodies)) != 1 {
				t.Errorf("bodies = %q, want the same in each request", receiver.bodies)
			}
			wantSpans := 0
			if test.traced {
				wantSpans = 3
			}
			// A span ends with the answer's body, so this shows too that each was closed.
			if got := len(spans.Ended()); got != wantSpans {
				t.Errorf("spans that ended = %d, want %d", got, wantSpans)
			}
			if got := receiver.opened.Load(); got != 1 {
				t.Errorf("connections = %d, want 1", got)
			}
		})
	}
}

// No token is a failed attempt as any other: nothing is sent without one.
func TestATokenSourceThatFailsIsTriedAgain(t *testing.T) {
	for name, test := range transports {
		if !test.tokens {
			continue
		}
		t.Run(name, func(t *testing.T) {
			receiver := script(t, 202)
			next := http.DefaultTransport.(*http.Transport).Clone()
			defer next.CloseIdleConnections()
			source := &tokens{failures: 2}
			log := new(journal)
			rec := newRecorder(t, recorder.Config{
				Webhook: receiver.URL, Transport: test.make(source, sdktrace.NewTracerProvider(), next),
				Timeout: patience, Backoff: promptly, Logger: slog.New(log),
			})
			if err := rec.Post(t.Context(), lossEvent); err != nil {
				t.Errorf("Post() = %v, want nil", err)
			}
			if want := []string{"Bearer token-3"}; !slices.Equal(receiver.tokens, want) {
				t.Errorf("Authorization of the requests = %q, want %q", receiver.tokens, want)
			}

			source.failures = 1 << 30
			err := rec.Post(t.Context(), lossEvent)
			if !errors.Is(err, errNoToken) {
				t.Errorf("Post() without a token for good = %v, want %v", err, errNoToken)
			}
			checkStats(t, rec, recorder.Stats{Delivered: 1, Failed: 1, Retries: 2 + 4})
			if got := log.losses(); len(got) != 1 || !errors.Is(got[0].err, errNoToken) {
				t.Errorf("losses logged = %v, want one with %v", got, errNoToken)
			}
			if got := len(receiver.tokens); got != 1 {
				t.Errorf("requests = %d, want 1", got)
			}
		})
	}
}

func TestATokenFileThatIsMissingIsTriedAgain(t *testing.T) {
	receiver := script(t, 202)
	next := http.DefaultTransport.(*http.Transport).Clone()
	defer next.CloseIdleConnections()
	path := filepath.Join(t.TempDir(), "token")
	log := &journal{onRetry: func(retries int) {
		if retries == 2 {
			if err := os.WriteFile(path, []byte("fresh\n"), 0o600); err != nil {
				t.Error(err)
			}
		}
	}}
	rec := newRecorder(t, recorder.Config{
		Webhook: receiver.URL, Transport: tokenFile{path, next}, Timeout: patience, Backoff: promptly, Logger: slog.New(log),
	})
	if err := rec.Post(t.Context(), lossEvent); err != nil {
		t.Errorf("Post() = %v, want nil", err)
	}
	if want := []string{"Bearer fresh"}; !slices.Equal(receiver.tokens, want) {
		t.Errorf("Authorization of the requests = %q, want %q", receiver.tokens, want)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	log.onRetry = nil
	if err := rec.Post(t.Context(), lossEvent); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Post() without the file = %v, want %v", err, fs.ErrNotExist)
	}
	checkStats(t, rec, recorder.Stats{Delivered: 1, Failed: 1, Retries: 2 + 4})
}

// clientCertificate makes a certificate that signs itself.
func clientCertificate(t *testing.T, name string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A client certificate is that of the connection, which keeps it until it is closed.
func TestAClientCertificateThatIsRenewed(t *testing.T) {
	for name, start := range map[string]func(testing.TB, http.Handler) *server{"HTTP/1.1": newServer, "HTTP/2": func(t testing.TB, h http.Handler) *server {
		s := newServer(t, h)
		s.EnableHTTP2 = true
		return s
	}} {
		t.Run(name, func(t *testing.T) {
			clients := make(chan string, 1)
			receiver := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				clients <- r.TLS.PeerCertificates[0].Subject.CommonName
			}))
			receiver.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
			receiver.StartTLS()
			var current atomic.Pointer[tls.Certificate]
			config := trust(receiver)
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return current.Load(), nil }
			rec := newRecorder(t, recorder.Config{Webhook: receiver.URL, TLS: config, Timeout: patience, Backoff: never})
			post := func(want string) {
				t.Helper()
				if err := rec.Post(context.Background(), lossEvent); err != nil {
					t.Fatalf("Post() = %v, want nil", err)
				}
				if got := <-clients; got != want {
					t.Errorf("client's certificate = %s, want %s", got, want)
				}
			}
			current.Store(clientCertificate(t, "first"))
			post("first")
			current.Store(clientCertificate(t, "second"))
			post("first")
			receiver.CloseClientConnections()
			post("second")
			drain(t, rec)
		})
	}
}
