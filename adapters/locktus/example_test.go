package locktus_test

import (
	"fmt"
	"net/http"
	"os"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/golocker/locker/adapters/locktus"
	"github.com/golocker/locker/memory"
)

func Example() {
	l := memory.New() // or config.Open with a URL, which all servers share
	defer l.Close()

	composer := handler.NewStoreComposer()
	filestore.New(os.TempDir()).UseIn(composer) // or s3store, which all servers share
	locktus.New(l).UseIn(composer)
	uploads, err := handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer})
	if err != nil {
		panic(err)
	}
	http.Handle("/files/", http.StripPrefix("/files/", uploads))
	// http.ListenAndServe, and so on
	fmt.Println(composer.UsesLocker)
	// Output:
	// true
}
