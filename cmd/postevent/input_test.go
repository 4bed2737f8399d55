package main

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf16"
)

// kubernetes is a v1 Event with further fields, each with a comma before it.
func kubernetes(fields string) string {
	return `{"apiVersion":"v1","kind":"Event","involvedObject":{"kind":"Pod","name":"p"}` + fields + `}`
}

// captured is in, or what kubectl has printed if in is the name of a file.
func captured(t testing.TB, in string) string {
	t.Helper()
	if !strings.HasSuffix(in, ".json") {
		return in
	}
	data, err := os.ReadFile("testdata/" + in)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// asUTF16 is text as PowerShell writes it, or as its opposite.
func asUTF16(text string, order binary.AppendByteOrder) string {
	var data []byte
	for _, unit := range utf16.Encode([]rune("\ufeff" + text)) {
		data = order.AppendUint16(data, unit)
	}
	return string(data)
}

// inputs are what -f takes, and the event that it comes to.
var inputs = map[string]struct{ in, want string }{
	"own":                               {fullEvent, fullEvent},
	"own, space around it":              {"\r\n " + fullEvent + "\r\n", fullEvent},
	"own, UTF-8 with a byte order mark": {"\xef\xbb\xbf" + fullEvent + "\r\n", fullEvent},
	"own, UTF-16, little end first":     {asUTF16(wideEvent, binary.LittleEndian), wideEvent},
	"own, UTF-16, big end first":        {asUTF16(wideEvent, binary.BigEndian), wideEvent},

	"v1, no other field": {kubernetes(""), pod(never, "info", "")},
	"v1, null everywhere": {
		kubernetes(`,"related":null,"series":null,"source":null,"metadata":null,"type":null,"eventTime":null,` +
			`"firstTimestamp":null,"lastTimestamp":null`),
		pod(never, "info", ""),
	},
	"v1, UTF-16":       {asUTF16(kubernetes(`,"type":"Warning"`), binary.LittleEndian), pod(never, "error", "")},
	"v1, type Warning": {kubernetes(`,"type":"Warning"`), pod(never, "error", "")},
	"v1, type Normal":  {kubernetes(`,"type":"Normal"`), pod(never, "info", "")},
	"v1, type Trace":   {kubernetes(`,"type":"Trace"`), pod(never, "info", "")},

	"time: creation alone": {
		kubernetes(`,"metadata":{"creationTimestamp":"2024-01-01T00:00:09Z"}`),
		pod("2024-01-01T00:00:09Z", "info", ""),
	},
	"time: creation is later than all others": {
		kubernetes(`,"metadata":{"creationTimestamp":"2024-01-01T00:00:09Z"},"firstTimestamp":"2024-01-01T00:00:01Z"`),
		pod("2024-01-01T00:00:01Z", "info", ""),
	},
	"time: first":            {at("firstTimestamp"), pod("2024-01-01T00:00:05Z", "info", "")},
	"time: last":             {at("lastTimestamp"), pod("2024-01-01T00:00:05Z", "info", "")},
	"time: deprecated first": {at("deprecatedFirstTimestamp"), pod("2024-01-01T00:00:05Z", "info", "")},
	"time: deprecated last":  {at("deprecatedLastTimestamp"), pod("2024-01-01T00:00:05Z", "info", "")},
	"time: event":            {at("eventTime"), pod("2024-01-01T00:00:05Z", "info", "")},
	"time: last of a series": {
		kubernetes(`,"eventTime":"2024-01-01T00:00:05.999999Z",` +
			`"series":{"count":2,"lastObservedTime":"2024-01-01T00:00:06.000001Z"}`),
		pod("2024-01-01T00:00:06.000001Z", "info", ""),
	},
	"time: first of a series": {
		kubernetes(`,"eventTime":"2024-01-01T00:00:05.999999Z","series":{"count":1,"lastObservedTime":null}`),
		pod("2024-01-01T00:00:05.999999Z", "info", ""),
	},
	"time: later than the series": {
		kubernetes(`,"lastTimestamp":"2024-01-01T01:00:07+01:00",` +
			`"series":{"lastObservedTime":"2024-01-01T00:00:06.000001Z"}`),
		pod("2024-01-01T01:00:07+01:00", "info", ""),
	},

	"reporter: the source": {
		kubernetes(`,"source":{"component":"kubelet","host":"node-a"},"reportingComponent":"","reportingInstance":""`),
		pod(never, "info", "kubelet", "node-a"),
	},
	"reporter: before the source": {
		kubernetes(`,"source":{"component":"x","host":"x"},"reportingComponent":"kubelet",` +
			`"reportingInstance":"node-a"`),
		pod(never, "info", "kubelet", "node-a"),
	},
	"reporter: of events.k8s.io/v1": {
		`{"apiVersion":"events.k8s.io/v1","kind":"Event","regarding":{"kind":"Pod","name":"p"},` +
			`"reportingController":"kubelet","reportingInstance":"node-a","eventTime":"2024-01-01T00:00:05.000001Z",` +
			`"deprecatedSource":{},"deprecatedFirstTimestamp":null,"deprecatedLastTimestamp":null}`,
		pod("2024-01-01T00:00:05.000001Z", "info", "kubelet", "node-a"),
	},
	"annotations: none of the core group": {
		kubernetes(`,"metadata":{"annotations":{"v1/a":"1","/b":"2","event.toolkit.fluxcd.iox/c":"3"}}`),
		pod(never, "info", ""),
	},

	"v1 of the kubelet": {"v1-legacy.json", `{"involvedObject":{"kind":"Pod","namespace":"prod",` +
		`"name":"web-7d4b9c6f5-x2x4l",` +
		`"uid":"0d7c1f5e-3c1b-4a35-9a43-5d7a0f6c2f11","apiVersion":"v1","resourceVersion":"48213",` +
		`"fieldPath":"spec.containers{web}"},"severity":"error","timestamp":"2024-01-02T03:14:05Z",` +
		`"message":"Back-off restarting failed container web in pod ` +
		`web-7d4b9c6f5-x2x4l_prod(0d7c1f5e-3c1b-4a35-9a43-5d7a0f6c2f11)","reason":"BackOff","action":"",` +
		`"reportingController":"kubelet","reportingInstance":"node-a"}`},
	"v1 of a client of events.k8s.io, with a series": {"v1-series.json", `{"involvedObject":{"kind":"Pod",` +
		`"namespace":"prod",` +
		`"name":"db-0","uid":"5b1f7a0e-6d0c-4b0e-8f5d-27f4c1f2a913","apiVersion":"v1","resourceVersion":"51007"},` +
		`"relatedObject":{"kind":"PersistentVolumeClaim","namespace":"prod","name":"data-db-0","apiVersion":"v1"},` +
		`"severity":"error","timestamp":"2024-01-02T03:09:30.654321Z",` +
		`"message":"0/3 nodes are available: 3 Insufficient memory.","reason":"FailedScheduling",` +
		`"action":"Scheduling",` +
		`"reportingController":"default-scheduler","reportingInstance":"default-scheduler-control-a"}`},
	"events.k8s.io/v1 with annotations": {"events.k8s.io-v1.json", `{"involvedObject":{"kind":"Kustomization",` +
		`"namespace":"flux-system","name":"apps","uid":"c2f0e1d8-7b36-4d1f-8a5c-90c1b2a3d4e5",` +
		`"apiVersion":"kustomize.toolkit.fluxcd.io/v1","resourceVersion":"60298"},"severity":"info",` +
		`"timestamp":"2024-01-02T03:24:05Z","message":"Reconciliation finished in 1.2s, next run in 10m0s",` +
		`"reason":"ReconciliationSucceeded","action":"","metadata":{"event.toolkit.fluxcd.io/cluster":"prod-a",` +
		`"kustomize.toolkit.fluxcd.io/revision":"main@sha1:6b1f0c2d"},"reportingController":"kustomize-controller",` +
		`"reportingInstance":"kustomize-controller-6c5f8d7b9-q8w2z"}`},
}

const (
	wideEvent = `{"involvedObject":{"kind":"App","name":"web"},"severity":"info","timestamp":"2024-01-02T03:04:05Z",` +
		`"message":"Größe 日本 🙂","reason":"","action":"","reportingController":""}`
	never = "0001-01-01T00:00:00Z" // which the recorder makes the time of the post
)

// at is an Event that has one of the times.
func at(field string) string { return kubernetes(`,"` + field + `":"2024-01-01T00:00:05Z"`) }

// pod is the event of kubernetes.
func pod(timestamp, severity, controller string, instance ...string) string {
	event := `{"involvedObject":{"kind":"Pod","name":"p"},"severity":"` + severity + `","timestamp":"` + timestamp +
		`","message":"","reason":"","action":"","reportingController":"` + controller + `"`
	for _, name := range instance {
		event += `,"reportingInstance":"` + name + `"`
	}
	return event + "}"
}

func TestDecode(t *testing.T) {
	for name, test := range inputs {
		t.Run(name, func(t *testing.T) {
			in := captured(t, test.in)
			event, err := decode(strings.NewReader(in))
			if err != nil {
				t.Fatalf("decode(%q) = %v, want no error", in, err)
			}
			var got strings.Builder
			encoder := json.NewEncoder(&got)
			encoder.SetEscapeHTML(false)
			if err := encoder.Encode(event); err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(got.String()); got != test.want {
				t.Errorf("decode(%q) =\n%s, want\n%s", in, got, test.want)
			}
		})
	}
}

// FuzzDecode shows that what is read is written such that it is read again, and that what is refused is
// refused in a word.
func FuzzDecode(f *testing.F) {
	for _, test := range inputs {
		f.Add([]byte(captured(f, test.in)))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		event, err := decode(strings.NewReader(string(in)))
		if err != nil {
			return
		}
		first, err := json.Marshal(event)
		if err != nil {
			return // a time beyond what JSON holds, which the recorder refuses
		}
		again, err := decode(strings.NewReader(string(first)))
		second, _ := json.Marshal(again)
		if err != nil || string(second) != string(first) {
			t.Errorf("decode(%s) = %s, %v, want the same", first, second, err)
		}
	})
}
