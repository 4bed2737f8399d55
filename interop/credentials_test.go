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
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"example.com/recorder"
)

// A tokenSource is an oauth2.TokenSource that is asked for the token of each request.
type tokenSource func() (string, error)

func (s tokenSource) Token() (*oauth2.Token, error) {
	token, err := s()
	return &oauth2.Token{AccessToken: token}, err
}

// rotating is a source whose tokens are token-1, token-2 and so on.
func rotating() tokenSource {
	var asked atomic.Int64
	return func() (string, error) { return fmt.Sprintf("token-%d", asked.Add(1)), nil }
}

// traced is a transport that passes on the trace of a request's context.
func traced(next http.RoundTripper) http.RoundTripper {
	return otelhttp.NewTransport(next, otelhttp.WithPropagators(propagation.TraceContext{}))
}

func authorized(source oauth2.TokenSource, next http.RoundTripper) http.RoundTripper {
	return &oauth2.Transport{Source: source, Base: next}
}

// wrappings are the transports that set a token, each with what it wraps.
var wrappings = map[string]func(source oauth2.TokenSource, next http.RoundTripper) http.RoundTripper{
	"oauth2": authorized,
	"oauth2 around otelhttp": func(source oauth2.TokenSource, next http.RoundTripper) http.RoundTripper {
		return authorized(source, traced(next))
	},
	"otelhttp around oauth2": func(source oauth2.TokenSource, next http.RoundTripper) http.RoundTripper {
		return traced(authorized(source, next))
	},
}

// A desk is a receiver that keeps what comes, and answers with one code after the other, the last
// of them for good. It repeats the Authorization header in its answers.
type desk struct {
	codes []int

	mu     sync.Mutex
	tokens []string // Authorization headers
	traces []string // Traceparent headers
	bodies []string
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.ContentLength != int64(len(body)) {
		body = fmt.Appendf(body, "of %d bytes: %v", r.ContentLength, err)
	}
	token := r.Header.Get("Authorization")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens = append(d.tokens, token)
	d.traces = append(d.traces, r.Header.Get("Traceparent"))
	d.bodies = append(d.bodies, string(body))
	http.Error(w, "not with "+token, d.codes[min(len(d.tokens), len(d.codes))-1])
}

// checkTokens compares the Authorization headers of all requests.
func (d *desk) checkTokens(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.tokens, want) {
		t.Errorf("Authorization of each request = %q, want %q", d.tokens, want)
	}
}

// pooled is a transport of net/http for one test.
func pooled(t *testing.T) *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// recordOne has a recorder bring one event to its end.
func recordOne(t *testing.T, rec *recorder.Recorder) {
	t.Helper()
	if err := rec.Record(about("in sync")); err != nil {
		t.Errorf("Record(event) = %v, want nil", err)
	}
	drain(t, rec)
}

// Each attempt carries the same bytes and the token that is current, and the trace of the caller too
// where otelhttp has a part in it.
func TestEachAttemptHasTheCurrentToken(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, around := range wrappings {
		t.Run(name, func(t *testing.T) {
			transport := around(rotating(), pooled(t))
			want := []string{"", "", ""}
			if strings.Contains(name, "otelhttp") {
				want = []string{parent, parent, parent}
			}
			receiver := postThrice(t, transport, parent)
			receiver.checkTokens(t, "Bearer token-1", "Bearer token-2", "Bearer token-3")
			if !slices.Equal(receiver.traces, want) {
				t.Errorf("Traceparent of each request = %q, want %q", receiver.traces, want)
			}
		})
	}
	t.Run("otelhttp alone", func(t *testing.T) {
		receiver := postThrice(t, traced(pooled(t)), parent)
		receiver.checkTokens(t, "", "", "")
		if want := []string{parent, parent, parent}; !slices.Equal(receiver.traces, want) {
			t.Errorf("Traceparent of each request = %q, want %q", receiver.traces, want)
		}
	})
}

// postThrice posts an event, as part of a trace, that the receiver takes at the third attempt.
func postThrice(t *testing.T, transport http.RoundTripper, parent string) *desk {
	receiver := &desk{codes: []int{503, 503, 202}}
	running := serve(t, receiver)
	rec := patiently(t, recorder.Config{Webhook: running.URL, Transport: transport, Backoff: promptly})
	ctx := propagation.TraceContext{}.Extract(t.Context(), propagation.MapCarrier{"traceparent": parent})
	if err := rec.Post(ctx, about("in sync")); err != nil {
		t.Errorf("Post(event) = %v, want nil", err)
	}
	checkStats(t, rec, recorder.Stats{Delivered: 1, Retries: 2})
	// An answer that is read and closed leaves its connection to the next attempt.
	if got := running.opened.Load(); got != 1 {
		t.Errorf("connections = %d, want 1", got)
	}
	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	if len(receiver.bodies) != 3 {
		t.Fatalf("requests = %d, want 3", len(receiver.bodies))
	}
	first := receiver.bodies[0]
	if !strings.HasPrefix(first, `{"involvedObject":`) || !strings.HasSuffix(first, "}") {
		t.Errorf("body = %q, want an event", first)
	}
	if want := []string{first, first, first}; !slices.Equal(receiver.bodies, want) {
		t.Errorf("bodies = %q, want %q", receiver.bodies, want)
	}
	return receiver
}

// A token that cannot be had is a fault of the way to the receiver: it is tried again, and nothing is
// posted without one.
func TestNothingIsPostedWithoutItsToken(t *testing.T) {
	errNoToken := errors.New("no token today")
	for name, test := range map[string]struct {
		failures int64
		tokens   []string
		want     recorder.Stats
	}{
		"twice":    {2, []string{"Bearer token-1"}, recorder.Stats{Delivered: 1, Retries: 2}},
		"for good": {3, nil, recorder.Stats{Failed: 1, Retries: 2}},
	} {
		for wrapping, around := range wrappings {
			t.Run(name+", "+wrapping, func(t *testing.T) {
				var asked atomic.Int64
				source := tokenSource(func() (string, error) {
					if asked.Add(1) <= test.failures {
						return "", errNoToken
					}
					return "token-1", nil
				})
				receiver := &desk{codes: []int{202}}
				log := new(journal)
				rec := patiently(t, recorder.Config{
					Webhook: serve(t, receiver).URL, Transport: around(source, pooled(t)),
					MaxAttempts: 3, Backoff: promptly, Logger: slog.New(log),
				})
				recordOne(t, rec)
				checkStats(t, rec, test.want)
				receiver.checkTokens(t, test.tokens...)
				log.checkCauses(t, int(test.failures), errNoToken)
			})
		}
	}
}

// checkCauses compares how many attempts came to nothing, and looks for the cause of each.
func (j *journal) checkCauses(t *testing.T, want int, cause error) {
	t.Helper()
	lines := append(j.at(slog.LevelDebug), j.losses()...)
	if len(lines) != want {
		t.Errorf("lines logged = %d, want %d", len(lines), want)
	}
	for _, line := range lines {
		if !errors.Is(line.err, cause) {
			t.Errorf("error logged = %v, want one that wraps %q", line.err, cause)
		}
	}
}

// A file that is not there yet is waited for.
func TestTokenFileMayComeLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for _, late := range []bool{true, false} {
		t.Run(fmt.Sprintf("it comes %t", late), func(t *testing.T) {
			receiver := &desk{codes: []int{202}}
			log := new(journal)
			want, tokens, lines := recorder.Stats{Failed: 1, Retries: 2}, []string(nil), 3
			if late {
				want, tokens, lines = recorder.Stats{Delivered: 1, Retries: 1}, []string{"Bearer first"}, 1
				log.onRetry = func(int) {
					if err := os.WriteFile(path, []byte("first\n"), 0o600); err != nil {
						t.Error(err)
					}
				}
				defer os.Remove(path)
			}
			rec := patiently(t, recorder.Config{
				Webhook: serve(t, receiver).URL, Transport: tokenFile{path, pooled(t)},
				MaxAttempts: 3, Backoff: promptly, Logger: slog.New(log),
			})
			recordOne(t, rec)
			checkStats(t, rec, want)
			receiver.checkTokens(t, tokens...)
			log.checkCauses(t, lines, fs.ErrNotExist)
		})
	}
}

// A closing is a body that counts how often it is closed.
type closing struct {
	io.Reader
	times int
}

func (c *closing) Close() error {
	c.times++
	return nil
}

func TestTokenFileKeepsTheContractOfARoundTripper(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	var sent *http.Request
	next := roundTripper(func(req *http.Request) (*http.Response, error) {
		sent = req
		return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody}, req.Body.Close()
	})
	body := &closing{Reader: strings.NewReader("event")}
	req, err := http.NewRequest(http.MethodPost, "http://receiver/", body)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tokenFile{path, next}.RoundTrip(req)
	if !errors.Is(err, fs.ErrNotExist) || sent != nil || body.times != 1 {
		t.Errorf("RoundTrip(request) without a file = %v, sent %v, body closed %d times, want %v, nil, 1",
			err, sent, body.times, fs.ErrNotExist)
	}
	if err := os.WriteFile(path, []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (tokenFile{path, next}).RoundTrip(req); err != nil || sent == nil || body.times != 2 {
		t.Fatalf("RoundTrip(request) = %v, sent %v, body closed %d times, want nil, a request, 2",
			err, sent, body.times)
	}
	if got := sent.Header.Get("Authorization"); got != "Bearer first" {
		t.Errorf("Authorization sent = %q, want %q", got, "Bearer first")
	}
	if got := len(req.Header); got != 0 {
		t.Errorf("headers of the request given = %d, want 0", got)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// credentials are those of a client at an endpoint for tokens.
func credentials(t *testing.T, endpoint string) oauth2.TokenSource {
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Transport: pooled(t)})
	config := &clientcredentials.Config{
		ClientID: "app", ClientSecret: "clientsecret-77ab", TokenURL: endpoint, AuthStyle: oauth2.AuthStyleInHeader,
	}
	return config.TokenSource(ctx)
}

// A token is asked for when there is none, or when the last is about to expire.
func TestTokenOfAnEndpoint(t *testing.T) {
	for lifetime, want := range map[int][]string{
		3600: {"Bearer token-1", "Bearer token-1", "Bearer token-1"},
		5:    {"Bearer token-1", "Bearer token-2", "Bearer token-3"}, // oauth2 renews it ten seconds before its end
	} {
		t.Run(fmt.Sprintf("%d seconds", lifetime), func(t *testing.T) {
			var issued atomic.Int64
			endpoint := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				const answer = `{"access_token":"token-%d","token_type":"Bearer","expires_in":%d}`
				fmt.Fprintf(w, answer, issued.Add(1), lifetime)
			}))
			receiver := &desk{codes: []int{503, 503, 202}}
			rec := patiently(t, recorder.Config{
				Webhook: serve(t, receiver).URL, Transport: authorized(credentials(t, endpoint.URL), pooled(t)),
				Backoff: promptly,
			})
			recordOne(t, rec)
			checkStats(t, rec, recorder.Stats{Delivered: 1, Retries: 2})
			receiver.checkTokens(t, want...)
		})
	}
}

// An endpoint that refuses for good costs the event after all attempts. The log has its answer, and
// neither the client's secret nor those of the webhook.
func TestTokenThatIsRefusedForGood(t *testing.T) {
	var asked atomic.Int64
	endpoint := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":"invalid_client","error_description":"unknown client"}`)
	}))
	receiver := &desk{codes: []int{202}}
	log := new(journal)
	rec := patiently(t, recorder.Config{
		Webhook:     serve(t, receiver).URL + "/path-5be2?token=query-d8e6",
		Transport:   authorized(credentials(t, endpoint.URL), pooled(t)),
		MaxAttempts: 3, Backoff: promptly, Logger: slog.New(log),
	})
	recordOne(t, rec)
	checkStats(t, rec, recorder.Stats{Failed: 1, Retries: 2})
	receiver.checkTokens(t)
	if got := asked.Load(); got != 3 {
		t.Errorf("requests for a token = %d, want 3", got)
	}
	losses := log.losses()
	var refused *oauth2.RetrieveError
	if len(losses) != 1 || !errors.As(losses[0].err, &refused) || refused.ErrorCode != "invalid_client" {
		t.Fatalf("losses logged = %v, want one that wraps %T of invalid_client", losses, refused)
	}
	text := losses[0].err.Error()
	if !strings.Contains(text, `"invalid_client" "unknown client"`) {
		t.Errorf("error = %q, want it to hold the answer of the endpoint", text)
	}
	if got := secretsIn(text); got != "" || strings.Contains(text, "clientsecret") {
		t.Errorf("error = %q, which shows secrets: %s", text, got)
	}
}

// What a Transport adds, the recorder does not know to be secret: it shows a token that the receiver
// repeats, and an endpoint for tokens that its client's error names.
func TestSecretsOfATransportAreNotKnown(t *testing.T) {
	post := func(t *testing.T, source oauth2.TokenSource) string {
		rec := patiently(t, recorder.Config{
			Webhook: serve(t, &desk{codes: []int{403}}).URL, Transport: authorized(source, pooled(t)),
			MaxAttempts: 1, Backoff: never,
		})
		err := rec.Post(t.Context(), about("in sync"))
		if err == nil {
			t.Fatal("Post(event) = nil, want an error")
		}
		return err.Error()
	}
	t.Run("token", func(t *testing.T) {
		got, want := post(t, rotating()), "status 403 Forbidden: not with Bearer token-1"
		if !strings.HasSuffix(got, want) {
			t.Errorf("error = %q, want it to end with %q", got, want)
		}
	})
	t.Run("endpoint", func(t *testing.T) {
		endpoint := closedPort(t).address + "/path-5be2"
		if got := post(t, credentials(t, endpoint)); !strings.Contains(got, `Post "`+endpoint+`"`) {
			t.Errorf("error = %q, want it to show %s", got, endpoint)
		}
	})
}

// A notebook is a provider of tracers that keeps the attributes of its spans.
type notebook struct {
	noop.TracerProvider

	mu         sync.Mutex
	attributes []attribute.KeyValue
}

type notedTracer struct {
	noop.Tracer
	in *notebook
}

type notedSpan struct {
	noop.Span
	in *notebook
}

func (n *notebook) Tracer(string, ...trace.TracerOption) trace.Tracer { return notedTracer{in: n} }

func (t notedTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	return ctx, notedSpan{in: t.in}
}

func (s notedSpan) SetAttributes(attributes ...attribute.KeyValue) {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	s.in.attributes = append(s.in.attributes, attributes...)
}

// Otelhttp gives each span the address of the request: path and query of the webhook go where the
// traces go. User info does not, since the recorder has made it a header.
func TestTracesHoldTheWebhook(t *testing.T) {
	receiver := serve(t, &desk{codes: []int{202}})
	host := receiver.Listener.Addr().String()
	kept := new(notebook)
	rec := patiently(t, recorder.Config{
		Webhook:   "http://user-7f3a:password-91c4@" + host + "/path-5be2?token=query-d8e6",
		Transport: otelhttp.NewTransport(pooled(t), otelhttp.WithTracerProvider(kept)),
		Backoff:   never,
	})
	recordOne(t, rec)
	checkStats(t, rec, recorder.Stats{Delivered: 1})
	addresses := 0
	for _, attribute := range kept.attributes {
		want := ""
		if attribute.Key == "url.full" {
			addresses++
			want = "path, query"
		}
		if got := secretsIn(attribute.Value.String()); got != want {
			t.Errorf("attribute %s = %q, which shows %q, want %q", attribute.Key, attribute.Value.String(), got, want)
		}
	}
	if addresses != 1 {
		t.Errorf("attributes url.full = %d, want 1", addresses)
	}
}

// An identity is a certificate of a client, and its name.
type identity struct {
	tls.Certificate
	name string
}

func newIdentity(t *testing.T, name string) identity {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return identity{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, name}
}

// A gatekeeper is a receiver that asks for the certificate of a client, and keeps the names.
type gatekeeper struct {
	*server
	closed atomic.Int64 // connections
	leave  atomic.Bool  // the connection is closed after the answer

	mu    sync.Mutex
	names []string // of each request
}

func newGatekeeper(t *testing.T, overHTTP2 bool, welcome ...identity) *gatekeeper {
	g := new(gatekeeper)
	g.server = newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if want := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[overHTTP2]; r.Proto != want {
			t.Errorf("protocol = %q, want %q", r.Proto, want)
		}
		g.mu.Lock()
		g.names = append(g.names, r.TLS.PeerCertificates[0].Subject.CommonName)
		g.mu.Unlock()
		if g.leave.Load() {
			w.Header().Set("Connection", "close")
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	count := g.Config.ConnState
	g.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		count(conn, state)
		if state == http.StateClosed {
			g.closed.Add(1)
		}
	}
	g.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
	for _, identity := range welcome {
		g.TLS.ClientCAs.AddCert(identity.Leaf)
	}
	g.EnableHTTP2 = overHTTP2
	g.StartTLS()
	return g
}

// checkNames compares the client's name at each request.
func (g *gatekeeper) checkNames(t *testing.T, want ...string) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.names, want) {
		t.Errorf("certificate of each request = %q, want %q", g.names, want)
	}
}

// A renewed certificate is for new connections; those in use keep theirs until they are closed.
func TestRenewedCertificateIsForNewConnections(t *testing.T) {
	for _, overHTTP2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %t", overHTTP2), func(t *testing.T) {
			first, second := newIdentity(t, "first"), newIdentity(t, "second")
			receiver := newGatekeeper(t, overHTTP2, first, second)
			var current atomic.Pointer[tls.Certificate]
			current.Store(&first.Certificate)
			config := trust(receiver.server)
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return current.Load(), nil
			}
			rec := patiently(t, recorder.Config{Webhook: receiver.URL, TLS: config, Backoff: never})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			post := func(message string) {
				if err := rec.Post(ctx, about(message)); err != nil {
					t.Errorf("Post(%s) = %v, want nil", message, err)
				}
			}
			post("before it is renewed")
			current.Store(&second.Certificate)
			post("on the connection of before")
			receiver.leave.Store(true)
			post("the last on this connection")
			eventually(t, "the connection to be closed", func() bool { return receiver.closed.Load() == 1 })
			receiver.leave.Store(false)
			post("on a new connection")
			post("on the same")
			drain(t, rec)
			receiver.checkNames(t, "first", "first", "first", "second", "second")
			checkStats(t, rec, recorder.Stats{Delivered: 5})
			if got := receiver.opened.Load(); got != 2 {
				t.Errorf("connections = %d, want 2", got)
			}
		})
	}
}

// A certificate that the receiver refuses, or that cannot be had, is tried again: it may be renewed.
func TestRefusedCertificateMayBeRenewed(t *testing.T) {
	errNoCertificate := errors.New("no certificate today")
	for _, overHTTP2 := range []bool{false, true} {
		for name, fault := range map[string]func(stranger identity) (*tls.Certificate, error){
			"refused": func(stranger identity) (*tls.Certificate, error) { return &stranger.Certificate, nil },
			"none":    func(identity) (*tls.Certificate, error) { return new(tls.Certificate), nil },
			"failing": func(identity) (*tls.Certificate, error) { return nil, errNoCertificate },
		} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %t", name, overHTTP2), func(t *testing.T) {
				known, stranger := newIdentity(t, "known"), newIdentity(t, "stranger")
				receiver := newGatekeeper(t, overHTTP2, known)
				var renewed atomic.Bool
				config := trust(receiver.server)
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					if renewed.Load() {
						return &known.Certificate, nil
					}
					return fault(stranger)
				}
				log := &journal{onRetry: func(int) { renewed.Store(true) }}
				rec := patiently(t, recorder.Config{
					Webhook: receiver.URL, TLS: config, Backoff: promptly, Logger: slog.New(log),
				})
				recordOne(t, rec)
				receiver.checkNames(t, "known")
				checkStats(t, rec, recorder.Stats{Delivered: 1, Retries: 1})
				for _, line := range log.at(slog.LevelDebug) {
					if name == "failing" && !errors.Is(line.err, errNoCertificate) {
						t.Errorf("error logged = %v, want one that wraps %q", line.err, errNoCertificate)
					}
				}
			})
		}
	}
}
