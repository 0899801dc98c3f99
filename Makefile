# make quick after each change; make test, make test-long: everything, on real servers that the tests start themselves.

LINT = go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: quick test test-all test-long newest test-server compat lint verify api fuzz sim mutants model bench bench-smoke

# The go command sees one module at a time: the library's ends where another go.mod begins. With FULL=1, there is also
# one that brings a thousand packages.
MODULES = $(filter-out $(if $(FULL),,./internal/testing/apiserver), \
	$(shell find . -name testdata -prune -o -name go.mod -exec dirname {} \; | sort))

# Modules whose tests belong to make test-all, besides the library's and those of adapters. Those of the benchmarks and
# of internal/testing/trials/everystore, except its soaks, belong to make test-long, and package examples tests the
# programs of examples. The longest modules come first, and the command, whose tests are of real time, does not begin
# beside the trials, which take much of the processors.
TESTED = internal/testing/trials backends/natslock backends/etcdlock cmd/locker drivers/valkeydriver backends/postgreslock \
	backends/s3lock backends/dynamodblock backends/kuberneteslock backends/mysqllock \
	internal/testing/fences internal/testing/telemetry examples/everywhere $(OUTSIDE)
# Modules of outside authors. Their suites mostly wait, and they cannot use internal/testing/virtual.
OUTSIDE = examples/custombackend examples/customdriver

# Adapters bring the libraries that they plug into, whose compilation takes minutes. The first module has their tests on
# servers, the others those that need no store.
ADAPTERS = internal/testing/adapters $(if $(FULL),internal/testing/apiserver) \
	$(patsubst %/go.mod,%,$(wildcard adapters/*/go.mod compat/*/go.mod))

# go run ./internal/testing/retest runs go test. It runs a test that failed ten times more, alone. If that test passes
# every time, it is printed as FLAKY and the run goes on.
GOTEST = go test

# By default a program with the race detector sleeps for a second before it exits, and there are many.
export GORACE = atexit_sleep_ms=0

# Compilers, linkers and tests collect garbage less often. All of them are short-lived, and with the default value they
# spend a sixth of the processors' time on it. Benchmarks have the default.
test test-all test-long test-server: export GOGC = 400

# The packages whose tests need no server, which the next target runs again and again.
ALONE = . ./memory ./drivers ./conformance ./internal/testing/simnode
quick: ## the tests that need no server, in seconds: after each change
	$(GOTEST) -short -parallel 8 -timeout 2m $(ALONE)

# Most of the tests of a package wait, so more packages than there are processors run at once: three of the library
# beside two of another module. With more than that, tests of real servers become late. make verify vets the packages.
SHORT = -short -vet=off -shuffle=on -parallel 8 -timeout 8m
test: ## the library's tests, on Redis servers, in memory and in files; of matrices a part
	@scripts/need-redis.sh
	@$(MAKE) --no-print-directory compiled COMPILED=.
	@$(MAKE) --no-print-directory library.short allocations.short

test-all: servers ## make test, and the tests of all other modules on all stores
	@$(MAKE) --no-print-directory compiled
	@$(MAKE) --no-print-directory -j 2 library.short $(TESTED:%=%.short) $(ADAPTERS:%=%.short) soaks.short \
		programs allocations.short

.PHONY: programs servers compiled library.short soaks.short allocations.short $(TESTED:%=%.short) $(ADAPTERS:%=%.short)
servers: # that the tests of all stores start
	@for s in redis postgres node mariadb prometheus; do scripts/need-$$s.sh || exit 1; done
# Beside compilers, which keep both processors busy for minutes in a new clone, tests become late. Under the race
# detector, tests build programs without it, too.
COMPILED = . $(TESTED) $(ADAPTERS)
compiled:
	@for m in $(COMPILED); do echo "$$m: compile"; go list -C $$m $(RACE) -test -export ./... >/dev/null || exit 1; done
	@for m in $(if $(RACE),. cmd/locker); do go build -C $$m ./... || exit 1; done
library.short: # the longest packages first, without what allocations.short measures
	$(GOTEST) $(SHORT) -skip '^TestAllocationsOf' -p 3 ./single ./redlock ./conformance ./examples ./internal/redis/script ./middleware ./drivers/all \
		./drivers/rueidisdriver ./...
programs: # those of examples that are modules, which make test does not compile
	$(GOTEST) -vet=off -shuffle=on -parallel 8 -timeout 15m ./examples
soaks.short: # on few stores
	$(GOTEST) -C internal/testing/trials/everystore $(SHORT) -p 1 ./stored ./soak
allocations.short: # with garbage collected as usual
	GOGC=100 $(GOTEST) -vet=off -count=1 -run '^TestAllocationsOf' ./redlock ./single
$(TESTED:%=%.short) $(ADAPTERS:%=%.short): %.short: # the tests of one module
	$(GOTEST) -C $* $(SHORT) -p 2 ./...

# Under the race detector, two of the parts run at once, with one package each: most packages keep both processors busy
# by themselves here. In the trials, nothing is left out; elsewhere with FULL=1, as each night.
LONG = -race -vet=off -shuffle=on -parallel 8 -timeout 20m -p 1
PART = $(if $(FULL),,-short)
DRIVERS = redlock single drivers/all
# What these packages test are other programs and the tree. They, too, leave nothing out.
WHOLE = examples internal/testing/archtest internal/testing/mutants internal/testing/retest
REST = $$(go list ./... | sed 's,^github.com/golocker/locker,.,' | grep -vxF $(patsubst %,-e ./%,$(DRIVERS) $(WHOLE)))
# Trials and benchmarks run beside nothing else: clients and servers need the processors in time.
TRIALS = internal/testing/trials
RACED = $(filter-out $(TRIALS) $(OUTSIDE),$(TESTED)) $(ADAPTERS)
test-long: servers ## all tests under the race detector; FULL=1: also each driver, the newest dependencies, benchmarks
	@$(MAKE) --no-print-directory compiled RACE=-race
	@$(MAKE) --no-print-directory -j 2 $(DRIVERS:%=%.long) rest.long whole.long \
		$(patsubst %,%.long,$(RACED)) everystore.long soaks.short $(if $(FULL),processors.long newest.long)
	@$(MAKE) --no-print-directory trials.long $(if $(FULL),bench-smoke)

.PHONY: $(DRIVERS:%=%.long) rest.long whole.long $(RACED:%=%.long) trials.long everystore.long processors.long newest.long
$(DRIVERS:%=%.long): %.long:
	$(GOTEST) $(LONG) $(PART) ./$*
rest.long: # the other packages of the library
	$(GOTEST) $(LONG) $(PART) $(REST)
whole.long:
	$(GOTEST) $(if $(FULL),-race) -vet=off -shuffle=on -parallel 8 -timeout 20m -p 1 $(WHOLE:%=./%)
	for m in $(OUTSIDE); do $(GOTEST) -C $$m -vet=off -shuffle=on -parallel 16 -timeout 8m ./... || exit 1; done
$(patsubst %,%.long,$(RACED)): %.long: # the tests of one module
	$(GOTEST) -C $* $(LONG) $(PART) ./...
trials.long: # the simulation runs in virtual time, on one processor
	$(GOTEST) -C $(TRIALS) $(LONG) ./faults ./history
	$(GOTEST) -C $(TRIALS) $(LONG) $(PART) ./sim
everystore.long:
	$(GOTEST) -C internal/testing/trials/everystore $(LONG) .
processors.long:
	$(GOTEST) $(LONG) -cpu 1,4 . ./memory ./drivers ./internal/testing/simnode
newest.long:
	$(GOTEST) -modfile=newest.mod -short -vet=off -shuffle=on -p 2 -parallel 8 -timeout 8m ./single ./redlock ./config \
		./drivers/... ./middleware/...
	$(GOTEST) -C drivers/valkeydriver -modfile=newest.mod -short -vet=off -shuffle=on -parallel 8 -timeout 8m .

newest: ## the newest versions of all dependencies, into newest.mod
	go get -modfile=newest.mod -t -u ./... && go mod tidy -modfile=newest.mod
	go -C drivers/valkeydriver get -modfile=newest.mod github.com/valkey-io/valkey-go@latest
	go -C drivers/valkeydriver mod tidy -modfile=newest.mod

# What depends on the server: scripts, drivers, and the suites of backends, quorums and lockers over them.
SUITES = ./conformance ./drivers/... ./internal/redis/node ./internal/redis/script ./internal/testing/redistest ./single ./redlock
SERVER ?= valkey-8.1
IN ?= .
FLAGS ?=
test-server: ## the suites that need a server, on another SERVER=redis-6.0, which scripts/servers lists; FLAGS=-short
	@path=$$(scripts/servers $(SERVER)) && echo "tests run on $(SERVER): $$path" && \
		LOCKER_TEST_SERVER=$$path $(GOTEST) -C $(IN) $(FLAGS) -vet=off -shuffle=on -p 4 -parallel 4 -timeout 10m $(SUITES)

SERVERS ?=
compat: ## the tests that depend on the server, on all SERVERS: rows for docs/compatibility.md, up to an hour
	@scripts/compat $(SERVERS)

# The version that VERSIONING.md promises, and the modules that programs with it may import. A newer go command
# compiles what uses newer packages of the standard library, whatever go.mod says, so an older one is downloaded.
OLDEST_GO = go1.25.0
OLDEST = . drivers/valkeydriver backends/postgreslock adapters/lockgrpc

verify: ## formatting, vet, tidy go.mod, the API, what git tracks, and a build by the oldest Go: needs nothing installed
	@scripts/tracked
	@test -z "$$(gofmt -l .)" || { echo "run gofmt -w on:"; gofmt -l .; exit 1; }
	@for m in $(MODULES); do echo "$$m: vet, tidy"; go -C $$m vet ./... && go -C $$m mod tidy -diff || exit 1; done
	@set -ex; for m in . drivers/valkeydriver; do \
		go -C $$m vet -modfile=newest.mod ./... && go -C $$m mod tidy -modfile=newest.mod -diff; \
	done
	@for m in $(OLDEST); do echo "$$m: $(OLDEST_GO), 32 bits"; \
		GOARCH=386 GOTOOLCHAIN=$(OLDEST_GO) go -C $$m build ./... || exit 1; done
	@echo "what the modules export, beside api/*.txt and the last release"
	@go run ./internal/testing/api && scripts/apidiff

api: ## after a change of what a module exports: its list in the directory api
	go run ./internal/testing/api -update

lint: ## golangci-lint of all modules, built from source on first use
	@for m in $(MODULES); do echo "$$m: lint"; (cd $$m && $(LINT) run ./...) || exit 1; done

FUZZTIME ?= 30s
fuzz: ## the fuzz targets, FUZZTIME each
	go test -run '^$$' -fuzz FuzzKeys -fuzztime $(FUZZTIME) ./internal/redis/script
	go test -run '^$$' -fuzz FuzzReplies -fuzztime $(FUZZTIME) ./internal/redis/node
	go test -run '^$$' -fuzz FuzzNode -fuzztime $(FUZZTIME) ./internal/redis/node
	go test -run '^$$' -fuzz FuzzErrors -fuzztime $(FUZZTIME) ./internal/redis/node
	go test -run '^$$' -fuzz FuzzErrors -fuzztime $(FUZZTIME) ./internal/redis/pipeline
	go test -run '^$$' -fuzz FuzzLogs -fuzztime $(FUZZTIME) ./internal/judge
	go test -run '^$$' -fuzz FuzzParse -fuzztime $(FUZZTIME) ./config
	go test -run '^$$' -fuzz FuzzLoad -fuzztime $(FUZZTIME) ./config
	go test -run '^$$' -fuzz FuzzNames -fuzztime $(FUZZTIME) ./record
	go test -run '^$$' -fuzz FuzzTexts -fuzztime $(FUZZTIME) ./record
	go test -run '^$$' -fuzz FuzzHeader -fuzztime $(FUZZTIME) ./fence

PROFILE ?= model
sim: ## simulation, see docs/testing.md: SEEDS=20000 drawn episodes, or SEED=123 again, with all that happens
ifdef SEED
	scripts/sim.sh -test.run 'TestSimulation$$' -seeds 1 -seed $(SEED) -profile $(PROFILE) -tell
else
	scripts/sim.sh -test.run 'TestSimulation$$' -seeds $(or $(SEEDS),20000) -profile $(PROFILE)
endif

mutants: ## plants bugs and sees that tests, simulation and model notice: ONLY='minority' for some, JOBS=4 at once
	@scripts/need-redis.sh
	go run ./internal/testing/mutants -jobs $(or $(JOBS),2) $(ONLY)

model: ## the Promela models of the protocol, small searches and all planted bugs: five minutes
	model/run.sh

BENCH = cd benchmarks && go run . -out results -markdown results/results.md
bench: ## side by side with other libraries, benchmarks/README.md: four minutes, quiet; ARGS='-run contended'
	@scripts/need-redis.sh
	$(BENCH) $(ARGS)

bench-smoke: # whether the benchmarks still work, which says nothing of speed
	@scripts/need-redis.sh
	@scripts/need-postgres.sh
	$(GOTEST) -C benchmarks -count=1 ./...
	$(GOTEST) -C benchmarks/postgres -count=1 .
	$(GOTEST) -C internal/testing/trials/peers -count=1 .
