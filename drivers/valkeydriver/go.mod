module github.com/golocker/locker/drivers/valkeydriver

go 1.25.0

require (
	github.com/golocker/locker v0.0.0
	github.com/stretchr/testify v1.9.0
	github.com/valkey-io/valkey-go v1.0.69
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/gomodule/redigo v1.9.2 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sys v0.31.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/golocker/locker => ../..
