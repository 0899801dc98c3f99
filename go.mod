module github.com/golocker/locker

go 1.25.0

require (
	github.com/gomodule/redigo v1.9.2
	github.com/redis/go-redis/v9 v9.22.0
	github.com/redis/rueidis v1.0.69
	github.com/stretchr/testify v1.9.0
	github.com/yuin/gopher-lua v1.1.1
	go.opentelemetry.io/otel v1.32.0
	go.opentelemetry.io/otel/metric v1.32.0
	go.opentelemetry.io/otel/trace v1.32.0
	go.uber.org/goleak v1.3.0
	go.yaml.in/yaml/v3 v3.0.2
	golang.org/x/sys v0.31.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/go-logr/logr v1.4.2 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
