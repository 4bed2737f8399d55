package interop

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"example.com/recorder"
)

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
