package interop

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What the README shows of the examples is what compiles and runs.
func TestReadmeShowsTheExamples(t *testing.T) {
	readme := read(t, "../README.md")
	for _, snippet := range snippets(t) {
		if !shows(readme, snippet) {
			t.Errorf("no go block of README.md holds this text of the examples:\n%s", snippet)
		}
	}
}

// Of the change to a controller of Flux, all that it leads to is compiled.
func TestReadmeShowsTheChangeToFlux(t *testing.T) {
	source := read(t, "flux_example_test.go")
	_, diff, _ := strings.Cut(read(t, "../README.md"), "```diff\n")
	diff, _, _ = strings.Cut(diff, "```\n")
	hunks := strings.Split(diff, " \t...\n")
	if len(hunks) != 2 {
		t.Fatalf("hunks of the change = %d, want 2", len(hunks))
	}
	for _, hunk := range hunks {
		var after strings.Builder
		for line := range strings.Lines(hunk) {
			if !strings.HasPrefix(line, "-") {
				after.WriteString(line[1:])
			}
		}
		if after.Len() == 0 || !strings.Contains(source, after.String()) {
			t.Errorf("flux_example_test.go does not hold what README.md changes to:\n%s", after.String())
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The check itself tells every changed, missing and added line.
func TestReadmeThatDiffersIsNoticed(t *testing.T) {
	for _, snippet := range snippets(t) {
		block := func(lines ...string) string { return "text\n\n```go\n" + strings.Join(lines, "\n") + "\n```\n\ntext\n" }
		lines := strings.Split(snippet, "\n")
		if !shows(block(lines...), snippet) {
			t.Errorf("shows(README with the text, text) = false, want true:\n%s", snippet)
		}
		if shows(strings.Replace(block(lines...), "```go", "```", 1), snippet) {
			t.Error("shows(README with the text in a block of no language, text) = true, want false")
		}
		for i, line := range lines {
			before, after := lines[:i:i], lines[i+1:]
			for what, readme := range map[string]string{
				"missing": block(append(before, after...)...),
				"changed": block(append(append(before, line+" "), after...)...),
			} {
				if shows(readme, snippet) {
					t.Errorf("shows(README with line %q %s, text) = true, want false", line, what)
				}
			}
			if i > 0 && shows(block(append(append(before, "added()", line), after...)...), snippet) {
				t.Errorf("shows(README with a line before %q added, text) = true, want false", line)
			}
		}
	}
}

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// shows reports whether one of the Go blocks of a README holds a text in whole lines.
func shows(readme, text string) bool {
	for _, block := range goBlock.FindAllStringSubmatch(readme, -1) {
		if strings.Contains("\n"+block[1], "\n"+text+"\n") {
			return true
		}
	}
	return false
}

// snippets are what the README is to show: from one line of a file on, to another.
func snippets(t *testing.T) []string {
	t.Helper()
	var snippets []string
	for file, ends := range map[string][2]string{
		"example_test.go":         {"// newEventRecorder returns", "\n\nfunc Example() {"},
		"testing_example_test.go": {"// bodies is a Transport", "\n\nvar request ="},
	} {
		_, text, begins := strings.Cut(read(t, file), "\n"+ends[0])
		text, _, stops := strings.Cut(text, ends[1])
		if !begins || !stops {
			t.Fatalf("%s has no text from %q to %q", file, ends[0], ends[1])
		}
		snippets = append(snippets, ends[0]+text)
	}
	return snippets
}
