package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/reference"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"example.com/recorder"
)

// newEventRecorder returns what reconcilers record events with: each event goes to the webhook, and
// to the Kubernetes API by way of the manager's own recorder. The recorder is to run around mgr.
func newEventRecorder(mgr manager.Manager, webhook string) (*recorder.Recorder, events.EventRecorder, error) {
	logger := slog.New(logr.ToSlogHandler(mgr.GetLogger()))
	rec, err := recorder.New(recorder.Config{Webhook: webhook, Controller: "app-controller", Logger: logger})
	if err != nil {
		return nil, nil, err
	}
	next := mgr.GetEventRecorder("app-controller").AnnotatedEventf
	return rec, recorder.NewEventRecorder(rec, references(mgr.GetScheme()), next), nil
}

// references describes objects of a scheme as client-go does.
func references(scheme *runtime.Scheme) func(runtime.Object) (recorder.ObjectReference, error) {
	return func(object runtime.Object) (recorder.ObjectReference, error) {
		ref, err := reference.GetReference(scheme, object)
		if err != nil {
			return recorder.ObjectReference{}, err
		}
		return recorder.ObjectReference{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name, UID: string(ref.UID),
			APIVersion: ref.APIVersion, ResourceVersion: ref.ResourceVersion, FieldPath: ref.FieldPath}, nil
	}
}

func Example() {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event eventv1.Event
		_ = json.NewDecoder(r.Body).Decode(&event)
		object := event.InvolvedObject
		fmt.Printf("%s %s/%s: %s: %s\n", object.Kind, object.Namespace, object.Name, event.Reason, event.Message)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer receiver.Close()
	created := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
		close(created)
	}))
	defer api.Close()

	mgr, err := manager.New(&rest.Config{Host: api.URL}, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		panic(err)
	}
	rec, events, err := newEventRecorder(mgr, receiver.URL)
	if err != nil {
		panic(err)
	}
	web := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "web"}}
	events.Eventf(web, nil, corev1.EventTypeNormal, "Deployed", "Deploying", "version %s is live", "1.2.3")

	ctx, stop := context.WithCancel(context.Background())
	go func() {
		<-created
		stop()
	}()
	if err := rec.Run(ctx, mgr.Start); err != nil { // which returns when the queue is empty
		panic(err)
	}
	// Output: ConfigMap prod/web: Deployed: version 1.2.3 is live
}
