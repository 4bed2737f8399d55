package recorder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// capture returns a transport that takes every event, and the bodies it took.
func capture(t testing.TB) (http.RoundTripper, *[]string) {
	var bodies []string
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("request body: %v", err)
		}
		bodies = append(bodies, string(body))
		return answer(http.StatusAccepted, ""), nil
	}), &bodies
}

// A wireCall is a call of Flux's recorder with the body that it posted, from testdata/wire.
type wireCall struct {
	Action, Controller, Eventtype, Instance, Name, NoteGo, Payload, Reason string
	Annotations                                                            map[string]string
	Args                                                                   []any
	Regarding                                                              ObjectReference
	Related                                                                *ObjectReference
	Timestamp                                                              time.Time
}

func wireCalls(t testing.TB) []wireCall {
	files, _ := filepath.Glob("testdata/wire/*.json")
	if len(files) != 5 {
		t.Fatalf("testdata/wire has %d calls, want 5", len(files))
	}
	var calls []wireCall
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var call wireCall
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&call); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		calls = append(calls, call)
	}
	return calls
}

func TestPostWritesTheBytesThatFluxWrites(t *testing.T) {
	for _, call := range wireCalls(t) {
		t.Run(call.Name, func(t *testing.T) {
			note, err := strconv.Unquote(call.NoteGo)
			if err != nil {
				t.Fatal(err)
			}
			if len(call.Args) > 0 {
				note = fmt.Sprintf(note, call.Args...)
			}
			event := Event{
				InvolvedObject:      call.Regarding,
				RelatedObject:       call.Related,
				Severity:            map[string]string{"Warning": SeverityError}[call.Eventtype],
				Timestamp:           call.Timestamp.Add(999 * time.Millisecond).In(time.FixedZone("", 3*3600)),
				Message:             note,
				Reason:              call.Reason,
				Action:              call.Action,
				Metadata:            call.Annotations,
				ReportingController: call.Controller,
				ReportingInstance:   call.Instance,
			}
			transport, bodies := capture(t)
			r := mustNew(t, Config{Webhook: "http://receiver.test", Transport: transport})
			if err := r.Post(t.Context(), event); err != nil {
				t.Fatalf("Post() = %v, want nil", err)
			}
			if diff := cmp.Diff([]string{call.Payload}, *bodies); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
	_ = strings.Contains
}
