package main

import (
	"bytes"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

// The list does not rot: what it replaces is there, once.
func TestEveryMutantApplies(t *testing.T) {
	for _, m := range mutants {
		for _, p := range m.patches {
			text, err := os.ReadFile(filepath.Join(root, p.file))
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(text, []byte(p.before)); n != 1 {
				t.Errorf("%s: %s has %q %d times, not once: change the entry in list.go", m.name, p.file, p.before, n)
			}
		}
		if len(m.killers) == 0 {
			t.Errorf("%s: nothing is to notice it", m.name)
		}
	}
}

// Every mutant compiles. One that does not plants no bug. The types are checked here and not by one go build for each
// mutant, which would take minutes. With -short, those in other modules are left out: in a new clone, what these import
// is compiled for a minute, servers of etcd and NATS included.
func TestEveryMutantCompiles(t *testing.T) {
	checkers := map[string]*checker{} // by the directory of a module
	for _, m := range mutants {
		if len(m.patches) == 0 {
			continue
		}
		module := moduleOf(t, m.patches[0].file)
		if module != "." && testing.Short() {
			continue
		}
		if checkers[module] == nil {
			checkers[module] = newChecker(t, module)
		}
		if err := checkers[module].check(m.patches); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	for name, bad := range map[string]patch{
		"no such import": {"client.go", "req := backend.Request{Key: key, Token: backend.NewToken(), TTL",
			"req := backend.Request{Key: key, Token: strconv.Itoa(1), TTL"},
		"a variable unused": {"lease.go", "l.grant.adopt(start, ttl)", "unused := ttl"},
		"no syntax":         {"lease.go", "l.grant.adopt(start, ttl)", "l.adopt("},
	} {
		if checkers["."].check([]patch{bad}) == nil {
			t.Errorf("%s: compiles", name)
		}
	}
}

// moduleOf returns the directory of the module that has a file.
func moduleOf(t *testing.T, file string) string {
	t.Helper()
	for dir := filepath.Dir(file); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(root, dir, "go.mod")); err == nil || dir == "." {
			return dir
		}
	}
}

// checker checks the types of packages of a module with patches.
type checker struct {
	fset  *token.FileSet
	files map[string][]string // of packages, by directory
	types types.ImporterFrom
}

func newChecker(t *testing.T, module string) *checker {
	t.Helper()
	list := exec.Command("go", "list", "-export", "-deps", "-f",
		`{{.ImportPath}} {{.Export}} {{if not .Standard}}{{.Dir}} {{join .GoFiles " "}}{{end}}`)
	list.Dir = filepath.Join(root, module)
	for _, m := range mutants {
		for _, p := range m.patches {
			if filepath.Ext(p.file) != ".go" || moduleOf(t, p.file) != module {
				continue
			}
			within, err := filepath.Rel(module, filepath.Dir(p.file))
			if err != nil {
				t.Fatal(err)
			}
			if dir := "./" + within; !slices.Contains(list.Args, dir) {
				list.Args = append(list.Args, dir)
			}
		}
	}
	out, err := list.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("%v\n%s", err, exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	c, exports := &checker{fset: token.NewFileSet(), files: map[string][]string{}}, map[string]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) > 1 {
			exports[f[0]] = f[1]
		}
		if len(f) > 3 {
			c.files[f[2]] = f[3:]
		}
	}
	c.types = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	}).(types.ImporterFrom)
	return c
}

// check returns the first error of the packages of patches, with these applied.
func (c *checker) check(patches []patch) error {
	patched := map[string][]byte{}
	for _, p := range patches {
		if filepath.Ext(p.file) != ".go" {
			continue
		}
		path, err := filepath.Abs(filepath.Join(root, p.file))
		if err != nil {
			return err
		}
		if patched[path] == nil {
			if patched[path], err = os.ReadFile(path); err != nil {
				return err
			}
		}
		patched[path] = bytes.Replace(patched[path], []byte(p.before), []byte(p.after), 1)
	}
	for path := range patched {
		dir := filepath.Dir(path)
		if len(c.files[dir]) == 0 {
			return errors.New("no package of the library is in " + dir)
		}
		var files []*ast.File
		for _, name := range c.files[dir] {
			name = filepath.Join(dir, name)
			var text any // nil: the parser reads the file
			if p := patched[name]; p != nil {
				text = p
			}
			file, err := parser.ParseFile(c.fset, name, text, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			files = append(files, file)
		}
		conf := types.Config{Importer: c.types, Sizes: types.SizesFor("gc", runtime.GOARCH)}
		if _, err := conf.Check(dir, c.fset, files, nil); err != nil {
			return err
		}
	}
	return nil
}
