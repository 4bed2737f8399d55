// Mutate tells what the recorder's tests do not see. It changes one thing at a time in the product
// code (a condition negated, a statement left out, a bound moved by one, a string emptied), runs the
// tests against each such mutant, and prints those that pass all of them. Run it from the root of the
// repository; on two cores all of it takes up to an hour:
//
//	go run -C interop ./mutate                        # all mutants
//	go run -C interop ./mutate -run Recorder.take     # those whose description matches
//	go run -C interop ./mutate -list                  # only name them
//
// It fails if a mutant survives that equivalent.txt does not list, and if one listed there is killed,
// does not compile or no longer exists. A line of equivalent.txt is a mutant's description, " // " and
// the reason why no test can tell it from the original.
//
// Mutants are compiled from overlays over a copy of the package: nothing in the work tree is ever
// changed. One that does not compile proves nothing and is counted apart; one that makes the tests hang
// or use up the memory is killed. Comments, imports, types and the texts of errors and log messages are
// not mutated.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// root is the recorder's directory as seen from interop, where "go run -C interop" starts this.
const root = ".."

//go:embed equivalent.txt
var equivalentText string

func main() {
	log.SetFlags(0)
	filter := flag.String("run", "", "try only the mutants whose description matches `regexp`")
	jobs := flag.Int("j", runtime.NumCPU(), "try `n` mutants at once")
	list := flag.Bool("list", false, "name the mutants instead of trying them")
	verbose := flag.Bool("v", false, "also name each mutant that does not survive, and what killed it")
	flag.Parse()
	pattern, err := regexp.Compile(*filter)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, pattern, *jobs, *list, *verbose); err != nil {
		log.Fatal(err)
	}
}

// run tries the mutants that match pattern and prints what came of it. The error is nil if all is as
// equivalent.txt has it.
func run(ctx context.Context, pattern *regexp.Regexp, jobs int, list, verbose bool) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	lab, err := newLab(dir, root)
	if err != nil {
		return err
	}
	mutants, err := lab.mutants()
	if err != nil {
		return err
	}
	equivalent, err := parseEquivalent(equivalentText)
	if err != nil {
		return err
	}
	unknown := maps.Clone(equivalent)
	for _, m := range mutants {
		delete(unknown, m.String())
	}
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return !pattern.MatchString(m.String()) })
	if list {
		for _, m := range mutants {
			fmt.Println(m)
		}
		return nil
	}
	if err := lab.tryOriginal(ctx); err != nil {
		return err
	}
	var count [uncompiled + 1]int
	listed, wrong := 0, len(unknown)
	err = lab.tryAll(ctx, mutants, jobs, func(m mutant, r result) {
		count[r.verdict]++
		_, isListed := equivalent[m.String()]
		switch {
		case r.verdict == survived && isListed:
			listed++
		case r.verdict == survived:
			wrong++
			fmt.Printf("survived: %s:%d: %s\n%s", m.file, m.line, m.function, m.diff())
		case isListed:
			wrong++
			fmt.Printf("listed as equivalent, but %s: %s\n", r, m)
		case verbose:
			fmt.Printf("%s: %s\n", r, m)
		}
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		fmt.Println("listed as equivalent, but not among the mutants:", name)
	}
	fmt.Printf("%d mutants: %d killed, %d equivalent (listed), %d survived, %d did not compile\n",
		len(mutants), count[killed], listed, count[survived]-listed, count[uncompiled])
	if wrong > 0 {
		return fmt.Errorf("%d mutants are not what equivalent.txt says", wrong)
	}
	return nil
}

// parseEquivalent returns the reasons in equivalent.txt by the mutants that they are given for. Empty
// lines and those that start with "//" are comments.
func parseEquivalent(text string) (map[string]string, error) {
	reasons := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "//") {
			continue
		}
		name, reason, found := strings.Cut(line, " // ")
		if !found || reasons[name] != "" {
			return nil, fmt.Errorf("equivalent.txt: a line without a reason, or the second for its mutant: %s", line)
		}
		reasons[name] = reason
	}
	return reasons, nil
}
