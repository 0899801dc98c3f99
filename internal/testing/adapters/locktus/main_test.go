package locktus_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"github.com/tus/tusd/v2/pkg/memorylocker"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/locktus"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	instance.Main(play)
	redistest.Main(m)
}

// ttl is short, and tolerates that a process stands still for two seconds.
const ttl = 5 * time.Second

// play is an instance: a server of uploads, until it is killed. args are the URL of the locks and the directory of the
// uploads. Without a URL, the locks are those of the process.
func play(me *instance.Self, args []string) error {
	url, dir := args[0], args[1]
	log.SetOutput(io.Discard) // tusd logs each request
	composer := handler.NewStoreComposer()
	filestore.New(dir).UseIn(composer)
	memorylocker.New().UseIn(composer)
	if url != "" {
		l, err := config.Open(context.Background(), url, locker.TTL(ttl))
		if err != nil {
			return err
		}
		locktus.New(l).UseIn(composer)
	}
	h, err := handler.NewHandler(handler.Config{
		BasePath: "/files/", StoreComposer: composer, AcquireLockTimeout: time.Minute,
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	me.Say("at http://%s", listener.Addr())
	return http.Serve(listener, http.StripPrefix("/files/", h))
}
