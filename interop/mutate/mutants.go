package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// A mutant is one product file with one small change.
type mutant struct {
	file     string // base name
	line     int    // of the change
	function string // or the constant or variable declared there
	before   string // the lines that the change is on, without comments
	after    string // the same lines, changed
	nth      int    // 1, or more where the same change occurs again in the function
	source   []byte // the whole file
}

// String names the mutant by what it changes and not by where, so that the name outlives edits
// elsewhere.
func (m mutant) String() string {
	name := fmt.Sprintf("%s: %s: %s => %s", m.file, m.function, oneLine(m.before), oneLine(m.after))
	if m.nth > 1 {
		name += fmt.Sprintf(" #%d", m.nth)
	}
	return name
}

// diff shows the changed lines as a patch does.
func (m mutant) diff() string {
	var diff strings.Builder
	for line := range strings.Lines(m.before) {
		fmt.Fprintf(&diff, "-%s\n", strings.TrimRight(line, " \n"))
	}
	for line := range strings.Lines(m.after) {
		fmt.Fprintf(&diff, "+%s\n", strings.TrimRight(line, " \n"))
	}
	return diff.String()
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// operators are the replacements of an operator. Those of an ordering move its bound by one; that
// conditions are negated as a whole comes on top of it.
var operators = map[token.Token]token.Token{
	token.LAND: token.LOR, token.LOR: token.LAND,
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LSS: token.LEQ, token.LEQ: token.LSS,
	token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.ADD: token.SUB, token.SUB: token.ADD,
	token.MUL: token.QUO, token.QUO: token.MUL,
	token.SHL: token.SHR, token.SHR: token.SHL,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN,
	token.INC: token.DEC, token.DEC: token.INC,
}

// opposites are the negations of comparisons.
var opposites = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LSS: token.GEQ, token.GEQ: token.LSS,
	token.GTR: token.LEQ, token.LEQ: token.GTR,
}

// names are the replacements of predeclared names.
var names = map[string]string{"true": "false", "false": "true", "min": "max", "max": "min"}

// mutate returns every mutant of a file.
func mutate(name string, source []byte) ([]mutant, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	m := &mutator{name: name, source: bytes.Clone(source), file: files.File(file.FileStart), edits: map[string]bool{}, names: map[string]int{}}
	for _, group := range file.Comments {
		for i := m.offset(group.Pos()); i < m.offset(group.End()); i++ {
			if m.source[i] != '\n' {
				m.source[i] = ' '
			}
		}
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			m.function = decl.Name.Name
			if decl.Recv != nil {
				receiver, _, _ := strings.Cut(strings.TrimPrefix(m.text(decl.Recv.List[0].Type), "*"), "[")
				m.function = receiver + "." + m.function
			}
			ast.PreorderStack(decl.Body, nil, m.visit)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if value, ok := spec.(*ast.ValueSpec); ok {
					m.function = value.Names[0].Name
					ast.PreorderStack(value, nil, m.visit)
				}
			}
		}
	}
	return m.mutants, nil
}

// A mutator collects the mutants of one file.
type mutator struct {
	name     string
	source   []byte // with blanks for comments
	file     *token.File
	function string // the one being visited
	mutants  []mutant
	edits    map[string]bool // those made, since two rules may come to the same
	names    map[string]int
}

func (m *mutator) offset(at token.Pos) int { return m.file.Offset(at) }

func (m *mutator) text(node ast.Node) string {
	return string(m.source[m.offset(node.Pos()):m.offset(node.End())])
}

// visit makes the mutants of one node, and reports whether there are more below it.
func (m *mutator) visit(node ast.Node, above []ast.Node) bool {
	var parent ast.Node
	if len(above) > 0 {
		parent = above[len(above)-1]
	}
	switch node := node.(type) {
	case *ast.StructType:
		return false // its strings are tags
	case *ast.IfStmt:
		m.negate(node.Cond)
		m.skip(node.Body.List)
		if block, ok := node.Else.(*ast.BlockStmt); ok {
			m.skip(block.List)
		}
	case *ast.ForStmt:
		if node.Cond != nil {
			m.negate(node.Cond)
		}
	case *ast.SwitchStmt:
		for _, clause := range node.Body.List {
			for _, condition := range clause.(*ast.CaseClause).List {
				if node.Tag == nil {
					m.negate(condition)
				}
			}
		}
	case *ast.CaseClause:
		m.skip(node.Body)
	case *ast.CommClause:
		m.skip(node.Body)
	case *ast.BinaryExpr:
		m.operator(node.OpPos, node.Op, operators)
		if node.Op == token.LAND || node.Op == token.LOR {
			m.replace(node, m.text(node.X))
			m.replace(node, m.text(node.Y))
		}
	case *ast.KeyValueExpr:
		m.drop(node)
	case *ast.BasicLit:
		m.literal(node, parent, whole(above))
	case *ast.Ident:
		if replacement, ok := names[node.Name]; ok {
			m.replace(node, replacement)
		}
	case *ast.AssignStmt:
		m.operator(node.TokPos, node.Tok, operators)
		if node.Tok != token.DEFINE { // what is declared must be
			m.remove(node, parent)
		}
	case *ast.IncDecStmt:
		m.operator(node.TokPos, node.Tok, operators)
		m.remove(node, parent)
	case *ast.ExprStmt, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt, *ast.ReturnStmt, *ast.BranchStmt:
		m.remove(node.(ast.Stmt), parent)
	}
	return true
}

// whole is what the outermost of the operations stands in that a literal is an operand of, such as the
// call that is given a text in two pieces.
func whole(above []ast.Node) ast.Node {
	for i := len(above) - 1; i >= 0; i-- {
		if _, operand := above[i].(*ast.BinaryExpr); !operand {
			return above[i]
		}
	}
	return nil
}

// negate turns a condition into its opposite.
func (m *mutator) negate(condition ast.Expr) {
	switch c := condition.(type) {
	case *ast.UnaryExpr:
		m.replace(c, m.text(c.X)) // The only operator that makes a condition is "!".
		return
	case *ast.BinaryExpr:
		if _, comparison := opposites[c.Op]; comparison {
			m.operator(c.OpPos, c.Op, opposites)
			return
		}
	}
	m.replace(condition, "!("+m.text(condition)+")")
}

// operator replaces an operator by the one that the table has for it, if any.
func (m *mutator) operator(at token.Pos, old token.Token, table map[token.Token]token.Token) {
	if replacement, ok := table[old]; ok {
		m.edit(at, at+token.Pos(len(old.String())), replacement.String())
	}
}

// remove takes a statement out. Where it stands in a block it is made unreachable instead, so that
// what it uses stays in use, without which little would compile.
func (m *mutator) remove(statement ast.Stmt, parent ast.Node) {
	switch parent := parent.(type) {
	case *ast.CommClause:
		if statement != parent.Comm {
			m.skip([]ast.Stmt{statement})
		}
	case *ast.BlockStmt, *ast.CaseClause:
		m.skip([]ast.Stmt{statement})
	default: // the start of an if or a for, or the end of a for
		m.replace(statement, "")
	}
}

// skip makes a list of statements unreachable.
func (m *mutator) skip(list []ast.Stmt) {
	if len(list) > 0 {
		from, to := list[0].Pos(), list[len(list)-1].End()
		m.edit(from, to, "if false { "+string(m.source[m.offset(from):m.offset(to)])+" }")
	}
}

// drop leaves a field out of a composite literal.
func (m *mutator) drop(field *ast.KeyValueExpr) {
	end := field.End()
	if m.source[m.offset(end)] == ',' {
		end++
	}
	m.edit(field.Pos(), end, "")
}

// literal moves a number by one both ways and empties a string, or fills an empty one. The texts of
// errors and log messages are left alone, but not that an error wraps its cause.
func (m *mutator) literal(lit *ast.BasicLit, parent, whole ast.Node) {
	if lit.Kind != token.STRING {
		// x < 0 becomes x <= 0 already, which for integers is x < 1.
		var operator token.Token
		if comparison, ok := parent.(*ast.BinaryExpr); ok && comparison.Y == lit {
			operator = comparison.Op
		}
		if operator != token.LSS && operator != token.GEQ {
			m.replace(lit, "("+lit.Value+" + 1)")
		}
		if operator != token.LEQ && operator != token.GTR {
			m.replace(lit, "("+lit.Value+" - 1)")
		}
		return
	}
	if call, ok := whole.(*ast.CallExpr); ok {
		switch function := m.text(call.Fun); {
		case function == "fmt.Errorf":
			for i := range lit.Value {
				if at := lit.Pos() + token.Pos(i); strings.HasPrefix(lit.Value[i:], "%w") {
					m.edit(at, at+2, "%v")
				}
			}
			return
		case function == "errors.New", strings.HasSuffix(function, ".LogAttrs"):
			return
		}
	}
	if lit.Value == `""` {
		m.replace(lit, `"mutated"`)
	} else {
		m.replace(lit, `""`)
	}
}

func (m *mutator) replace(node ast.Node, text string) { m.edit(node.Pos(), node.End(), text) }

// edit adds the mutant in which text stands in the place of what is between from and to.
func (m *mutator) edit(from, to token.Pos, text string) {
	if key := fmt.Sprint(from, to, text); m.edits[key] {
		return
	} else {
		m.edits[key] = true
	}
	start, end := m.offset(from), m.offset(to)
	first := bytes.LastIndexByte(m.source[:start], '\n') + 1
	last := end + bytes.IndexByte(m.source[end:], '\n')
	added := mutant{
		file:     m.name,
		line:     m.file.Line(from),
		function: m.function,
		before:   string(m.source[first:last]),
		after:    string(m.source[first:start]) + text + string(m.source[end:last]),
		nth:      1,
		source:   []byte(string(m.source[:start]) + text + string(m.source[end:])),
	}
	m.names[added.String()]++
	added.nth = m.names[added.String()]
	m.mutants = append(m.mutants, added)
}
