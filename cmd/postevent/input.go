package main

// This file reads the event that -f names: in the recorder's own format, or as kubectl prints it.

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"example.com/recorder"
)

const (
	maxEvent = 4 << 20 // bytes that are read

	getOne  = `"kubectl get event NAME -o json"`
	formats = "-f takes one event, as JSON in the recorder's own format or as " + getOne + " prints it"

	annotationPrefix = "event.toolkit.fluxcd.io/"
)

// readEvent reads one event, and refuses all that is not exactly that.
func readEvent(name string, stdin io.Reader) (recorder.Event, error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return recorder.Event{}, fmt.Errorf("-f: %w", err)
		}
		defer file.Close()
		in = file
	}
	event, err := decode(in)
	if err != nil {
		return event, fmt.Errorf("-f %s: %w", name, err)
	}
	return event, nil
}

// decode tells the formats apart by apiVersion and kind, which the recorder's own does not have.
func decode(in io.Reader) (event recorder.Event, err error) {
	data, err := io.ReadAll(io.LimitReader(in, maxEvent+1))
	switch {
	case err != nil:
		return event, err
	case len(data) > maxEvent:
		return event, fmt.Errorf("more than %d MiB", maxEvent>>20)
	}
	if data, err = text(data); err != nil {
		return event, err
	}
	if !bytes.HasPrefix(data, []byte("{")) {
		return event, errors.New("no JSON object; " + formats)
	}
	var is struct{ APIVersion, Kind string }
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&is); err != nil {
		return event, fmt.Errorf("%w; %s", err, formats)
	}
	switch {
	case is.Kind == "" && is.APIVersion == "":
		return event, decodeOne(data, &event, (*json.Decoder).DisallowUnknownFields)
	case is.Kind == "List", is.Kind == "EventList":
		return event, errors.New("a list of events; pick one with " + getOne)
	case is.Kind == "Event" && (is.APIVersion == "v1" || is.APIVersion == "events.k8s.io/v1"):
		var kubernetes kubernetesEvent
		err := decodeOne(data, &kubernetes)
		return kubernetes.event(), err
	default:
		return event, fmt.Errorf("an object of kind %.99q and apiVersion %.99q; %s", is.Kind, is.APIVersion, formats)
	}
}

// decodeOne decodes the one JSON value that data is.
func decodeOne(data []byte, to any, options ...func(*json.Decoder)) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	for _, set := range options {
		set(decoder)
	}
	if err := decoder.Decode(to); err != nil {
		return err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return errors.New("something follows the event")
	}
	return nil
}

// text returns data as UTF-8 without a byte order mark and without space around it. UTF-16 is known by
// its mark: PowerShell's > writes it.
func text(data []byte) ([]byte, error) {
	var err error
	switch {
	case bytes.HasPrefix(data, []byte("\xff\xfe")):
		data, err = fromUTF16(data[2:], binary.LittleEndian)
	case bytes.HasPrefix(data, []byte("\xfe\xff")):
		data, err = fromUTF16(data[2:], binary.BigEndian)
	default:
		data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	}
	if err != nil {
		return nil, err
	}
	data = bytes.TrimSpace(data)
	switch {
	case !utf8.Valid(data):
		return nil, errors.New("not UTF-8")
	case len(data) == 0:
		return nil, errors.New("empty")
	}
	return data, nil
}

func fromUTF16(data []byte, order binary.ByteOrder) ([]byte, error) {
	units := make([]uint16, len(data)/2)
	for i := range units {
		units[i] = order.Uint16(data[2*i:])
	}
	characters := utf16.Decode(units)
	// Half of a surrogate pair has become U+FFFD, so that it does not come back as it was.
	if len(data)%2 != 0 || !slices.Equal(utf16.Encode(characters), units) {
		return nil, errors.New("malformed UTF-16")
	}
	return []byte(string(characters)), nil
}

// A kubernetesEvent is an Event of v1 or of events.k8s.io/v1. What one of them calls otherwise than
// the other has two fields here.
type kubernetesEvent struct {
	Metadata struct {
		CreationTimestamp time.Time
		Annotations       map[string]string
	}
	Type, Reason, Action      string
	Related                   *recorder.ObjectReference
	EventTime                 time.Time
	Series                    struct{ LastObservedTime time.Time }
	ReportingInstance         string
	InvolvedObject, Regarding recorder.ObjectReference
	Message, Note             string

	ReportingComponent, ReportingController  string
	Source, DeprecatedSource                 struct{ Component, Host string }
	FirstTimestamp, DeprecatedFirstTimestamp time.Time
	LastTimestamp, DeprecatedLastTimestamp   time.Time
}

// event is the Event in the recorder's format, with the severities of the recorder's adapters.
func (k *kubernetesEvent) event() recorder.Event {
	source := cmp.Or(k.Source, k.DeprecatedSource)
	event := recorder.Event{
		InvolvedObject:      cmp.Or(k.InvolvedObject, k.Regarding),
		RelatedObject:       k.Related,
		Severity:            recorder.SeverityInfo,
		Timestamp:           k.happened(),
		Message:             cmp.Or(k.Message, k.Note),
		Reason:              k.Reason,
		Action:              k.Action,
		ReportingController: cmp.Or(k.ReportingComponent, k.ReportingController, source.Component),
		ReportingInstance:   cmp.Or(k.ReportingInstance, source.Host),
	}
	if k.Type == "Warning" {
		event.Severity = recorder.SeverityError
	}
	event.Metadata = k.metadata(event.InvolvedObject)
	return event
}

// happened is the latest time at which the event is said to have happened. That it was written down
// then counts if it is said nowhere else: the API server may write it down later.
func (k *kubernetesEvent) happened() time.Time {
	said := []time.Time{
		k.Series.LastObservedTime, k.LastTimestamp, k.DeprecatedLastTimestamp,
		k.EventTime, k.FirstTimestamp, k.DeprecatedFirstTimestamp,
	}
	latest := slices.MaxFunc(said, time.Time.Compare)
	if latest.IsZero() {
		return k.Metadata.CreationTimestamp
	}
	return latest
}

// metadata is those of the annotations that notification-controller would keep: its own, and those of
// the API group of the object, where Flux's controllers put the revision.
func (k *kubernetesEvent) metadata(object recorder.ObjectReference) map[string]string {
	group, _, grouped := strings.Cut(object.APIVersion, "/")
	var kept map[string]string
	for key, value := range k.Metadata.Annotations {
		if !strings.HasPrefix(key, annotationPrefix) && !(grouped && strings.HasPrefix(key, group+"/")) {
			continue
		}
		if kept == nil {
			kept = make(map[string]string)
		}
		kept[key] = value
	}
	return kept
}
