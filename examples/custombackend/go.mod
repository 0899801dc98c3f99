module example.com/custombackend

go 1.26.0

require (
	github.com/golocker/locker v0.0.0
	go.etcd.io/bbolt v1.5.0
	go.uber.org/goleak v1.3.0
)

require golang.org/x/sys v0.48.0 // indirect

replace github.com/golocker/locker => ../..
