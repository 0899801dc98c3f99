package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"strings"
	"testing"
)

// list returns the list of a package with these declarations.
func list(t *testing.T, declarations string) string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", "package p\n"+declarations, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := (&types.Config{}).Check(module+"/p", fset, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return "package " + pkg.Path() + "\n" + strings.Join(names(pkg), "\n") + "\n"
}

// Each change that may break a program is in the list, and what no program sees is not.
func TestDifference(t *testing.T) {
	const before = `
const Limit = 3
var Known error
type Store interface { Get(key string) error }
type base struct{}
func (base) Close() {}
type Client struct { Name string; base; count int }
func (*Client) Open(n int) error { return nil }
type Names = []string
type Set[T any] map[string]T
func Max[T int | string](a, b T) T { return a }
`
	for name, tt := range map[string]struct{ old, new, want string }{
		"nothing":    {"count int", "counts uint", ""},
		"a function": {"func Max", "func max", "- func Max[T int | string](a T, b T) T"},
		"a type of a result": {"int) error { return nil }", "int) bool { return false }",
			"+ method (*Client) Open(n int) bool"},
		"the value of a const": {"Limit = 3", "Limit = 4", "- const Limit untyped int = 3"},
		"a variable":           {"Known error", "known error", "- var Known error"},
		"a method of an interface": {"Get(key string) error", "Get(key string) error; Put()",
			"+ method Store.Put()"},
		"an interface that is closed": {"Get(key string) error", "Get(key string) error; put()",
			"+ method Store: has unexported ones, so others cannot implement it"},
		"a field":                       {"Name string", "Label string", "- field Client.Name string"},
		"a method of an embedded field": {"base; count", "count", "- method (Client) Close()"},
		"a receiver":                    {"(*Client) Open", "(Client) Open", "+ method (Client) Open(n int) error"},
		"an alias":                      {"Names = []string", "Names []string", "- type Names = []string"},
		"a constraint":                  {"Set[T any]", "Set[T comparable]", "- type Set[T any] map[string]T"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(before, tt.old) {
				t.Fatalf("there is no %q to change", tt.old)
			}
			got := difference(list(t, before), list(t, strings.Replace(before, tt.old, tt.new, 1)))
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("the difference is %q, want %q", got, tt.want)
			}
		})
	}
}

// A package that has come or gone is a difference, even if it exports nothing.
func TestDifferenceOfPackages(t *testing.T) {
	const with, without = "package a\nfunc F()\n\npackage b\n", "package a\nfunc F()\n"
	if got, want := difference(with, without), "  package b\n    - the package itself"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := difference(with, with); got != "" {
		t.Errorf("of one list with itself: %q", got)
	}
}
