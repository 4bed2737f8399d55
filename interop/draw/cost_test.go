package main

import (
	"context"
	"errors"
	"fmt"
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
	backoff := recorder.Backoff{Min: time.Second, Max: 30 * time.Second}
	rec, err := recorder.New(recorder.Config{Webhook: webhook, Backoff: backoff})
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

// printed is what the benchmarks that readCost wants print, as often as there are values.
func printed(values ...int) string {
	var text strings.Builder
	text.WriteString("goos: linux\ngoarch: amd64\ncpu: A Processor  \n")
	for _, by := range []string{
		"Enqueue/by=recorder-Record", "Enqueue/by=recorder-AnnotatedEventf", "Enqueue/by=client-go-record",
		"Enqueue/by=client-go-events", "Post/by=recorder", "Post/by=http.Client", "Post/by=flux",
	} {
		for _, value := range values {
			fmt.Fprintf(&text, "Benchmark%s-2 \t 100 \t %d ns/op\t 1.000 conns\t 7 allocs/op\n", by, value)
		}
	}
	for _, value := range values {
		fmt.Fprintf(&text, "BenchmarkRecordAtADeadReceiver/queue=open/by=recorder \t 100 \t %d p99.9-ns\n", value)
	}
	for _, by := range []string{
		"http.Client/fault=no-answer", "recorder-Post/fault=refused", "recorder-Post/fault=no-answer",
		"flux/fault=refused", "flux/fault=no-answer",
	} {
		fmt.Fprintf(&text, "BenchmarkHeld/by=%s \t 1 \t 5000000000 ns/op\n", by)
	}
	return text.String()
}

func TestReadCost(t *testing.T) {
	c, err := readCost(strings.NewReader(printed(90, 10, 30)))
	if err != nil {
		t.Fatalf("readCost() = %v, want no error", err)
	}
	if want := (spent{"Post", true, 30, 7}); c.Rounds != 3 || c.CPU != "A Processor" || c.Posted[0] != want {
		t.Errorf("readCost() = %+v, want 3 rounds on A Processor and %+v", c, want)
	}
	if got, want := c.Held[0].Waits[0], (wait{"no answer", 30}); got != want {
		t.Errorf("readCost() holds the caller of Record %+v, want %+v", got, want)
	}
	if c, _ := readCost(strings.NewReader(printed(10, 20))); c.Posted[0].Time != 15 {
		t.Errorf("readCost(two rounds) = %v for Post, want 15ns", c.Posted[0].Time)
	}
}

func TestReadCostRefuses(t *testing.T) {
	all := printed(10, 20)
	for name, test := range map[string]struct{ results, want string }{
		"nothing held": {strings.ReplaceAll(all, "BenchmarkHeld/by=flux/fault=refused", ""),
			"Held/by=flux/fault=refused: no result in ns/op"},
		"a round too few": {strings.Replace(all, "BenchmarkRecordAtADeadReceiver", "", 1),
			"RecordAtADeadReceiver/queue=open/by=recorder p99.9-ns: 1 results, want 2"},
		"no number": {strings.Replace(all, "5000000000", "?", 1),
			`Held/by=http.Client/fault=no-answer: strconv.ParseFloat: parsing "?": invalid syntax`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readCost(strings.NewReader(test.results))
			if err == nil || err.Error() != test.want {
				t.Errorf("readCost() = %v, want %q", err, test.want)
			}
		})
	}
}
