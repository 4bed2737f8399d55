package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
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
	"time"

	"example.com/recorder"
)

// built is the command, as TestMain has built it.
var built string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "postevent")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		built = filepath.Join(dir, "postevent.exe")
		if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", built, ".").CombinedOutput(); err != nil {
			panic(fmt.Sprintf("go build: %v\n%s", err, out))
		}
		return m.Run()
	}())
}

// A result is what a run of the command came to.
type result struct {
	code           int
	stdout, stderr string
}

// command makes a run of the binary whose environment is env alone.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // which only ends what hangs
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

// postevent runs the binary with an empty environment, and with an attempt's timeout that does not
// depend on the machine, unless args have another.
func postevent(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	cmd := command(t, nil, append([]string{"-timeout=1m"}, args...)...)
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

func TestWithoutWebhook(t *testing.T) {
	t.Parallel()
	start := time.Now()
	got := finish(t, command(t, nil))
	if took := time.Since(start); took < demoTimeout+demoWait {
		t.Errorf("postevent took %v, want %v at least", took, demoTimeout+demoWait)
	}
	want := result{0, `receiver: http://HOST (embedded: takes the event, answers too late; then 429 with Retry-After: 300)
  TIME  attempt 1  no answer within 1s
  TIME  wait 500ms
  TIME  attempt 2  429 Too Many Requests, Retry-After: 300
duplicate: the receiver already has it (2 attempts in TIME)
`, ""}
	if got.stdout = still(got.stdout); got != want {
		t.Errorf("postevent = %+v, want %+v", got, want)
	}
}

func TestWithoutWebhookFlagsCount(t *testing.T) {
	t.Parallel()
	got := postevent(t, "", "-attempts=1", "-timeout=20ms")
	want := `receiver: http://HOST (embedded: takes the event, answers too late; then 429 with Retry-After: 300)
  TIME  attempt 1  no answer within 20ms
lost: the receiver has not confirmed it (1 attempt in TIME)
`
	wantError := "postevent: http://HOST: gave up after 1 attempt: no answer within 20ms: "
	if got.code != 1 || still(got.stdout) != want || !strings.HasPrefix(still(got.stderr), wantError) {
		t.Errorf("postevent -attempts=1 -timeout=20ms = %+v, want 1, %q and %q", got, want, wantError)
	}
}

// TestRunInProcess is for the race detector, which does not see into the binary.
func TestRunInProcess(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	args := []string{"-timeout=20ms", "-min-wait=1ms", "-attempts=100"}
	code := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	if code != 0 || !strings.Contains(stdout.String(), "\nduplicate: the receiver already has it (") || stderr.Len() > 0 {
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

func TestUntrusted(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	got := postevent(t, "", "-webhook", server.URL)
	if got.code != 1 || !strings.Contains(got.stdout, "attempt 1  tls: ") || !strings.Contains(got.stderr, "certificate") ||
		!strings.Contains(got.stdout, "(1 attempt in ") {
		t.Errorf("postevent = %+v, want 1 after one attempt, and the certificate as the reason", got)
	}
}

// file writes an event file.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "event.json")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const fullEvent = `{"involvedObject":{"kind":"App","namespace":"prod","name":"web","uid":"u1","apiVersion":"apps/v1","resourceVersion":"7","fieldPath":"spec"},` +
	`"relatedObject":{"kind":"Secret","name":"s"},"severity":"error","timestamp":"2024-01-02T03:04:05Z","message":"a <b> & \"c\"","reason":"Failed",` +
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
			`{"involvedObject":{"kind":"K","name":"n","uid":"u1","apiVersion":"v1","resourceVersion":"7","fieldPath":"spec"},` +
				`"relatedObject":{"kind":"Secret","name":"s"},"severity":"info","timestamp":"2024-01-02T03:04:05Z","message":"","reason":"R",` +
				`"action":"A","metadata":{" y ":"","k":"","x":"1=2"},"reportingController":"ctrl","reportingInstance":"pod-1"}`,
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
			dry := postevent(t, fullEvent+strings.Repeat(" ", 4<<20-len(fullEvent)), append(test.args, "-f=-", "-dry-run")...)
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
			if age := time.Since(at); age < 0 || age > time.Minute {
				t.Errorf("time of the event = %v, which is %v ago, want less than a minute", at, age)
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
	if got := finish(t, command(t, env, "-timeout=1m")); got.code != 0 || !strings.Contains(got.stdout, "delivered: ") {
		t.Errorf("postevent = %+v, want it delivered", got)
	}
	if got := finish(t, command(t, env, "-timeout=1m", "-webhook", other.URL)); got.code != 0 {
		t.Errorf("postevent -webhook = %+v, want 0", got)
	}
	if len(server.got()) != 1 || len(other.got()) != 1 {
		t.Errorf("the receivers of the environment and of the flag got %d and %d requests, want 1 and 1", len(server.got()), len(other.got()))
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
	for host, test := range map[string]struct {
		code    int
		timeout string
	}{
		"proxied.invalid":  {0, "1m"},
		"proxied.invalid.": {0, "1m"},
		"direct.invalid":   {1, "200ms"}, // for a resolver that does not answer
		"direct.invalid.":  {1, "200ms"},
	} {
		got := finish(t, command(t, env, "-webhook=http://"+host, "-attempts=1", "-timeout="+test.timeout))
		if got.code != test.code {
			t.Errorf("postevent -webhook=http://%s = %+v, want %d", host, got, test.code)
		}
	}
	if n := len(server.got()); n != 2 {
		t.Errorf("the proxy got %d requests, want 2", n)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	server := newReceiver(t, 202)
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.json")
	notPEM := file(t, "SECRET")
	const (
		seeHelp = "; see -h\n"
		pickOne = "a list; pick one event with kubectl get event NAME -o json\n"
		neither = "-f -: neither an event in the JSON that is posted nor a Kubernetes Event of v1 or events.k8s.io/v1 " +
			"as kubectl get event NAME -o json prints it: "
	)
	for name, test := range map[string]struct {
		args  []string
		stdin string
		want  string // standard error without the command's name
	}{
		"argument":                {[]string{"https://h/SECRET"}, "", "there are arguments that belong to no flag" + seeHelp},
		"unknown flag":            {[]string{"-nonesuch"}, "", "flag provided but not defined: -nonesuch" + seeHelp},
		"unknown flag, a webhook": {[]string{"-https://h/SECRET"}, "", "malformed flag" + seeHelp},
		"malformed flag":          {[]string{"--=https://h/SECRET"}, "", "malformed flag" + seeHelp},
		"flag without its value":  {[]string{"-kind"}, "", "flag needs an argument: -kind" + seeHelp},
		"dry-run with a value":    {[]string{"-dry-run=SECRET"}, "", "-dry-run is either there or not" + seeHelp},

		"webhook: empty":             {[]string{"-webhook="}, "", "-webhook is empty" + seeHelp},
		"webhook: no URL":            {[]string{"-webhook=http://u:SECRET@h:x/"}, "", "Webhook is not an http or https URL with a host and, if any, a port within 1 to 65535\n"},
		"webhook: no URL, dry run":   {[]string{"-webhook=http://u:SECRET@h:x/", "-dry-run"}, "", "Webhook is not an http or https URL with a host and, if any, a port within 1 to 65535\n"},
		"webhook: relative":          {[]string{"-webhook=/SECRET"}, "", "Webhook is not an http or https URL with a host and, if any, a port within 1 to 65535\n"},
		"webhook: of another scheme": {[]string{"-webhook=ftp://h/SECRET"}, "", "Webhook is not an http or https URL with a host and, if any, a port within 1 to 65535\n"},
		"webhook: without a host":    {[]string{"-webhook=http:///SECRET"}, "", "Webhook is not an http or https URL with a host and, if any, a port within 1 to 65535\n"},

		"header: no colon":           {[]string{"-header", "Authorization SECRET"}, "", `-header needs "Name: value"` + seeHelp},
		"header: no name":            {[]string{"-header", ": SECRET"}, "", `-header needs "Name: value"` + seeHelp},
		"header: colon in the value": {[]string{"-header", "Authorization SECRET:x"}, "", `-header needs "Name: value"` + seeHelp},
		"header: name not ASCII":     {[]string{"-header", "sécret: SECRET"}, "", `-header needs "Name: value"` + seeHelp},
		"header: two lines":          {[]string{"-header", "X: a\r\nY: SECRET"}, "", "Header has a malformed name, or a value with a line break or control character\n"},
		"header: Host":               {[]string{"-header", "Host: SECRET"}, "", "Header may not set Host\n"},

		"attempts: none":       {[]string{"-attempts=0"}, "", "-attempts needs a whole number above zero" + seeHelp},
		"attempts: no number":  {[]string{"-attempts", "-webhook", server.URL + "/SECRET"}, "", "-attempts needs a whole number above zero" + seeHelp},
		"timeout: no time":     {[]string{"-timeout=5"}, "", `-timeout needs a time above zero, such as "5s"` + seeHelp},
		"timeout: none":        {[]string{"-timeout=0s"}, "", `-timeout needs a time above zero, such as "5s"` + seeHelp},
		"min-wait: negative":   {[]string{"-min-wait=-1s"}, "", `-min-wait needs a time above zero, such as "5s"` + seeHelp},
		"max-wait: none":       {[]string{"-max-wait=0"}, "", `-max-wait needs a time above zero, such as "5s"` + seeHelp},
		"waits: wrong order":   {[]string{"-min-wait=2s", "-max-wait=1s"}, "", "-max-wait is below -min-wait" + seeHelp},
		"two mistakes":         {[]string{"-timeout=x", "-attempts=y", "-nonesuch"}, "", `-timeout needs a time above zero, such as "5s"` + seeHelp},
		"metadata: no equals":  {[]string{"-metadata=key"}, "", "-metadata needs key=value" + seeHelp},
		"metadata: no key":     {[]string{"-metadata==value"}, "", "-metadata needs key=value" + seeHelp},
		"metadata: key twice":  {[]string{"-metadata=k=1", "-metadata=k=2"}, "", `-metadata has the key "k" twice` + seeHelp},
		"metadata: not UTF-8":  {[]string{"-metadata=k=\xff"}, "", "-metadata is not UTF-8" + seeHelp},
		"message: not UTF-8":   {[]string{"-message=\xff"}, "", "-message is not UTF-8" + seeHelp},
		"severity: unknown":    {[]string{"-severity=warning"}, "", "event with Severity \"warning\", which is none of info, error and trace\n"},
		"severity: trace":      {[]string{"-severity=trace"}, "", "an event of severity trace is never posted\n"},
		"trace, dry run":       {[]string{"-severity=trace", "-dry-run"}, "", "an event of severity trace is never posted\n"},
		"kind: empty":          {[]string{"-kind="}, "", "event without InvolvedObject.Kind\n"},
		"name: empty, dry run": {[]string{"-name=", "-dry-run"}, "", "event without InvolvedObject.Name\n"},

		"file: missing":           {[]string{"-f", missing}, "", "-f: open " + missing + ": no such file or directory\n"},
		"file: name of two lines": {[]string{"-f", dir + "/a\nb"}, "", "-f: open " + dir + "/a b: no such file or directory\n"},
		"file: a directory":       {[]string{"-f", dir}, "", "-f " + dir + ": read " + dir + ": is a directory\n"},
		"input: empty":            {[]string{"-f=-"}, "", "-f -: empty\n"},
		"input: blank":            {[]string{"-f=-"}, " \n", "-f -: empty\n"},
		"input: null":             {[]string{"-f=-"}, "null", neither + "it is no JSON object\n"},
		"input: no name":          {[]string{"-f=-"}, `{"involvedObject":{"kind":"App"}}`, "event without InvolvedObject.Name\n"},
		"input: a list":           {[]string{"-f=-"}, "[" + fullEvent + "]", neither + "it is no JSON object\n"},
		"input: cut off":          {[]string{"-f=-"}, fullEvent[:99], neither + "unexpected end of JSON input\n"},
		"input: unknown field":    {[]string{"-f=-"}, `{"mesage":"m"}`, neither + "json: unknown field \"mesage\"\n"},
		"input: two events":       {[]string{"-f=-"}, fullEvent + fullEvent, neither + "invalid character '{' after top-level value\n"},
		"input: text behind":      {[]string{"-f=-"}, fullEvent + "}", neither + "invalid character '}' after top-level value\n"},
		"input: YAML":             {[]string{"-f=-"}, "kind: Event\n", neither + "it is no JSON object\n"},
		"input: a Pod":            {[]string{"-f=-"}, `{"apiVersion":"v1","kind":"Pod"}`, neither + "json: unknown field \"apiVersion\"\n"},
		"input: another Event":    {[]string{"-f=-"}, `{"kind":"Event","apiVersion":"example.com/v1"}`, neither + "json: unknown field \"kind\"\n"},
		"input: List":             {[]string{"-f=-"}, `{"apiVersion":"v1","kind":"List","items":[]}`, "-f -: " + pickOne},
		"input: EventList":        {[]string{"-f=-"}, `{"apiVersion":"events.k8s.io/v1","kind":"EventList"}`, "-f -: " + pickOne},
		"input: Event, malformed": {[]string{"-f=-"}, `{"apiVersion":"v1","kind":"Event","message":1}`, "-f -: a Kubernetes Event that is malformed: json: cannot unmarshal number into Go struct field kubernetesEvent.Message of type string\n"},
		"input: Event, no object": {[]string{"-f=-"}, `{"apiVersion":"v1","kind":"Event"}`, "event without InvolvedObject.Kind\n"},
		"input: UTF-16, cut off":  {[]string{"-f=-"}, "\xff\xfe{\x00\"", neither + "unexpected end of JSON input\n"},

		"ca: missing":         {[]string{"-ca", missing}, "", "-ca open " + missing + ": no such file or directory" + seeHelp},
		"ca: no certificate":  {[]string{"-ca", notPEM}, "", "-ca " + notPEM + " has no certificate in PEM" + seeHelp},
		"cert: without a key": {[]string{"-cert", notPEM}, "", "-cert and -key need each other" + seeHelp},
		"key: without a cert": {[]string{"-key", notPEM}, "", "-cert and -key need each other" + seeHelp},
		"cert: not PEM":       {[]string{"-cert", notPEM, "-key", notPEM}, "", "-cert and -key: tls: failed to find any PEM data in certificate input\n"},
		"n: none":             {[]string{"-n=0"}, "", "-n needs a whole number above zero" + seeHelp},
		"n: dry run":          {[]string{"-n=2", "-dry-run"}, "", "-dry-run prints one event; leave out -n" + seeHelp},
		"every: none":         {[]string{"-n=2", "-every=0s"}, "", `-every needs a time above zero, such as "5s"` + seeHelp},
		"q: with a value":     {[]string{"-q=SECRET"}, "", "-q is either there or not" + seeHelp},

		"input: not UTF-8":      {[]string{"-f=-"}, "{\"message\":\"\xff\"}", "-f -: not UTF-8\n"},
		"input: severity trace": {[]string{"-f=-"}, `{"severity":"trace"}`, "an event of severity trace is never posted\n"},
		"input: over 4 MiB":     {[]string{"-f=-"}, fullEvent + strings.Repeat(" ", 4<<20+1-len(fullEvent)), "-f -: more than 4 MiB\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"-webhook", server.URL}, test.args...)
			got := postevent(t, test.stdin, args...)
			if want := (result{2, "", "postevent: " + test.want}); got != want {
				t.Errorf("postevent(%q) = %+v, want %+v", args, got, want)
			}
		})
	}
	t.Cleanup(func() {
		if n := len(server.got()); n != 0 {
			t.Errorf("bad input made %d requests, want none", n)
		}
	})
}

// TestEventBeyondJSON has a time whose year has five digits in UTC.
func TestEventBeyondJSON(t *testing.T) {
	t.Parallel()
	got := postevent(t, `{"involvedObject":{"kind":"k","name":"n"},"timestamp":"9999-12-31T23:59:59-01:00"}`, "-f=-")
	if got.code != 2 || got.stdout != "" || !strings.HasPrefix(got.stderr, "postevent: encode event: ") || strings.Count(got.stderr, "\n") != 1 {
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
			got := postevent(t, "", "-webhook", "http://user:s3cretpass@"+test.host+"/s3cret%20path/T0KEN?s3cretquery=T0KEN",
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
			requested := make(chan bool, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				switch test.code {
				case 0:
					requested <- true
					<-r.Context().Done()
				case -1:
					panic(http.ErrAbortHandler)
				default:
					w.WriteHeader(test.code)
				}
			}))
			defer server.Close()
			cmd := command(t, nil, "-webhook", server.URL, "-timeout=1h", "-min-wait=1h")
			var stderr strings.Builder
			cmd.Stderr = &stderr
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			lines := bufio.NewScanner(stdout)
			if test.code == 0 {
				<-requested
				cmd.Process.Signal(os.Interrupt)
			}
			for lines.Scan() {
				fmt.Fprintln(&got, lines.Text())
				if strings.Contains(lines.Text(), "wait 1h") {
					cmd.Process.Signal(os.Interrupt)
				}
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("interrupted postevent = %v, want exit code 1", err)
			}
			if got, want := still(got.String()), "receiver: http://HOST"+test.want; got != want {
				t.Errorf("stdout of interrupted postevent = %q, want %q", got, want)
			}
			if got := stderr.String(); !strings.Contains(got, "context canceled") || strings.Count(got, "\n") != 1 {
				t.Errorf("stderr of interrupted postevent = %q, want one line that says so", got)
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
		resp := &http.Response{StatusCode: test.code, Status: "799 T0KEN", Header: http.Header{"Retry-After": {test.after}}}
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
			"action", "api-version", "attempts", "ca", "cert", "dry-run", "every", "f", "header", "key", "kind", "max-wait",
			"message", "metadata", "min-wait", "n", "name", "namespace", "q", "reason", "severity", "timeout", "webhook",
		} {
			if !strings.Contains(got.stdout, "\n  -"+name+" ") && !strings.Contains(got.stdout, "\n  -"+name+"\t") &&
				!strings.Contains(got.stdout, "\n  -"+name+"\n") {
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
