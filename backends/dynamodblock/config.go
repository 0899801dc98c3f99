package dynamodblock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/logging"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/record"
)

// Config is the section dynamodb, of URLs such as dynamodb://locks?region=eu-west-1, and of LOCKER_DYNAMODB_TABLE and
// so on. What is not given comes from where AWS's SDK looks: variables such as AWS_REGION, files of profiles, and the
// role of the machine.
type Config struct {
	// Table is the name of the table.
	Table string `yaml:"table" json:"table" url:"-"`
	// Region is that of the table. With an endpoint, it may be left out if the server does not care.
	Region string `yaml:"region,omitempty" json:"region,omitempty"`
	// Endpoint is the URL of a server that is not Amazon's, such as http://dynamodb:8000.
	Endpoint string `yaml:"endpoint,omitempty" json:"endpoint,omitempty"`
	// AccessKeyID and SecretAccessKey authenticate requests. If they are empty, and there is no config.Config.Credentials,
	// the SDK looks for credentials itself. Of config.Config.Credentials, the username is the ID of an access key, and the
	// password its secret. It is called when a request needs credentials, and they are older than a minute.
	AccessKeyID     string        `yaml:"access_key_id,omitempty" json:"access_key_id,omitempty" url:"-"`
	SecretAccessKey config.Secret `yaml:"secret_access_key,omitempty" json:"secret_access_key,omitempty" url:"-"`
	// Poll is the longest pause between two looks of a waiter; see [record.Poll]. Zero: [record.DefaultPoll].
	Poll config.Duration `yaml:"poll,omitempty" json:"poll,omitempty"`
	// Timeout bounds a call, which makes one request or a few; see [record.Timeout]. Zero: [record.DefaultTimeout].
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`

	credentials config.Credentials `yaml:"-" json:"-"` // those of the program; nil if there are none
}

func init() {
	config.Register("dynamodb", config.Kind[Config]{
		Parse: func(s *Config, at config.Location, report config.Report) {
			s.Table = at.Host
			if strings.Trim(at.Path, "/") != "" {
				report("table", errors.New("a URL has no path: write dynamodb://table"))
			}
		},
		Format:      func(s *Config) config.Location { return config.Location{Host: s.Table} },
		Check:       (*Config).check,
		Credentials: func(s *Config, f config.Credentials) { s.credentials = f },
		Open: func(ctx context.Context, s *Config, prefix string) (*locker.Client, error) {
			return s.open(ctx, prefix)
		},
	})
}

var tableRE = regexp.MustCompile(`^[a-zA-Z0-9_.-]{3,255}$`)

func (s *Config) check(report config.Report) {
	switch {
	case s.Table == "":
		report("table", errors.New("missing: write dynamodb://table"))
	case !tableRE.MatchString(s.Table):
		report("table", errors.New("3 to 255 letters, digits, _, . and - are expected, and no ARN"))
	}
	if s.Endpoint != "" {
		u, err := url.Parse(s.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
			report("endpoint", errors.New("write http://host:8000 or https://host"))
		}
	}
	switch {
	case s.AccessKeyID == "" && s.SecretAccessKey != "":
		report("access_key_id", errors.New("missing, although there is a secret_access_key"))
	case s.AccessKeyID != "" && s.SecretAccessKey == "":
		report("secret_access_key", errors.New("missing, although there is an access_key_id"))
	}
}

// attempts is how many times a request is sent, unless variables of the SDK say otherwise. With more, the pauses after
// answers that the table has no capacity would take longer than a call, whose error would then not say why.
const attempts = 2

// open makes a client. It reads the variables and files of the SDK, and asks no server.
func (s *Config) open(ctx context.Context, prefix string) (*locker.Client, error) {
	opts := []func(*awsconfig.LoadOptions) error{
		awsconfig.WithLogger(logging.Nop{}), // the SDK's own one prints warnings
	}
	if s.Region != "" {
		opts = append(opts, awsconfig.WithRegion(s.Region))
	}
	switch {
	case s.credentials != nil && s.AccessKeyID != "":
		return nil, errors.New("dynamodb.access_key_id: there is a function for credentials, too: remove one of them")
	case s.credentials != nil:
		opts = append(opts, awsconfig.WithCredentialsProvider(aws.CredentialsProviderFunc(s.ask)))
	case s.AccessKeyID != "":
		opts = append(opts, awsconfig.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(s.AccessKeyID, s.SecretAccessKey.Reveal(), "")))
	}
	loaded, err := awsconfig.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("dynamodb: %w", err)
	}
	if s.credentials == nil && s.AccessKeyID == "" {
		loaded.Credentials = searched(loaded.Credentials)
	}
	transport := s.transport(loaded)
	client := sdk.NewFromConfig(loaded, func(o *sdk.Options) {
		if s.Endpoint != "" {
			o.BaseEndpoint = &s.Endpoint
		}
		if o.Region == "" && o.BaseEndpoint != nil {
			o.Region = "us-east-1" // other servers have this one unless they are told otherwise
		}
		if o.RetryMaxAttempts == 0 {
			o.RetryMaxAttempts = attempts
		}
		o.HTTPClient = &http.Client{
			Transport: &leaving{Transport: transport},
			// A request is signed for its host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	})
	if client.Options().Region == "" {
		return nil, errors.New("dynamodb.region: missing: give that of the table, or set AWS_REGION")
	}
	return record.New(&owner{NewStore(client, s.Table), transport}, record.Prefix(prefix),
		record.Poll(time.Duration(s.Poll)), record.Timeout(time.Duration(s.Timeout))), nil
}

// owner is a Store with connections of its own.
type owner struct {
	*Store
	transport *http.Transport
}

// Close implements io.Closer.
func (o *owner) Close() error {
	o.transport.CloseIdleConnections()
	return nil
}

// transport returns that of the SDK, which may trust the authorities of AWS_CA_BUNDLE, with other limits. A server that
// hangs is left after half of the time that a call has, so that the SDK asks another one once more.
func (s *Config) transport(loaded aws.Config) *http.Transport {
	client, ok := loaded.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		client = awshttp.NewBuildableClient()
	}
	half := record.DefaultTimeout / 2
	if s.Timeout > 0 {
		half = time.Duration(s.Timeout) / 2
	}
	t := client.WithDialerOptions(func(d *net.Dialer) { d.Timeout = half }).GetTransport()
	t.ResponseHeaderTimeout = half
	// A request that was given up does not close a connection of HTTP/2, so that a dead one would be used again.
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: half, PingTimeout: half}
	return t
}

// leaving is a transport that, when a request was not answered in time, leaves the connections that no request uses,
// too: the network may have forgotten them all. Otherwise a lock could be lost by renewals that try one after the
// other. A request that its caller gave up says so only if it had some time, and no other one was answered meanwhile.
type leaving struct {
	*http.Transport
	answers atomic.Int64 // how many requests were answered
}

// silence is for how long nothing has to be answered until the network may have forgotten the connections. Callers
// whose contexts end earlier learn nothing of it, and would have those of others made again.
const silence = 100 * time.Millisecond

// RoundTrip implements http.RoundTripper.
func (l *leaving) RoundTrip(r *http.Request) (*http.Response, error) {
	began, answers := time.Now(), l.answers.Load()
	answer, err := l.Transport.RoundTrip(r)
	end, bounded := r.Context().Deadline()
	var late net.Error
	switch {
	case err == nil:
		l.answers.Add(1)
	case !errors.As(err, &late), !late.Timeout():
	case r.Context().Err() == nil, l.answers.Load() == answers && (!bounded || end.Sub(began) >= silence):
		l.CloseIdleConnections()
	}
	return answer, err
}

// keepCredentials is for how long the Client uses what the program's function for credentials has returned. Other
// backends call it for each new connection. Here each request is signed, whichever connection takes it.
const keepCredentials = time.Minute

// ask calls the program's function for credentials. The SDK calls it once at a time.
func (s *Config) ask(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, record.DefaultTimeout)
	defer cancel()
	id, secret, err := s.credentials(ctx)
	if err == nil && (id == "" || secret == "") {
		err = errors.New("the access key or its secret is empty")
	}
	if err != nil {
		return aws.Credentials{}, fmt.Errorf("config.Config.Credentials: %w", err)
	}
	return aws.Credentials{
		AccessKeyID: id, SecretAccessKey: secret, CanExpire: true, Expires: time.Now().Add(keepCredentials),
	}, nil
}

// searched adds to the error of the SDK that it finds no credentials where to give them.
func searched(by aws.CredentialsProvider) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		found, err := by.Retrieve(ctx)
		if err != nil {
			err = fmt.Errorf("%w: give access_key_id and secret_access_key, or what AWS's SDK looks for: variables such as "+
				"AWS_ACCESS_KEY_ID, a profile, or the role of this machine", err)
		}
		return found, err
	})
}
