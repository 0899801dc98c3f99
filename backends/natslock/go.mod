module github.com/golocker/locker/backends/natslock

go 1.26.0

require (
	github.com/golocker/locker v0.0.0
	github.com/nats-io/nats.go v1.55.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/klauspost/compress v1.20.0 // indirect
	github.com/kr/text v0.1.0 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	go.yaml.in/yaml/v3 v3.0.2 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/golocker/locker => ../..
