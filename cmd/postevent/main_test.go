package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"example.com/recorder"
)

// built is the command, as TestMain has built it.
var built string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "postevent")
	if err != nil {
		panic(err)
	}
	built = filepath.Join(dir, "postevent.exe")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", built, ".").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("go build: %v\n%s", err, out))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// hang bounds what only ends if it does not hang, on however busy a machine.
const hang = 2 * time.Minute

// A result is what a run of the command came to.
type result struct {
	code           int
	stdout, stderr string
}

// command makes a run of the binary whose environment is env alone.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, built, args...)
	cmd.Env = append([]string{"SYSTEMROOT=" + os.Getenv("SYSTEMROOT")}, env...)
	return cmd
}

// finish runs the command to its end.
func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// postevent runs the binary with an empty environment, and with all the time that an answer may take
// unless args say otherwise.
func postevent(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	cmd := command(t, nil, append([]string{"-timeout=" + hang.String()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return finish(t, cmd)
}

// A receiver answers with the given status codes, the last one over and over, and keeps what it got.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	bodies  []string
	headers []http.Header
}

func newReceiver(t *testing.T, codes ...int) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("body of request: %v", err)
		}
		r.mu.Lock()
		code := codes[min(len(r.bodies), len(codes)-1)]
		r.bodies = append(r.bodies, string(body))
		r.headers = append(r.headers, req.Header)
		r.mu.Unlock()
		if code >= 400 {
			w.Header().Set("Retry-After", "300")
			http.Error(w, "because of "+req.RequestURI+" "+req.Header.Get("X-Token"), code)
			return
		}
		w.Header().Set("Location", "/elsewhere/"+req.RequestURI)
		w.WriteHeader(code)
	}))
	t.Cleanup(r.Close)
	return r
}

// got returns the bodies that have come so far.
func (r *receiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.bodies)
}

var (
	times = regexp.MustCompile(`\d+\.\d{3}s`)
	ports = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

// still replaces in a text what differs from run to run.
func still(text string) string {
	return ports.ReplaceAllString(times.ReplaceAllString(text, "TIME"), "HOST")
}

// onLoopback is the first line without a webhook.
const onLoopback = "receiver: http://HOST (embedded: takes the event, answers too late; then 429 with Retry-After: 300)"

// TestWithoutWebhook leaves open how many attempts are made: on a busy machine the receiver may be too
// late with its second answer, too.
func TestWithoutWebhook(t *testing.T) {
	t.Parallel()
	start := time.Now()
	got := finish(t, command(t, nil, "-attempts=99"))
	if took := time.Since(start); took < demoTimeout+demoWait {
		t.Errorf("postevent took %v, want at least %v", took, demoTimeout+demoWait)
	}
	want := regexp.MustCompile("^" + regexp.QuoteMeta(onLoopback) + `
  TIME  attempt 1  no answer within 1s
  TIME  wait 500ms
(  TIME  attempt \d+  no answer within 1s
  TIME  wait \d+s
)*  TIME  attempt \d+  429 Too Many Requests, Retry-After: 300
duplicate: the receiver already has it \(\d+ attempts in TIME\)
$`)
	if got.code != 0 || !want.MatchString(still(got.stdout)) || got.stderr != "" {
		t.Errorf("postevent -attempts=99 = %+v, want 0, %v and no error", got, want)
	}
}

// TestTimeline has the receiver on loopback in fake time.
func TestTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := tooLate()
		config := recorder.Config{
			Webhook: "http://receiver.test/",
			Backoff: recorder.Backoff{Min: demoWait},
			Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
				answer := httptest.NewRecorder()
				handler.ServeHTTP(answer, req)
				return answer.Result(), req.Context().Err()
			}),
		}
		for message, test := range map[string]struct {
			timeout time.Duration
			want    string
		}{
			"a timeout": {demoTimeout, `  0.000s  attempt 1  no answer within 1s
  1.000s  wait 500ms
  1.500s  attempt 2  429 Too Many Requests, Retry-After: 300
duplicate: the receiver already has it (2 attempts in 1.500s)
`},
			"the default timeout": {0, `  0.000s  attempt 1  no answer within 5s
  5.000s  wait 500ms
  5.500s  attempt 2  429 Too Many Requests, Retry-After: 300
duplicate: the receiver already has it (2 attempts in 5.500s)
`},
		} {
			config.Timeout = test.timeout
			object := recorder.ObjectReference{Kind: "App", Name: "web"}
			var stdout strings.Builder
			err := post(t.Context(), config, recorder.Event{InvolvedObject: object, Message: message}, &stdout)
			if err != nil || stdout.String() != test.want {
				t.Errorf("post(%s) = %v, %q, want no error and %q", message, err, &stdout, test.want)
			}
		}
	})
}

func TestWithoutWebhookFlagsCount(t *testing.T) {
	t.Parallel()
	got := finish(t, command(t, nil, "-attempts=1", "-timeout=20ms"))
	want := result{1, onLoopback + `
  TIME  attempt 1  no answer within 20ms
lost: the receiver has not confirmed it (1 attempt in TIME)
`, "postevent: http://HOST: gave up after 1 attempt: no answer within 20ms: context deadline exceeded\n"}
	if got.stdout, got.stderr = still(got.stdout), still(got.stderr); got != want {
		t.Errorf("postevent -attempts=1 -timeout=20ms = %+v, want %+v", got, want)
	}
}

// TestRunInProcess is for the race detector, which does not see into the binary. It has attempts to
// spare, should an answer take longer than it may.
func TestRunInProcess(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	args := []string{"-timeout=100ms", "-min-wait=1ms", "-max-wait=100ms", "-attempts=600"}
	code := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	known := strings.Contains(stdout.String(), "\nduplicate: the receiver already has it (")
	if code != 0 || !known || stderr.Len() > 0 {
		t.Errorf("run(%q) = %d, %q, %q, want 0, a duplicate and no error", args, code, &stdout, &stderr)
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		codes    []int
		requests int
		want     result // the standard output without its first line
	}{
		"taken": {[]int{202}, 1, result{0, `
  TIME  attempt 1  202 Accepted
delivered: the receiver has taken it (1 attempt in TIME)
`, ""}},
		"known": {[]int{429}, 1, result{0, `
  TIME  attempt 1  429 Too Many Requests, Retry-After: 300
duplicate: the receiver already has it (1 attempt in TIME)
`, ""}},
		"known, as RFC 5842 says it": {[]int{208}, 1, result{0, `
  TIME  attempt 1  208 Already Reported
duplicate: the receiver already has it (1 attempt in TIME)
`, ""}},
		"unavailable, then known": {[]int{503, 429}, 2, result{0, `
  TIME  attempt 1  503 Service Unavailable, Retry-After: 300
  TIME  wait 1ms
  TIME  attempt 2  429 Too Many Requests, Retry-After: 300
duplicate: the receiver already has it (2 attempts in TIME)
`, ""}},
		"unavailable": {[]int{503}, 3, result{1, `
  TIME  attempt 1  503 Service Unavailable, Retry-After: 300
  TIME  wait 1ms
  TIME  attempt 2  503 Service Unavailable, Retry-After: 300
  TIME  wait 2ms
  TIME  attempt 3  503 Service Unavailable, Retry-After: 300
lost: the receiver has not confirmed it (3 attempts in TIME)
`, "postevent: http://HOST: gave up after 3 attempts: status 503 Service Unavailable: because of /[redacted]\n"}},
		"not found": {[]int{404}, 1, result{1, `
  TIME  attempt 1  404 Not Found, Retry-After: 300
lost: the receiver has not confirmed it (1 attempt in TIME)
`, "postevent: http://HOST: status 404 Not Found: because of /[redacted]\n"}},
		"redirected": {[]int{302}, 1, result{1, `
  TIME  attempt 1  302 Found
lost: the receiver has not confirmed it (1 attempt in TIME)
`, "postevent: http://HOST: status 302 Found\n"}},
		"a code without a name": {[]int{799}, 3, result{1, `
  TIME  attempt 1  799, Retry-After: 300
  TIME  wait 1ms
  TIME  attempt 2  799, Retry-After: 300
  TIME  wait 2ms
  TIME  attempt 3  799, Retry-After: 300
lost: the receiver has not confirmed it (3 attempts in TIME)
`, "postevent: http://HOST: gave up after 3 attempts: status 799: because of /[redacted]\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newReceiver(t, test.codes...)
			got := postevent(t, "", "-webhook", server.URL+"/hook", "-attempts=3", "-min-wait=1ms")
			test.want.stdout = "receiver: http://HOST" + test.want.stdout
			if got.stdout, got.stderr = still(got.stdout), still(got.stderr); got != test.want {
				t.Errorf("postevent = %+v, want %+v", got, test.want)
			}
			if n := len(server.got()); n != test.requests {
				t.Errorf("postevent made %d requests, want %d", n, test.requests)
			}
		})
	}
}

// TestQuiet has the same outcomes with -q, for one event and for several.
func TestQuiet(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		args   []string
		want   result
	}{
		"taken":          {202, nil, result{0, "", ""}},
		"known":          {429, nil, result{0, "", ""}},
		"lost":           {404, nil, result{1, "", "postevent: http://HOST: status 404 Not Found: because of /\n"}},
		"several, taken": {202, []string{"-n=3", "-every=1ms"}, result{0, "", ""}},
		"several, lost": {404, []string{"-n=3", "-every=1ms"}, result{1, "",
			"postevent: lost 3 of 3, the first one: http://HOST: status 404 Not Found: because of /\n"}},
		"dry run": {202, []string{"-dry-run"}, result{0, "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newReceiver(t, test.status)
			got := postevent(t, "", append(test.args, "-q", "-webhook", server.URL)...)
			if got.stderr = still(got.stderr); got != test.want {
				t.Errorf("postevent -q %q = %+v, want %+v", test.args, got, test.want)
			}
		})
	}
}

// closedPort returns the address of a port that nobody listens on.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestClosedPort(t *testing.T) {
	t.Parallel()
	got := postevent(t, "", "-webhook", "http://"+closedPort(t), "-attempts=2", "-max-wait=1ms")
	want := result{1, `receiver: http://HOST
  TIME  attempt 1  dial tcp HOST: connect: connection refused
  TIME  wait 1ms
  TIME  attempt 2  dial tcp HOST: connect: connection refused
lost: the receiver has not confirmed it (2 attempts in TIME)
`, "postevent: http://HOST: gave up after 2 attempts: dial tcp HOST: connect: connection refused\n"}
	if got.stdout, got.stderr = still(got.stdout), still(got.stderr); got != want {
		t.Errorf("postevent = %+v, want %+v", got, want)
	}
}

// file writes a file.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const fullEvent = `{"involvedObject":{"kind":"App","namespace":"prod","name":"web","uid":"u1",` +
	`"apiVersion":"apps/v1","resourceVersion":"7","fieldPath":"spec"},"relatedObject":{"kind":"Secret","name":"s"},` +
	`"severity":"error","timestamp":"2024-01-02T03:04:05Z","message":"a <b> & \"c\"","reason":"Failed",` +
	`"action":"Applying","metadata":{"k":"v"},"reportingController":"ctrl","reportingInstance":"pod-1"}`

func TestBody(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"file": {nil, strings.NewReplacer("<", `\u003c`, ">", `\u003e`, "&", `\u0026`).Replace(fullEvent)},
		"flags override the file": {
			[]string{
				"-kind=K", "-namespace=", "-name=n", "-api-version=v1", "-severity=info", "-reason=R", "-action=A",
				"-message=", "-metadata=x=1=2", "-metadata=k=", "-metadata= y =",
			},
			`{"involvedObject":{"kind":"K","name":"n","uid":"u1","apiVersion":"v1","resourceVersion":"7",` +
				`"fieldPath":"spec"},"relatedObject":{"kind":"Secret","name":"s"},"severity":"info",` +
				`"timestamp":"2024-01-02T03:04:05Z","message":"","reason":"R","action":"A",` +
				`"metadata":{" y ":"","k":"","x":"1=2"},"reportingController":"ctrl","reportingInstance":"pod-1"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newReceiver(t, 202)
			// Before the flags as well as after them, which makes no difference.
			for _, args := range [][]string{
				append([]string{"-f", file(t, fullEvent), "-webhook", server.URL}, test.args...),
				append(slices.Clone(test.args), "-webhook", server.URL, "-f", "-"),
			} {
				if got := postevent(t, fullEvent+"\n", args...); got.code != 0 || got.stderr != "" {
					t.Errorf("postevent(%q) = %+v, want 0 and no error", args, got)
				}
			}
			longest := fullEvent + strings.Repeat(" ", 4<<20-len(fullEvent))
			dry := postevent(t, longest, append(test.args, "-f=-", "-dry-run")...)
			if want := (result{0, test.want + "\n", ""}); dry != want {
				t.Errorf("postevent -dry-run = %+v, want %+v", dry, want)
			}
			if got := server.got(); !slices.Equal(got, []string{test.want, test.want}) {
				t.Errorf("bodies = %q, want twice %q", got, test.want)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	server := newReceiver(t, 202)
	start := time.Now().Truncate(time.Second)
	if got := postevent(t, "", "-webhook", server.URL); got.code != 0 {
		t.Fatalf("postevent = %+v, want 0", got)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{server.got()[0], postevent(t, "", "-dry-run").stdout} {
		var got recorder.Event
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		text, at, _ := strings.Cut(got.Message, " at ")
		said, err := time.Parse(time.RFC3339, at)
		if err != nil || text != "test event, posted by postevent" {
			t.Errorf("message = %q, want one that ends with the time", got.Message)
		}
		for _, at := range []time.Time{said, got.Timestamp} {
			if now := time.Now(); at.Before(start) || at.After(now) {
				t.Errorf("time of the event = %v, want one from %v to %v", at, start, now)
			}
		}
		want := recorder.Event{
			InvolvedObject:      recorder.ObjectReference{Kind: "Test", Namespace: "default", Name: "postevent"},
			Severity:            "info",
			Timestamp:           got.Timestamp,
			Message:             got.Message,
			Reason:              "Test",
			ReportingController: "postevent",
			ReportingInstance:   host,
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("event = %+v, want %+v", got, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	server := newReceiver(t, 202)
	got := postevent(t, "", "-webhook", strings.Replace(server.URL, "//", "//user:pass@", 1),
		"-header", "X-Token: a:b \n", "-header", "x-token:c", "-header", "Content-Type: text/plain")
	if got.code != 0 {
		t.Fatalf("postevent = %+v, want 0", got)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	header := server.headers[0]
	for name, want := range map[string][]string{
		"X-Token": {"a:b", "c"}, "Content-Type": {"text/plain"}, "Authorization": {"Basic dXNlcjpwYXNz"},
	} {
		if got := header.Values(name); !slices.Equal(got, want) {
			t.Errorf("header %s = %q, want %q", name, got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	server, other := newReceiver(t, 202), newReceiver(t, 202)
	env := []string{"POSTEVENT_WEBHOOK=" + server.URL}
	patient := "-timeout=" + hang.String()
	if got := finish(t, command(t, env, patient)); got.code != 0 || !strings.Contains(got.stdout, "delivered: ") {
		t.Errorf("postevent = %+v, want it delivered", got)
	}
	if got := finish(t, command(t, env, patient, "-webhook", other.URL)); got.code != 0 {
		t.Errorf("postevent -webhook = %+v, want 0", got)
	}
	if n, m := len(server.got()), len(other.got()); n != 1 || m != 1 {
		t.Errorf("the receivers of the environment and of the flag got %d and %d requests, want 1 and 1", n, m)
	}
	got := finish(t, command(t, []string{"POSTEVENT_WEBHOOK="}))
	if want := (result{2, "", "postevent: POSTEVENT_WEBHOOK is empty\n"}); got != want {
		t.Errorf("postevent with an empty POSTEVENT_WEBHOOK = %+v, want %+v", got, want)
	}
}

// TestProxy shows that the proxy of the environment is used, but not for a host that NO_PROXY names,
// also where a dot ends it. None of the hosts exists, so only the proxy can answer.
func TestProxy(t *testing.T) {
	t.Parallel()
	server := newReceiver(t, 202)
	env := []string{"HTTP_PROXY=" + server.URL, "NO_PROXY=direct.invalid"}
	for _, test := range []struct {
		host    string
		timeout time.Duration // short where there is no answer: a resolver may take its time to say so
		want    int
	}{
		{"proxied.invalid", hang, 0},
		{"proxied.invalid.", hang, 0},
		{"direct.invalid", 200 * time.Millisecond, 1},
		{"direct.invalid.", 200 * time.Millisecond, 1},
	} {
		args := []string{"-webhook=http://" + test.host, "-attempts=1", "-timeout=" + test.timeout.String()}
		got := finish(t, command(t, env, args...))
		if got.code != test.want {
			t.Errorf("postevent(%q) = %+v, want %d", args, got, test.want)
		}
	}
	if n := len(server.got()); n != 2 {
		t.Errorf("the proxy got %d requests, want 2", n)
	}
}

// TestEventBeyondJSON has a time whose year has five digits in UTC.
func TestEventBeyondJSON(t *testing.T) {
	t.Parallel()
	got := postevent(t, `{"involvedObject":{"kind":"k","name":"n"},"timestamp":"9999-12-31T23:59:59-01:00"}`, "-f=-")
	encoding := strings.HasPrefix(got.stderr, "postevent: encode event: ")
	if got.code != 2 || got.stdout != "" || !encoding || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("postevent = %+v, want 2 and one line of error", got)
	}
}

// TestSecrets has receivers repeat what they are sent, and looks for it in all that is printed.
func TestSecrets(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`(?i)s3cret|T0KEN|dXNlcj`)
	malformed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Errorf("hijack: %v", err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 %s\r\n\r\n", r.RequestURI) // net/http quotes it in its error
	}))
	t.Cleanup(malformed.Close)
	for name, test := range map[string]struct {
		host string
		code int
	}{
		"202":         {newReceiver(t, 202).Listener.Addr().String(), 0},
		"429":         {newReceiver(t, 429).Listener.Addr().String(), 0},
		"302":         {newReceiver(t, 302).Listener.Addr().String(), 1},
		"404":         {newReceiver(t, 404).Listener.Addr().String(), 1},
		"503":         {newReceiver(t, 503).Listener.Addr().String(), 1},
		"closed port": {closedPort(t), 1},
		"malformed":   {malformed.Listener.Addr().String(), 1},
		"no host":     {"", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			webhook := "http://user:s3cretpass@" + test.host + "/s3cret%20path/T0KEN?s3cretquery=T0KEN"
			got := postevent(t, "", "-webhook", webhook,
				"-header", "X-Token: Bearer s3cretheader", "-attempts=2", "-min-wait=1ms")
			if got.code != test.code {
				t.Errorf("postevent = %+v, want %d", got, test.code)
			}
			if found := secret.FindString(got.stdout + got.stderr); found != "" {
				t.Errorf("postevent = %+v, want no %q in it", got, found)
			}
		})
	}
}

// interrupted runs the binary and interrupts it as soon as it waits: for an answer if code is 0, else
// after its first attempt, whose answer has that code; -1 closes the connection instead.
func interrupted(t *testing.T, code int, args ...string) result {
	t.Helper()
	requested := make(chan bool, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		switch code {
		case 0:
			close(requested)
			<-r.Context().Done()
		case -1:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(code)
		}
	}))
	defer server.Close()
	cmd := command(t, nil, append([]string{"-webhook", server.URL, "-timeout=1h"}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if code == 0 {
		select {
		case <-requested:
		case <-time.After(hang):
			t.Error("no request came")
		}
		cmd.Process.Signal(os.Interrupt)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&stdout, lines.Text())
		if strings.Contains(lines.Text(), "wait 1h") {
			cmd.Process.Signal(os.Interrupt)
		}
	}
	cmd.Wait()
	return result{cmd.ProcessState.ExitCode(), still(stdout.String()), still(stderr.String())}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		code int    // of the answer; 0: none yet, -1: the connection is closed
		want string // standard output without its first line
	}{
		"awaiting an answer": {0, `
  TIME  attempt 1  interrupted
lost: the receiver has not confirmed it (1 attempt in TIME)
`},
		"between two attempts": {503, `
  TIME  attempt 1  503 Service Unavailable
  TIME  wait 1h0m0s
lost: the receiver has not confirmed it (1 attempt in TIME)
`},
		"between two attempts, the first unanswered": {-1, `
  TIME  attempt 1  EOF
  TIME  wait 1h0m0s
lost: the receiver has not confirmed it (1 attempt in TIME)
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := interrupted(t, test.code, "-min-wait=1h")
			if want := "receiver: http://HOST" + test.want; got.code != 1 || got.stdout != want {
				t.Errorf("interrupted postevent = %+v, want 1 and %q", got, want)
			}
			if !strings.Contains(got.stderr, "context canceled") || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("stderr of interrupted postevent = %q, want one line that says so", got.stderr)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	for _, test := range []struct {
		code  int
		after string
		want  string
	}{
		{202, "", "202 Accepted"},
		{429, "300", "429 Too Many Requests, Retry-After: 300"},
		{429, "Tue, 02 Jan 2024 03:04:05 GMT", "429 Too Many Requests, Retry-After: Tue, 02 Jan 2024 03:04:05 GMT"},
		{429, "ask /services/T0KEN", "429 Too Many Requests"},
		{799, "", "799"},
	} {
		header := http.Header{"Retry-After": {test.after}}
		resp := &http.Response{StatusCode: test.code, Status: "799 T0KEN", Header: header}
		if got := status(resp); got != test.want {
			t.Errorf("status(%d, Retry-After %q) = %q, want %q", test.code, test.after, got, test.want)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"-h", "--help"} {
		got := postevent(t, "", "-attempts=1", arg)
		if got.code != 0 || got.stderr != "" || !strings.HasPrefix(got.stdout, "usage: postevent [flags]\n") {
			t.Errorf("postevent %s = %+v, want 0 and the usage", arg, got)
		}
		for _, name := range []string{
			"action", "api-version", "attempts", "ca", "cert", "dry-run", "every", "f", "header", "key", "kind",
			"max-wait", "message", "metadata",
			"min-wait", "n", "name", "namespace", "q", "reason", "severity", "timeout", "webhook",
		} {
			if _, rest, ok := strings.Cut(got.stdout, "\n  -"+name); !ok || !strings.ContainsAny(rest[:1], " \t\n") {
				t.Errorf("postevent %s = %q, want -%s in it", arg, got.stdout, name)
			}
		}
	}
}

// brokenPipe is an output that takes nothing.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestDryRunNotPrinted(t *testing.T) {
	t.Parallel()
	var stderr strings.Builder
	code := run(t.Context(), []string{"-dry-run"}, strings.NewReader(""), brokenPipe{}, &stderr)
	if want := "postevent: io: read/write on closed pipe\n"; code != 1 || stderr.String() != want {
		t.Errorf("run(-dry-run) = %d, %q, want 1, %q", code, &stderr, want)
	}
}
