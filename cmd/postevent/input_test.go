package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf16"
)

// wantEvents are the bodies that are posted of the events in testdata, which are such as kubectl prints
// with -o json.
var wantEvents = map[string]string{
	"v1.json": `{"involvedObject":{"kind":"Pod","namespace":"shop","name":"web-5d4f8c7b9-x2lqp",` +
		`"uid":"5b0c1f0e-8f0d-4f0a-9a57-0f4f6a2f3c11","apiVersion":"v1","resourceVersion":"48151","fieldPath":"spec.containers{web}"},` +
		`"severity":"error","timestamp":"2026-03-01T08:21:42Z",` +
		`"message":"Back-off restarting failed container web in pod web-5d4f8c7b9-x2lqp_shop","reason":"BackOff","action":"",` +
		`"reportingController":"kubelet","reportingInstance":"node-3"}`,
	"v1-source.json": `{"involvedObject":{"kind":"App","namespace":"shop","name":"web","apiVersion":"apps.example.com/v1beta1"},` +
		`"relatedObject":{"kind":"Node","name":"node-3"},"severity":"info","timestamp":"2026-03-01T08:16:10Z",` +
		`"message":"bound to node-3","reason":"Bound","action":"Binding","metadata":{"event.toolkit.fluxcd.io/image":"web:1.2.3"},` +
		`"reportingController":"app-controller","reportingInstance":"app-controller-0"}`,
	"events-v1.json": `{"involvedObject":{"kind":"App","namespace":"shop","name":"web","uid":"0d8f3f5b-0b43-4c55-a7f8-5f0a8d1b2c33",` +
		`"apiVersion":"apps.example.com/v1","resourceVersion":"12"},` +
		`"relatedObject":{"kind":"Secret","namespace":"shop","name":"web-tls","apiVersion":"v1"},` +
		`"severity":"error","timestamp":"2026-03-01T09:45:30Z","message":"disk 100% full","reason":"ReconciliationFailed",` +
		`"action":"Reconciling","reportingController":"apps.example.com/app-controller","reportingInstance":"app-controller-0"}`,
	"events-v1-deprecated.json": `{"involvedObject":{"kind":"Node","name":"node-1","uid":"node-1"},` +
		`"severity":"info","timestamp":"2026-03-01T09:30:00Z","message":"Node node-1 status is now: NodeReady",` +
		`"reason":"NodeReady","action":"","reportingController":"kubelet","reportingInstance":"node-1"}`,
}

func TestKubernetesEvents(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) != len(wantEvents) {
		t.Fatalf("testdata has %d events, error %v, want %d", len(files), err, len(wantEvents))
	}
	for _, file := range files {
		want := result{0, wantEvents[filepath.Base(file)] + "\n", ""}
		if got := postevent(t, "", "-dry-run", "-f", file); got != want {
			t.Errorf("postevent -dry-run -f %s = %+v, want %+v", file, got, want)
		}
	}
}

// wide is a text in UTF-16 with its mark.
func wide(text string, order binary.AppendByteOrder) string {
	var data []byte
	for _, unit := range utf16.Encode([]rune("\ufeff" + text)) {
		data = order.AppendUint16(data, unit)
	}
	return string(data)
}

// The JSON of either format may come as tools on Windows write it.
func TestByteOrderMarks(t *testing.T) {
	t.Parallel()
	kubernetes, err := os.ReadFile("testdata/v1.json")
	if err != nil {
		t.Fatal(err)
	}
	const own = `{"involvedObject":{"kind":"App","name":"wéb🎉"},"timestamp":"2026-03-01T09:30:00Z","reportingInstance":"app-0"}`
	const wantOwn = `{"involvedObject":{"kind":"App","name":"wéb🎉"},"severity":"info","timestamp":"2026-03-01T09:30:00Z","message":"",` +
		`"reason":"","action":"","reportingController":"postevent","reportingInstance":"app-0"}`
	for text, body := range map[string]string{own: wantOwn, string(kubernetes): wantEvents["v1.json"]} {
		for name, input := range map[string]string{
			"UTF-8": text, "UTF-8 with a mark": "\ufeff" + text, "UTF-8 with a mark and blanks": "\ufeff\r\n " + text + "\r\n",
			"UTF-16LE": wide(text, binary.LittleEndian), "UTF-16BE": wide(text, binary.BigEndian),
		} {
			if got, want := postevent(t, input, "-dry-run", "-f=-"), (result{0, body + "\n", ""}); got != want {
				t.Errorf("postevent -dry-run -f - of %s = %+v, want %+v", name, got, want)
			}
		}
	}
}
