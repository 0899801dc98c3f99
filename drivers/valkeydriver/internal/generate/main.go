// Command generate writes the driver of valkey-go from the driver of rueidis.
//
// valkey-go is a fork of rueidis that has the same API under other names, so its driver is that of rueidis with these
// names. The two share no type that a driver could be written against, and a copy would miss repairs of the other.
package main

import (
	"fmt"
	"go/format"
	"log"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

//go:generate go run .

const (
	source = "../../../rueidisdriver"
	target = "../.."
	header = "// Code generated from drivers/rueidisdriver by go generate; DO NOT EDIT.\n\n"
)

// names replaces the names of rueidis by those of valkey-go. Earlier pairs win.
var names = strings.NewReplacer(
	"redis/rueidis", "valkey-io/valkey-go",
	"IsRedis", "IsValkey",
	"NonRedis", "NonValkey",
	"rueidis.Redis", "valkey.Valkey",
	"rueidis", "valkey",
)

func main() {
	log.SetFlags(0)
	want, err := generate()
	if err != nil {
		log.Fatal(err)
	}
	old, err := generated()
	if err != nil {
		log.Fatal(err)
	}
	for name := range old {
		if err := os.Remove(filepath.Join(target, name)); err != nil {
			log.Fatal(err)
		}
	}
	for name, text := range want {
		if err := os.WriteFile(filepath.Join(target, name), []byte(text), 0o644); err != nil { //nolint:gosec // source
			log.Fatal(err)
		}
	}
}

// generate returns the files of the driver of valkey-go, tests included, by their names.
func generate() (map[string]string, error) {
	files, err := read(source)
	if err != nil {
		return nil, err
	}
	renamed := map[string]string{}
	for name, text := range files {
		formatted, err := format.Source([]byte(header + names.Replace(text))) // also sorts the imports
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		renamed[names.Replace(name)] = string(formatted)
	}
	return renamed, nil
}

// generated returns the files that an earlier run has written. Others in the same directory are written by hand.
func generated() (map[string]string, error) {
	files, err := read(target)
	maps.DeleteFunc(files, func(_, text string) bool { return !strings.HasPrefix(text, header) })
	return files, err
}

// read returns the Go files in a directory, by their names.
func read(dir string) (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[filepath.Base(path)] = string(text)
	}
	return files, nil
}
