package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"example.com/recorder"
)

// maxEvent is how many bytes of a file are read.
const maxEvent = 4 << 20

// readEvent reads one event from a file, and refuses all that is not exactly that.
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
	data, err := io.ReadAll(io.LimitReader(in, maxEvent+1))
	if err == nil && len(data) > maxEvent {
		err = fmt.Errorf("more than %d MiB", maxEvent>>20)
	}
	var event recorder.Event
	if err == nil {
		event, err = decode(data)
	}
	if err != nil {
		return event, fmt.Errorf("-f %s: %w", name, err)
	}
	return event, nil
}

// decode makes an event of JSON in one of the two formats, which differ in that a Kubernetes object
// names its kind.
func decode(data []byte) (event recorder.Event, err error) {
	data = bytes.TrimSpace(unmark(data))
	var object struct{ Kind, APIVersion string }
	switch {
	case len(data) == 0:
		return event, errors.New("empty")
	case !utf8.Valid(data):
		return event, errors.New("not UTF-8")
	case data[0] != '{':
		err = errors.New("it is no JSON object")
	default:
		err = json.Unmarshal(data, &object)
	}
	isEvent := object.APIVersion == "v1" || strings.HasPrefix(object.APIVersion, "events.k8s.io/")
	switch {
	case err != nil:
	case strings.HasSuffix(object.Kind, "List"):
		return event, errors.New("a list; pick one event with kubectl get event NAME -o json")
	case object.Kind == "Event" && isEvent:
		return decodeKubernetes(data)
	default:
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&event)
	}
	if err != nil {
		return event, fmt.Errorf("neither an event in the JSON that is posted nor a Kubernetes Event "+
			"of v1 or events.k8s.io/v1 as kubectl get event NAME -o json prints it: %w", err)
	}
	return event, nil
}

// unmark returns text without the mark of its byte order, in UTF-8. Tools on Windows write one, and
// PowerShell's redirection writes UTF-16.
func unmark(data []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}):
		order = binary.LittleEndian
	case bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		order = binary.BigEndian
	default:
		return bytes.TrimPrefix(data, []byte("\ufeff"))
	}
	var units []uint16
	for pair := data[2:]; len(pair) >= 2; pair = pair[2:] {
		units = append(units, order.Uint16(pair))
	}
	return []byte(string(utf16.Decode(units)))
}

// A kubernetesEvent is an Event of v1 or of events.k8s.io/v1. Where they have two names for one thing,
// or an old and a new one, an event has one of them.
type kubernetesEvent struct {
	Metadata struct {
		CreationTimestamp time.Time
		Annotations       map[string]string
	}
	InvolvedObject, Regarding recorder.ObjectReference
	Related                   *recorder.ObjectReference
	Type, Reason, Action      string
	Message, Note             string

	EventTime                                time.Time
	FirstTimestamp, DeprecatedFirstTimestamp time.Time
	LastTimestamp, DeprecatedLastTimestamp   time.Time
	Series                                   struct{ LastObservedTime time.Time }
	ReportingComponent, ReportingController  string
	ReportingInstance                        string
	Source, DeprecatedSource                 struct{ Component, Host string }
}

// decodeKubernetes makes an event of a Kubernetes Event, whose other fields do not matter here.
func decodeKubernetes(data []byte) (recorder.Event, error) {
	var e kubernetesEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return recorder.Event{}, fmt.Errorf("a Kubernetes Event that is malformed: %w", err)
	}
	event := recorder.Event{
		InvolvedObject: cmp.Or(e.InvolvedObject, e.Regarding),
		RelatedObject:  e.Related,
		Severity:       recorder.SeverityInfo,
		Reason:         e.Reason,
		Action:         e.Action,
		Message:        cmp.Or(e.Message, e.Note),
		Metadata:       e.Metadata.Annotations,
		ReportingController: cmp.Or(e.ReportingComponent, e.ReportingController, e.Source.Component,
			e.DeprecatedSource.Component),
		ReportingInstance: cmp.Or(e.ReportingInstance, e.Source.Host, e.DeprecatedSource.Host),
	}
	if e.Type == "Warning" {
		event.Severity = recorder.SeverityError
	}
	for _, at := range []time.Time{
		e.Series.LastObservedTime, e.LastTimestamp, e.DeprecatedLastTimestamp, e.EventTime,
		e.FirstTimestamp, e.DeprecatedFirstTimestamp, e.Metadata.CreationTimestamp,
	} {
		if at.After(event.Timestamp) {
			event.Timestamp = at
		}
	}
	return event, nil
}
