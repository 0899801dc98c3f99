package dynamodb_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/dynamodb"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/dynamotest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/record"
)

const secret = "a/secret+key"

// lets lets in requests that are signed with one access key, and refuses others as DynamoDB does.
func lets(key *atomic.Pointer[string]) func(request) *answer {
	return func(q request) *answer {
		if q.key != *key.Load() {
			return refusal("UnrecognizedClientException")
		}
		return nil
	}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

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

// The same table by a URL, in a file, in the environment and with a client of the program's own. A lock of one is held
// for the others.
func TestFourWays(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	user := new(atomic.Pointer[string])
	user.Store(aws.String("id"))
	endpoint := front(t, s.URL(), lets(user))
	dir := t.TempDir()
	inFile, err := config.Load(write(t, filepath.Join(dir, "locker.yaml"), "backend: dynamodb\nttl: 5s\ndynamodb:\n  "+
		"table: locks\n  region: "+region+"\n  endpoint: "+endpoint+"\n  username: id\n  password_file: "+
		write(t, filepath.Join(dir, "password"), secret+"\n")+"\n  poll: 500ms\n"))
	if err != nil {
		t.Fatal(err)
	}
	inEnv := new(config.Config)
	err = inEnv.Overlay([]string{
		"LOCKER_BACKEND=dynamodb", "LOCKER_DYNAMODB_TABLE=locks", "LOCKER_DYNAMODB_REGION=" + region,
		"LOCKER_DYNAMODB_ENDPOINT=" + endpoint, "LOCKER_DYNAMODB_USERNAME=id", "LOCKER_DYNAMODB_PASSWORD=" + secret,
	})
	if err != nil {
		t.Fatal(err)
	}
	inURL := parse(t, "dynamodb://id:"+url.QueryEscape(secret)+"@locks?region="+region+"&endpoint="+endpoint+
		"&timeout=10s")
	own := record.New(dynamodb.NewStore(connect(t, endpoint), "locks"), record.Prefix(prefix))
	defer own.Close()
	defer steady.Unlock(t, steady.Lock(t, own, "k", locker.TTL(time.Hour)))
	for way, c := range map[string]*config.Config{"file": inFile, "environment": inEnv, "URL": inURL} {
		if text := c.String(); strings.Contains(text, "secret") || !strings.HasPrefix(text, "dynamodb://id") {
			t.Errorf("%s: %s", way, text)
		}
		l := open(t, c)
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("%s: %v, expected to find the lock held", way, err)
		}
		steady.Unlock(t, steady.Lock(t, l, "another"))
	}
}

func TestMistakes(t *testing.T) {
	for url, want := range map[string]string{
		"dynamodb://":          "table: missing: write dynamodb://table?region=eu-west-1",
		"dynamodb://ab":        "table: 3 to 255 letters",
		"dynamodb://a,b":       "table: 3 to 255 letters",
		"dynamodb://locks/key": "table: a URL has no path",
		"dynamodb://locks?endpoint=127.0.0.1:4567":  "endpoint: not a URL",
		"dynamodb://locks?endpoint=localhost":       "endpoint: not a URL",
		"dynamodb://id@locks":                       "password: missing",
		"dynamodb://:x@locks":                       "username: missing",
		"dynamodb://id:x@locks?password_file=/c":    "password_file: there is a password, too",
		"dynamodb://locks?regon=eu-west-1":          "did you mean region?",
		"dynamodb://locks?region=eu-west-1&poll=5":  "poll: a number without a unit",
		"dynamodb://locks?region=eu-west-1&ttl=1us": "ttl: ",
	} {
		c, err := config.Parse(url)
		if err == nil {
			err = c.Validate()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", url, err, want)
		}
	}
	for url, want := range map[string]string{
		"dynamodb://locks": "dynamodb.region: missing",
		"dynamodb://id@locks?region=eu-west-1&password_file=/none": "dynamodb.password_file: file not found",
	} {
		if _, err := parse(t, url).Open(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", url, err, want)
		}
	}
}

// What a configuration does not have comes from the variables of the SDK.
func TestVariablesOfTheSDK(t *testing.T) {
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	user := new(atomic.Pointer[string])
	user.Store(aws.String("from-env"))
	t.Setenv("AWS_REGION", region)
	t.Setenv("AWS_ACCESS_KEY_ID", "from-env")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_ENDPOINT_URL_DYNAMODB", front(t, s.URL(), lets(user)))
	l := open(t, parse(t, "dynamodb://locks"))
	steady.Unlock(t, steady.Lock(t, l, "k"))
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
	l := open(t, parse(t, "dynamodb://id:x@locks?region="+region+"&endpoint="+endpoint))
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
	l, err := parse(t, "dynamodb://id:x@locks?region="+region+"&endpoint="+s.URL()).Open(t.Context())
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

// Each request is signed with what a file contains at that time, or with what the program's function returns. While the
// function fails, errors say why.
func TestCredentialsThatChange(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	user := new(atomic.Pointer[string])
	endpoint := front(t, s.URL(), lets(user))
	c := parse(t, "dynamodb://locks?timeout=1m&region="+region+"&endpoint="+endpoint)
	var now atomic.Pointer[string] // nil: there is none
	hangs := make(chan struct{})
	c.Credentials = func(context.Context) (string, string, error) {
		switch id := now.Load(); {
		case id == nil:
			return "", "", errors.New("the vault is sealed")
		case *id == "hangs":
			<-hangs
			return "", "", errors.New("at last")
		default:
			return *id, secret, nil
		}
	}
	l := open(t, c)
	_, err := l.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "the vault is sealed") {
		t.Errorf("without credentials: %v", err)
	}
	for _, id := range []string{"one", "two"} {
		user.Store(&id)
		now.Store(&id)
		steady.Unlock(t, steady.Lock(t, l, "k"))
	}
	now.Store(aws.String("hangs"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err = l.TryLock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 10*time.Second {
		t.Errorf("while the function hangs, after %v: %v", time.Since(start), err)
	}
	close(hangs)

	c = parse(t, "dynamodb://id:x@locks?region="+region)
	c.Credentials = func(context.Context) (string, string, error) { return "", "", nil }
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "there is a function for credentials, too") {
		t.Errorf("a password and a function: %v", err)
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
		l := open(t, parse(t, "dynamodb://id:x@"+c.table+"?region="+region+"&endpoint="+c.endpoint))
		_, err := l.TryLock(t.Context(), "k")
		for _, text := range c.want {
			if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s at %s: %v, expected %q", c.table, c.endpoint, err, text)
			}
		}
	}
	l := open(t, parse(t, "dynamodb://locks?region="+region+"&endpoint="+s.URL()))
	_, err = l.TryLock(t.Context(), "k")
	if want := "give a username and a password, AWS_ACCESS_KEY_ID"; !errors.Is(err, locker.ErrUnavailable) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("without credentials: %v, expected %q", err, want)
	}
}

// A Client goes on when the server is back, and a lock is still held after a restart.
func TestAServerThatComesBack(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	l := open(t, parse(t, "dynamodb://id:x@locks?region="+region+"&endpoint="+s.URL()))
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
