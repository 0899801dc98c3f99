package dynamodblock_test

import (
	"bytes"
	"context"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"go.uber.org/goleak"
)

// What the machine has for AWS's SDK is not for the tests.
func TestMain(m *testing.M) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "AWS_") {
			_ = os.Unsetenv(name)
		}
	}
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": "hunter2",
	} {
		_ = os.Setenv(name, value)
	}
	goleak.VerifyTestMain(m)
}

// region is what clients of tests sign their requests for.
const region = "eu-west-1"

// connect makes a client as a program would, with connections of its own, until the end of the test.
func connect(t testing.TB, endpoint string) *sdk.Client {
	t.Helper()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	return sdk.New(sdk.Options{
		Region: region, BaseEndpoint: &endpoint, HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDOWN", SecretAccessKey: "hunter2"}, nil
		}),
	})
}

// answer is what a server says instead of another one.
type answer struct {
	status   int
	body     string
	unsigned bool   // it has no checksum
	location string // where to look instead
}

// refusal is the answer of a server that refuses a request.
func refusal(code string) *answer {
	return &answer{
		status: http.StatusBadRequest,
		body:   `{"__type":"com.amazonaws.dynamodb.v20120810#` + code + `","message":"no"}`,
	}
}

// request is what a server gets.
type request struct {
	operation string // such as GetItem
	key       string // the ID of the access key that it is signed with
	body      []byte
}

// front starts a server that answers some requests itself, and passes the others on to the server at behind. instead
// returns nil if a request is passed on.
func front(t testing.TB, behind string, instead func(r request) *answer) (endpoint string) {
	t.Helper()
	to, err := url.Parse(behind)
	if err != nil {
		t.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	proxy := &httputil.ReverseProxy{
		Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		_, key, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
		key, _, _ = strings.Cut(key, "/")
		body, _ := io.ReadAll(r.Body)
		if a := instead(request{operation, key, body}); a != nil {
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			if !a.unsigned {
				w.Header().Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE([]byte(a.body))), 10))
			}
			if a.location != "" {
				w.Header().Set("Location", a.location)
			}
			w.WriteHeader(a.status)
			_, _ = io.WriteString(w, a.body)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	return s.URL
}
