package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// slowTest is what sends a test into the second round, which few mutants live to see.
	slowTest = 100 * time.Millisecond

	// quickRound and slowRound bound the rounds: a mutant that hangs costs the whole of one. With the
	// original the first takes about a second, and the others several.
	quickRound = 20 * time.Second
	slowRound  = 90 * time.Second

	// believable is how often a mutant is tried while the original fails beside it.
	believable = 3

	// memory is how many KiB a round may use. With the original it needs a tenth of that.
	memory = 2 << 20
)

// A lab compiles and tests variants of a package. It works on a copy, so that a run is not disturbed
// by work on the package, nor the other way round.
type lab struct {
	dir  string // for all that is written
	copy string // of the package's directory

	original string // its test binary
	slow     string // the tests that the first round leaves out, as a regular expression
}

type verdict int

const (
	survived verdict = iota
	killed
	uncompiled
)

// A result is what became of a mutant.
type result struct {
	verdict verdict
	killer  string // a test, or the last that is known
}

func (r result) String() string {
	return [...]string{survived: "survived", killed: "killed by " + r.killer, uncompiled: "does not compile"}[r.verdict]
}

// newLab makes a lab for the package in root, which keeps its files in dir. The files of the package
// are copied; its subdirectories, which some of its tests look into, are not.
func newLab(dir, root string) (*lab, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, copy: filepath.Join(dir, "copy")}
	if err := os.Mkdir(l.copy, 0o700); err != nil {
		return nil, err
	}
	for _, entry := range entries {
		from, to := filepath.Join(root, entry.Name()), filepath.Join(l.copy, entry.Name())
		if entry.IsDir() {
			err = os.Symlink(from, to)
		} else {
			err = copyFile(from, to)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// mutants returns all mutants of the package's product code.
func (l *lab) mutants() ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(l.copy, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mutants, err := mutate(filepath.Base(file), source)
		if err != nil {
			return nil, err
		}
		all = append(all, mutants...)
	}
	return all, nil
}

// tryOriginal makes sure that the tests pass without a mutation, and learns which of them are slow.
func (l *lab) tryOriginal(ctx context.Context) error {
	binary, err := l.compile(ctx, "original", nil)
	if err != nil {
		return err
	}
	l.original = binary
	output, err := l.test(ctx, binary, "-test.v", "-test.timeout="+slowRound.String())
	if err != nil {
		return fmt.Errorf("the original fails: %w\n%s", err, output)
	}
	var slow []string
	for _, match := range regexp.MustCompile(`(?m)^ *--- PASS: (\w+)\S* \((.+)s\)$`).FindAllStringSubmatch(output, -1) {
		if seconds, _ := strconv.ParseFloat(match[2], 64); seconds >= slowTest.Seconds() {
			slow = append(slow, match[1])
		}
	}
	slices.Sort(slow)
	slow = slices.Compact(slow)
	l.slow = "^(" + strings.Join(slow, "|") + ")$"
	return nil
}

// tryAll tries the mutants, as many at once as there are jobs, and calls report with each result as
// it comes.
func (l *lab) tryAll(ctx context.Context, mutants []mutant, jobs int, report func(mutant, result)) error {
	queue := make(chan mutant)
	errs := make([]error, jobs)
	var workers sync.WaitGroup
	var reporting sync.Mutex
	for job := range jobs {
		workers.Go(func() {
			for m := range queue {
				if errs[job] != nil {
					continue // nothing is tried any more, but the queue is emptied
				}
				var r result
				if r, errs[job] = l.try(ctx, strconv.Itoa(job), m); errs[job] == nil {
					reporting.Lock()
					report(m, r)
					reporting.Unlock()
				}
			}
		})
	}
	for _, m := range mutants {
		queue <- m
	}
	close(queue)
	workers.Wait()
	return errors.Join(errs...)
}

// try compiles a mutant and runs the tests against it, in three rounds: the quick tests, the slow
// ones, and all of them at full length. No two calls at once may have the same job.
func (l *lab) try(ctx context.Context, job string, m mutant) (result, error) {
	source := filepath.Join(l.dir, "job"+job+".go")
	if err := os.WriteFile(source, m.source, 0o600); err != nil {
		return result{}, err
	}
	binary, err := l.compile(ctx, "job"+job, map[string]string{filepath.Join(l.copy, m.file): source})
	if err != nil {
		return result{verdict: uncompiled}, ctx.Err()
	}
	for _, round := range [][]string{
		{"-test.failfast", "-test.short", "-test.skip=" + l.slow, "-test.timeout=" + quickRound.String()},
		{"-test.failfast", "-test.short", "-test.run=" + l.slow, "-test.timeout=" + slowRound.String()},
		{"-test.failfast", "-test.timeout=" + slowRound.String()},
	} {
		killer, err := l.fails(ctx, binary, round)
		if err != nil || killer != "" {
			return result{killed, killer}, err
		}
	}
	return result{verdict: survived}, nil
}

// fails runs a round of tests against a mutant and returns what killed it, if anything did. A busy
// machine may make a test fail, or hang into the limit of the round. So the killer is believed only
// when the original, tried right after the mutant, passes it.
func (l *lab) fails(ctx context.Context, binary string, round []string) (string, error) {
	for range believable {
		output, err := l.test(ctx, binary, round...)
		if err == nil || ctx.Err() != nil {
			return "", ctx.Err()
		}
		again := slices.Clone(round)
		found, isTest := killer(output)
		if isTest {
			again = append(again, "-test.skip=^$", "-test.run=^"+found+"$")
		}
		if _, err := l.test(ctx, l.original, again...); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("the original fails as often as a mutant does: the machine is too busy for these tests")
}

// compile makes a test binary of the package with other files in the place of some of its own.
func (l *lab) compile(ctx context.Context, name string, replace map[string]string) (binary string, err error) {
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlayFile := filepath.Join(l.dir, name+".json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		return "", err
	}
	binary = filepath.Join(l.dir, name+".test")
	cmd := exec.CommandContext(ctx, "nice", "-n", "10", "go", "test", "-c", "-vet=off", "-gcflags=-l", "-ldflags=-s -w", "-overlay", overlayFile, "-o", binary, ".")
	cmd.Dir = l.copy
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, output)
	}
	return binary, nil
}

// test runs a test binary, with less priority than other work has and no more memory than it needs:
// a mutant may allocate without end.
func (l *lab) test(ctx context.Context, binary string, args ...string) (output string, err error) {
	script := fmt.Sprintf(`ulimit -d %d && exec nice -n 10 "$@"`, memory)
	cmd := exec.CommandContext(ctx, "sh", slices.Concat([]string{"-c", script, "sh", binary}, args)...)
	cmd.Dir = l.copy
	all, err := cmd.CombinedOutput()
	return string(all), err
}

// killer finds what killed a mutant in the output of the tests, and reports whether it is a test.
func killer(output string) (name string, isTest bool) {
	for _, pattern := range []string{`(?m)^--- FAIL: (\w+)`, `(?m)^\t(Test\w+|Fuzz\w+|Example\w*)\S* \(.+\)$`} {
		if match := regexp.MustCompile(pattern).FindStringSubmatch(output); match != nil {
			return match[1], true
		}
	}
	if match := regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*)`).FindStringSubmatch(output); match != nil {
		return match[1], false
	}
	return "the run as a whole", false
}
