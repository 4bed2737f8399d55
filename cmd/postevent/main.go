// Postevent posts one event to a webhook and shows each attempt, each wait and the outcome. It is for
// trying out whether an alert reaches the people that it is for:
//
//	postevent -webhook URL -kind App -namespace prod -name web -severity error -message "disk full"
//
// With -f it posts an event that there is already, in the recorder's own JSON or as kubectl prints it:
//
//	kubectl get event NAME -o json | postevent -webhook URL -f -
//
// With -n and -every it posts many, which differ in the message, and sums up what became of them; this
// shows whether the receiver keeps up, since none waits for an earlier one.
//
// Without a webhook it posts to a receiver of its own on loopback, which takes the event, answers
// too late, and answers the second attempt with 429 and Retry-After: 300. A general retry client
// would now wait for five minutes; the recorder knows that the receiver has the event.
//
// It exits with 0 if the receiver has every event, with 1 if one is lost or an interrupt came before
// the last, and with 2, having posted nothing, if the command line, the environment, a file or the
// event is wrong. The reason is one line on standard error; -q leaves it at that. The webhook is shown
// as scheme and host alone, and headers are not shown.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"example.com/recorder"
)

// The exit codes.
const (
	exitOK    = 0
	exitLost  = 1
	exitUsage = 2
)

// What an attempt may take, and the schedule against the receiver on loopback, where the flags do not
// say otherwise.
const (
	defaultTimeout = 5 * time.Second
	demoTimeout    = time.Second
	demoWait       = 500 * time.Millisecond
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the command. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(stderr, "postevent:", explain(err))
		return code
	}
	o, err := parse(args, stdin, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return fail(exitUsage, err)
	}
	if o.quiet {
		stdout = io.Discard
	}
	// This comes first in any case: what is wrong with the event or the flags is found here.
	if _, err := encode(ctx, o.config, numbered(o.event, 1, o.n)); err != nil {
		return fail(exitUsage, err)
	}
	do := send
	if o.dryRun {
		do = printBodies
	}
	if err := do(ctx, o, stdout); err != nil {
		return fail(exitLost, err)
	}
	return exitOK
}

// printBodies writes what would be posted, each body on a line.
func printBodies(ctx context.Context, o *options, stdout io.Writer) error {
	for number := range max(o.n, 1) {
		body, err := encode(ctx, o.config, numbered(o.event, number+1, o.n))
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(stdout, "%s\n", body); err != nil {
			return err
		}
	}
	return nil
}

// send posts the event to the webhook, or to a receiver on loopback if there is none.
func send(ctx context.Context, o *options, stdout io.Writer) error {
	var note string
	if o.config.Webhook == "" {
		receiver, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("no receiver on loopback: %w", err)
		}
		server := &http.Server{Handler: tooLate()}
		defer server.Close()
		go server.Serve(receiver)
		o.config.Webhook = "http://" + receiver.Addr().String()
		o.config.Timeout = cmp.Or(o.config.Timeout, demoTimeout)
		o.config.Backoff = cmp.Or(o.config.Backoff, recorder.Backoff{Min: demoWait})
		note = " (embedded: takes the event, answers too late; then 429 with Retry-After: 300)"
	}
	target, _ := url.Parse(o.config.Webhook) // which encode has found to be a URL
	fmt.Fprintf(stdout, "receiver: %s://%s%s\n", target.Scheme, target.Host, note)

	// Not earlier: until here a signal may just end the process, even while it waits for its input.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.n > 0 {
		return postSeries(ctx, o, stdout)
	}
	return post(ctx, o.config, o.event, stdout)
}

// explain gives the error as one line, whatever a file is called, and says what to do about a receiver
// that is not trusted.
func explain(err error) string {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "recorder: "), "Config.")
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		text += "; -ca FILE says which authorities to trust"
	}
	return strings.Join(strings.Fields(text), " ")
}

// encode returns the body that Post sends for the event, having sent it nowhere. The error says what
// is wrong with the configuration or the event.
func encode(ctx context.Context, config recorder.Config, event recorder.Event) ([]byte, error) {
	if event.Severity == recorder.SeverityTrace {
		return nil, errors.New("an event of severity trace is never posted")
	}
	var body []byte
	config.Webhook = cmp.Or(config.Webhook, "http://localhost")
	config.TLS = nil // which goes with no Transport
	config.Transport = roundTrip(func(req *http.Request) (*http.Response, error) {
		var err error
		body, err = io.ReadAll(req.Body)
		return &http.Response{StatusCode: http.StatusAccepted, Body: http.NoBody}, err
	})
	rec, err := recorder.New(config)
	if err != nil {
		return nil, err
	}
	err = rec.Post(ctx, event)
	return body, err
}

// post posts the event and writes its timeline. A transport in config takes the place of the command's
// own.
func post(ctx context.Context, config recorder.Config, event recorder.Event, stdout io.Writer) error {
	if config.Transport == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy = proxy
		transport.TLSClientConfig, config.TLS = config.TLS, nil
		defer transport.CloseIdleConnections()
		config.Transport = transport
	}
	config.Timeout = cmp.Or(config.Timeout, defaultTimeout)
	line := &timeline{out: stdout, next: config.Transport, timeout: config.Timeout, start: time.Now()}
	config.Transport = line
	config.Logger = slog.New(line)
	rec, err := recorder.New(config)
	if err != nil {
		return err
	}
	err = rec.Post(ctx, event)
	switch {
	case err != nil:
		line.unanswered(err)
		line.outcome("lost: the receiver has not confirmed it")
	case rec.Stats().Duplicates > 0:
		line.outcome("duplicate: the receiver already has it")
	default:
		line.outcome("delivered: the receiver has taken it")
	}
	return err
}

// tooLate is a receiver that takes each event but does not get to answer before the client has gone,
// and answers a second time as notification-controller answers what it has already.
func tooLate() http.Handler {
	var taken sync.Map // the hash of each body
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := sha256.New()
		io.Copy(body, r.Body) // A server only sees that the client has gone once it has read the body.
		if _, again := taken.LoadOrStore([sha256.Size]byte(body.Sum(nil)), true); !again {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Retry-After", "300")
		http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
	})
}

// proxy finds the proxy as the recorder's own transport does: the dot that ends a complete host name
// does not keep NO_PROXY from matching it.
func proxy(req *http.Request) (*url.URL, error) {
	dotless := *req.URL
	dotless.Host = strings.Replace(dotless.Host, dotless.Hostname(), strings.TrimSuffix(dotless.Hostname(), "."), 1)
	return http.ProxyFromEnvironment(&http.Request{URL: &dotless})
}
