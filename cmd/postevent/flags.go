package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"example.com/recorder"
)

const webhookVariable = "POSTEVENT_WEBHOOK"

const help = `usage: postevent [flags]

Posts one event to a webhook and shows each attempt, each wait and the outcome, or
with -n many events and shows whether the receiver keeps up.
Without a webhook it posts to a receiver of its own on loopback, which takes the
event but answers too late, and shows what comes of it; the timeout is then 1s
and the wait 500ms, unless flags set them.

The webhook may also stand in the environment, as ` + webhookVariable + `, where the
list of processes does not show it.

Flags override the fields of a file, which has no other defaults than the
recorder's; -metadata adds to the metadata of the file. Half of each wait is left
to chance unless -min-wait or -max-wait is set.

A file holds an event in the JSON that is posted, or a Kubernetes Event as
"kubectl get event NAME -o json" prints it. Of the latter a Warning becomes severity
error, all else info, its annotations become metadata, and it is dated by the latest
of its times.

Exits with 0 if the receiver has the event, with 1 if an event is lost, and with
2 if nothing was posted because of bad input.

`

// options is what the command line, the environment and the file come to.
type options struct {
	config recorder.Config // with an empty Webhook: the receiver on loopback
	event  recorder.Event
	dryRun bool
	quiet  bool
	count  int           // of events; 0: one, with its timeline
	every  time.Duration // from one event to the next
	tls    *tls.Config

	read      func() (recorder.Event, error) // where event comes from
	overrides []func(*recorder.Event)        // what the flags then change in it
	cert, key string                         // files
	invalid   error                          // the first value of a flag that cannot be worked with
}

// parse reads the command line, the environment and, for -f, the event. The error for -h is
// flag.ErrHelp, and the help has then been written to stdout.
func parse(args []string, stdin io.Reader, stdout io.Writer) (*options, error) {
	o := &options{
		config: recorder.Config{Controller: "postevent", Header: make(http.Header)},
		read:   defaultEvent,
		every:  time.Second,
		tls:    new(tls.Config),
	}
	flags := flag.NewFlagSet("postevent", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.define(flags, stdin)

	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, help)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return nil, err
	case o.invalid != nil:
		return nil, o.invalid
	case err != nil:
		return nil, flagError(err)
	case flags.NArg() > 0:
		return nil, errors.New("there are arguments that belong to no flag; see -h")
	case o.config.Backoff.Max > 0 && o.config.Backoff.Max < o.config.Backoff.Min:
		return nil, errors.New("-max-wait is below -min-wait; see -h")
	case o.dryRun && o.count > 0:
		return nil, errors.New("-dry-run prints one event; leave out -n; see -h")
	}
	if err := o.readCertificate(); err != nil {
		return nil, err
	}
	if value, ok := os.LookupEnv(webhookVariable); ok && o.config.Webhook == "" {
		o.config.Webhook = value
		if err := checkWebhook(value); err != nil {
			return nil, fmt.Errorf("%s %w", webhookVariable, err)
		}
	}
	if o.event, err = o.read(); err != nil {
		return nil, err
	}
	for _, override := range o.overrides {
		override(&o.event)
	}
	return o, nil
}

// define defines the flags. The flag package would quote the value in its error, and that may be a
// secret which has slipped into the wrong place, so it is told of no error.
func (o *options) define(flags *flag.FlagSet, stdin io.Reader) {
	add := func(name, usage string, set func(string) error) {
		flags.Func(name, usage, func(value string) error {
			if err := set(value); err != nil {
				o.invalid = cmp.Or(o.invalid, fmt.Errorf("-%s %w; see -h", name, err))
			}
			return nil
		})
	}
	duration := func(name, usage string, to *time.Duration) {
		add(name, usage, func(value string) error {
			var err error
			if *to, err = time.ParseDuration(value); err != nil || *to <= 0 {
				return errors.New(`needs a time above zero, such as "5s"`)
			}
			return nil
		})
	}
	text := func(name, usage string, field func(*recorder.Event) *string) {
		add(name, usage, func(value string) error {
			o.overrides = append(o.overrides, func(e *recorder.Event) { *field(e) = value })
			return checkText(value)
		})
	}

	add("webhook", "`URL` to post to, http or https", func(value string) error {
		o.config.Webhook = value
		return checkWebhook(value)
	})
	add("header", "header of the request, as `'Name: value'`; may be repeated", func(line string) error {
		return addHeader(o.config.Header, line)
	})
	add("attempts", "`number` of requests that may be made (default 5)", func(value string) error {
		var err error
		if o.config.MaxAttempts, err = strconv.Atoi(value); err != nil || o.config.MaxAttempts < 1 {
			return errors.New("needs a whole number above zero")
		}
		return nil
	})
	duration("timeout", "`time` that one attempt may take (default 5s)", &o.config.Timeout)
	duration("min-wait", "`time` to wait after the first attempt, doubled after each further one (default 1s)", &o.config.Backoff.Min)
	duration("max-wait", "`time` that a wait may take at most (default 30s)", &o.config.Backoff.Max)
	o.defineTLS(add)
	add("n", "`number` of events to post, each with its number in the message, and a summary instead of the timeline",
		func(value string) error {
			var err error
			if o.count, err = strconv.Atoi(value); err != nil || o.count < 1 {
				return errors.New("needs a whole number above zero")
			}
			return nil
		})
	duration("every", "`time` from one of the events of -n to the next, whether or not the receiver keeps up (default 1s)", &o.every)
	o.boolean(flags, "q", "print nothing but errors", &o.quiet)
	o.boolean(flags, "dry-run", "print the body that would be posted, and post nothing", &o.dryRun)

	add("f", "`file` with the event, or a Kubernetes Event, as JSON, or - for standard input", func(name string) error {
		o.read = func() (recorder.Event, error) { return readEvent(name, stdin) }
		return nil
	})
	text("kind", "`kind` of the object (default Test)", func(e *recorder.Event) *string { return &e.InvolvedObject.Kind })
	text("namespace", "`namespace` of the object (default default)", func(e *recorder.Event) *string { return &e.InvolvedObject.Namespace })
	text("name", "`name` of the object (default postevent)", func(e *recorder.Event) *string { return &e.InvolvedObject.Name })
	text("api-version", "API `version` of the object, such as apps/v1", func(e *recorder.Event) *string { return &e.InvolvedObject.APIVersion })
	text("severity", "`severity`, info or error (default info)", func(e *recorder.Event) *string { return &e.Severity })
	text("reason", "`reason`, one word (default Test)", func(e *recorder.Event) *string { return &e.Reason })
	text("action", "`action`, what was done to the object", func(e *recorder.Event) *string { return &e.Action })
	text("message", "`message` (default: one with the time in it, so that it is no duplicate)", func(e *recorder.Event) *string { return &e.Message })
	given := make(map[string]bool)
	add("metadata", "`key=value` for the alert; may be repeated, with another key", func(pair string) error {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return errors.New("needs key=value")
		}
		if given[key] {
			return fmt.Errorf("has the key %q twice", key)
		}
		given[key] = true
		o.overrides = append(o.overrides, func(e *recorder.Event) {
			if e.Metadata == nil {
				e.Metadata = make(map[string]string)
			}
			e.Metadata[key] = value
		})
		return checkText(pair)
	})
}

// boolean defines a flag without a value.
func (o *options) boolean(flags *flag.FlagSet, name, usage string, to *bool) {
	flags.BoolFunc(name, usage, func(value string) error {
		var err error
		if *to, err = strconv.ParseBool(value); err != nil {
			o.invalid = cmp.Or(o.invalid, fmt.Errorf("-%s is either there or not; see -h", name))
		}
		return nil
	})
}

// defineTLS defines the flags for receivers with an authority or clients of their own. There is none
// that turns verification off: what reads the events then could be anyone.
func (o *options) defineTLS(add func(name, usage string, set func(string) error)) {
	add("ca", "`file` with the certificates, in PEM, of the authorities that are trusted instead of the system's", func(name string) error {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		o.tls.RootCAs = x509.NewCertPool()
		if !o.tls.RootCAs.AppendCertsFromPEM(data) {
			return fmt.Errorf("%s has no certificate in PEM", name)
		}
		return nil
	})
	add("cert", "`file` with the client's certificate in PEM; needs -key", func(name string) error {
		o.cert = name
		return nil
	})
	add("key", "`file` with the key of -cert in PEM", func(name string) error {
		o.key = name
		return nil
	})
}

// readCertificate reads the files of -cert and -key.
func (o *options) readCertificate() error {
	switch {
	case o.cert == "" && o.key == "":
		return nil
	case o.cert == "" || o.key == "":
		return errors.New("-cert and -key need each other; see -h")
	}
	certificate, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return fmt.Errorf("-cert and -key: %w", err)
	}
	o.tls.Certificates = []tls.Certificate{certificate}
	return nil
}

// checkWebhook refuses an empty webhook, such as a shell makes of a variable that is not set: the
// receiver on loopback must not confirm an event that was meant for another.
func checkWebhook(value string) error {
	if value == "" {
		return errors.New("is empty")
	}
	return nil
}

// checkText refuses what JSON would silently replace.
func checkText(value string) error {
	if !utf8.ValidString(value) {
		return errors.New("is not UTF-8")
	}
	return nil
}

// addHeader adds "Name: value" to header. It checks the name since net/http would quote a wrong one,
// which is part of a secret if the colon is misplaced.
func addHeader(header http.Header, line string) error {
	name, value, ok := strings.Cut(line, ":")
	if !ok || name == "" || strings.ContainsFunc(name, func(c rune) bool {
		return c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	}) {
		return errors.New(`needs "Name: value"`)
	}
	header.Add(name, strings.TrimSpace(value))
	return nil
}

// flagError passes on an error of the flag package if that names a flag, and nothing that could be
// a webhook or a token.
func flagError(err error) error {
	if strings.ContainsFunc(err.Error(), func(c rune) bool { return !unicode.IsLetter(c) && !strings.ContainsRune(": -", c) }) {
		return errors.New("malformed flag; see -h")
	}
	return fmt.Errorf("%w; see -h", err)
}

// defaultEvent is the event that the flags change if there is no file.
func defaultEvent() (recorder.Event, error) {
	return recorder.Event{
		InvolvedObject: recorder.ObjectReference{Kind: "Test", Namespace: "default", Name: "postevent"},
		Reason:         "Test",
		Message:        "test event, posted by postevent at " + time.Now().UTC().Format(time.RFC3339),
	}, nil
}
