package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A cost is what an event costs its caller, beside the peers: medians of some rounds of benchmarks.
type cost struct {
	Command  []string
	Date     string
	Go       string
	CPU      string
	Platform string
	Peers    []string // and their versions
	Rounds   int
	Queued   []spent // the caller hands the event over and goes on
	Posted   []spent // the caller waits for the answer
	Held     []held
}

// A spent is the time and the allocations of one event.
type spent struct {
	Name   string
	Ours   bool
	Time   duration
	Allocs int
}

// A held is how long a dead receiver holds the caller.
type held struct {
	Name  string
	Note  string
	Ours  bool
	Waits []wait
}

type wait struct {
	Fault string
	Time  duration
}

// costCommand prints the results that readCost reads.
var costCommand = []string{
	"for i in {1..10}; do taskset -c 0 go -C interop test -run '^$' -bench 'Post|Enqueue|AtADead' -benchmem .; done",
	"go -C interop test -run '^$' -bench Held -benchtime 1x ./draw",
}

// readCost makes a cost of what benchmarks print. It fails if anything is missing, and if some were
// run more often than others.
func readCost(r io.Reader) (*cost, error) {
	in, err := readResults(r)
	if err != nil {
		return nil, err
	}
	c := &cost{Command: costCommand, CPU: in.about["cpu"], Platform: in.about["goos"] + "/" + in.about["goarch"]}
	c.Queued = []spent{
		in.spent("Record", true, "Enqueue/by=recorder-Record"),
		in.spent("AnnotatedEventf, this recorder's", true, "Enqueue/by=recorder-AnnotatedEventf"),
		in.spent("the same, client-go tools/record", false, "Enqueue/by=client-go-record"),
		in.spent("the same, client-go tools/events", false, "Enqueue/by=client-go-events"),
	}
	c.Posted = []spent{
		in.spent("Post", true, "Post/by=recorder"),
		in.spent("json.Marshal, http.Client.Post", false, "Post/by=http.Client"),
		in.spent("AnnotatedEventf, Flux's recorder", false, "Post/by=flux"),
	}
	c.Rounds = len(in.values["Post/by=recorder ns/op"])
	for key, values := range in.values {
		if !strings.HasPrefix(key, "Held/") && len(values) != c.Rounds {
			in.errs = append(in.errs, fmt.Errorf("%s: %d results, want %d", key, len(values), c.Rounds))
		}
	}
	c.Held = []held{
		{"Record", "99.9th percentile of the calls", true, []wait{
			{"no answer", in.median("RecordAtADeadReceiver/queue=open/by=recorder", "p99.9-ns")}}},
		{"http.Client.Post", "timeout 5s, a single attempt", false, in.waits("http.Client", "no answer")},
		{"Post", "waits for the outcome; less with jitter", true, in.waits("recorder-Post", "refused", "no answer")},
		{"Flux's recorder", "each event waits for the outcome", false, in.waits("flux", "refused", "no answer")},
	}
	return c, errors.Join(in.errs...)
}

// results are what benchmarks printed: values by name and unit, and what they said of the machine.
type results struct {
	about  map[string]string
	values map[string][]float64
	errs   []error
}

var resultLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s(.*)`)

func readResults(r io.Reader) (*results, error) {
	in := &results{about: map[string]string{}, values: map[string][]float64{}}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ": "); ok {
			in.about[key] = strings.TrimSpace(value)
		}
		match := resultLine.FindStringSubmatch(lines.Text())
		if match == nil {
			continue
		}
		fields := strings.Fields(match[2]) // pairs of a value and its unit
		for i := 0; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", match[1], err)
			}
			key := match[1] + " " + fields[i+1]
			in.values[key] = append(in.values[key], value)
		}
	}
	return in, lines.Err()
}

func (in *results) spent(name string, ours bool, benchmark string) spent {
	return spent{name, ours, in.median(benchmark, "ns/op"), int(in.median(benchmark, "allocs/op"))}
}

func (in *results) waits(by string, faults ...string) []wait {
	var waits []wait
	for _, fault := range faults {
		benchmark := "Held/by=" + by + "/fault=" + strings.ReplaceAll(fault, " ", "-")
		waits = append(waits, wait{fault, in.median(benchmark, "ns/op")})
	}
	return waits
}

// median notes it as an error if there are no values.
func (in *results) median(benchmark, unit string) duration {
	values := slices.Sorted(slices.Values(in.values[benchmark+" "+unit]))
	if len(values) == 0 {
		in.errs = append(in.errs, fmt.Errorf("%s: no result in %s", benchmark, unit))
		return 0
	}
	return duration(math.Round((values[(len(values)-1)/2] + values[len(values)/2]) / 2))
}

// Where the columns are: names on the left, bars, and their labels after them.
const (
	barStart    = 262
	timeWidth   = 210 // of the longest bar
	allocsStart = 564
	allocsWidth = 130
	rowHeight   = 26
	decade      = 38 // pixels of a power of ten
)

func (c *cost) draw() []byte {
	var cv canvas
	cv.text("head", left, 28, "What an event costs its caller")
	cv.text("note", barStart, 60, "time per event")
	cv.text("note", allocsStart, 60, "allocations per event")
	y := drawSpent(&cv, 60, "Handed over, delivered later", c.Queued)
	y = drawSpent(&cv, y+28, "Posted, the caller waits", c.Posted)
	y = drawHeld(&cv, y+44, c.Held)
	rounds := fmt.Sprintf("Medians of %d rounds on one core of %s; what took seconds, one call each.", c.Rounds, c.CPU)
	cv.text("note", left, y+28, rounds)
	cv.text("note", left, y+46, "Each group of bars has a scale of its own.")
	cv.text("note", left, y+64, fmt.Sprintf("%s %s, %s, %s.", c.Go, c.Platform, strings.Join(c.Peers, ", "), c.Date))
	return cv.finish(int(y)+80, "Cost of an event, and how long a dead receiver holds the caller", c.story())
}

// drawSpent draws a group of bars to a scale of its own, and returns where it ends.
func drawSpent(c *canvas, y float64, group string, rows []spent) float64 {
	c.text("group", left, y, group)
	longest := slices.MaxFunc(rows, func(a, b spent) int { return int(a.Time - b.Time) })
	most := slices.MaxFunc(rows, func(a, b spent) int { return a.Allocs - b.Allocs })
	top := y + 10
	for _, row := range rows {
		y += rowHeight
		c.text("", left, y, row.Name)
		class := class(row.Ours)
		if !row.Ours {
			class += " wait" // hatched
		}
		time := timeWidth * row.Time.seconds() / longest.Time.seconds()
		c.rect(class, barStart, y-13, time, barHeight)
		c.text("", barStart+time+8, y, row.Time.String())
		allocs := allocsWidth * float64(row.Allocs) / float64(most.Allocs)
		c.rect(class, allocsStart, y-13, allocs, barHeight)
		c.text("", allocsStart+allocs+8, y, strconv.Itoa(row.Allocs))
	}
	c.line("axis", barStart, top, barStart, y+8)
	c.line("axis", allocsStart, top, allocsStart, y+8)
	return y
}

// drawHeld draws marks on a scale of powers of ten, and returns where it ends.
func drawHeld(c *canvas, y float64, rows []held) float64 {
	c.text("group", left, y, "Held by a dead receiver")
	c.text("note", barStart, y, "log scale: each line is ten times the one before")
	top, bottom := y+10, y+40*float64(len(rows))+12
	for power := -6; power <= 2; power++ {
		length := duration(math.Round(math.Pow10(power + 9)))
		label := length.String()
		if power%2 != 0 {
			label = "" // for want of room
		}
		c.tick(onDecades(length), top, bottom, label)
	}
	for _, row := range rows {
		y += 40
		c.text("", left, y-6, row.Name)
		c.text("note", left, y+9, row.Note)
		var label []string
		for _, wait := range row.Waits {
			c.mark(class(row.Ours), onDecades(wait.Time), y-4)
			label = append(label, fmt.Sprintf("%s: %v", wait.Fault, wait.Time))
		}
		c.text("", onDecades(row.Waits[len(row.Waits)-1].Time)+14, y, strings.Join(label, ", "))
	}
	return bottom + 16
}

// onDecades is where a time stands on a scale that begins with a microsecond.
func onDecades(d duration) float64 { return barStart + 8 + decade*(math.Log10(d.seconds())+6) }

// story tells in words what the picture shows.
func (c *cost) story() string {
	var parts []string
	for _, row := range slices.Concat(c.Queued, c.Posted) {
		parts = append(parts, fmt.Sprintf("%s: %v, %d allocations.", row.Name, row.Time, row.Allocs))
	}
	for _, row := range c.Held {
		for _, wait := range row.Waits {
			parts = append(parts, fmt.Sprintf("Held by a dead receiver, %s, %s: %v.", row.Name, wait.Fault, wait.Time))
		}
	}
	return strings.Join(parts, " ")
}
