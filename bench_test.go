package recorder

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func benchEvent() Event {
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

// benchReceiver answers every request alike, after having read it.
func benchReceiver(b testing.TB, code int, body string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(code)
		io.WriteString(w, body)
	}))
	b.Cleanup(server.Close)
	return server.URL
}

func mustNew(t testing.TB, c Config) *Recorder {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatalf("New() = %v, want no error", err)
	}
	return r
}

// BenchmarkHTTPPost is the baseline of the others: the same bytes, encoded and sent by a plain client.
func BenchmarkHTTPPost(b *testing.B) {
	address := benchReceiver(b, http.StatusAccepted, "")
	event := benchEvent()
	client := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone(), Timeout: 5 * time.Second}
	defer client.CloseIdleConnections()
	b.ReportAllocs()
	for b.Loop() {
		body, err := json.Marshal(event)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := client.Post(address, "application/json", bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func BenchmarkPost(b *testing.B) {
	r := mustNew(b, Config{Webhook: benchReceiver(b, http.StatusAccepted, "")})
	event := benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Post(context.Background(), event); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	r.webhook.closeIdle()
}

func BenchmarkRecordX(b *testing.B) {
	r := mustNew(b, Config{Webhook: "http://127.0.0.1:1", QueueSize: 1024})
	event := benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		r.Record(event)
		if r.queued > 700 {
			b.StopTimer()
			for range r.queued {
				<-r.queue
			}
			r.queued = 0
			b.StartTimer()
		}
	}
}
func BenchmarkCloneX(b *testing.B) {
	event := benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		event.Metadata = maps.Clone(event.Metadata)
	}
}
