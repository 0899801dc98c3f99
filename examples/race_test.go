//go:build race

package examples_test

func init() { buildFlags = []string{"-race"} }
