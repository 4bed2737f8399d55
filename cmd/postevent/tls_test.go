package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// pair writes a certificate that is its own authority, and its key, to files.
func pair(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return file(t, asPEM("CERTIFICATE", signed)), file(t, asPEM("PRIVATE KEY", encoded))
}

func asPEM(kind string, data []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}))
}

// read returns what is in a file.
func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// newTLSReceiver starts a receiver that takes everything from whom clients lets in.
func newTLSReceiver(t *testing.T, clients *tls.Config) *httptest.Server {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = clients
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func TestAuthorities(t *testing.T) {
	t.Parallel()
	server := newTLSReceiver(t, nil)
	own := asPEM("CERTIFICATE", server.Certificate().Raw)
	other, key := pair(t)
	named := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	const (
		unknown = "x509: certificate signed by unknown authority; -ca FILE says which authorities to trust\n"
		misses  = "x509: certificate is valid for example.com, *.example.com, not localhost\n"
	)
	for name, test := range map[string]struct {
		url    string
		system string // what the system trusts
		ca     string
		want   string // what standard error ends with; empty: it is delivered
	}{
		"nobody":                     {server.URL, "", "", unknown},
		"the receiver's":             {server.URL, "", own, ""},
		"the receiver's, of several": {server.URL, "", "text\n" + read(t, other) + read(t, key) + own, ""},
		"another":                    {server.URL, "", read(t, other), unknown},
		"the system's":               {server.URL, own, "", ""},
		"another, not the system's":  {server.URL, own, read(t, other), unknown},
		"the receiver's, for a name that the certificate lacks": {named, "", own, misses},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"-webhook", test.url, "-timeout=" + hang.String()}
			if test.ca != "" {
				args = append(args, "-ca", file(t, test.ca))
			}
			env := []string{"SSL_CERT_FILE=" + file(t, test.system), "SSL_CERT_DIR=" + t.TempDir()}
			got := finish(t, command(t, env, args...))
			if test.want == "" {
				if got.code != 0 || got.stderr != "" {
					t.Errorf("postevent(%q) = %+v, want 0 and no error", args, got)
				}
				return
			}
			if got.code != 1 || !strings.HasSuffix(got.stderr, test.want) || strings.Count(got.stderr, "\n") != 1 ||
				!strings.Contains(got.stdout, "attempt 1  tls: ") || !strings.Contains(got.stdout, "(1 attempt in ") {
				t.Errorf("postevent(%q) = %+v, want 1 after 1 attempt, and %q at the end", args, got, test.want)
			}
		})
	}
}

// TestSeriesAuthorities shows that several events are posted with the same trust as one.
func TestSeriesAuthorities(t *testing.T) {
	t.Parallel()
	server := newTLSReceiver(t, nil)
	args := []string{"-webhook", server.URL, "-q", "-n=2", "-every=1ms"}
	other, _ := pair(t)
	want := result{1, "", "postevent: lost 2 of 2, the first one: https://HOST: tls: failed to verify certificate: " +
		"x509: certificate signed by unknown authority; -ca FILE says which authorities to trust\n"}
	got := postevent(t, "", append(args, "-ca", other)...)
	if got.stderr = still(got.stderr); got != want {
		t.Errorf("postevent(%q) with another authority = %+v, want %+v", args, got, want)
	}
	own := file(t, asPEM("CERTIFICATE", server.Certificate().Raw))
	if got := postevent(t, "", append(args, "-ca", own)...); got != (result{}) {
		t.Errorf("postevent(%q) with the receiver's authority = %+v, want 0 and no word", args, got)
	}
}

func TestClientCertificate(t *testing.T) {
	t.Parallel()
	certificate, key := pair(t)
	strange, strangeKey := pair(t)
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM([]byte(read(t, certificate)))
	server := newTLSReceiver(t, &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients})
	authority := file(t, asPEM("CERTIFICATE", server.Certificate().Raw))
	for name, test := range map[string]struct {
		args []string
		want int
	}{
		"none":    {nil, 1},
		"known":   {[]string{"-cert", certificate, "-key", key}, 0},
		"strange": {[]string{"-cert", strange, "-key", strangeKey}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"-webhook", server.URL, "-ca", authority, "-attempts=1"}, test.args...)
			if got := postevent(t, "", args...); got.code != test.want {
				t.Errorf("postevent(%q) = %+v, want %d", args, got, test.want)
			}
		})
	}
}
