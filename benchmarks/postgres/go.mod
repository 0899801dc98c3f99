module github.com/golocker/locker/benchmarks/postgres

go 1.26.0

replace github.com/golocker/locker => ../..

replace github.com/golocker/locker/backends/postgreslock => ../../backends/postgreslock

require (
	cirello.io/pglock v1.16.0
	github.com/allisson/go-pglock v1.1.0
	github.com/golocker/locker v0.0.0
	github.com/golocker/locker/backends/postgreslock v0.0.0
	github.com/jackc/pgx/v5 v5.12.0
	github.com/lib/pq v1.10.9
	go.uber.org/goleak v1.3.0
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	go.yaml.in/yaml/v3 v3.0.2 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)
