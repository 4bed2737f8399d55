package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestBadInput has each mistake end with one line of error and without a request.
func TestBadInput(t *testing.T) {
	t.Parallel()
	server := newReceiver(t, 202)
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.json")
	certificate, key := pair(t)
	_, otherKey := pair(t)
	malformed := file(t, asPEM("CERTIFICATE", []byte("x")))
	text := file(t, "SECRET")
	const (
		seeHelp = "; see -h\n"
		noURL   = "Webhook is not an http or https URL with a host and, if any, a port within 1 to 65535\n"
		noFile  = ": no such file or directory\n"
		noTime  = " needs a time above zero, such as \"5s\"" + seeHelp
		pickOne = "a list of events; pick one with \"kubectl get event NAME -o json\"\n"
		formats = "-f takes one event, as JSON in the recorder's own format or as " +
			"\"kubectl get event NAME -o json\" prints it"
	)
	for name, test := range map[string]struct {
		args  []string
		stdin string
		want  string // standard error without the command's name
	}{
		"argument": {
			[]string{"https://h/SECRET"}, "", "there are arguments that belong to no flag" + seeHelp,
		},
		"unknown flag":            {[]string{"-nonesuch"}, "", "flag provided but not defined: -nonesuch" + seeHelp},
		"unknown flag, a webhook": {[]string{"-https://h/SECRET"}, "", "malformed flag" + seeHelp},
		"malformed flag":          {[]string{"--=https://h/SECRET"}, "", "malformed flag" + seeHelp},
		"flag without its value":  {[]string{"-kind"}, "", "flag needs an argument: -kind" + seeHelp},
		"dry-run with a value":    {[]string{"-dry-run=SECRET"}, "", "-dry-run is either there or not" + seeHelp},

		"webhook: empty":             {[]string{"-webhook="}, "", "-webhook is empty" + seeHelp},
		"webhook: no URL":            {[]string{"-webhook=http://u:SECRET@h:x/"}, "", noURL},
		"webhook: no URL, dry run":   {[]string{"-webhook=http://u:SECRET@h:x/", "-dry-run"}, "", noURL},
		"webhook: relative":          {[]string{"-webhook=/SECRET"}, "", noURL},
		"webhook: of another scheme": {[]string{"-webhook=ftp://h/SECRET"}, "", noURL},
		"webhook: without a host":    {[]string{"-webhook=http:///SECRET"}, "", noURL},

		"header: no colon": {
			[]string{"-header", "Authorization SECRET"}, "", `-header needs "Name: value"` + seeHelp,
		},
		"header: no name": {[]string{"-header", ": SECRET"}, "", `-header needs "Name: value"` + seeHelp},
		"header: colon in the value": {
			[]string{"-header", "Authorization SECRET:x"}, "", `-header needs "Name: value"` + seeHelp,
		},
		"header: name not ASCII": {
			[]string{"-header", "sécret: SECRET"}, "", `-header needs "Name: value"` + seeHelp,
		},
		"header: two lines": {
			[]string{"-header", "X: a\r\nY: SECRET"}, "",
			"Header has a malformed name, or a value with a line break or control character\n",
		},
		"header: Host": {[]string{"-header", "Host: SECRET"}, "", "Header may not set Host\n"},

		"ca: empty":   {[]string{"-ca="}, "", "-ca is empty" + seeHelp},
		"ca: missing": {[]string{"-ca", missing}, "", "-ca: open " + missing + noFile},
		"ca: not PEM": {[]string{"-ca", text}, "", "-ca: " + text + ": no certificate as PEM\n"},
		"ca: a key":   {[]string{"-ca", key}, "", "-ca: " + key + ": no certificate as PEM\n"},
		"ca: malformed": {
			[]string{"-ca", malformed}, "",
			"-ca: " + malformed + ": certificate 1: x509: malformed certificate\n",
		},
		"ca: missing, dry run": {
			[]string{"-ca", missing, "-dry-run"}, "", "-ca: open " + missing + noFile,
		},
		"cert: empty":  {[]string{"-cert=", "-key", key}, "", "-cert is empty" + seeHelp},
		"cert: no key": {[]string{"-cert", certificate}, "", "-cert and -key need each other" + seeHelp},
		"cert: missing": {
			[]string{"-cert", missing, "-key", key}, "",
			"-cert, -key: open " + missing + noFile,
		},
		"cert: not PEM": {
			[]string{"-cert", text, "-key", key}, "",
			"-cert, -key: tls: failed to find any PEM data in certificate input\n",
		},
		"cert: of another key": {
			[]string{"-cert", certificate, "-key", otherKey}, "",
			"-cert, -key: tls: private key does not match public key\n",
		},
		"key: empty":   {[]string{"-key=", "-cert", certificate}, "", "-key is empty" + seeHelp},
		"key: no cert": {[]string{"-key", key}, "", "-cert and -key need each other" + seeHelp},
		"key: missing": {
			[]string{"-cert", certificate, "-key", missing}, "",
			"-cert, -key: open " + missing + noFile,
		},
		"key: not PEM": {
			[]string{"-cert", certificate, "-key", text}, "",
			"-cert, -key: tls: failed to find any PEM data in key input\n",
		},

		"attempts: none": {[]string{"-attempts=0"}, "", "-attempts needs a whole number above zero" + seeHelp},
		"attempts: no number": {
			[]string{"-attempts", "-webhook", server.URL + "/SECRET"}, "",
			"-attempts needs a whole number above zero" + seeHelp,
		},
		"timeout: no time": {[]string{"-timeout=5"}, "", "-timeout" + noTime},
		"timeout: none":    {[]string{"-timeout=0s"}, "", "-timeout" + noTime},
		"n: none":          {[]string{"-n=0"}, "", "-n needs a whole number from 1 to 100000" + seeHelp},
		"n: too many":      {[]string{"-n=100001"}, "", "-n needs a whole number from 1 to 100000" + seeHelp},
		"n: no number":     {[]string{"-n=many"}, "", "-n needs a whole number from 1 to 100000" + seeHelp},
		"n: bad event": {
			[]string{"-n=3", "-severity=trace", "-q"}, "", "an event of severity trace is never posted\n",
		},
		"every: none":        {[]string{"-n=2", "-every=0s"}, "", "-every" + noTime},
		"every: without n":   {[]string{"-every=1s"}, "", "-every needs -n" + seeHelp},
		"q with a value":     {[]string{"-q=SECRET"}, "", "-q is either there or not" + seeHelp},
		"min-wait: negative": {[]string{"-min-wait=-1s"}, "", "-min-wait" + noTime},
		"max-wait: none":     {[]string{"-max-wait=0"}, "", "-max-wait" + noTime},
		"waits: wrong order": {
			[]string{"-min-wait=2s", "-max-wait=1s"}, "", "-max-wait is below -min-wait" + seeHelp,
		},
		"two mistakes":        {[]string{"-timeout=x", "-attempts=y", "-nonesuch"}, "", "-timeout" + noTime},
		"metadata: no equals": {[]string{"-metadata=key"}, "", "-metadata needs key=value" + seeHelp},
		"metadata: no key":    {[]string{"-metadata==value"}, "", "-metadata needs key=value" + seeHelp},
		"metadata: key twice": {
			[]string{"-metadata=k=1", "-metadata=k=2"}, "", `-metadata has the key "k" twice` + seeHelp,
		},
		"metadata: not UTF-8": {[]string{"-metadata=k=\xff"}, "", "-metadata is not UTF-8" + seeHelp},
		"message: not UTF-8":  {[]string{"-message=\xff"}, "", "-message is not UTF-8" + seeHelp},
		"severity: unknown": {
			[]string{"-severity=warning"}, "",
			"event with Severity \"warning\", which is none of info, error and trace\n",
		},
		"severity: trace": {[]string{"-severity=trace"}, "", "an event of severity trace is never posted\n"},
		"trace, dry run": {
			[]string{"-severity=trace", "-dry-run"}, "", "an event of severity trace is never posted\n",
		},
		"kind: empty":          {[]string{"-kind="}, "", "event without InvolvedObject.Kind\n"},
		"name: empty, dry run": {[]string{"-name=", "-dry-run"}, "", "event without InvolvedObject.Name\n"},

		"file: missing": {[]string{"-f", missing}, "", "-f: open " + missing + noFile},
		"file: name of two lines": {
			[]string{"-f", dir + "/a\nb"}, "", "-f: open " + dir + "/a b: no such file or directory\n",
		},
		"file: a directory": {[]string{"-f", dir}, "", "-f " + dir + ": read " + dir + ": is a directory\n"},
		"input: empty":      {[]string{"-f=-"}, "", "-f -: empty\n"},
		"input: blank":      {[]string{"-f=-"}, " \n", "-f -: empty\n"},
		"input: null":       {[]string{"-f=-"}, "null", "-f -: no JSON object; " + formats + "\n"},
		"input: no name": {
			[]string{"-f=-"}, `{"involvedObject":{"kind":"App"}}`, "event without InvolvedObject.Name\n",
		},
		"input: a list":        {[]string{"-f=-"}, "[" + fullEvent + "]", "-f -: no JSON object; " + formats + "\n"},
		"input: cut off":       {[]string{"-f=-"}, fullEvent[:99], "-f -: unexpected EOF; " + formats + "\n"},
		"input: unknown field": {[]string{"-f=-"}, `{"mesage":"m"}`, "-f -: json: unknown field \"mesage\"\n"},
		"input: two events":    {[]string{"-f=-"}, fullEvent + fullEvent, "-f -: something follows the event\n"},
		"input: text behind":   {[]string{"-f=-"}, fullEvent + "}", "-f -: something follows the event\n"},
		"input: not UTF-8":     {[]string{"-f=-"}, "{\"message\":\"\xff\"}", "-f -: not UTF-8\n"},
		"input: severity trace": {
			[]string{"-f=-"}, `{"severity":"trace"}`, "an event of severity trace is never posted\n",
		},
		"input: own, no object":   {[]string{"-f=-"}, "{}", "event without InvolvedObject.Kind\n"},
		"input: a list of events": {[]string{"-f", "testdata/list.json"}, "", "-f testdata/list.json: " + pickOne},
		"input: an EventList": {
			[]string{"-f=-"}, `{"kind":"EventList","apiVersion":"v1","items":[]}`, "-f -: " + pickOne,
		},
		"input: another kind": {
			[]string{"-f=-"}, `{"kind":"Pod","apiVersion":"v1"}`,
			"-f -: an object of kind \"Pod\" and apiVersion \"v1\"; " + formats + "\n",
		},
		"input: another version": {
			[]string{"-f=-"}, `{"kind":"Event","apiVersion":"v2"}`,
			"-f -: an object of kind \"Event\" and apiVersion \"v2\"; " + formats + "\n",
		},
		"input: no version": {
			[]string{"-f=-"}, `{"kind":"Event"}`,
			"-f -: an object of kind \"Event\" and apiVersion \"\"; " + formats + "\n",
		},
		"input: no kind": {
			[]string{"-f=-"}, `{"apiVersion":"v1"}`,
			"-f -: an object of kind \"\" and apiVersion \"v1\"; " + formats + "\n",
		},
		"input: kind no text": {
			[]string{"-f=-"}, `{"kind":1}`,
			"-f -: json: cannot unmarshal number into Go struct field .Kind of type string; " + formats + "\n",
		},
		"input: YAML": {
			[]string{"-f=-"}, "apiVersion: v1\nkind: Event\n", "-f -: no JSON object; " + formats + "\n",
		},
		"input: YAML in braces": {
			[]string{"-f=-"}, "{apiVersion: v1, kind: Event}",
			"-f -: invalid character 'a' looking for beginning of object key string; " + formats + "\n",
		},
		"input: a table": {
			[]string{"-f=-"}, "LAST SEEN   TYPE   REASON\n", "-f -: no JSON object; " + formats + "\n",
		},
		"input: Event, no object": {
			[]string{"-f=-"}, `{"kind":"Event","apiVersion":"v1","regarding":null}`,
			"event without InvolvedObject.Kind\n",
		},
		"input: Event, no time": {
			[]string{"-f=-"}, `{"kind":"Event","apiVersion":"v1","eventTime":"now"}`,
			"-f -: parsing time \"now\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"now\" as \"2006\"\n",
		},
		"input: two Events": {
			[]string{"-f=-"}, kubernetes("") + kubernetes(""), "-f -: something follows the event\n",
		},
		"input: UTF-16, odd":    {[]string{"-f=-"}, "\xff\xfe{\x00}", "-f -: malformed UTF-16\n"},
		"input: UTF-16, a half": {[]string{"-f=-"}, "\xfe\xff\xd8\x00", "-f -: malformed UTF-16\n"},
		"input: UTF-16, empty":  {[]string{"-f=-"}, "\xff\xfe", "-f -: empty\n"},
		"input: over 4 MiB": {
			[]string{"-f=-"}, fullEvent + strings.Repeat(" ", 4<<20+1-len(fullEvent)), "-f -: more than 4 MiB\n",
		},
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
