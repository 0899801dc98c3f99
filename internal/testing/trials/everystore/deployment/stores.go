package deployment

import (
	"database/sql"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	_ "github.com/golocker/locker/backends/dynamodblock" // for URLs, as the others
	_ "github.com/golocker/locker/backends/filelock"
	_ "github.com/golocker/locker/backends/kuberneteslock"
	"github.com/golocker/locker/backends/mysqllock"
	_ "github.com/golocker/locker/backends/s3lock"
	"github.com/golocker/locker/internal/testing/dynamotest"
	"github.com/golocker/locker/internal/testing/kubetest"
	"github.com/golocker/locker/internal/testing/mariadbtest"
)

func startFile(t testing.TB) *Store {
	dir := t.TempDir()
	return &Store{url: func(string) string { return "file:" + dir }}
}

// credentials are what AWS's SDK needs, also in the processes of a trial. The servers do not look at them.
var credentials = sync.OnceFunc(func() {
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ACCESS_KEY_ID": "trial", "AWS_SECRET_ACCESS_KEY": "trial", "AWS_REGION": "us-east-1",
	} {
		_ = os.Setenv(name, value)
	}
})

// startS3 starts a server whose conditional writes are atomic.
func startS3(t testing.TB) *Store {
	credentials()
	const bucket = "locks"
	data := s3mem.New()
	if err := data.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(data).Server())
	t.Cleanup(server.Close)
	return &Store{
		Servers: []Server{inMemory(t, server.Listener.Addr().String())},
		Mishaps: new(Mishaps),
		url: func(addrs string) string {
			return "s3://" + bucket + "/trial?path_style=true&endpoint=http://" + addrs
		},
	}
}

func startDynamoDB(t testing.TB) *Store {
	credentials()
	const table = "locks"
	s := dynamotest.Start(t)
	s.Table(t, table)
	return &Store{
		Servers: []Server{{s.Addr(), s.Restart, s.Pause, s.Resume, nil}},
		Mishaps: new(Mishaps),
		url:     func(addrs string) string { return "dynamodb://" + table + "?endpoint=http://" + addrs },
	}
}

func startKubernetes(t testing.TB) *Store {
	s := kubetest.Start(t)
	text, err := os.ReadFile(s.Kubeconfig(""))
	if err != nil {
		t.Fatal(err)
	}
	resume := func() {}
	return &Store{
		Servers: []Server{{s.Addr(), s.Restart, func() { resume = s.Hang() }, func() { resume() }, nil}},
		Mishaps: new(Mishaps),
		url: func(addrs string) string {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), s.Addr(), addrs)), 0o600); err != nil {
				t.Fatal(err)
			}
			return "kubernetes://" + kubetest.Namespace + "?kubeconfig=" + path
		},
	}
}

func startMySQL(t testing.TB) *Store {
	s := mariadbtest.Start(t)
	db, err := sql.Open("mysql", "root@tcp("+s.Addr()+")/"+mariadbtest.Database)
	if err == nil {
		err = errors.Join(mysqllock.Migrate(t.Context(), db), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return &Store{
		Servers: []Server{{s.Addr(), s.Restart, s.Pause, s.Resume, nil}},
		url:     func(addrs string) string { return "mysql://root@" + addrs + "/" + mariadbtest.Database },
	}
}
