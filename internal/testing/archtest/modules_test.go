package archtest

import (
	"encoding/json"
	"errors"
	"go/build"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

// modules returns the directories of this module and of all nested modules, beginning with this one. The go command
// works on one module at a time.
func modules(t *testing.T) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if entry.Name() == "testdata" || entry.Name() == ".git" {
			return filepath.SkipDir
		}
		text, err := os.ReadFile(filepath.Join(path, "go.mod"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if line, _, _ := strings.Cut(string(text), "\n"); line == "module "+module ||
			strings.HasPrefix(line, "module "+module+"/") {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) < 2 || dirs[0] != root {
		t.Fatalf("only %q are modules", dirs)
	}
	return dirs
}

// list returns the output of go list for each package of the module in dir.
func list(t *testing.T, dir string, flags ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"list", "-e"}, flags...), "./...")...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(strings.Lines(string(out)))
}

// pkg is a package of one of the modules.
type pkg struct {
	path, dir string
	tested    bool
	imports   []string
}

var listed []pkg

// packages returns all packages. The tests of this package do not run beside each other.
func packages(t *testing.T) []pkg {
	t.Helper()
	if listed == nil {
		const format = `{{.ImportPath}} {{.Dir}} {{len .TestGoFiles}}{{len .XTestGoFiles}}`
		for _, dir := range modules(t) {
			for _, line := range list(t, dir, "-find", "-f", format) { // without -find, it takes three times as long
				fields := strings.Fields(line)
				p := pkg{path: fields[0], dir: fields[1], tested: fields[2] != "00"}
				if found, err := build.ImportDir(p.dir, 0); err == nil { // a package may consist of tests
					p.imports = found.Imports
				}
				listed = append(listed, p)
			}
		}
	}
	return listed
}

// floors lists the direct requirements of the library. A program that uses the library gets at least these versions.
var floors = []string{
	"github.com/gomodule/redigo", "github.com/redis/go-redis/v9", "github.com/redis/rueidis",
	"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace",
	"go.yaml.in/yaml/v3", "golang.org/x/sys",
	"github.com/stretchr/testify", "go.uber.org/goleak",
	"github.com/yuin/gopher-lua", // only for tests: simulated nodes execute the scripts
}

func TestLibraryRequiresLittle(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Replace []any
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Require {
		if !r.Indirect && !slices.Contains(floors, r.Path) {
			t.Errorf("go.mod requires %s: what only the command, benchmarks or tests need belongs to a module of its "+
				"own", r.Path)
		}
	}
	if len(mod.Require) < len(floors) || len(mod.Replace) > 0 {
		t.Errorf("go.mod has %d requirements, and replaces %v", len(mod.Require), mod.Replace)
	}
}
