package aws_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/aws"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMistakesAreReported(t *testing.T) {
	t.Parallel()
	const endpoint = "endpoint: write http://host:9000 or https://host"
	for _, c := range []struct {
		aws.Account
		want []string
	}{
		{aws.Account{}, nil},
		{aws.Account{Endpoint: "http://minio:9000", AccessKeyID: "a", Secret: "b"}, nil},
		{aws.Account{Endpoint: "minio:9000"}, []string{endpoint}},
		{aws.Account{Endpoint: "localhost"}, []string{endpoint}},
		{aws.Account{Endpoint: "ftp://minio"}, []string{endpoint}},
		{aws.Account{Endpoint: "http://a:b@minio"}, []string{endpoint}},
		{aws.Account{Endpoint: "http://minio?a=b"}, []string{endpoint}},
		{aws.Account{AccessKeyID: "a"}, []string{"secret_access_key: missing, although there is an access_key_id"}},
		{aws.Account{Secret: "b"}, []string{"access_key_id: missing, although there is a secret_access_key"}},
	} {
		var got []string
		c.Check(func(setting string, err error) { got = append(got, setting+": "+err.Error()) }, "http://host:9000")
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, expected %q", c.Account, got, c.want)
		}
	}
}

// Credentials of the configuration do not end. What a function has returned is used for a minute, and the function may
// not hang for ever. Without either, the SDK looks for credentials.
func TestWhereCredentialsComeFrom(t *testing.T) {
	t.Parallel()
	function := config.Credentials(func(ctx context.Context) (string, string, error) {
		if end, limited := ctx.Deadline(); !limited || time.Until(end) > record.DefaultTimeout {
			t.Error("the function may hang for ever")
		}
		return "AKIDVAULT", "hunter2", nil
	})
	if ask, err := (&aws.Account{}).Credentials(); ask != nil || err != nil {
		t.Errorf("without credentials: %v", err)
	}
	both := aws.Account{Section: "s3", AccessKeyID: "AKID", Secret: "hunter2", Function: function}
	if _, err := both.Credentials(); err == nil || !strings.Contains(err.Error(), "s3.access_key_id: there is a ") {
		t.Errorf("credentials and a function: %v", err)
	}
	for _, a := range []aws.Account{{AccessKeyID: "AKID", Secret: "hunter2"}, {Function: function}} {
		ask, err := a.Credentials()
		if err != nil {
			t.Fatal(err)
		}
		id, secret, expires, err := ask(t.Context())
		if err != nil || !strings.HasPrefix(id, "AKID") || secret != "hunter2" {
			t.Errorf("%s, %s, %v", id, secret, err)
		}
		left := time.Until(expires)
		if asked := a.Function != nil; asked == expires.IsZero() || asked && (left < 30*time.Second || left > time.Minute) {
			t.Errorf("the credentials are used for %v", left)
		}
	}
	for want, f := range map[string]config.Credentials{
		"config.Config.Credentials: the vault is sealed": func(context.Context) (string, string, error) {
			return "", "", errors.New("the vault is sealed")
		},
		"config.Config.Credentials: the access key or its secret is empty": func(context.Context) (string, string, error) {
			return "AKID", "", nil
		},
	} {
		ask, _ := (&aws.Account{Function: f}).Credentials()
		if _, _, _, err := ask(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%v, expected %s", err, want)
		}
	}
}

// If the network has forgotten the connections, that costs one request, and not one for each connection.
// A caller whose context ends soon says nothing about the network, and costs no connections of others.
func TestForgottenConnectionsCostOneRequest(t *testing.T) {
	t.Parallel()
	const many = 6
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	relay := testserver.NewRelay(t, strings.TrimPrefix(server.URL, "http://"), func() (_, _ testserver.Side) {
		return testserver.Side{Read: testserver.Chunks()}, testserver.Side{Read: testserver.Chunks()}
	})
	transport := &http.Transport{MaxIdleConnsPerHost: many}
	defer transport.CloseIdleConnections()
	client := (&aws.Account{Timeout: 20 * time.Second}).Client(transport)
	try := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+relay.Addr(), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			err = answer.Body.Close()
		}
		return err
	}
	resume := relay.Hang()
	var warm sync.WaitGroup
	for range many {
		warm.Go(func() {
			if err := try(time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
	for relay.Connections() < many {
		<-time.After(time.Millisecond)
	}
	resume()
	warm.Wait()
	resume = relay.Hang()
	if err := try(10 * time.Millisecond); err == nil {
		t.Fatal("a request that hangs was answered")
	}
	resume()
	for range many { // what was closed is gone by the end
		if err := try(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if n := relay.Connections(); n < many-1 {
		t.Errorf("after a request with a short context: %d connections of %d", n, many)
	}
	relay.Strand()
	if err := try(200 * time.Millisecond); err == nil {
		t.Fatal("a request on a connection that is lost was answered")
	}
	if err := try(15 * time.Second); err != nil {
		t.Errorf("the next request: %v", err)
	}
}
