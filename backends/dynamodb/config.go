package dynamodb

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/logging"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/record"
)

// Config is the section dynamodb, of URLs such as dynamodb://locks?region=eu-west-1, and of LOCKER_DYNAMODB_TABLE and
// so on. What is not given comes from where the AWS SDK looks for it: variables such as AWS_REGION and
// AWS_ACCESS_KEY_ID, profiles, and the role of the machine or of the pod.
type Config struct {
	// Table is the name of the table, which must exist; see the package.
	Table string `yaml:"table,omitempty" json:"table,omitempty" url:"-"`
	// Region is that of the table.
	Region string `yaml:"region,omitempty" json:"region,omitempty"`
	// Endpoint is the URL of a server instead of that of the region, such as http://127.0.0.1:4567.
	Endpoint string `yaml:"endpoint,omitempty" json:"endpoint,omitempty"`
	// Username is the ID of an access key, and Password, or the content of PasswordFile without its trailing newline, its
	// secret. The file is read for each request, as config.Config.Credentials is called for each.
	Username     string        `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     config.Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string        `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	// Poll is the longest pause between two looks of a waiter; see [record.Poll]. Zero: 1 s.
	Poll config.Duration `yaml:"poll,omitempty" json:"poll,omitempty"`
	// Timeout bounds a call, which makes one request or a few; see [record.Timeout]. Zero: 5 s.
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`

	credentials config.Credentials `yaml:"-" json:"-"` // those of the program; nil if there are none
}

func init() {
	config.Register("dynamodb", config.Kind[Config]{
		Parse: func(s *Config, at config.Location, report config.Report) {
			s.Table = at.Host
			if strings.Trim(at.Path, "/") != "" {
				report("table", errors.New("a URL has no path: write dynamodb://table?region=eu-west-1"))
			}
		},
		Format:      func(s *Config) config.Location { return config.Location{Host: s.Table} },
		Check:       (*Config).check,
		Credentials: func(s *Config, f config.Credentials) { s.credentials = f },
		Open:        func(ctx context.Context, s *Config, p string) (*locker.Client, error) { return s.open(ctx, p) },
	})
}

var tableRE = regexp.MustCompile(`^[a-zA-Z0-9_.-]{3,255}$`)

func (s *Config) check(report config.Report) {
	switch {
	case s.Table == "":
		report("table", errors.New("missing: write dynamodb://table?region=eu-west-1"))
	case !tableRE.MatchString(s.Table):
		report("table", errors.New("3 to 255 letters, digits, _, . and - are expected"))
	}
	if s.Endpoint != "" {
		u, err := url.Parse(s.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			report("endpoint", errors.New("not a URL such as http://127.0.0.1:4567"))
		}
	}
	switch password := s.Password != "" || s.PasswordFile != ""; {
	case s.Password != "" && s.PasswordFile != "":
		report("password_file", errors.New("there is a password, too: remove one of them"))
	case s.Username == "" && password:
		report("username", errors.New("missing, although there is a password: give the ID of the access key"))
	case s.Username != "" && !password:
		report("password", errors.New("missing, although there is a username: give the secret of the access key, or a "+
			"password_file"))
	}
}

// attempts is how many times a request is sent, unless variables of the SDK say otherwise. With more, the pauses after
// answers that the table has no capacity would take longer than a call, whose error would then not say why.
const attempts = 2

// open makes a client for the table, which asks no server yet.
func (s *Config) open(ctx context.Context, prefix string) (*locker.Client, error) {
	opts := []func(*awsconfig.LoadOptions) error{
		awsconfig.WithHTTPClient(awshttp.NewBuildableClient()),
		awsconfig.WithLogger(logging.Nop{}), // by default, warnings are printed
	}
	if s.Region != "" {
		opts = append(opts, awsconfig.WithRegion(s.Region))
	}
	login, err := s.login()
	if err != nil {
		return nil, err
	}
	if login != nil {
		opts = append(opts, awsconfig.WithCredentialsProvider(login))
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx, opts...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("dynamodb: %w", err)
	case cfg.Region == "":
		return nil, errors.New("dynamodb.region: missing: give it here, in AWS_REGION or in a profile")
	}
	if login == nil {
		cfg.Credentials = explained(cfg.Credentials)
	}
	transport := cfg.HTTPClient.(*awshttp.BuildableClient).GetTransport() // with the authorities of AWS_CA_BUNDLE
	cfg.HTTPClient = &http.Client{Transport: transport}                   // whose connections can be closed
	client := sdk.NewFromConfig(cfg, func(o *sdk.Options) {
		if s.Endpoint != "" {
			o.BaseEndpoint = &s.Endpoint
		}
		if o.RetryMaxAttempts == 0 {
			o.RetryMaxAttempts = attempts
		}
	})
	return record.New(&owner{NewStore(client, s.Table), transport}, record.Prefix(prefix),
		record.Poll(time.Duration(s.Poll)), record.Timeout(time.Duration(s.Timeout))), nil
}

// owner is a Store with connections of its own.
type owner struct {
	*Store
	transport *http.Transport
}

// Close implements io.Closer for a Backend.
func (o *owner) Close() error {
	o.transport.CloseIdleConnections()
	return nil
}

// login returns the credentials of the configuration or of the program, or nil if there are none.
func (s *Config) login() (aws.CredentialsProvider, error) {
	get := s.credentials
	switch {
	case get != nil:
	case s.PasswordFile != "":
		secret, err := config.PasswordFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("dynamodb.password_file: %w", err)
		}
		get = func(context.Context) (string, string, error) { return s.Username, secret(), nil }
	case s.Username != "":
		get = func(context.Context) (string, string, error) { return s.Username, s.Password.Reveal(), nil }
	default:
		return nil, nil
	}
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		id, secret, err := get(ctx)
		if err != nil {
			return aws.Credentials{}, fmt.Errorf("credentials: %w", err)
		}
		// The cache of the SDK, which calls this for several requests at once, forgets at once what has expired.
		return aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, CanExpire: true, Expires: time.Now()}, nil
	}), nil
}

// explained says what to do if the SDK finds no credentials.
func explained(from aws.CredentialsProvider) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		c, err := from.Retrieve(ctx)
		if err != nil {
			err = fmt.Errorf("%w: give a username and a password, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or "+
				"a role", err)
		}
		return c, err
	})
}
