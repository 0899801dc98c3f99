module github.com/golocker/locker/backends/mysqllock

go 1.26.0

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/golocker/locker v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/gomodule/redigo v1.9.2 // indirect
	github.com/kr/text v0.2.0 // indirect
	go.yaml.in/yaml/v3 v3.0.2 // indirect
)

replace github.com/golocker/locker => ../..
