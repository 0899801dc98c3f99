package section

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteReplacesOnePart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	const a, b = "<!-- what follows is written by a -->\n", "<!-- what follows is written by b -->\n"
	const prose = "## Also by hand\n"
	if err := os.WriteFile(path, []byte("by hand\n"+a+"old\n\n"+prose+b+"\nold\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"a", "b", "a"} {
		if err := Write(path, command, "new of "+command+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	text, _ := os.ReadFile(path)
	if want := "by hand\n" + a + "\nnew of a\n\n" + prose + b + "\nnew of b\n"; string(text) != want {
		t.Errorf("the file has %q, and not %q", text, want)
	}
	if Write(path, "c", "") == nil {
		t.Error("a part that is not there was written")
	}
}
