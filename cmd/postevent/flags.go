package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
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
posts -n of them and sums up.

Without a webhook it posts to a receiver of its own on loopback, which takes the
event but answers too late, and shows what comes of it; the timeout is then 1s
and the wait 500ms, unless flags set them.

The webhook may also stand in the environment, as ` + webhookVariable + `, where the
list of processes does not show it.

Flags override the fields of a file, which has no other defaults than the
recorder's; -metadata adds to the metadata of the file. Half of each wait is left
to chance unless -min-wait or -max-wait is set.

With -ca the authorities in that file alone are trusted, and those of the system
are not. There is no flag that trusts everybody.

A file is one event: as JSON in the recorder's own format, which -dry-run prints,
or a Kubernetes Event, of v1 or events.k8s.io/v1, as "kubectl get event NAME -o json"
prints it. It is UTF-8, or UTF-16 with a byte order mark.

A Kubernetes Event of type Warning becomes an error, every other one info. Of its
times the latest counts at which it happened; that of its creation counts if there
is no other. Of its annotations those become metadata that notification-controller
keeps: those under event.toolkit.fluxcd.io/ and under the API group of the object.

With -n that many events are posted, each with its number in the message, such as
"(3 of 100)", so that they are no duplicates of each other. None waits for an
earlier one while fewer than 256 are under way. In the place of the attempts a
summary is printed: how many are delivered, duplicate and lost, and the median and
worst time from when an event was due until the receiver had it; lost ones have no
time. An interrupt ends the series and what is under way, and the summary is of
what was sent until then.

Exits with 0 if the receiver has the event, or all of -n, with 1 if one is lost or
was not sent because of an interrupt, and with 2 if nothing was posted because of
bad input. The reason is one line on standard error, also with -q.

`

// options is what the command line, the environment and the files come to.
type options struct {
	config recorder.Config // with an empty Webhook: the receiver on loopback
	event  recorder.Event
	n      int           // how many events; 0: one, whose timeline is shown
	every  time.Duration // how far apart they are
	dryRun bool
	quiet  bool

	read      func() (recorder.Event, error) // where event comes from
	overrides []func(*recorder.Event)        // what the flags then change in it
	tls       tlsFiles
}

// parse reads the command line, the environment and, for -f, the event. The error for -h is
// flag.ErrHelp, and the help has then been written to stdout.
func parse(args []string, stdin io.Reader, stdout io.Writer) (*options, error) {
	o := &options{
		config: recorder.Config{Controller: "postevent", Header: make(http.Header)},
		read:   defaultEvent,
	}
	d := definer{flags: flag.NewFlagSet("postevent", flag.ContinueOnError)}
	d.flags.SetOutput(io.Discard)
	o.defineReceiver(&d)
	o.definePosting(&d)
	o.defineEvent(&d, stdin)

	err := d.flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, help)
		d.flags.SetOutput(stdout)
		d.flags.PrintDefaults()
		return nil, err
	case d.invalid != nil:
		return nil, d.invalid
	case err != nil:
		return nil, flagError(err)
	case d.flags.NArg() > 0:
		return nil, errors.New("there are arguments that belong to no flag; see -h")
	}
	return o, o.complete()
}

// complete checks what flags come to together, and reads what is not on the command line.
func (o *options) complete() (err error) {
	switch {
	case o.config.Backoff.Max > 0 && o.config.Backoff.Max < o.config.Backoff.Min:
		return errors.New("-max-wait is below -min-wait; see -h")
	case o.every > 0 && o.n == 0:
		return errors.New("-every needs -n; see -h")
	}
	o.every = cmp.Or(o.every, defaultEvery)
	if value, ok := os.LookupEnv(webhookVariable); ok && o.config.Webhook == "" {
		o.config.Webhook = value
		if err := checkGiven(value); err != nil {
			return fmt.Errorf("%s %w", webhookVariable, err)
		}
	}
	if o.config.TLS, err = o.tls.config(); err != nil {
		return err
	}
	if o.event, err = o.read(); err != nil {
		return err
	}
	for _, override := range o.overrides {
		override(&o.event)
	}
	return nil
}

// A definer defines flags. The flag package would quote the value in its error, and that may be a
// secret which has slipped into the wrong place, so it is told of no error.
type definer struct {
	flags   *flag.FlagSet
	invalid error // the first value of a flag that cannot be worked with
}

func (d *definer) add(name, usage string, set func(string) error) {
	d.flags.Func(name, usage, func(value string) error {
		if err := set(value); err != nil {
			d.invalid = cmp.Or(d.invalid, fmt.Errorf("-%s %w; see -h", name, err))
		}
		return nil
	})
}

func (d *definer) duration(name, usage string, to *time.Duration) {
	d.add(name, usage, func(value string) error {
		var err error
		if *to, err = time.ParseDuration(value); err != nil || *to <= 0 {
			return errors.New(`needs a time above zero, such as "5s"`)
		}
		return nil
	})
}

func (d *definer) whole(name, usage string, most int, to *int) {
	rule := "needs a whole number above zero"
	if most < math.MaxInt {
		rule = fmt.Sprintf("needs a whole number from 1 to %d", most)
	}
	d.add(name, usage, func(value string) error {
		var err error
		if *to, err = strconv.Atoi(value); err != nil || *to < 1 || *to > most {
			return errors.New(rule)
		}
		return nil
	})
}

func (d *definer) boolean(name, usage string, to *bool) {
	d.flags.BoolFunc(name, usage, func(value string) error {
		var err error
		if *to, err = strconv.ParseBool(value); err != nil {
			d.invalid = cmp.Or(d.invalid, fmt.Errorf("-%s is either there or not; see -h", name))
		}
		return nil
	})
}

// given defines a flag whose value must not be empty.
func (d *definer) given(name, usage string, to *string) {
	d.add(name, usage, func(value string) error {
		*to = value
		return checkGiven(value)
	})
}

func (o *options) defineReceiver(d *definer) {
	d.given("webhook", "`URL` to post to, http or https", &o.config.Webhook)
	d.add("header", "header of the request, as `'Name: value'`; may be repeated", func(line string) error {
		return addHeader(o.config.Header, line)
	})
	d.given("ca", "`file` of the authorities to trust, as PEM, in the place of the system's", &o.tls.authorities)
	d.given("cert", "`file` of the certificate to show, as PEM; needs -key", &o.tls.certificate)
	d.given("key", "`file` of the key of the certificate, as PEM; needs -cert", &o.tls.key)
}

func (o *options) definePosting(d *definer) {
	d.whole("attempts", "`number` of requests that may be made for an event (default 5)", math.MaxInt,
		&o.config.MaxAttempts)
	d.duration("timeout", "`time` that one attempt may take (default 5s)", &o.config.Timeout)
	d.duration("min-wait", "`time` to wait after the first attempt, doubled after each further one (default 1s)",
		&o.config.Backoff.Min)
	d.duration("max-wait", "`time` that a wait may take at most (default 30s)", &o.config.Backoff.Max)
	d.whole("n", "`number` of events to post, after which a summary is printed", maxSeries, &o.n)
	d.duration("every", "`time` from one event of -n to the next (default 1s)", &o.every)
	d.boolean("q", "print nothing but errors", &o.quiet)
	d.boolean("dry-run", "print the body that would be posted, and post nothing", &o.dryRun)
}

func (o *options) defineEvent(d *definer, stdin io.Reader) {
	d.add("f", "`file` with the event as JSON, or - for standard input; see above", func(name string) error {
		o.read = func() (recorder.Event, error) { return readEvent(name, stdin) }
		return nil
	})
	text := func(name, usage string, field func(*recorder.Event) *string) {
		d.add(name, usage, func(value string) error {
			o.overrides = append(o.overrides, func(e *recorder.Event) { *field(e) = value })
			return checkText(value)
		})
	}
	text("kind", "`kind` of the object (default Test)",
		func(e *recorder.Event) *string { return &e.InvolvedObject.Kind })
	text("namespace", "`namespace` of the object (default default)",
		func(e *recorder.Event) *string { return &e.InvolvedObject.Namespace })
	text("name", "`name` of the object (default postevent)",
		func(e *recorder.Event) *string { return &e.InvolvedObject.Name })
	text("api-version", "API `version` of the object, such as apps/v1",
		func(e *recorder.Event) *string { return &e.InvolvedObject.APIVersion })
	text("severity", "`severity`, info or error (default info)",
		func(e *recorder.Event) *string { return &e.Severity })
	text("reason", "`reason`, one word (default Test)",
		func(e *recorder.Event) *string { return &e.Reason })
	text("action", "`action`, what was done to the object",
		func(e *recorder.Event) *string { return &e.Action })
	text("message", "`message` (default: one with the time in it, so that it is no duplicate)",
		func(e *recorder.Event) *string { return &e.Message })
	given := make(map[string]bool)
	d.add("metadata", "`key=value` for the alert; may be repeated, with another key", func(pair string) error {
		return o.addMetadata(given, pair)
	})
}

// addMetadata has key=value added to the metadata of the event, unless the key has been given before.
func (o *options) addMetadata(given map[string]bool, pair string) error {
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
}

// checkGiven refuses an empty value, such as a shell makes of a variable that is not set: the receiver
// on loopback must not confirm an event that was meant for another, nor the system say whom to trust.
func checkGiven(value string) error {
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
	unfit := func(c rune) bool {
		alphanumeric := unicode.IsLetter(c) || unicode.IsDigit(c)
		return c > unicode.MaxASCII || !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	}
	if !ok || name == "" || strings.ContainsFunc(name, unfit) {
		return errors.New(`needs "Name: value"`)
	}
	header.Add(name, strings.TrimSpace(value))
	return nil
}

// flagError passes on an error of the flag package if that names a flag, and nothing that could be
// a webhook or a token.
func flagError(err error) error {
	foreign := func(c rune) bool { return !unicode.IsLetter(c) && !strings.ContainsRune(": -", c) }
	if strings.ContainsFunc(err.Error(), foreign) {
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
