package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// stores lists names of backends and schemes of their URLs, except unix, which is also a network.
var stores = []string{"memory", "redis", "rediss", "valkey", "valkeys", "redlock", "redlocks", "etcd", "postgres",
	"postgresql", "nats", "file", "s3", "dynamodb", "kubernetes", "mysql", "mysqls"}

// particular lists files that may ask which backend it is, with the reason.
var particular = map[string]string{
	"cmd/locker/cli/migrate.go": "only PostgreSQL and MySQL have tables to make",
}

// decisions returns the names of backends that a file compares something with.
func decisions(f *ast.File) (names []string) {
	compared := func(exprs ...ast.Expr) {
		for _, e := range exprs {
			if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if name, err := strconv.Unquote(lit.Value); err == nil && slices.Contains(stores, name) {
					names = append(names, name)
				}
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CaseClause:
			compared(n.List...)
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				compared(n.X, n.Y)
			}
		}
		return true
	})
	return names
}

// A backend from outside is as good as one of this repository only if no code asks for names.
func TestNoCodeDecidesByTheNameOfABackend(t *testing.T) {
	seen := map[string]bool{}
	for _, dir := range []string{".", "config", "cmd", "single", "redlock", "memory", "backends", "middleware", "election",
		"inspect", "lockertrace", "internal/redis/node", "internal/redis/settings"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && dir == "." && path != root {
				return filepath.SkipDir
			}
			if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			name = filepath.ToSlash(name)
			seen[name] = true
			if names := decisions(f); len(names) > 0 && particular[name] == "" {
				t.Errorf("%s compares with %q: register what differs (config.Kind)", name, names)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range particular {
		if !seen[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

func TestDecisionsByNameAreFound(t *testing.T) {
	for source, want := range map[string][]string{
		`switch s { case "a", "redis": }`:       {"redis"},
		`switch { case s == "etcd": }`:          {"etcd"},
		`if "memory" != s { }`:                  {"memory"},
		`s = "redis"; f("redlock"); _ = s + ""`: nil,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "p.go", "package p; func g(s string) { "+source+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := decisions(f); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", source, got, want)
		}
	}
}
