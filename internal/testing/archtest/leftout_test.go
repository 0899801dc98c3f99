package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// All tests that leave something out with -short are among those that scripts/left-out prints for make test-long. The
// script looks at lines, and this test at the syntax.
func TestWhatIsLeftOutIsTestedInFull(t *testing.T) {
	found, whole := 0, testedInFull(t)
	for _, module := range modules(t) {
		out, err := exec.Command(filepath.Join(root, "scripts/left-out"), module).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		named, packages := regexp.MustCompile("$^"), []string(nil)
		if args := strings.Fields(string(out)); len(args) > 2 {
			named, packages = regexp.MustCompile(args[1]), args[2:]
		}
		for _, pkg := range list(t, module, "{{.Dir}} {{.ImportPath}}") {
			dir, path, _ := strings.Cut(strings.TrimSpace(pkg), " ")
			asking, tests := askingForShort(t, dir)
			if len(asking) == 0 || slices.Contains(withEachDriver, path) {
				continue
			}
			found++
			if !isAmong(t, whole, module) {
				t.Errorf("%s asks for -short, but its module is not in WHOLE of the Makefile, and make test-long runs no "+
					"test of it in full", path)
			}
			if !slices.ContainsFunc(packages, func(p string) bool { return same(t, filepath.Join(module, p), dir) }) {
				t.Errorf("%s asks for -short: import internal/testing/short, and make test-long runs it in full", path)
			}
			for _, name := range asking {
				missing := []string{name}
				if !slices.Contains(tests, name) { // any test may depend on it
					missing = slices.Clone(tests)
				}
				missing = slices.DeleteFunc(missing, named.MatchString)
				if len(missing) > 0 {
					t.Errorf("%s of %s asks for -short, but scripts/left-out does not print %q", name, path, missing)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d packages ask for -short", found)
	}
}

// testedInFull returns the modules whose tests make test-long runs with scripts/left-out.
func testedInFull(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("make", "-s", "--no-print-directory", "-f", "-", "whole")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=") // of the make that runs this test
	cmd.Stdin = strings.NewReader("include Makefile\nwhole: ; @echo $(WHOLE)\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.Fields(string(out))
}

// isAmong reports whether a module is among those that the Makefile names.
func isAmong(t *testing.T, named []string, module string) bool {
	t.Helper()
	dir, err := filepath.Rel(root, module)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(named, filepath.ToSlash(dir))
}

func TestModulesThatAreNotTestedInFullAreFound(t *testing.T) {
	whole := testedInFull(t)
	for module, want := range map[string]bool{
		".": true, "cmd/locker": true, "internal/testing/trials": true,
		"internal/testing/trials/everystore": false, "internal/testing/madeup": false,
	} {
		if got := isAmong(t, whole, filepath.Join(root, module)); got != want {
			t.Errorf("%s is among %q: %v, want %v", module, whole, got, want)
		}
	}
}

// withEachDriver are the packages that make test-long runs in full with each driver.
var withEachDriver = []string{module + "/single", module + "/redlock", module + "/drivers/all"}

// askingForShort returns the functions of the tests in dir that mention short.Part or testing.Short, with "" for those
// that are no declared functions, and the names of all tests.
func askingForShort(t *testing.T, dir string) (asking, tests []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			name := ""
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				name = f.Name.Name
				if strings.HasPrefix(name, "Test") && name != "TestMain" {
					tests = append(tests, name)
				}
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && (x.Name == "short" && s.Sel.Name == "Part" ||
						x.Name == "testing" && s.Sel.Name == "Short") {
						asking = append(asking, name)
					}
				}
				return true
			})
		}
	}
	return asking, tests
}

func same(t *testing.T, a, b string) bool {
	t.Helper()
	a, err := filepath.Abs(a)
	if err != nil {
		t.Fatal(err)
	}
	return a == b
}
