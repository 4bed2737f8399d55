//lint:file-ignore SA1019 the older API is what this shows

package interop

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"testing"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	kuberecorder "k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"example.com/recorder"
)

// A kustomizationReconciler embeds client-go's older interface, as kustomize-controller's does up to
// v1.7.
type kustomizationReconciler struct {
	kuberecorder.EventRecorder
}

const controllerName = "kustomize-controller"

// fluxMain is what of that controller's main.go concerns events, with this recorder. The README
// shows it beside the original.
func fluxMain(ctx context.Context, mgr ctrl.Manager, eventsAddr string, record func(*kustomizationReconciler)) {
	setupLog := ctrl.Log.WithName("setup")
	rec, err := recorder.New(recorder.Config{Webhook: eventsAddr, Controller: controllerName,
		Logger: slog.New(logr.ToSlogHandler(ctrl.Log))})
	if err != nil {
		setupLog.Error(err, "unable to create event recorder")
		os.Exit(1)
	}
	eventRecorder := recorder.NewLegacyEventRecorder(rec, references(mgr.GetScheme()),
		mgr.GetEventRecorderFor(controllerName).AnnotatedEventf)

	record(&kustomizationReconciler{EventRecorder: eventRecorder})

	if err := rec.Run(ctx, mgr.Start); err != nil {
		setupLog.Error(err, "problem running manager")
		os.Exit(1)
	}
}

func TestFluxControllerWithThisRecorder(t *testing.T) {
	api := newAPIServer(t)
	mgr, _ := newManager(t, api.config(), manager.Options{})
	n := newNotifier(t)
	ctx, stop := context.WithCancel(t.Context())
	receiver := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.ServeHTTP(w, r)
		stop()
	}))
	metadata := map[string]string{eventv1.Group + "/" + eventv1.MetaTokenKey: "t0"}
	fluxMain(ctx, mgr, receiver.URL, func(r *kustomizationReconciler) {
		r.AnnotatedEventf(configMap("web", nil), metadata, corev1.EventTypeWarning, "BuildFailed", "no file %q", "kustomization.yaml")
	})
	events := n.events()
	if len(events) != 1 || events[0].Message != `no file "kustomization.yaml"` || events[0].Severity != eventv1.EventSeverityError ||
		events[0].ReportingController != controllerName || events[0].Metadata[eventv1.Group+"/"+eventv1.MetaTokenKey] != "t0" {
		t.Errorf("events that arrived = %+v, want the one that was recorded", events)
	}
}
