package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// programs lists the packages of programs. Their goroutines end with the process.
var programs = []string{"/examples", "/internal/testing/mutants", "/internal/testing/retest"}

// starts reports whether a file starts goroutines, with a go statement or with the Go method of a wait group.
func starts(file *ast.File) (found bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" {
				found = true
			}
		}
		return !found
	})
	return found
}

func imports(file *ast.File, path string) bool {
	for _, imp := range file.Imports {
		if strings.Trim(imp.Path.Value, `"`) == path {
			return true
		}
	}
	return false
}

// mains reports whether tests are run by redistest.Main, which checks for leaked goroutines.
func mains(file *ast.File) (found bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Main" {
			x, ok := s.X.(*ast.Ident)
			found = found || ok && x.Name == "redistest"
		}
		return !found
	})
	return found
}

// unwatched reports whether a package starts goroutines although its tests do not check for leaked goroutines.
func unwatched(files []*ast.File) bool {
	started, watched := false, false
	for _, f := range files {
		started = started || starts(f)
		watched = watched || imports(f, "go.uber.org/goleak") || mains(f)
	}
	return started && !watched
}

func TestEveryGoroutineIsMissedWhenItStays(t *testing.T) {
	for _, p := range packages(t) {
		if !p.tested || under(strings.TrimPrefix(p.path, module), programs) {
			continue
		}
		paths, err := filepath.Glob(filepath.Join(p.dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		var files []*ast.File
		for _, path := range paths {
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		if unwatched(files) {
			t.Errorf("%s starts goroutines, and has no TestMain with redistest.Main or goleak", p.path)
		}
	}
}

func TestUnwatchedGoroutinesAreFound(t *testing.T) {
	for source, want := range map[string]bool{
		"package p; func f() { go f() }":                                true,
		"package p; func f() { var wg sync.WaitGroup; wg.Go(f) }":       true,
		"package p; func f() {}":                                        false,
		`package p; import "go.uber.org/goleak"; func f() { go f() }`:   false,
		"package p; func f() { go f(); redistest.Main(m) }":             false,
		`package p; import "go.uber.org/atomic"; func f() { wg.Go(f) }`: true,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if unwatched([]*ast.File{f}) != want {
			t.Errorf("%s: %v", source, !want)
		}
	}
}
