package record_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/golocker/locker/record"
)

// table is a store of records. A real one asks a server, or opens a file.
type table struct {
	mu   sync.Mutex
	rows map[string]row
}

type row struct {
	text    string
	version int
}

// Get implements record.Store.
func (t *table) Get(_ context.Context, name string) ([]byte, string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.rows[name]
	if !ok {
		return nil, "", nil
	}
	return []byte(r.text), strconv.Itoa(r.version), nil
}

// Create implements record.Store.
func (t *table) Create(_ context.Context, name string, text []byte) (string, error) {
	return t.put(name, "0", text)
}

// Replace implements record.Store.
func (t *table) Replace(_ context.Context, name, version string, text []byte) (string, error) {
	return t.put(name, version, text)
}

// put compares and writes in one step. A row that does not exist has the version 0.
func (t *table) put(name, version string, text []byte) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[name]
	if version != strconv.Itoa(r.version) {
		return "", record.ErrConflict
	}
	r.text, r.version = string(text), r.version+1
	t.rows[name] = r
	return strconv.Itoa(r.version), nil
}

func Example() {
	l := record.New(&table{rows: map[string]row{}})
	defer l.Close()
	ctx := context.Background()
	first, err := l.Lock(ctx, "report")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = l.TryLock(ctx, "report")
	fmt.Println(err != nil)
	if err := first.Unlock(ctx); err != nil {
		fmt.Println(err)
	}
	second, err := l.TryLock(ctx, "report")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(second.Fence() > first.Fence())
	// Output:
	// true
	// true
}
