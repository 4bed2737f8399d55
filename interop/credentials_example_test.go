package interop

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"example.com/recorder"
)

// A tokenFile is a Transport that reads the token for each request, and so always has the current one.
type tokenFile struct {
	path string
	next http.RoundTripper
}

func (t tokenFile) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := os.ReadFile(t.path)
	if err != nil {
		req.Body.Close() // as a RoundTripper must, also when it fails
		return nil, err
	}
	req = req.Clone(req.Context()) // which it must not change
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	return t.next.RoundTrip(req)
}

// The token of a service account is renewed in its file, and Config.Header would keep the first one.
func Example_rotatingToken() {
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		fmt.Println(req.Header.Get("Authorization"))
	}))
	defer receiver.Close()
	dir, err := os.MkdirTemp("", "token")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "token")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()

	rec, err := recorder.New(recorder.Config{Webhook: receiver.URL, Transport: tokenFile{path, transport}})
	if err != nil {
		panic(err)
	}
	for _, token := range []string{"first", "second"} {
		if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
			panic(err)
		}
		event := recorder.Event{InvolvedObject: recorder.ObjectReference{Kind: "App", Name: "web"}}
		if err := rec.Post(context.Background(), event); err != nil {
			panic(err)
		}
	}
	// Output:
	// Bearer first
	// Bearer second
}
