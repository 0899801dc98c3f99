module github.com/golocker/locker/internal/testing/trials

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/golocker/locker v0.0.0
	github.com/golocker/locker/drivers/valkeydriver v0.0.0
	github.com/gomodule/redigo v1.9.2
	github.com/redis/go-redis/v9 v9.22.0
	github.com/redis/rueidis v1.0.69
	github.com/valkey-io/valkey-go v1.0.69
	go.uber.org/goleak v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/golocker/locker => ../../..

replace github.com/golocker/locker/drivers/valkeydriver => ../../../drivers/valkeydriver
