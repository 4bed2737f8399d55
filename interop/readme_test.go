package interop

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestReadmeShowsTheExamples(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, snippet := range snippets(t) {
		if !shows(string(readme), snippet) {
			t.Errorf("no go block of README.md holds this text of example_test.go:\n%s", snippet)
		}
	}
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

// snippets are the stretches of declarations in example_test.go that are neither imports nor
// examples: there is one before each example.
func snippets(t *testing.T) []string {
	t.Helper()
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "example_test.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var snippets []string
	var from, to token.Pos // of the stretch that is being read, if from is valid
	for _, decl := range file.Decls {
		var doc *ast.CommentGroup
		switch d := decl.(type) {
		case *ast.GenDecl:
			if d.Tok == token.IMPORT {
				continue
			}
			doc = d.Doc
		case *ast.FuncDecl:
			if strings.HasPrefix(d.Name.Name, "Example") {
				snippets = append(snippets, string(source[files.Position(from).Offset:files.Position(to).Offset]))
				from = token.NoPos
				continue
			}
			doc = d.Doc
		}
		if !from.IsValid() {
			from = decl.Pos()
			if doc != nil {
				from = doc.Pos()
			}
		}
		to = decl.End()
	}
	if len(snippets) != 2 {
		t.Fatalf("texts of example_test.go for the README = %d, want 2", len(snippets))
	}
	return snippets
}
