package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// lingerers lists clients that leave goroutines behind for some seconds when they have been used on a cluster.
var lingerers = []string{"github.com/redis/rueidis", "github.com/valkey-io/valkey-go"}

// impatient reports whether tests check for leaked goroutines and do not allow for those of lingerers.
func impatient(files []*ast.File) bool {
	checks, allows := false, false
	for _, f := range files {
		checks = checks || imports(f, "go.uber.org/goleak")
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Lingering" {
				allows = true
			}
			return !allows
		})
	}
	return checks && !allows
}

// Tests that link a driver can reach a cluster with it, now or after the next change.
func TestGoroutinesOfClientsAreAllowedFor(t *testing.T) {
	if testing.Short() {
		t.Skip("in make test-long: go list loads all dependencies of all tests")
	}
	found := 0
	for _, dir := range modules(t) {
		format := `{{if .ForTest}}{{else}}{{.ImportPath}} {{.Dir}} {{join .Deps " "}}{{end}}`
		for _, line := range list(t, dir, "-test", "-f", format) {
			fields := strings.Fields(line)
			if len(fields) == 0 || !strings.HasSuffix(fields[0], ".test") {
				continue
			}
			if !slices.ContainsFunc(lingerers, func(client string) bool { return slices.Contains(fields[2:], client) }) {
				continue
			}
			found++
			if impatient(tests(t, fields[1])) {
				t.Errorf("the tests of %s link %s, and have goleak without redistest.Main or redistest.Lingering()",
					strings.TrimSuffix(fields[0], ".test"), strings.Join(lingerers, " or "))
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d packages link a client", found)
	}
}

// tests returns the test files in a directory.
func tests(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

func TestImpatientTestsAreFound(t *testing.T) {
	const head = `package p; import "go.uber.org/goleak"; func TestMain(m *testing.M) { goleak.VerifyTestMain(m`
	for source, want := range map[string]bool{
		head + `) }`:                           true,
		head + `, redistest.Lingering()...) }`: false,
		`package p`:                            false,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "p_test.go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if impatient([]*ast.File{f}) != want {
			t.Errorf("%s: %v", source, !want)
		}
	}
}
