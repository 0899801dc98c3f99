module github.com/golocker/locker/adapters/locktus

go 1.26.0

require (
	github.com/golocker/locker v0.0.0
	github.com/golocker/locker/backends/postgres v0.0.0
	github.com/jackc/pgx/v5 v5.12.0
	github.com/tus/tusd/v2 v2.9.1
)

require (
	github.com/gomodule/redigo v1.9.2 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	go.yaml.in/yaml/v3 v3.0.2 // indirect
	golang.org/x/exp v0.0.0-20250106191152-7588d65b2ba8 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

replace github.com/golocker/locker => ../..

replace github.com/golocker/locker/backends/postgres => ../../backends/postgres
