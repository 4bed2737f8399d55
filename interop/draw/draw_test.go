package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const docs = "../../docs"

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(docs + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestPicturesAreDrawnFromTheirNumbers(t *testing.T) {
	for _, name := range []string{"incident", "cost"} {
		want, err := draw(docs, name)
		if err != nil {
			t.Fatal(err)
		}
		got := read(t, name+".svg")
		if !bytes.Equal(got, want) {
			t.Errorf("%s.svg is not what %[1]s.json comes to: go run -C interop ./draw", name)
		}
		for _, flaw := range flaws(got, read(t, name+".json")) {
			t.Errorf("%s.svg: %s", name, flaw)
		}
	}
}

// A label is a text of a picture, and about where it is.
type label struct {
	class, text              string
	left, right, top, bottom float64
}

func (l label) overlaps(m label) bool {
	return l.left < m.right && m.left < l.right && l.top < m.bottom && m.top < l.bottom
}

// A reading is what there is to check in a picture.
type reading struct {
	labels []label
	ids    map[string]string // and the text of the element that has it
	flaws  []string
}

var (
	number    = regexp.MustCompile(`\d+(\.\d+)*`)
	reference = regexp.MustCompile(`(?i)@import|(?:url\(|https?:)[^#]`)
)

// flaws are what is wrong with a picture of some numbers: it must be well-formed XML that names and
// describes itself, refer to nothing outside, show no number that does not stand in the data, but for
// those of its axes, and have each text stand by itself.
func flaws(picture, data []byte) []string {
	r, err := readPicture(picture)
	if err != nil {
		return []string{err.Error()}
	}
	for _, id := range []string{"title", "desc"} {
		if r.ids[id] == "" {
			r.flaws = append(r.flaws, "no "+id)
		}
	}
	known := number.FindAllString(string(data), -1)
	for i, l := range r.labels {
		for _, n := range number.FindAllString(l.text, -1) {
			if l.class != "tick" && !slices.Contains(known, n) {
				r.flaws = append(r.flaws, fmt.Sprintf("%s of %q is not in the data", n, l.text))
			}
		}
		if l.left < 0 || l.right > width {
			r.flaws = append(r.flaws, fmt.Sprintf("%q does not fit in", l.text))
		}
		for _, m := range r.labels[:i] {
			if l.overlaps(m) {
				r.flaws = append(r.flaws, fmt.Sprintf("%q is over %q", l.text, m.text))
			}
		}
	}
	return r.flaws
}

// readPicture reads the elements of a picture, one by one.
func readPicture(picture []byte) (*reading, error) {
	r := &reading{ids: map[string]string{}}
	decoder := xml.NewDecoder(bytes.NewReader(picture))
	var open xml.StartElement
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return nil, err
		}
		switch token := token.(type) {
		case xml.StartElement:
			open = token.Copy()
			r.element(open)
		case xml.EndElement:
			open = xml.StartElement{}
		case xml.CharData:
			r.text(open, string(token))
		}
	}
}

func (r *reading) element(e xml.StartElement) {
	if e.Name.Local == "svg" && (attr(e, "role") != "img" || attr(e, "aria-labelledby") != "title desc") {
		r.flaws = append(r.flaws, "not an image that is labelled by its title and desc")
	}
	if slices.Contains([]string{"image", "script", "foreignObject", "use", "a"}, e.Name.Local) {
		r.flaws = append(r.flaws, "has an element "+e.Name.Local)
	}
	for _, a := range e.Attr {
		if a.Name.Local != "xmlns" && (a.Name.Local == "href" || reference.MatchString(a.Value)) {
			r.flaws = append(r.flaws, "refers to "+a.Value)
		}
	}
}

// text takes a character to be as wide as in a wide font.
func (r *reading) text(e xml.StartElement, text string) {
	switch e.Name.Local {
	case "title", "desc":
		r.ids[attr(e, "id")] = text
		r.labels = append(r.labels, label{class: e.Name.Local, text: text})
	case "style":
		if found := reference.FindString(text); found != "" {
			r.flaws = append(r.flaws, "style refers to "+found)
		}
	case "text":
		class := attr(e, "class")
		size := map[string]float64{"head": 16, "note": 12, "tick": 12}[class]
		if size == 0 {
			size = 13
		}
		x, _ := strconv.ParseFloat(attr(e, "x"), 64)
		y, _ := strconv.ParseFloat(attr(e, "y"), 64)
		width := 0.6 * size * float64(len([]rune(text)))
		x -= width * map[string]float64{"start": 0, "middle": 0.5, "end": 1}[attr(e, "text-anchor")]
		r.labels = append(r.labels, label{class, text, x, x + width, y - 0.8*size, y + 0.2*size})
	}
}

func attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func TestFlawsAreSeen(t *testing.T) {
	data := []byte(`{"Time": "1.5s"}`)
	const text = `<text class="" text-anchor="start" x="10.0" y="100.0">1.5 s</text>`
	picture := func(replaced, by string) []byte {
		var c canvas
		c.text("", 10, 100, "1.5 s")
		return []byte(strings.Replace(string(c.finish(200, "A title", "It took 1.5 s.")), replaced, by, 1))
	}
	for name, test := range map[string]struct {
		replaced, by string
		want         []string
	}{
		"none":               {"", "", nil},
		"not closed":         {"</svg>", "", []string{"XML syntax error on line 43: unexpected EOF"}},
		"no title":           {"A title", "", []string{"no title"}},
		"no description":     {"It took 1.5 s.", "", []string{"no desc"}},
		"no role":            {`role="img"`, "", []string{"not an image that is labelled by its title and desc"}},
		"raster":             {text, text + "<image/>", []string{"has an element image"}},
		"script":             {text, text + "<script/>", []string{"has an element script"}},
		"link":               {text, text + `<path href="x.svg"/>`, []string{"refers to x.svg"}},
		"fill from outside":  {text, text + `<path fill="url(x.svg#a)"/>`, []string{"refers to url(x.svg#a)"}},
		"style from outside": {".paper {", "@import 'x'; .paper {", []string{"style refers to @import"}},
		"another number":     {">1.5 s", ">2.5 s", []string{`2.5 of "2.5 s" is not in the data`}},
		"in the description": {"took 1.5 s", "took 5 s", []string{`5 of "It took 5 s." is not in the data`}},
		"past the edge":      {`x="10.0"`, `x="790.0"`, []string{`"1.5 s" does not fit in`}},
		"over another": {text, text + strings.Replace(text, `y="100.0"`, `y="110.0"`, 1),
			[]string{`"1.5 s" is over "1.5 s"`}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, flaws(picture(test.replaced, test.by), data)); diff != "" {
				t.Errorf("flaws() (-want, +got):\n%s", diff)
			}
		})
	}
}

func TestDurationHasThreeDigits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 33: "33ns", 196_100: "196µs", 1052: "1.05µs", 73_349: "73.3µs", 999_900_000: "1s",
		1_500_000_000: "1.5s", 40_006_977_494: "40s", 302 * time.Second: "302s",
	} {
		got, err := duration(d).MarshalText()
		if string(got) != want || err != nil {
			t.Errorf("MarshalText(%v) = %s, %v, want %s", d, got, err, want)
		}
		var back duration
		if err := back.UnmarshalText(got); err != nil || back.String() != duration(d).String() {
			t.Errorf("UnmarshalText(%s) = %v, %v, want %v", got, back, err, duration(d))
		}
	}
}
