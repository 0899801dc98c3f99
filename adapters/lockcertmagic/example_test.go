package lockcertmagic_test

import (
	"context"
	"fmt"
	"os"

	"github.com/caddyserver/certmagic"

	"github.com/golocker/locker/adapters/lockcertmagic"
	"github.com/golocker/locker/memory"
)

func Example() {
	l := memory.New() // or config.Open with a URL, which all instances share
	defer l.Close()
	shared, err := os.MkdirTemp("", "certificates") // or any other certmagic.Storage
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(shared)

	storage := lockcertmagic.New(&certmagic.FileStorage{Path: shared}, l)
	certmagic.Default.Storage = storage
	// certmagic.HTTPS([]string{"example.com"}, mux), and so on

	// What certmagic does with it:
	ctx := context.Background()
	if err := storage.Lock(ctx, "issue_cert_example.com"); err != nil {
		panic(err)
	}
	if err := storage.Store(ctx, "certificates/example.com.crt", []byte("…")); err != nil {
		panic(err)
	}
	fmt.Println(storage.Unlock(ctx, "issue_cert_example.com"))
	fmt.Println(storage.List(ctx, "certificates", true))
	// Output:
	// <nil>
	// [certificates/example.com.crt] <nil>
}
