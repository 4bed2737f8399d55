package interop

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"example.com/recorder"
)

// An appReconciler takes client-go's interface, so it neither knows nor cares which recorder it has.
type appReconciler struct {
	client client.Reader
	events events.EventRecorder
}

func (r *appReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var app corev1.ConfigMap
	if err := r.client.Get(ctx, req.NamespacedName, &app); err != nil {
		return reconcile.Result{}, err
	}
	r.events.Eventf(&app, nil, corev1.EventTypeNormal, "Deployed", "Deploying", "version %s is live", app.Data["version"])
	return reconcile.Result{}, nil
}

// stored is a client that finds every object in the same state.
type stored struct{ client.Reader }

func (stored) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	*object.(*corev1.ConfigMap) = *configMap(key.Name, nil)
	object.(*corev1.ConfigMap).Data = map[string]string{"version": "1.2.3"}
	return nil
}

func TestReconcilerWithAFakeRecorder(t *testing.T) {
	fake := events.NewFakeRecorder(1)
	if _, err := (&appReconciler{stored{}, fake}).Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if got, want := <-fake.Events, "Normal Deployed version 1.2.3 is live"; got != want {
		t.Errorf("event = %q, want %q", got, want)
	}
}

// bodies is a Transport that keeps what is posted.
type bodies []string

func (b *bodies) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	*b = append(*b, string(body))
	return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody}, err
}

func TestReconcilerWithThisRecorder(t *testing.T) {
	var posted bodies
	rec, err := recorder.New(recorder.Config{Webhook: "http://receiver/", Transport: &posted, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	events := recorder.NewEventRecorder(rec, references(scheme.Scheme), nil)
	err = rec.Run(t.Context(), func(ctx context.Context) error { // which returns when all is delivered
		_, err := (&appReconciler{stored{}, events}).Reconcile(ctx, request)
		return err
	})
	if want := `"message":"version 1.2.3 is live"`; err != nil || len(posted) != 1 || !strings.Contains(posted[0], want) {
		t.Errorf("posted %q, error %v, want one event with %s", posted, err, want)
	}
}

var request = reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "apps", Name: "web"}}
