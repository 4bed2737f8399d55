// Postevent posts one event to a webhook and shows each attempt, each wait and the outcome. It is for
// trying out whether an alert reaches the people that it is for:
//
//	postevent -webhook URL -kind App -namespace prod -name web -severity error -message "disk full"
//	kubectl get event NAME -o json | postevent -webhook URL -f -
//	postevent -webhook URL -n 100 -every 50ms
//
// The last of these shows whether the receiver keeps up.
//
// Without a webhook it posts to a receiver of its own on loopback, which takes the event, answers
// too late, and answers the second attempt with 429 and Retry-After: 300. A general retry client
// would now wait for five minutes; the recorder knows that the receiver has the event.
//
// It exits with 0 if the receiver has the event, with 1 if the event is lost, and with 2, having
// posted nothing, if the command line, the environment or the event is wrong. The reason is one line
// on standard error. The webhook is shown as scheme and host alone, and headers are not shown.
package main

import (
	"cmp"
	"context"
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
	"sync/atomic"
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

// The recorder's own default, and the schedule against the receiver on loopback, where the flags do not
// set another.
const (
	defaultTimeout = 5 * time.Second

	demoTimeout = time.Second
	demoWait    = 500 * time.Millisecond
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the command. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fail := func(code int, err error) int {
		text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "recorder: "), "Config.")
		fmt.Fprintln(stderr, "postevent:", strings.Join(strings.Fields(text), " ")) // one line, whatever a file is called
		return code
	}
	o, err := parse(args, stdin, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return fail(exitUsage, err)
	}
	// This comes first in any case: what is wrong with the event or the flags is found here.
	body, err := encode(ctx, o.config, o.event)
	if err != nil {
		return fail(exitUsage, err)
	}
	if o.dryRun {
		if _, err := fmt.Fprintf(stdout, "%s\n", body); err != nil {
			return fail(exitLost, err)
		}
		return exitOK
	}

	if o.quiet {
		stdout = io.Discard
	}
	var note string
	if o.config.Webhook == "" {
		receiver, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fail(exitLost, fmt.Errorf("no receiver on loopback: %w", err))
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
	if err := post(ctx, o, stdout); err != nil {
		return fail(exitLost, err)
	}
	return exitOK
}

// encode returns the body that Post sends for the event, having sent it nowhere. The error says what
// is wrong with the configuration or the event.
func encode(ctx context.Context, config recorder.Config, event recorder.Event) ([]byte, error) {
	if event.Severity == recorder.SeverityTrace {
		return nil, errors.New("an event of severity trace is never posted")
	}
	var body []byte
	config.Webhook = cmp.Or(config.Webhook, "http://localhost")
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

// post posts the event, or as many as it shall be, and writes what comes of it.
func post(ctx context.Context, o *options, stdout io.Writer) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = proxy
	transport.TLSClientConfig = o.tls
	transport.MaxIdleConnsPerHost = maxUnderWay
	defer transport.CloseIdleConnections()
	var err error
	if o.count > 0 {
		err = postMany(ctx, o, transport, stdout)
	} else {
		err = postOne(ctx, o, transport, stdout)
	}
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		err = fmt.Errorf("%w; -ca names a file with the authority to trust", err)
	}
	return err
}

func postMany(ctx context.Context, o *options, transport http.RoundTripper, stdout io.Writer) error {
	o.config.Transport = transport
	rec, err := recorder.New(o.config)
	if err != nil {
		return err
	}
	b := &burst{rec: rec, out: stdout, progress: terminal(stdout)}
	return b.post(ctx, o.event, o.count, o.every)
}

// postOne writes the timeline of the event.
func postOne(ctx context.Context, o *options, transport http.RoundTripper, stdout io.Writer) error {
	o.config.Timeout = cmp.Or(o.config.Timeout, defaultTimeout)
	line := &timeline{out: stdout, next: transport, start: time.Now(), limit: o.config.Timeout}
	o.config.Transport = line
	o.config.Logger = slog.New(line)
	rec, err := recorder.New(o.config)
	if err != nil {
		return err
	}
	err = rec.Post(ctx, o.event)
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

// tooLate is a receiver that takes the first event but does not get to answer before the client has
// gone, and answers every later one as notification-controller answers what it has already.
func tooLate() http.Handler {
	var taken atomic.Bool
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // A server only sees that the client has gone once it has read the body.
		if taken.CompareAndSwap(false, true) {
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
