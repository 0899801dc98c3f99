package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// features are options and functions that change what a lock does. TTL is not among them: nearly every test sets one.
// Extend is an extension with another TTL.
var features = []string{"NoRenewal", "MaxHold", "MinHold", "Patience", "Label", "NoLocalHandover", "LockAll", "Verify",
	"Extend", "Wanted", "Guard", "WaitReplicas"}

// What sets two features apart.
const (
	clientAlone = "MaxHold is a limit of the Client: the store is not told"
	holding     = "one is about a call that waits, and the other about a lease"
	ofRenewals  = "the answer to an extension tells of waiters, whatever TTL it asks for, and whichever way it is sent"
	inTheValue  = "the label is a part of the lock's value, which both leave alone"
	byDefault   = "tests of the other one have hand-overs, which are the default"
	unconfirmed = "releases wait for no replica, so nothing is promised of the rest of a MinHold after a failover"
)

// apart are pairs of features that no test uses together, with the reason why none is needed.
var apart = map[[2]string]string{
	{"MaxHold", "Wanted"}:               clientAlone,
	{"MaxHold", "Guard"}:                clientAlone,
	{"MaxHold", "WaitReplicas"}:         clientAlone,
	{"MinHold", "Wanted"}:               "MinHold begins to matter with Unlock, when nobody is told any more",
	{"MinHold", "WaitReplicas"}:         unconfirmed,
	{"Patience", "Wanted"}:              holding,
	{"Label", "WaitReplicas"}:           inTheValue,
	{"NoLocalHandover", "Guard"}:        byDefault,
	{"NoLocalHandover", "WaitReplicas"}: byDefault,
	{"Extend", "Wanted"}:                ofRenewals,
	{"Wanted", "WaitReplicas"}:          ofRenewals,
}

// uses are the features that a function names, and the functions of its package that it names.
type uses struct{ features, calls map[string]bool }

// usesOf returns what a function names: locker.MaxHold, and TryLockAll as LockAll.
func usesOf(f *ast.FuncDecl) uses {
	u := uses{map[string]bool{}, map[string]bool{}}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Extend" && len(n.Args) > 1 {
				u.features[f.Sel.Name] = true
			}
		case *ast.SelectorExpr:
			name := strings.TrimPrefix(n.Sel.Name, "Try")
			if of, ok := n.X.(*ast.Ident); ok && slices.Contains([]string{"locker", "single", "redlock"}, of.Name) &&
				slices.Contains(features, name) {
				u.features[name] = true
				return false
			}
		case *ast.Ident:
			u.calls[n.Name] = true
		}
		return true
	})
	return u
}

// reach returns the features that a function and those that it names use, however far away.
func reach(funcs map[string]uses, name string, seen map[string]bool) map[string]bool {
	found := maps.Clone(funcs[name].features)
	seen[name] = true
	for called := range funcs[name].calls {
		if _, ok := funcs[called]; ok && !seen[called] {
			maps.Copy(found, reach(funcs, called, seen))
		}
	}
	return found
}

// together adds to pairs, for each pair of features, the tests in files that use both. The files belong to one package.
// In package conformance, every function is a test.
func together(files []*ast.File, pairs map[[2]string][]string) {
	funcs := map[string]uses{}
	for _, file := range files {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil && f.Recv == nil {
				funcs[f.Name.Name] = usesOf(f)
			}
		}
	}
	for name := range funcs {
		if !strings.HasPrefix(name, "Test") && files[0].Name.Name != "conformance" {
			continue
		}
		used := reach(funcs, name, map[string]bool{})
		for i, a := range features {
			for _, b := range features[i+1:] {
				if used[a] && used[b] {
					pairs[[2]string{a, b}] = append(pairs[[2]string{a, b}], name)
				}
			}
		}
	}
}

// This records which features tests use together. A test that names both need not use them for one lock, so this finds
// pairs that nobody has thought of, and proves nothing of the others.
func TestFeaturesAreUsedTogether(t *testing.T) {
	packages := map[string][]*ast.File{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if entry != nil && (entry.Name() == "testdata" || entry.Name() == ".git") {
				return filepath.SkipDir
			}
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if !strings.HasSuffix(path, "_test.go") && (dir != root+"/conformance" || filepath.Ext(path) != ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			packages[dir+" "+file.Name.Name] = append(packages[dir+" "+file.Name.Name], file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pairs := map[[2]string][]string{}
	for _, files := range packages {
		together(files, pairs)
	}
	for i, a := range features {
		for _, b := range features[i+1:] {
			pair := [2]string{a, b}
			switch n, why := len(pairs[pair]), apart[pair]; {
			case n == 0 && why == "":
				t.Errorf("no test uses %s with %s: write one, or say in apart why none is needed", a, b)
			case n > 0 && why != "":
				t.Errorf("%s and %s are used together by %q: take them out of apart", a, b, pairs[pair])
			case n > 0:
				slices.Sort(pairs[pair])
				t.Logf("%s, %s: %d tests, such as %s", a, b, n, pairs[pair][0])
			}
		}
	}
}

func TestUsesAreFound(t *testing.T) {
	const source = `package p_test
func TestBoth(t *testing.T) { locker.TryLockAll(ctx, l, keys, options()...) }
func TestOne(t *testing.T)  { locker.Verify(ctx, lease); lease.Verify(ctx); Guard(1) }
func options() []locker.Option { return append(more(), locker.MaxHold(1)) }
func more() []locker.Option { return nil }
`
	file, err := parser.ParseFile(token.NewFileSet(), "p_test.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	pairs := map[[2]string][]string{}
	together([]*ast.File{file}, pairs)
	if want := []string{"TestBoth"}; len(pairs) != 1 || !slices.Equal(pairs[[2]string{"MaxHold", "LockAll"}], want) {
		t.Errorf("%v, want MaxHold and LockAll by %q", pairs, want)
	}
}
