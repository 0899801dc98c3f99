// Command api compares what the released modules export with the lists in the directory api, and fails if they differ.
//
//	go run ./internal/testing/api           says what differs
//	go run ./internal/testing/api -update   writes the lists anew
//
// It runs in the root directory of the repository.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// module is the path of the library. Those of the other modules begin with it.
const module = "github.com/golocker/locker"

// lists is the directory of the lists.
const lists = "api"

func main() {
	update := flag.Bool("update", false, "write the lists anew")
	flag.Parse()
	if err := run(*update); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

func run(update bool) error {
	dirs, err := exec.Command("scripts/released").Output()
	if err != nil {
		return fmt.Errorf("scripts/released: %w", err)
	}
	stale, err := filepath.Glob(filepath.Join(lists, "*.txt"))
	if err != nil {
		return err
	}
	var changed []error
	for _, dir := range strings.Fields(string(dirs)) {
		is, err := exported(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		file := fileOf(dir)
		stale = slices.DeleteFunc(stale, func(f string) bool { return f == file })
		if update {
			if err := os.MkdirAll(lists, 0o755); err != nil { //nolint:gosec // it is a directory of the repository
				return err
			}
			err = os.WriteFile(file, []byte(is), 0o644) //nolint:gosec // and so is this
			if err != nil {
				return err
			}
			continue
		}
		was, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if diff := difference(string(was), is); diff != "" {
			changed = append(changed, fmt.Errorf("%s is not what the module exports (-: removed, +: added):\n%s", file, diff))
		}
	}
	for _, file := range stale {
		if update {
			err = os.Remove(file)
		} else {
			err = fmt.Errorf("%s is the list of no module", file)
		}
		changed = append(changed, err)
	}
	if err := errors.Join(changed...); err != nil {
		return fmt.Errorf("%w\nIf the change is wanted, run make api, commit the lists, and mention it in CHANGELOG.md. "+
			"What programs use may only be removed or changed as VERSIONING.md says", err)
	}
	return nil
}

// fileOf returns the list of the module in a directory.
func fileOf(dir string) string {
	if dir == "." {
		dir = "locker"
	}
	return filepath.Join(lists, strings.ReplaceAll(filepath.ToSlash(dir), "/", "-")+".txt")
}

// difference returns the lines that only one of two lists has, each below the package that it belongs to.
func difference(was, is string) string {
	var b strings.Builder
	before, after := blocks(was), blocks(is)
	for _, pkg := range union(keys(before), keys(after)) {
		var lines []string
		for _, line := range union(before[pkg], after[pkg]) {
			switch {
			case !slices.Contains(after[pkg], line):
				lines = append(lines, "- "+line)
			case !slices.Contains(before[pkg], line):
				lines = append(lines, "+ "+line)
			}
		}
		if len(lines) > 0 {
			fmt.Fprintf(&b, "  %s\n    %s\n", pkg, strings.Join(lines, "\n    "))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// blocks returns the lines of a list by the package above them.
func blocks(list string) map[string][]string {
	all, pkg := map[string][]string{}, ""
	for line := range strings.Lines(list) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "package ") {
			pkg = line
			all[pkg] = []string{"the package itself"} // because some export nothing
		} else if line != "" {
			all[pkg] = append(all[pkg], line)
		}
	}
	return all
}

func keys(blocks map[string][]string) (all []string) {
	for pkg := range blocks {
		all = append(all, pkg)
	}
	return all
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// exported returns the list of the module in a directory: its packages that programs may import, with all names.
func exported(dir string) (string, error) {
	cmd := exec.Command("go", "list", "-C", dir, "-export", "-deps",
		"-json=ImportPath,Export,Name,Module", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	var own []string
	data := map[string]string{} // the files that the compiler has written for those that import a package
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Export, Name string
			Module                   *struct{ Main bool }
		}
		if err := in.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", err
		}
		data[p.ImportPath] = p.Export
		isLibrary := p.Export != "" && p.Name != "main" // others have commands, or nothing but tests
		if isLibrary && p.Module != nil && p.Module.Main && !strings.Contains(p.ImportPath+"/", "/internal/") {
			own = append(own, p.ImportPath)
		}
	}
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(data[path])
	})
	slices.Sort(own)
	var b strings.Builder
	for i, path := range own {
		pkg, err := from.Import(path)
		if err != nil {
			return "", err
		}
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "package %s\n", path)
		for _, line := range names(pkg) {
			b.WriteString(line + "\n")
		}
	}
	return b.String(), nil
}

// names returns a line for each name that a package exports, and for each exported field and method of its types. No
// program depends on the names of parameters: they are there for readers.
func names(pkg *types.Package) (lines []string) {
	qualified := func(p *types.Package) string {
		switch {
		case p == pkg:
			return ""
		case strings.HasPrefix(p.Path(), module):
			return p.Name()
		default:
			return p.Path() // which has the major version
		}
	}
	text := func(t types.Type) string { return types.TypeString(t, qualified) }
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, name := range pkg.Scope().Names() {
		switch o := pkg.Scope().Lookup(name).(type) {
		case *types.Const:
			if o.Exported() {
				add("const %s %s = %s", name, text(o.Type()), o.Val().ExactString())
			}
		case *types.Var, *types.Func:
			if o.Exported() {
				add("%s", types.ObjectString(o, qualified))
			}
		case *types.TypeName:
			if !o.Exported() {
				continue
			}
			if o.IsAlias() {
				add("type %s = %s", name, text(types.Unalias(o.Type())))
				continue
			}
			for _, line := range members(o, text) {
				add("%s", line)
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// members returns a line for a type, and one for each exported field and method.
func members(o *types.TypeName, text func(types.Type) string) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	name := text(o.Type()) // with the parameters of a generic type
	switch t := o.Type().Underlying().(type) {
	case *types.Struct:
		add("type %s struct", name)
		for f := range t.Fields() {
			if f.Exported() {
				add("field %s.%s %s", o.Name(), f.Name(), text(f.Type()))
			}
		}
	case *types.Interface:
		add("type %s interface", name)
		closed := false
		for m := range t.Methods() { // also those of embedded interfaces
			if closed = closed || !m.Exported(); m.Exported() {
				add("method %s.%s%s", o.Name(), m.Name(), signature(m, text))
			}
		}
		if closed {
			add("method %s: has unexported ones, so others cannot implement it", o.Name())
		}
		for e := range t.EmbeddedTypes() {
			if _, ok := e.Underlying().(*types.Interface); !ok {
				add("method %s: is for %s", o.Name(), text(e))
			}
		}
		return lines
	default:
		add("type %s %s", name, text(t))
	}
	of, ofPointer := types.NewMethodSet(o.Type()), types.NewMethodSet(types.NewPointer(o.Type()))
	for m := range ofPointer.Methods() { // also those of embedded fields
		if !m.Obj().Exported() {
			continue
		}
		star := "*"
		if of.Lookup(m.Obj().Pkg(), m.Obj().Name()) != nil {
			star = ""
		}
		add("method (%s%s) %s%s", star, o.Name(), m.Obj().Name(), signature(m.Obj(), text))
	}
	return lines
}

// signature returns the parameters and results of a function.
func signature(f types.Object, text func(types.Type) string) string {
	return strings.TrimPrefix(text(f.Type()), "func")
}
