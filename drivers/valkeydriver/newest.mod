module github.com/golocker/locker/drivers/valkeydriver

go 1.25.0

require (
	github.com/golocker/locker v0.0.0
	github.com/stretchr/testify v1.12.1
	github.com/valkey-io/valkey-go v1.0.79
)

require (
	github.com/gomodule/redigo v1.9.2 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/golocker/locker => ../..
