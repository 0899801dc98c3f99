// Package archtest checks which packages may import which, and gives the reason for each rule.
package archtest

import (
	"slices"
	"strings"
	"testing"
)

const module = "github.com/golocker/locker"

// rules lists what a package may import outside the standard library.
var rules = map[string]struct {
	may []string // import path prefixes
	why string
}{
	"":                         {nil, "a program that uses only the interface must not inherit dependencies"},
	"/backend":                 {[]string{module + "/lockertrace"}, "the root package imports it"},
	"/inspect":                 {nil, "the root package imports it"},
	"/lockertrace":             {nil, "the root package imports it"},
	"/internal/core/label":     {nil, "the root package imports it"},
	"/internal/core/placename": {nil, "names are text"},
	"/internal/core/ending":    {nil, "the root package imports it"},
	"/internal/core/validity":  {nil, "the root package imports it"},
	"/internal/core/passing":   {nil, "the root package imports it"},
	"/internal/core/several":   {[]string{module + "/backend"}, "the root package imports it"},
	"/backend/cleanup":         {nil, "any store may import it"},
	"/internal/core/listing":   {[]string{module + "/inspect"}, "any store may import it"},
	"/memory":                  {[]string{module}, "the in-process store needs no client"},
	"/record": {[]string{module, module + "/internal/core/placename", module + "/internal/core/tick"},
		"a Store brings its own client"},
	"/record/recordtest": {[]string{module + "/record"},
		"outside authors run it with nothing but the standard library"},
	"/lockertest": {[]string{module, module + "/memory"},
		"a program's tests must not inherit the dependencies of other stores"},
	"/election":  {[]string{module}, "it knows the interface and no store"},
	"/once":      {[]string{module, module + "/internal/core/tick"}, "it knows the interface and no store"},
	"/semaphore": {[]string{module, module + "/internal/core/slots"}, "it knows the interface and no store"},
	"/rwlock":    {[]string{module, module + "/internal/core/slots"}, "it knows the interface and no store"},
	"/transfer":  {[]string{module}, "it knows the interface and no store"},
	"/internal/core/slots": {[]string{module, module + "/internal/core/placename"},
		"it knows the interface and no store"},
	"/adapters/lockcertmagic": {[]string{module, "github.com/caddyserver/certmagic"},
		"an adapter knows the interface and no store"},
	"/adapters/lockkube": {[]string{module, "k8s.io/apimachinery/pkg/apis/meta/v1",
		"k8s.io/client-go/tools/leaderelection/resourcelock"}, "it knows the interface of client-go, and no store"},
	"/adapters/locktus":  {[]string{module, "github.com/tus/tusd/v2"}, "an adapter knows the interface and no store"},
	"/internal/postpone": {[]string{module}, "it knows the interface and no store, and no queue of jobs"},
	"/adapters/lockriver": {[]string{module, module + "/internal/postpone", "github.com/riverqueue/river"},
		"it knows the interface and no store"},
	"/adapters/lockasynq": {[]string{module, module + "/internal/postpone", "github.com/hibiken/asynq"},
		"it knows the interface and no store"},
	"/drivers": {[]string{module + "/drivers/internal/sentinel"},
		"the contract knows neither locks nor clients"},
	"/drivers/internal/sentinel": {nil, "the contract imports it"},
	"/single": {[]string{module, module + "/drivers", module + "/internal/redis/node",
		module + "/internal/redis/settings"},
		"a backend reaches clients through drivers only"},
	"/internal/redis/node": {[]string{module, module + "/drivers", module + "/internal/redis/pipeline",
		module + "/internal/redis/script"}, "the protocol reaches clients through drivers only"},
	"/internal/redis/pipeline": {[]string{module + "/drivers", module + "/internal/redis/script"},
		"how commands travel has nothing to do with who sends them"},
	"/internal/redis/script": {[]string{module + "/drivers"},
		"what a lock is on a server has nothing to do with who calls"},
	"/internal/redis/settings": {[]string{module + "/drivers"},
		"what servers tell of themselves has nothing to do with locks"},
	"/internal/redis/servers": {[]string{module, module + "/drivers", module + "/redlock", module + "/single"},
		"it is what the configuration, which imports it, tells the command"},
	"/redlock": {[]string{module, module + "/drivers", module + "/internal/redis/node",
		module + "/internal/redis/settings"},
		"a backend reaches clients through drivers only"},
	"/drivers/goredisdriver": {[]string{module + "/drivers", "github.com/redis/go-redis/v9"},
		"a driver knows its own client, and nothing of locks"},
	"/drivers/redigodriver": {[]string{module + "/drivers", "github.com/gomodule/redigo"},
		"a driver knows its own client, and nothing of locks"},
	"/drivers/rueidisdriver": {[]string{module + "/drivers", "github.com/redis/rueidis"},
		"a driver knows its own client, and nothing of locks"},
	"/drivers/valkeydriver": {[]string{module + "/drivers", "github.com/valkey-io/valkey-go"},
		"a driver knows its own client, and nothing of locks"},
	"/internal/aws": {[]string{module + "/config", module + "/internal/httpdate", module + "/record"},
		"the library does not require the SDK"},
	"/internal/httpdate": {[]string{module + "/record"}, "it knows answers, and no store"},
	"/backends/dynamodblock": {[]string{module, module + "/config", module + "/internal/aws", module + "/record",
		"github.com/aws/aws-sdk-go-v2", "github.com/aws/smithy-go"},
		"a backend knows its own client, and no other store"},
	"/backends/etcdlock": {[]string{module, module + "/config", module + "/inspect",
		module + "/internal/core/placename", module + "/lockertrace",
		"go.etcd.io/etcd/api/v3", "go.etcd.io/etcd/client/v3", "go.uber.org/zap", "google.golang.org/grpc"},
		"it is written like the backend of an outside author, but for the names of places"},
	"/drivers/all": {[]string{module + "/drivers/goredisdriver", module + "/drivers/redigodriver",
		module + "/drivers/rueidisdriver"},
		"it only registers, and a client that few programs use must not be a requirement of the library"},
	"/backends/kuberneteslock": {[]string{module, module + "/config", module + "/internal/httpdate", module + "/record",
		"k8s.io/api/coordination/v1", "k8s.io/apimachinery", "k8s.io/client-go/rest", "k8s.io/client-go/tools/clientcmd",
		"k8s.io/klog/v2",
		"github.com/go-logr/logr"},
		"client-go's typed clients bring the types of all API groups"},
	"/backends/natslock": {[]string{module, module + "/config", "github.com/nats-io/nats.go"},
		"it is written like the backend of an outside author"},
	"/backends/mysqllock": {[]string{module, module + "/config", module + "/record", "github.com/go-sql-driver/mysql"},
		"it is written like the store of an outside author"},
	"/config": {[]string{module, module + "/drivers", module + "/internal/redis/servers", module + "/memory",
		module + "/middleware/audit", module + "/middleware/logging", module + "/middleware/retry", module + "/redlock",
		module + "/single",
		"go.yaml.in/yaml/v3"},
		"configuration must not pull in clients that the program does not register"},
	"/backends/filelock": {[]string{module, module + "/config", module + "/record", "golang.org/x/sys/unix"},
		"locks without a server must not bring a client"},
	"/backends/postgreslock": {[]string{module, module + "/config", module + "/fence",
		module + "/internal/core/placename", "github.com/jackc/pgx/v5"},
		"a backend knows its own client, and no other store"},
	"/backends/s3lock": {[]string{module, module + "/config", module + "/internal/aws", module + "/record",
		"github.com/aws/aws-sdk-go-v2", "github.com/aws/smithy-go"}, "a backend knows its own client, and no other store"},
	"/config/tracing": {[]string{module, module + "/config", module + "/middleware/tracing"}, "it only registers"},
	"/middleware/tracing": {[]string{module, module + "/election", "go.opentelemetry.io/otel",
		"go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/codes",
		"go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace"},
		"the SDK and its exporters are the program's choice"},
	"/middleware/retry":  {[]string{module}, "a middleware knows the interface and no store"},
	"/lockdebug":         {[]string{module}, "it knows the interface and no store"},
	"/adapters/lockhttp": {[]string{module}, "it knows the interface and no store"},
	"/adapters/lockgrpc": {[]string{module, "google.golang.org/genproto/googleapis/rpc/errdetails",
		"google.golang.org/grpc", "google.golang.org/protobuf/types/known/durationpb"},
		"it knows the interface and no store"},
	"/internal/clientwait": {[]string{module}, "authors' tests of backends need nothing but the interface"},
	"/conformance": {[]string{module, module + "/drivers", module + "/internal/clientwait", module + "/semaphore",
		module + "/rwlock", module + "/internal/testing/quorumtest"},
		"outside authors run the suite with nothing but the standard library"},
	"/adapters/lockgocron": {[]string{module, module + "/election", module + "/once", "github.com/go-co-op/gocron/v2"},
		"an adapter knows its library, and no store"},
	"/middleware/logging": {[]string{module}, "a middleware knows the interface and no store"},
	"/middleware/audit": {[]string{module, module + "/internal/core/tick"},
		"a middleware knows the interface and no store"},
	"/internal/judge": {[]string{module, module + "/middleware/audit"},
		"it knows logs, and neither who writes them nor who asks"},
	"/compat/internal/retries": {[]string{module}, "it knows the interface and no store"},
	"/compat/internal/embedded": {[]string{"github.com/redis/go-redis/v9"},
		"it knows clients, and what uses them is not its concern"},
	"/compat/redsync": {[]string{module, module + "/compat/internal/retries", module + "/compat/redsync/redis",
		module + "/drivers", module + "/redlock", module + "/single"},
		"it reaches clients through pools only"},
	"/compat/redsync/redis": {[]string{module + "/drivers"}, "a pool makes a driver, of any client"},
	"/compat/redsync/redis/goredis/v9": {[]string{module + "/compat/internal/embedded",
		module + "/compat/redsync/redis", module + "/drivers", module + "/drivers/goredisdriver",
		"github.com/redis/go-redis/v9"}, "a pool knows its own client"},
	"/compat/redsync/redis/redigo": {[]string{module + "/compat/redsync/redis", module + "/drivers",
		module + "/drivers/redigodriver", "github.com/gomodule/redigo"}, "a pool knows its own client"},
	"/compat/redsync/redis/rueidis": {[]string{module + "/compat/redsync/redis", module + "/drivers",
		module + "/drivers/rueidisdriver", "github.com/redis/rueidis"}, "a pool knows its own client"},
	"/compat/redislock": {[]string{module, module + "/compat/internal/embedded", module + "/compat/internal/retries",
		module + "/drivers/goredisdriver", module + "/single", "github.com/redis/go-redis/v9"},
		"its API has a client of go-redis"},
	"/fence": {[]string{module, module + "/drivers", module + "/internal/redis/script"},
		"it knows leases, and no store; a Redis that is a resource it reaches through drivers only"},
	"/internal/child": {nil, "it starts processes of any kind"},
	"/cmd/locker": {[]string{module + "/backends/", module + "/cmd/locker/cli"},
		"it is a command as others build theirs: cli, and backends"},
	"/cmd/locker/cli": {[]string{module, module + "/backends/", module + "/cmd/locker/internal/", module + "/config",
		module + "/drivers", module + "/drivers/all", module + "/drivers/valkeydriver", module + "/inspect",
		module + "/internal/child", module + "/internal/core/label", module + "/internal/core/placename",
		module + "/internal/core/tick", module + "/internal/judge", module + "/internal/redis/servers", module + "/rwlock",
		module + "/semaphore", module + "/transfer",
		"github.com/alicebob/miniredis/v2",
		"github.com/spf13/cobra", "github.com/spf13/pflag", "go.yaml.in/yaml/v3", "golang.org/x/sys/unix"},
		"the command is shipped, so it must not need what is made for tests"},
	"/cmd/locker/internal/exit": {[]string{module, module + "/redlock"}, "it knows errors, and no command line"},
	"/cmd/locker/internal/supervise": {[]string{module, module + "/cmd/locker/internal/exit", module + "/election",
		module + "/internal/core/label", module + "/lockertrace", module + "/once", module + "/semaphore",
		"golang.org/x/sys/unix"},
		"a supervisor knows no command line and no store, so that it can be tested without them"},
	"/cmd/locker/internal/conform": {[]string{module, module + "/conformance"}, "it runs the suite against any Locker"},
	"/cmd/locker/internal/doctor": {[]string{module, module + "/drivers", module + "/internal/redis/node",
		module + "/internal/redis/settings", module + "/single"},
		"the checks know no command line, so that they can be tested and used without one"},
}

// free lists packages without rules: they are not libraries, or are only for this module's own tests.
var free = []string{"/examples", "/benchmarks", "/internal/testing"}

// testers lists packages that may import package testing outside _test files.
var testers = []string{"/benchmarks", "/conformance", "/record/recordtest", "/cmd/locker/internal/conform",
	"/internal/testing/redistest", "/internal/testing/fault", "/internal/testing/contention", "/internal/testing/golden",
	"/internal/testing/virtual", "/internal/testing/played", "/internal/testing/configtest", "/internal/testing/datetest",
	"/internal/testing/dynamotest",
	"/internal/testing/etcdtest", "/internal/testing/kubetest", "/internal/testing/mariadbtest",
	"/internal/testing/natstest", "/internal/testing/pgtest", "/internal/testing/placestest",
	"/internal/testing/quorumtest", "/internal/testing/instance", "/internal/testing/oncetest",
	"/internal/testing/testserver", "/internal/testing/storeurl", "/internal/testing/short",
	"/internal/testing/steady", "/internal/testing/trials/sim",
	"/internal/testing/trials/everystore/deployment", "/internal/testing/adapters"}

func under(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return path == r || strings.HasPrefix(path, r+"/") })
}

// shared packages belong to the root package: it may import them, and so may every package that may import it.
var shared = []string{module + "/inspect", module + "/lockertrace", module + "/backend",
	module + "/backend/cleanup", module + "/internal/core/ending", module + "/internal/core/label",
	module + "/internal/core/listing", module + "/internal/core/passing", module + "/internal/core/several",
	module + "/internal/core/tick", module + "/internal/core/validity"}

// owned lists modules that only one package may import.
var owned = map[string]string{"github.com/spf13/cobra": "/cmd/locker/cli"}

// forbidden is the package that nobody imports but excepted. Its name is in two parts, so that a search for it finds
// nothing.
const forbidden = "un" + "safe"

// excepted is the package that calls the system where golang.org/x/sys/unix has no function for it.
const excepted = "/benchmarks/relay"

// violation returns the reason why pkg must not import imp, or an empty string.
func violation(pkg, imp string) string {
	if imp == "testing" && !under(pkg, testers) {
		return "only test code imports testing"
	}
	if imp == forbidden && pkg != excepted {
		return "the compiler must be able to check what the code does with memory"
	}
	for dep, room := range owned {
		if under(imp, []string{dep}) && pkg != room {
			return "only " + room + " parses a command line"
		}
	}
	rule, ok := rules[pkg]
	if slices.Contains(shared, imp) {
		if pkg == "" || slices.Contains(rule.may, imp) {
			return ""
		}
		imp = module
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") || !ok && under(pkg, free) {
		return ""
	}
	if !ok {
		return "there is no rule for this package: add one"
	}
	for _, may := range rule.may {
		// Packages of this module, and of OpenTelemetry, must match exactly, because OpenTelemetry's SDK is below its
		// API. For other modules a prefix is enough.
		exact := strings.HasPrefix(may, module) || strings.HasPrefix(may, "go.opentelemetry.io/")
		if imp == may || (!exact || strings.HasSuffix(may, "/")) && strings.HasPrefix(imp, may) {
			return ""
		}
	}
	return rule.why
}

func TestImports(t *testing.T) {
	pkgs, imports := packages(t), 0
	for _, p := range pkgs {
		imports += len(p.imports)
		for _, imp := range p.imports {
			if why := violation(strings.TrimPrefix(p.path, module), imp); why != "" {
				t.Errorf("%s imports %s: %s", p.path, imp, why)
			}
		}
	}
	if len(pkgs) < 50 || imports < 5*len(pkgs) {
		t.Errorf("only %d packages with %d imports were listed", len(pkgs), imports)
	}
}

func TestRulesCatchViolations(t *testing.T) {
	for _, bad := range [][2]string{
		{"", "github.com/redis/go-redis/v9"},
		{"", module + "/memory"},
		{"", "testing"},
		{"/drivers", forbidden},
		{"/internal/testing/redistest", forbidden},
		{"/single", "github.com/redis/rueidis"},
		{"/drivers/valkeydriver", "github.com/redis/rueidis"},
		{"/drivers/all", module + "/drivers/valkeydriver"},
		{"/drivers/goredisdriver", "github.com/redis/rueidis"},
		{"/drivers/goredisdriver", module},
		{"/config", module + "/drivers/goredisdriver"},
		{"/conformance", "github.com/stretchr/testify/assert"},
		{"/middleware/tracing", "go.opentelemetry.io/otel/sdk/trace"},
		{"/middleware/tracing", module + "/single"},
		{"/examples/quickstart", "github.com/spf13/cobra"},
		{"/internal/testing/redistest", "github.com/spf13/cobra/doc"},
		{"/internal/redis/pipeline", module},
		{"/internal/redis/pipeline", module + "/internal/redis/node"},
		{"/internal/redis/script", module + "/internal/redis/pipeline"},
		{"/newroom", "github.com/redis/rueidis"},
		{"/cmd/locker/internal/doctor", "go.yaml.in/yaml/v3"},
		{"/cmd/locker/internal/doctor", "github.com/spf13/cobra"},
	} {
		if violation(bad[0], bad[1]) == "" {
			t.Errorf("%s%s may import %s", module, bad[0], bad[1])
		}
	}
	for _, good := range [][2]string{
		{"", "context"}, {"/conformance", "testing"}, {"/drivers/rueidisdriver", "github.com/redis/rueidis/internal/cmds"},
		{"/drivers/all", module + "/drivers/goredisdriver"}, {"/examples/quickstart", module + "/drivers/all"},
		{"/cmd/locker/cli", "github.com/spf13/cobra"}, {"/cmd/locker/internal/doctor", module + "/internal/redis/node"},
	} {
		if why := violation(good[0], good[1]); why != "" {
			t.Errorf("%s%s may not import %s: %s", module, good[0], good[1], why)
		}
	}
}
