package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Constructors that begin with New report nothing: what cannot be used is an error of the first call. What opens
// something begins with Open.
func TestConstructorsReturnNoError(t *testing.T) {
	lists, err := filepath.Glob("../../../api/*.txt")
	if err != nil || len(lists) == 0 {
		t.Fatal(lists, err)
	}
	wrong := regexp.MustCompile(`(?m)^func New.*\berror\)?$`)
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range wrong.FindAllString(string(text), -1) {
			t.Errorf("%s: %s", filepath.Base(list), strings.TrimSpace(f))
		}
	}
}
