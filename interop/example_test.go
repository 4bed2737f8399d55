package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/reference"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"example.com/recorder"
)

// What is no example itself stands in the README, word for word.

// newEventRecorder has mgr run a recorder, and returns what reconcilers record events with: each
// event goes to the webhook, and to the Kubernetes API by way of the manager's own recorder.
func newEventRecorder(mgr manager.Manager, webhook string) (*recorder.EventRecorder[runtime.Object], error) {
	rec, err := recorder.New(recorder.Config{
		Webhook:    webhook,
		Controller: "app-controller",
		Logger:     slog.New(logr.ToSlogHandler(mgr.GetLogger())),
	})
	if err != nil {
		return nil, err
	}
	refer := func(object runtime.Object) (recorder.ObjectReference, error) {
		ref, err := reference.GetReference(mgr.GetScheme(), object)
		if err != nil {
			return recorder.ObjectReference{}, err
		}
		return recorder.ObjectReference{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name, UID: string(ref.UID),
			APIVersion: ref.APIVersion, ResourceVersion: ref.ResourceVersion, FieldPath: ref.FieldPath}, nil
	}
	next := mgr.GetEventRecorder("app-controller").AnnotatedEventf
	return recorder.NewEventRecorder(rec, refer, next), mgr.Add(rec)
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
	events, err := newEventRecorder(mgr, receiver.URL)
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
	if err := mgr.Start(ctx); err != nil { // which returns when all events have come to their end
		panic(err)
	}
	// Output: ConfigMap prod/web: Deployed: version 1.2.3 is live
}

// statsCollector exports a recorder's counts: metrics.Registry.MustRegister(statsCollector{rec})
type statsCollector struct{ recorder *recorder.Recorder }

var (
	eventsDesc  = prometheus.NewDesc("recorder_events_total", "Events by what became of them.", []string{"outcome"}, nil)
	retriesDesc = prometheus.NewDesc("recorder_retries_total", "Attempts beyond the first of each event.", nil, nil)
	queuedDesc  = prometheus.NewDesc("recorder_queued_events", "Events that wait to be delivered.", nil, nil)
)

func (c statsCollector) Describe(descs chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, descs)
}

func (c statsCollector) Collect(metrics chan<- prometheus.Metric) {
	s := c.recorder.Stats()
	for outcome, n := range map[string]uint64{"delivered": s.Delivered, "duplicate": s.Duplicates,
		"rejected": s.Rejected, "failed": s.Failed, "dropped": s.Dropped} {
		metrics <- prometheus.MustNewConstMetric(eventsDesc, prometheus.CounterValue, float64(n), outcome)
	}
	metrics <- prometheus.MustNewConstMetric(retriesDesc, prometheus.CounterValue, float64(s.Retries))
	metrics <- prometheus.MustNewConstMetric(queuedDesc, prometheus.GaugeValue, float64(s.Queued))
}

func Example_prometheus() {
	rec, err := recorder.New(recorder.Config{Webhook: "http://notification-controller.flux-system/", QueueSize: 4})
	if err != nil {
		panic(err)
	}
	for range 5 { // of which three may wait, since the last quarter of a queue is for errors
		_ = rec.Record(recorder.Event{InvolvedObject: recorder.ObjectReference{Kind: "ConfigMap", Name: "web"}})
	}
	_ = rec.Record(recorder.Event{Reason: "NoObject"})

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(statsCollector{rec})
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(os.Stdout, family); err != nil {
			panic(err)
		}
	}
	// Output:
	// # HELP recorder_events_total Events by what became of them.
	// # TYPE recorder_events_total counter
	// recorder_events_total{outcome="delivered"} 0
	// recorder_events_total{outcome="dropped"} 2
	// recorder_events_total{outcome="duplicate"} 0
	// recorder_events_total{outcome="failed"} 0
	// recorder_events_total{outcome="rejected"} 1
	// # HELP recorder_queued_events Events that wait to be delivered.
	// # TYPE recorder_queued_events gauge
	// recorder_queued_events 3
	// # HELP recorder_retries_total Attempts beyond the first of each event.
	// # TYPE recorder_retries_total counter
	// recorder_retries_total 0
}
