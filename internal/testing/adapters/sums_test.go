package adapters

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// library is the path of the library, and what the paths of its other modules begin with.
const library = "github.com/golocker/locker"

// linked returns the modules of packages and of all that they import, and those of the packages that are of this
// repository. dir is in the module of the first.
func linked(t *testing.T, dir string, args ...string) (modules map[string]bool, ours []string) {
	t.Helper()
	format := "{{with .Module}}{{.Path}}{{end}} {{.ImportPath}}"
	cmd := exec.Command("go", append([]string{"list", "-deps", "-f", format}, args...)...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		t.Fatalf("%v: %s", err, failed.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	modules = map[string]bool{}
	for line := range strings.Lines(string(out)) {
		module, pkg, _ := strings.Cut(strings.TrimSpace(line), " ")
		if module == "" || pkg == "" {
			continue // of the standard library
		}
		modules[module] = true
		if pkg == library || strings.HasPrefix(pkg, library+"/") {
			ours = append(ours, pkg)
		}
	}
	return modules, ours
}

// The tests of an adapter, and of what it uses of the library, need nothing but what the adapter needs, and goleak.
// With more, programs that use the adapter would have lines of stores that they do not use in their go.sum.
func TestTestsOfAdaptersNeedNoOtherModules(t *testing.T) {
	dirs, err := filepath.Glob("../../../adapters/*")
	if err != nil || len(dirs) < 7 {
		t.Fatalf("only %q are adapters, %v", dirs, err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			needed, ours := linked(t, dir, "./...")
			tested, _ := linked(t, dir, append([]string{"-test"}, ours...)...)
			for module := range tested {
				if !needed[module] && module != "go.uber.org/goleak" {
					t.Errorf("its tests, or those of what it uses of the library, need %s: move what needs a store to "+
						"internal/testing/adapters", module)
				}
			}
			if !needed[library] || !tested["go.uber.org/goleak"] {
				t.Errorf("needed: %v, by tests: %v", needed, tested)
			}
		})
	}
}
