module github.com/golocker/locker/adapters/locktus

go 1.25.0

require (
	github.com/golocker/locker v0.0.0
	github.com/tus/tusd/v2 v2.9.1
	go.uber.org/goleak v1.3.0
)

require golang.org/x/exp v0.0.0-20250106191152-7588d65b2ba8 // indirect

replace github.com/golocker/locker => ../..
