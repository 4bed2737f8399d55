package interop

import (
	"testing"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	fluxevents "github.com/fluxcd/pkg/runtime/events"
	"github.com/fluxcd/pkg/runtime/events/eventstest"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	"example.com/recorder"
)

var (
	_ events.EventRecorder          = (*recorder.EventRecorder[runtime.Object])(nil)
	_ events.AnnotatedEventRecorder = (*recorder.EventRecorder[runtime.Object])(nil)
	_ fluxevents.Recorder           = (*recorder.EventRecorder[runtime.Object])(nil)
	_ ctrlrecorder.EventRecorder    = (*recorder.EventRecorder[runtime.Object])(nil)
	_ record.EventRecorder          = (*recorder.LegacyEventRecorder[runtime.Object])(nil)

	_ manager.Runnable               = (*recorder.Recorder)(nil)
	_ manager.LeaderElectionRunnable = (*recorder.Recorder)(nil)
)

func TestRunsWithoutBeingLeader(t *testing.T) {
	var runnable manager.LeaderElectionRunnable = newRecorder(t, recorder.Config{})
	if runnable.NeedLeaderElection() {
		t.Error("NeedLeaderElection() = true, want false")
	}
}

func TestNamesAreThoseOfThePeers(t *testing.T) {
	for _, test := range []struct{ name, got, want string }{
		{"SeverityInfo", recorder.SeverityInfo, eventv1.EventSeverityInfo},
		{"SeverityError", recorder.SeverityError, eventv1.EventSeverityError},
		{"SeverityTrace", recorder.SeverityTrace, eventv1.EventSeverityTrace},
	} {
		if test.got != test.want {
			t.Errorf("%s = %q, want %q", test.name, test.got, test.want)
		}
	}
}

// The adapters know the event types by their text alone.
func TestEventTypesBecomeSeverities(t *testing.T) {
	for eventtype, want := range map[string]string{
		corev1.EventTypeNormal:  eventv1.EventSeverityInfo,
		corev1.EventTypeWarning: eventv1.EventSeverityError,
		eventv1.EventTypeTrace:  "", // not posted
		"":                      eventv1.EventSeverityInfo,
		"warning":               eventv1.EventSeverityInfo,
	} {
		t.Run(eventtype, func(t *testing.T) {
			sink := eventstest.NewSink(t)
			rec := newRecorder(t, recorder.Config{Webhook: sink.URL(), Backoff: never})
			var modern events.EventRecorder = adapt(rec)
			var legacy record.EventRecorder = recorder.NewLegacyEventRecorder(rec, refer, nil)
			modern.Eventf(configMap("web", nil), nil, eventtype, "Synced", "Syncing", "in sync")
			legacy.Event(configMap("web", nil), eventtype, "Synced", "in sync")
			drain(t, rec)

			var got []string
			for _, event := range sink.Events() {
				got = append(got, event.Severity)
			}
			switch {
			case want == "" && len(got) > 0:
				t.Errorf("severities of %q = %q, want no event", eventtype, got)
			case want != "" && (len(got) != 2 || got[0] != want || got[1] != want):
				t.Errorf("severities of %q = %q, want %q twice", eventtype, got, want)
			}
		})
	}
}
