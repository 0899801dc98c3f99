package everystore

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/config"
)

// The table of docs/backends/README.md says what each store has said of itself. Nothing is sent for that.
func TestTableOfCapabilities(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	const cluster = "apiVersion: v1\nkind: Config\ncurrent-context: c\n" +
		"clusters: [{name: c, cluster: {server: \"http://127.0.0.1:1\"}}]\n" +
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(cluster), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	stores := []struct{ name, url string }{
		{"memory", "memory:"},
		{"files", "file:" + t.TempDir()},
		{"one Redis", "redis://127.0.0.1:1"},
		{"Redlock", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"},
		{"etcd", "etcd://127.0.0.1:1"},
		{"PostgreSQL", "postgres://127.0.0.1:1/db"},
		{"NATS", "nats://127.0.0.1:1"},
		{"S3", "s3://bucket/folder"},
		{"DynamoDB", "dynamodb://table"},
		{"Kubernetes", "kubernetes://namespace?kubeconfig=" + kubeconfig},
		{"MySQL, MariaDB", "mysql://127.0.0.1:1/db"},
	}
	rows := []string{head()}
	for _, s := range stores {
		l, err := config.Open(t.Context(), s.url)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		defer l.Close()
		of, ok := locker.As[backend.Capable](l)
		if !ok {
			t.Fatalf("%s: its Locker says nothing of the store", s.name)
		}
		rows = append(rows, row(s.name, of.Capabilities()))
	}
	page, err := os.ReadFile("../../../../docs/backends/README.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := strings.Join(rows, "\n") + "\n"; !strings.Contains(string(page), table) {
		t.Errorf("docs/backends/README.md has another table. It is to have these rows:\n%s", table)
	}
}

// head is the first row of the table: what a store can state, or has an interface for, in the order of the fields.
func head() string {
	text := "| |"
	for _, f := range flags {
		text += fmt.Sprintf(" `%s` |", f.Name)
	}
	return text + "\n|" + strings.Repeat(" --- |", len(flags)+1)
}

// flags are the fields of Capabilities that are yes or no.
var flags = slices.DeleteFunc(reflect.VisibleFields(reflect.TypeFor[backend.Capabilities]()),
	func(f reflect.StructField) bool { return f.Type.Kind() != reflect.Bool })

// row is the row of a store in the table.
func row(name string, can backend.Capabilities) string {
	text := "| " + name + " |"
	for _, f := range flags {
		cell := "–"
		if reflect.ValueOf(can).FieldByIndex(f.Index).Bool() {
			cell = "yes"
		}
		text += fmt.Sprintf(" %s |", cell)
	}
	return text
}
