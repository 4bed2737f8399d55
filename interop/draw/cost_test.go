package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	fluxevents "github.com/fluxcd/pkg/runtime/events"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"example.com/recorder"
)

// BenchmarkHeld is how long a call takes whose receiver is dead, in the time of the clock on the wall:
// Flux's recorder lets nobody replace its transport. Run it with -benchtime 1x.
func BenchmarkHeld(b *testing.B) {
	never := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // A server only sees that the client has gone once it has read the body.
		<-r.Context().Done()
	}))
	defer never.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	closed.Close()
	refused := "http://" + closed.Addr().String()
	for _, run := range []struct {
		by, fault, webhook string
		call               func(b *testing.B, webhook string) error
	}{
		{"http.Client", "no-answer", never.URL, postOnce},
		{"recorder-Post", "refused", refused, postWithoutJitter},
		{"recorder-Post", "no-answer", never.URL, postWithoutJitter},
		{"flux", "refused", refused, recordWithFlux},
		{"flux", "no-answer", never.URL, recordWithFlux},
	} {
		b.Run("by="+run.by+"/fault="+run.fault, func(b *testing.B) {
			for b.Loop() {
				if err := run.call(b, run.webhook); err == nil {
					b.Error("the event was delivered, want a dead receiver")
				}
			}
		})
	}
}

func postOnce(_ *testing.B, webhook string) error {
	client := &http.Client{Timeout: 5 * time.Second}
	resp, err := client.Post(webhook, "application/json", strings.NewReader("{}"))
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// postWithoutJitter has the defaults but for the jitter, which could make it wait less.
func postWithoutJitter(b *testing.B, webhook string) error {
	rec, err := recorder.New(recorder.Config{Webhook: webhook, Backoff: recorder.Backoff{Min: time.Second, Max: 30 * time.Second}})
	if err != nil {
		b.Fatal(err)
	}
	return rec.Post(context.Background(), recorder.Event{
		InvolvedObject: recorder.ObjectReference{Kind: "App", Namespace: "prod", Name: "web"},
		Severity:       recorder.SeverityInfo, Reason: "Deployed", Message: "version 1.2.3 is live",
	})
}

// recordWithFlux returns what Flux's recorder logs, which returns nothing.
func recordWithFlux(b *testing.B, webhook string) error {
	var logged error
	logger := funcr.New(func(_, args string) { logged = errors.New(args) }, funcr.Options{})
	flux, err := fluxevents.NewRecorder(logger, webhook, "app-controller", fluxevents.WithScheme(scheme.Scheme))
	if err != nil {
		b.Fatal(err)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "prod"}}
	flux.Eventf(object, nil, corev1.EventTypeNormal, "Deployed", "Deploying", "version 1.2.3 is live")
	return logged
}
