module github.com/golocker/locker/adapters/lockgocron

go 1.25.0

require (
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/golocker/locker v0.0.0
	github.com/jonboulle/clockwork v0.5.0
	github.com/robfig/cron/v3 v3.0.1
	go.uber.org/goleak v1.3.0
)

require github.com/google/uuid v1.6.0 // indirect

replace github.com/golocker/locker => ../..
