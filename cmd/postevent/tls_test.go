package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pair writes a certificate that signs itself and its key, and returns the names of the files.
func pair(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "postevent"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pemFile(t, "CERTIFICATE", der), pemFile(t, "PRIVATE KEY", keyDER)
}

func pemFile(t *testing.T, kind string, der []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file.pem")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A receiver with an authority of its own is trusted with -ca, and nothing else makes it so.
func TestAuthority(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	other, _ := pair(t)
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"trusted":                   {[]string{"-ca", pemFile(t, "CERTIFICATE", server.Certificate().Raw)}, 0, ""},
		"trusted, of many":          {[]string{"-n=2", "-every=1ms", "-ca", pemFile(t, "CERTIFICATE", server.Certificate().Raw)}, 0, ""},
		"unknown to the system":     {nil, 1, "; -ca names a file with the authority to trust\n"},
		"unknown, of many":          {[]string{"-n=2", "-every=1ms"}, 1, "; -ca names a file with the authority to trust\n"},
		"another one":               {[]string{"-ca", other}, 1, "; -ca names a file with the authority to trust\n"},
		"for another host, trusted": {[]string{"-ca", pemFile(t, "CERTIFICATE", server.Certificate().Raw), "-webhook", strings.Replace(server.URL, "127.0.0.1", "localhost", 1)}, 1, "not localhost\n"},
	} {
		got := postevent(t, "", append([]string{"-webhook", server.URL}, test.args...)...)
		if got.code != test.code || !strings.HasSuffix(got.stderr, test.says) || (test.says == "") != (got.stderr == "") ||
			strings.Count(got.stderr, "\n") > 1 {
			t.Errorf("%s: postevent(%q) = %+v, want %d and %q", name, test.args, got, test.code, test.says)
		}
	}
}

func TestClientCertificate(t *testing.T) {
	t.Parallel()
	cert, key := pair(t)
	data, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(data)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != "postevent" {
			t.Errorf("client = %q, want postevent", name)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	server.StartTLS()
	defer server.Close()
	args := []string{"-webhook", server.URL, "-attempts=1", "-ca", pemFile(t, "CERTIFICATE", server.Certificate().Raw)}
	if got := postevent(t, "", append(args, "-cert", cert, "-key", key)...); got.code != 0 || got.stderr != "" {
		t.Errorf("postevent with a certificate = %+v, want 0", got)
	}
	if got := postevent(t, "", args...); got.code != 1 || !strings.Contains(got.stderr, "certificate required") {
		t.Errorf("postevent without a certificate = %+v, want 1 and that one is required", got)
	}
	_, otherKey := pair(t)
	want := result{2, "", "postevent: -cert and -key: tls: private key does not match public key\n"}
	if got := postevent(t, "", append(args, "-cert", cert, "-key", otherKey)...); got != want {
		t.Errorf("postevent with another key = %+v, want %+v", got, want)
	}
}
