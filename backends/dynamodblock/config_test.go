package dynamodblock_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/dynamodblock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/configtest"
	"github.com/golocker/locker/internal/testing/dynamotest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/record"
)

func parse(t *testing.T, url string) *config.Config {
	t.Helper()
	c, err := config.Parse(url)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return c
}

func open(t *testing.T, c *config.Config) *config.Opened {
	t.Helper()
	l, err := c.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// The same locks by a URL, in a file, in the environment, and by a client of the program's own. A lock of one is held
// for the others. Credentials that are not given are those of the SDK.
func TestFourWays(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	var who atomic.Pointer[string] // the access key of the last request
	endpoint := front(t, s.URL(), func(q request) *answer {
		who.Store(&q.key)
		return nil
	})
	own := record.New(dynamodblock.NewStore(connect(t, endpoint), "locks"), record.Prefix(prefix))
	defer own.Close()
	ways := configtest.Ways{
		URL: "dynamodb://locks?region=" + region + "&endpoint=" + endpoint + "&timeout=10s&clock_skew=3s",
		YAML: "backend: dynamodb\nttl: 5s\ndynamodb:\n  table: locks\n  region: " + region + "\n  endpoint: " + endpoint +
			"\n  access_key_id: AKIDFILE\n  secret_access_key: hunter2\n  poll: 500ms\n  timeout: 10s\n  clock_skew: 3s\n",
		Env: []string{
			"LOCKER_BACKEND=dynamodb", "LOCKER_DYNAMODB_TABLE=locks", "LOCKER_DYNAMODB_REGION=" + region,
			"LOCKER_DYNAMODB_ENDPOINT=" + endpoint, "LOCKER_DYNAMODB_ACCESS_KEY_ID=AKIDVAR",
			"LOCKER_DYNAMODB_SECRET_ACCESS_KEY=hunter2",
		},
	}.SameLocks(t, own)
	for way, user := range map[string]string{"file": "AKIDFILE", "environment": "AKIDVAR", "URL": "AKIDENV"} {
		steady.Unlock(t, steady.Lock(t, ways[way], "k"))
		if id := *who.Load(); id != user {
			t.Errorf("the access key is %s, not %s", id, user)
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	const table = "LOCKER_BACKEND=dynamodb LOCKER_DYNAMODB_TABLE=locks LOCKER_DYNAMODB_"
	configtest.Mistakes(t, map[string]string{
		"dynamodb://":          "table: missing: write dynamodb://table",
		"dynamodb://ab":        "table: 3 to 255 letters",
		"dynamodb://a,b":       "table: 3 to 255 letters",
		"dynamodb://locks/key": "table: a URL has no path",
		"dynamodb://locks?endpoint=dynamodb:8000":    "endpoint: write http://host:8000",
		"dynamodb://id:hunter2@locks":                "no username",
		"dynamodb://locks?secret_access_key=hunter2": "unknown parameter",
		"dynamodb://locks?regon=eu-west-1":           "did you mean region?",
		"dynamodb://locks?region=eu-west-1&poll=5":   "poll: a number without a unit",
		"dynamodb://locks?region=eu-west-1&ttl=1us":  "ttl: ",
		table + "ACCESS_KEY_ID=hunter2":              "secret_access_key: missing",
	})
	if _, err := config.Open(t.Context(), "dynamodb://locks"); err == nil ||
		!strings.Contains(err.Error(), "dynamodb.region: missing: give that of the table, or set AWS_REGION") {
		t.Errorf("without a region: %v", err)
	}
}

// What a configuration does not have comes from the variables of the SDK. With an endpoint, no region is needed.
func TestVariablesOfTheSDK(t *testing.T) {
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	t.Setenv("AWS_ENDPOINT_URL_DYNAMODB", s.URL())
	for _, set := range []string{"", region} {
		t.Setenv("AWS_REGION", set)
		l := open(t, parse(t, "dynamodb://locks"))
		steady.Unlock(t, steady.Lock(t, l, "k"))
	}
}

// The SDK prints warnings by default, as about an answer without a checksum, which other servers than AWS's give.
func TestNothingIsPrinted(t *testing.T) {
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	endpoint := front(t, s.URL(), func(q request) *answer {
		if q.operation != "GetItem" {
			return nil
		}
		return &answer{status: http.StatusOK, body: "{}", unsigned: true}
	})
	printed, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer printed.Close()
	before := os.Stderr
	os.Stderr = printed
	defer func() { os.Stderr = before }()
	l := open(t, parse(t, "dynamodb://locks?region="+region+"&endpoint="+endpoint))
	steady.Unlock(t, steady.Lock(t, l, "k"))
	if text, err := os.ReadFile(printed.Name()); err != nil || len(text) > 0 {
		t.Errorf("printed: %s, %v", text, err)
	}
}

// Close of a Client that a configuration has opened ends its connections, which would stay for a minute otherwise.
func TestCloseEndsConnections(t *testing.T) {
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	before := goleak.IgnoreCurrent()
	l, err := parse(t, "dynamodb://locks?region="+region+"&endpoint="+s.URL()).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	steady.Unlock(t, steady.Lock(t, l, "k"))
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// A client from a configuration leaves a server that hangs after half of its time, and asks once more.
func TestServerThatHangsIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	var hangs atomic.Bool
	var seen atomic.Int32
	resume := make(chan struct{})
	endpoint := front(t, s.URL(), func(request) *answer {
		if hangs.Load() {
			seen.Add(1)
			<-resume
		}
		return nil
	})
	l := open(t, parse(t, "dynamodb://locks?timeout=2s&region="+region+"&endpoint="+endpoint))
	lease := steady.Lock(t, l, "k", locker.TTL(time.Minute))
	hangs.Store(true)
	defer close(resume)
	if err := lease.Extend(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("while the server hangs: %v", err)
	}
	if n := seen.Load(); n != 2 {
		t.Errorf("%d requests, expected two", n)
	}
}

// What is signed for one server is not sent to another.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	var elsewhere atomic.Int32
	other := front(t, s.URL(), func(request) *answer {
		elsewhere.Add(1)
		return refusal("AccessDeniedException")
	})
	endpoint := front(t, s.URL(), func(request) *answer { return &answer{status: http.StatusFound, location: other} })
	l := open(t, parse(t, "dynamodb://locks?region="+region+"&endpoint="+endpoint))
	if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) {
		t.Error(err)
	}
	if n := elsewhere.Load(); n > 0 {
		t.Errorf("%d requests were sent to another server", n)
	}
}

// The program's function is asked for credentials when there are none that are fresh. While it fails, errors say why.
func TestCredentialsOfTheProgram(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	var who atomic.Pointer[string] // the access key of the last request
	c := parse(t, "dynamodb://locks?timeout=1m&region="+region+"&endpoint="+front(t, s.URL(), func(q request) *answer {
		who.Store(&q.key)
		return nil
	}))
	var now atomic.Pointer[string] // the access key; nil: there is none
	hangs := make(chan struct{})
	c.Credentials = func(context.Context) (string, string, error) {
		switch id := now.Load(); {
		case id == nil:
			return "", "", errors.New("the vault is sealed")
		case *id == "hangs":
			<-hangs
			return "", "", errors.New("at last")
		default:
			return *id, "hunter2", nil
		}
	}
	l := open(t, c)
	_, err := l.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "the vault is sealed") ||
		strings.Contains(err.Error(), "give access_key_id") {
		t.Errorf("without credentials: %v", err)
	}
	now.Store(new(""))
	if _, err := l.TryLock(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("with an empty access key: %v", err)
	}
	now.Store(new("hangs"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err = l.TryLock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 10*time.Second {
		t.Errorf("while the function hangs, after %v: %v", time.Since(start), err)
	}
	close(hangs)
	now.Store(new("AKIDVAULT"))
	steady.Unlock(t, steady.Lock(t, l, "k"))
	if id := *who.Load(); id != "AKIDVAULT" {
		t.Errorf("the access key is %s", id)
	}
	own := c.Sections["dynamodb"].(*dynamodblock.Config)
	own.AccessKeyID, own.SecretAccessKey = "AKID", "hunter2"
	if _, err := c.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "dynamodb.access_key_id") {
		t.Errorf("credentials and a function: %v", err)
	}
}

// Errors that last until somebody does something say what to do.
func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	client := connect(t, s.URL())
	for name, of := range map[string]struct {
		key, sort string
		kind      types.ScalarAttributeType
	}{
		"other-name": {"id", "", types.ScalarAttributeTypeS},
		"number":     {"name", "", types.ScalarAttributeTypeN},
		"sort-key":   {"name", "range", types.ScalarAttributeTypeS},
	} {
		in := &sdk.CreateTableInput{
			TableName: &name, BillingMode: types.BillingModePayPerRequest,
			AttributeDefinitions: []types.AttributeDefinition{{AttributeName: &of.key, AttributeType: of.kind}},
			KeySchema:            []types.KeySchemaElement{{AttributeName: &of.key, KeyType: types.KeyTypeHash}},
		}
		if of.sort != "" {
			in.AttributeDefinitions = append(in.AttributeDefinitions,
				types.AttributeDefinition{AttributeName: &of.sort, AttributeType: of.kind})
			in.KeySchema = append(in.KeySchema,
				types.KeySchemaElement{AttributeName: &of.sort, KeyType: types.KeyTypeRange})
		}
		if _, err := client.CreateTable(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		waiter := sdk.NewTableExistsWaiter(client, func(o *sdk.TableExistsWaiterOptions) { o.MinDelay = time.Millisecond })
		if err := waiter.Wait(t.Context(), &sdk.DescribeTableInput{TableName: &name}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	answers := func(code string) string {
		return front(t, s.URL(), func(request) *answer { return refusal(code) })
	}
	blind := front(t, s.URL(), func(q request) *answer { // the user may not have the description of the table
		if q.operation == "DescribeTable" {
			return refusal("AccessDeniedException")
		}
		return nil
	})
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()
	const makes = "aws dynamodb create-table --table-name "
	for _, c := range []struct {
		table, endpoint string
		want            []string
	}{
		{"none", s.URL(), []string{"ResourceNotFoundException", "create the table: " + makes + "none",
			"AttributeName=name,KeyType=HASH", " --region " + region, " --endpoint-url " + s.URL()}},
		{"none", blind, []string{"ResourceNotFoundException", "create the table: " + makes + "none"}},
		{"other-name", s.URL(), []string{`partition key "name", a string, and no sort key`, makes + "other-name"}},
		{"number", s.URL(), []string{`partition key "name", a string, and no sort key`}},
		{"sort-key", s.URL(), []string{`partition key "name", a string, and no sort key`}},
		{"other-name", blind, []string{"ValidationException", `partition key "name", a string, and no sort key`}},
		{"locks", answers("UnrecognizedClientException"), []string{"correct the credentials"}},
		{"locks", answers("InvalidSignatureException"), []string{"correct the credentials, or the clock"}},
		{"locks", answers("ExpiredTokenException"), []string{"correct the credentials"}},
		{"locks", answers("AccessDeniedException"), []string{"grant dynamodb:GetItem, dynamodb:PutItem"}},
		{"locks", answers("ProvisionedThroughputExceededException"), []string{"PAY_PER_REQUEST"}},
		{"locks", "http://" + nobody.Addr().String(), []string{"connection refused"}},
	} {
		l := open(t, parse(t, "dynamodb://"+c.table+"?region="+region+"&endpoint="+c.endpoint))
		_, err := l.TryLock(t.Context(), "k")
		for _, text := range c.want {
			if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s at %s: %v, expected %q", c.table, c.endpoint, err, text)
			}
		}
	}
}

// Without credentials, the error says where to put them.
func TestNoCredentials(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	s := dynamotest.Start(t)
	l := open(t, parse(t, "dynamodb://locks?region="+region+"&endpoint="+s.URL()))
	_, err := l.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "give access_key_id") {
		t.Errorf("%v, expected to be told where to give credentials", err)
	}
}

// A Client goes on when the server is back, and a lock is still held after a restart.
func TestAServerThatComesBack(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	l := open(t, parse(t, "dynamodb://locks?region="+region+"&endpoint="+s.URL()))
	lease := steady.Lock(t, l, "k", locker.TTL(time.Hour))
	up := s.Down()
	if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("while the server is down: %v", err)
	}
	up()
	s.Restart()
	if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("when the server is back: %v, expected to find the lock held", err)
	}
	steady.Unlock(t, lease)
	next := steady.Lock(t, l, "k")
	if next.Fence() <= lease.Fence() {
		t.Errorf("token %d after %d", next.Fence(), lease.Fence())
	}
	steady.Unlock(t, next)
}

// The times of a server that is not Amazon's are used if the configuration says by how much its clocks differ.
func TestClockSkewIsChosen(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]bool{
		"dynamodb://locks?region=eu-west-1":                          true,
		"dynamodb://locks?endpoint=http://127.0.0.1:1":               false,
		"dynamodb://locks?endpoint=http://127.0.0.1:1&clock_skew=2s": true,
	} {
		l, err := config.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		if of, ok := locker.As[backend.Capable](l); !ok || of.Capabilities().CountsTime != want {
			t.Errorf("%s: CountsTime is not %v", url, want)
		}
		_ = l.Close()
	}
}
