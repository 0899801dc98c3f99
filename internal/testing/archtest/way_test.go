package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The limits of docs/design.md for the way of a Lock in one direction.
const mostFunctions, mostFiles = 14, 8

// A step is a row of a table: a function, its file, in a way back what calls it, and what it calls besides.
type step struct{ function, file, by, also string }

// A way is a table, and what the text below it says about the number of its functions and files: those of its rows, and
// with those of its last column.
type way struct {
	back    bool // a column says what calls the function
	steps   []step
	numbers []string
}

var (
	row   = regexp.MustCompile("^\\| [0-9]+ \\| `([\\w.]+)` \\| ([\\w/.]+) \\|(.*)\\|$")
	total = regexp.MustCompile(`^These are (\d+) functions in (\d+) files, and (\d+) in (\d+) with the last column\.`)
	named = regexp.MustCompile("`([\\w.]+)`(?: \\(([\\w/.]+)\\))?")
)

// waysIn returns the tables of a text.
func waysIn(text string) (ways []way) {
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "| | function ") {
			ways = append(ways, way{back: strings.Contains(line, "called by")})
		}
		if len(ways) == 0 {
			continue
		}
		last := &ways[len(ways)-1]
		if m := row.FindStringSubmatch(line); m != nil {
			s := step{function: m[1], file: m[2], also: m[3]}
			if last.back {
				s.by, s.also, _ = strings.Cut(m[3], "|")
			}
			last.steps = append(last.steps, s)
		}
		if m := total.FindStringSubmatch(line); m != nil {
			last.numbers = m[1:]
		}
	}
	return ways
}

// instead returns the steps of a whole way of which some are replaced by variant, whose first and last step stay.
func instead(whole, variant []step) []step {
	at := func(s step) int {
		return slices.IndexFunc(whole, func(w step) bool { return w.function == s.function && w.file == s.file })
	}
	from, to := at(variant[0]), at(variant[len(variant)-1])
	if from < 0 || to < from {
		return variant
	}
	return slices.Concat(whole[:from], variant, whole[to+1:])
}

// source finds functions in the repository.
type source struct {
	root  string
	files map[string]*ast.File
}

// function returns the declaration of a function, a method (with its type before a dot) or a function of a package
// (with the package before a dot).
func (s *source) function(name, file string) (*ast.FuncDecl, error) {
	f, ok := s.files[file]
	if !ok {
		var err error
		f, err = parser.ParseFile(token.NewFileSet(), filepath.Join(s.root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		s.files[file] = f
	}
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && nameOf(d) == name {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%s has no function %s", file, name)
}

func nameOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	of := d.Recv.List[0].Type
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}
	return of.(*ast.Ident).Name + "." + d.Name.Name
}

// calls returns an error unless the body of a function has the name of another one, without the type.
func (s *source) calls(from step, name string) error {
	d, err := s.function(from.function, from.file)
	if err != nil {
		return err
	}
	found := false
	ast.Inspect(d.Body, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && id.Name == name[strings.LastIndex(name, ".")+1:]
		return !found
	})
	if !found {
		return fmt.Errorf("%s in %s does not call %s", from.function, from.file, name)
	}
	return nil
}

// helpers returns what the last column of a step names, with the step or the helper that calls each of them.
func helpers(from step) (callers, called []step) {
	end := 0
	for _, at := range named.FindAllStringSubmatchIndex(from.also, -1) {
		by := from
		if len(called) > 0 && strings.TrimSpace(from.also[end:at[0]]) == "→" {
			by = called[len(called)-1]
		}
		end = at[1]
		to := step{function: from.also[at[2]:at[3]], file: by.file}
		if at[4] >= 0 {
			if to.file = from.also[at[4]:at[5]]; !strings.Contains(to.file, "/") {
				to.file = path.Join(path.Dir(by.file), to.file)
			}
		}
		callers, called = append(callers, by), append(called, to)
	}
	return callers, called
}

// helped checks that the functions of the last column are called.
func (s *source) helped(steps []step) (problems []error) {
	for _, from := range steps {
		callers, called := helpers(from)
		for i, to := range called {
			_, err := s.function(to.function, to.file)
			problems = append(problems, err, s.calls(callers[i], to.function))
		}
	}
	return problems
}

// there checks a way to the server: each function calls the next one.
func (s *source) there(steps []step) (problems []error) {
	for i := range steps[1:] {
		problems = append(problems, s.calls(steps[i], steps[i+1].function))
	}
	return problems
}

// back checks a way back: the function of the third column, which is in one of the tables, calls the function of the
// row, by the name that follows "as" if there is one.
func (s *source) back(steps, all []step) (problems []error) {
	for _, to := range steps {
		_, err := s.function(to.function, to.file)
		problems = append(problems, err)
		by := named.FindStringSubmatch(to.by)
		if by == nil {
			problems = append(problems, fmt.Errorf("nothing calls %s", to.function))
			continue
		}
		i := slices.IndexFunc(all, func(from step) bool { return from.function == by[1] })
		if i < 0 {
			problems = append(problems, fmt.Errorf("no table has %s, which calls %s", by[1], to.function))
			continue
		}
		name := to.function
		if _, as, ok := strings.Cut(to.by, ", as `"); ok {
			name, _, _ = strings.Cut(as, "`")
		}
		problems = append(problems, s.calls(all[i], name))
	}
	return problems
}

// counted checks what the text says about the number of functions and files of a way.
func counted(w way, steps []step) error {
	functions, files := map[string]bool{}, map[string]bool{}
	count := func(s step) {
		functions[s.file+" "+s.function], files[s.file] = true, true
	}
	for _, s := range steps {
		count(s)
	}
	numbers := []int{len(functions), len(files)}
	for _, s := range steps {
		_, called := helpers(s)
		for _, to := range called {
			count(to)
		}
	}
	numbers = append(numbers, len(functions), len(files))
	switch {
	case fmt.Sprint(w.numbers) != fmt.Sprint(numbers):
		return fmt.Errorf("from %s on, there are %v functions, files, and with the last column functions, files; the text "+
			"says %v", steps[0].function, numbers, w.numbers)
	case numbers[0] > mostFunctions || numbers[1] > mostFiles:
		return fmt.Errorf("%d functions in %d files are too many", numbers[0], numbers[1])
	}
	return nil
}

// check returns what is wrong with the tables of a text.
func (s *source) check(text string) (problems []error) {
	ways := waysIn(text)
	var all, whole []step
	for _, w := range ways {
		all = append(all, w.steps...)
	}
	for _, w := range ways {
		switch {
		case len(w.steps) == 0:
			problems = append(problems, fmt.Errorf("a table has no rows"))
			continue
		case w.back:
			problems = append(problems, s.back(w.steps, all)...)
			problems = append(problems, s.helped(w.steps)...)
			problems = append(problems, counted(w, w.steps))
			continue
		case w.steps[0].function == "Client.Lock":
			whole = w.steps
		}
		problems = append(problems, s.there(w.steps)...)
		problems = append(problems, s.helped(w.steps)...)
		problems = append(problems, counted(w, instead(whole, w.steps)))
	}
	return slices.DeleteFunc(problems, func(err error) bool { return err == nil })
}

func TestTheWayOfALockIsAsWritten(t *testing.T) {
	s := &source{root: "../../..", files: map[string]*ast.File{}}
	text, err := os.ReadFile(filepath.Join(s.root, "docs/design.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(waysIn(string(text))); n != 6 {
		t.Errorf("docs/design.md has %d tables of functions, want 6", n)
	}
	for _, problem := range s.check(string(text)) {
		t.Errorf("docs/design.md, The way of a Lock: %v", problem)
	}
	for name, wrong := range map[string][2]string{
		"a function that is not there":         {"| `Node.send` |", "| `Node.sent` |"},
		"a function of another file":           {"| internal/node/send.go |", "| internal/node/node.go |"},
		"a step that is left out":              {"| 6 | `Node.grant` | internal/node/send.go | |\n", ""},
		"a step that is not on the way":        {"| 2 | `Client.wait` |", "| 2 | `Client.begin` |"},
		"another function that is not called":  {"`keyQueues.enter`", "`keyQueue.saw`"},
		"a caller that does not call":          {"`waiter.enqueue` | `Read", "`waiter.granted` | `Read"},
		"a helper that a helper does not call": {"→ `Node.vote` →", "→ `Node.fault` →"},
		"a wrong number":                       {"These are 9 functions in 8 files,", "These are 8 functions in 7 files,"},
		"a wrong number of helpers":            {"and 15 in 11 with", "and 14 in 11 with"},
	} {
		changed := strings.Replace(string(text), wrong[0], wrong[1], 1)
		if changed == string(text) {
			t.Errorf("%s: docs/design.md does not have %q", name, wrong[0])
		} else if len(s.check(changed)) == 0 {
			t.Errorf("%s is not noticed", name)
		}
	}
}
