// Draw makes the pictures of docs/ from the numbers that stand beside them. Run it from the root of the
// repository:
//
//	go run -C interop ./draw
//
// The numbers of docs/incident.json come from a test, in fake time, and are the same each time:
//
//	go -C interop test -run '^TestMeasureIncident$' ./draw -measure
//
// Those of docs/cost.json are medians of what benchmarks print. This takes some ten minutes:
//
//	{ for i in {1..10}; do taskset -c 0 go -C interop test -run '^$' -bench 'Post|Enqueue|AtADead' -benchmem .; done
//	  go -C interop test -run '^$' -bench Held -benchtime 1x ./draw; } >results.out
//	go run -C interop ./draw -cost <results.out
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	fromResults := flag.Bool("cost", false, "first make cost.json from the benchmark results on standard input")
	flag.Parse()
	// As seen from interop, where "go run -C interop" starts this.
	docs := filepath.Join("..", "docs")
	if *fromResults {
		if err := writeCost(filepath.Join(docs, "cost.json"), os.Stdin); err != nil {
			log.Fatal(err)
		}
	}
	for _, name := range []string{"incident", "cost"} {
		picture, err := draw(docs, name)
		if err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(docs, name+".svg"), picture, 0o666); err != nil {
			log.Fatal(err)
		}
	}
}

// writeCost writes the cost that benchmark results come to, with what they do not say themselves.
func writeCost(file string, results io.Reader) error {
	c, err := readCost(results)
	if err != nil {
		return err
	}
	c.Go, c.Date = runtime.Version(), time.Now().UTC().Format(time.DateOnly)
	for _, module := range []string{"k8s.io/client-go", "github.com/fluxcd/pkg/runtime"} {
		v, err := version(".", module)
		if err != nil {
			return err
		}
		c.Peers = append(c.Peers, strings.TrimPrefix(module, "github.com/")+" "+v)
	}
	return writeJSON(file, c)
}

// draw returns the picture of the numbers in a file of docs.
func draw(docs, name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(docs, name+".json"))
	if err != nil {
		return nil, err
	}
	var picture interface{ draw() []byte } = new(incident)
	if name == "cost" {
		picture = new(cost)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(picture); err != nil {
		return nil, fmt.Errorf("%s.json: %w", name, err)
	}
	return picture.draw(), nil
}

func writeJSON(path string, value any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // for the quotes in commands and the like
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o666)
}

// version is that of a module that interop's go.mod requires.
func version(interop, module string) (string, error) {
	requirements, err := os.ReadFile(filepath.Join(interop, "go.mod"))
	if err != nil {
		return "", err
	}
	match := regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(module) + ` (v\S+)$`).FindSubmatch(requirements)
	if match == nil {
		return "", fmt.Errorf("go.mod requires no %s", module)
	}
	return string(match[1]), nil
}

// A duration is written with three digits, in JSON as in the pictures: 1.5s, 302s, 73.3µs.
type duration time.Duration

func (d duration) seconds() float64 { return time.Duration(d).Seconds() }

func (d duration) MarshalText() ([]byte, error) {
	number, unit := d.split()
	return []byte(number + unit), nil
}

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = duration(parsed)
	return err
}

// String is what a picture shows: the unit is kept on the line of its number.
func (d duration) String() string {
	number, unit := d.split()
	return number + "\u00a0" + unit
}

func (d duration) split() (number, unit string) {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(float64(d), 'g', 3, 64), 64)
	size := time.Second
	for size > time.Nanosecond && 0 < rounded && rounded < float64(size) {
		size /= 1000
	}
	return strconv.FormatFloat(rounded/float64(size), 'f', -1, 64), strings.TrimPrefix(size.String(), "1")
}
