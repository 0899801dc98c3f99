package s3lock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	sdkaws "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/aws"
	"github.com/golocker/locker/record"
)

// Config is the section s3, of URLs such as s3://bucket/folder?region=eu-west-1, and of LOCKER_S3_BUCKET and so on.
// What is not given comes from where AWS's SDK looks: variables such as AWS_REGION, files of profiles, and the role of
// the machine.
type Config struct {
	// Bucket is the name of the bucket.
	Bucket string `yaml:"bucket" json:"bucket" url:"-"`
	// Folder is what the keys of objects begin with, before a slash and the name of the record. Empty: nothing.
	Folder string `yaml:"folder,omitempty" json:"folder,omitempty" url:"-"`
	// Region is that of the bucket. With an endpoint, it may be left out if the server does not care.
	Region string `yaml:"region,omitempty" json:"region,omitempty"`
	// Endpoint is the URL of a server that is not Amazon's, such as http://minio:9000.
	Endpoint string `yaml:"endpoint,omitempty" json:"endpoint,omitempty"`
	// PathStyle says that the name of the bucket is a part of the path, and not of the host.
	PathStyle bool `yaml:"path_style,omitempty" json:"path_style,omitempty"`
	// AccessKeyID and SecretAccessKey authenticate requests. If they are empty, and there is no config.Config.Credentials,
	// the SDK looks for credentials itself. Of config.Config.Credentials, the username is the ID of an access key, and the
	// password its secret. It is called when a request needs credentials, and they are older than a minute.
	AccessKeyID     string        `yaml:"access_key_id,omitempty" json:"access_key_id,omitempty" url:"-"`
	SecretAccessKey config.Secret `yaml:"secret_access_key,omitempty" json:"secret_access_key,omitempty" url:"-"`
	// Poll is the longest pause between two looks of a waiter; see [record.Poll]. Zero: [record.DefaultPoll].
	Poll config.Duration `yaml:"poll,omitempty" json:"poll,omitempty"`
	// Timeout bounds a call, which makes one request or a few; see [record.Timeout]. Zero: [record.DefaultTimeout].
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`
	// ClockSkew is by how much the clocks of the servers may differ; see [record.ClockSkew]. Zero: [Skew] for Amazon's.
	// With an endpoint, the times of the servers are then not used.
	ClockSkew config.Duration `yaml:"clock_skew,omitempty" json:"clock_skew,omitempty"`

	credentials config.Credentials `yaml:"-" json:"-"` // those of the program; nil if there are none
}

func init() {
	config.Register("s3", config.Kind[Config]{
		Parse: func(s *Config, at config.Location, _ config.Report) {
			s.Bucket, s.Folder = at.Host, strings.Trim(at.Path, "/")
		},
		Format: func(s *Config) config.Location {
			at := config.Location{Host: s.Bucket}
			if s.Folder != "" {
				at.Path = "/" + s.Folder
			}
			return at
		},
		Check:       (*Config).check,
		Credentials: func(s *Config, f config.Credentials) { s.credentials = f },
		Open: func(ctx context.Context, s *Config, prefix string) (*locker.Client, error) {
			return s.open(ctx, prefix)
		},
	})
}

var (
	bucketRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]+$`)
	folderRE = regexp.MustCompile(`^[^/[:cntrl:]]+(/[^/[:cntrl:]]+)*$`)
)

// maxFolder leaves room for the name of a record. A key has at most 1,024 bytes.
const maxFolder = 500

func (s *Config) check(report config.Report) {
	switch {
	case s.Bucket == "":
		report("bucket", errors.New("missing: write s3://bucket/folder"))
	case !bucketRE.MatchString(s.Bucket):
		report("bucket", errors.New("letters, digits, . and - are expected, and no ARN"))
	}
	switch {
	case s.Folder == "":
	case !folderRE.MatchString(s.Folder) || strings.Contains("/"+s.Folder+"/", "/../") ||
		strings.Contains("/"+s.Folder+"/", "/./"):
		report("folder", errors.New("names with single slashes between them are expected"))
	case len(s.Folder) > maxFolder:
		report("folder", fmt.Errorf("at most %d bytes", maxFolder))
	}
	s.account().Check(report, "http://host:9000")
}

func (s *Config) account() *aws.Account {
	return &aws.Account{
		Section: "s3", Of: "the bucket", Endpoint: s.Endpoint, AccessKeyID: s.AccessKeyID,
		Secret: s.SecretAccessKey, Function: s.credentials, Timeout: time.Duration(s.Timeout),
	}
}

// open makes a client. It reads the variables and files of the SDK, and asks no server.
func (s *Config) open(ctx context.Context, prefix string) (*locker.Client, error) {
	account := s.account()
	given, err := account.Credentials()
	if err != nil {
		return nil, err
	}
	var provider sdkaws.CredentialsProvider // nil: the SDK looks for credentials
	if given != nil {
		provider = sdkaws.CredentialsProviderFunc(func(ctx context.Context) (sdkaws.Credentials, error) {
			id, secret, expires, err := given(ctx)
			return sdkaws.Credentials{
				AccessKeyID: id, SecretAccessKey: secret, CanExpire: !expires.IsZero(), Expires: expires,
			}, err
		})
	}
	loaded, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(s.Region),
		awsconfig.WithCredentialsProvider(provider), awsconfig.WithLogger(logging.Nop{})) // the SDK's own one prints warnings
	if err != nil {
		return nil, fmt.Errorf("s3: %w", err)
	}
	if provider == nil {
		search := loaded.Credentials
		loaded.Credentials = sdkaws.CredentialsProviderFunc(func(ctx context.Context) (sdkaws.Credentials, error) {
			found, err := search.Retrieve(ctx)
			return found, aws.NotFound(err)
		})
	}
	connects, ok := loaded.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		connects = awshttp.NewBuildableClient()
	}
	transport := connects.WithDialerOptions(func(d *net.Dialer) { d.Timeout = account.Patience() }).GetTransport()
	client := sdk.NewFromConfig(loaded, func(o *sdk.Options) {
		if s.Endpoint != "" {
			o.BaseEndpoint = &s.Endpoint
		}
		if o.Region == "" && o.BaseEndpoint != nil {
			o.Region = aws.DefaultRegion
		}
		o.UsePathStyle = s.PathStyle
		o.HTTPClient = account.Client(transport)
	})
	if err := account.CheckRegion(client.Options().Region); err != nil {
		return nil, err
	}
	return record.New(&owner{NewStore(client, s.Bucket, s.Folder), transport}, record.Prefix(prefix),
		record.Poll(time.Duration(s.Poll)), record.Timeout(time.Duration(s.Timeout)),
		record.ClockSkew(time.Duration(s.ClockSkew))), nil
}

// owner is a Store with connections of its own.
type owner struct {
	*Store
	transport *http.Transport
}

// Close implements io.Closer.
func (o *owner) Close() error {
	defer o.transport.CloseIdleConnections()
	return o.Store.Close()
}
