// Command trial runs a trial: a test that breaks real servers, clients, networks or clocks for a long time, or that
// measures. Without arguments it lists the trials.
//
//	go run ./internal/testing/trial faults      as long as it usually runs
//	go run ./internal/testing/trial faults 2m   for two minutes
//	go run ./internal/testing/trial soak 10m NATS
//
// The third argument selects a part, in the trials that have parts. Trials print their figures at the end.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// trial is a test that go test runs on a small scale, or not at all, and this program on a large one.
type trial struct {
	name   string
	about  string
	module string // its directory
	test   string // arguments of go test
	scale  string // environment variable: how long or how often
	usual  string // its usual value
	part   string // environment variable that selects a part, if there is one
}

const (
	trials     = "internal/testing/trials"
	everystore = trials + "/everystore"
)

var all = []trial{
	{"faults", "real servers, clients, networks and clocks are broken under load, for that long or two minutes more",
		trials, "-v -run TestFaults ./faults", "LOCKER_FAULTS", "8m", "LOCKER_FAULTS_ONLY"},
	{"recovery", "servers that forget under hundreds of locks, with the restart guard and without",
		trials, "-v -run TestRecovery ./faults", "LOCKER_RECOVERY", "8m", "LOCKER_FAULTS_ONLY"},
	{"failovers", "failovers of one Redis: nothing, WaitReplicas, the guard, both; 300 take an hour",
		trials, "-v -run TestFailovers ./faults", "LOCKER_FAILOVERS", "300", ""},
	{"cluster", "slots of a Redis Cluster that migrate under load, and half as many failovers, with each driver",
		trials, "-v -run TestCluster ./faults", "LOCKER_CLUSTER", "100", ""},
	{"sentinel", "failovers of a master by its sentinels, with each driver that follows them; three seconds each",
		trials, "-v -run TestSentinel ./faults", "LOCKER_SENTINEL", "300", ""},
	{"elections", "terms of five candidates in processes, on each store, leaders ended in all ways; an hour and more",
		everystore, "-v -run TestElections ./soak", "LOCKER_ELECTIONS", "1000", "LOCKER_SOAK_ONLY"},
	{"soak", "five processes contend on each store while processes, servers and networks fail; an outside judge",
		everystore, "-v -run TestSoak ./soak", "LOCKER_SOAK", "10m", "LOCKER_SOAK_ONLY"},
	{"records", "the same of six processes and commands on each store of records, with permits, readers and writers, " +
		"where requests are also late and repeated, for so many acquisitions",
		everystore, "-v -run TestRecords ./soak", "LOCKER_SOAK_RECORDS", "10000", "LOCKER_SOAK_ONLY"},
	{"places", "the same of 16 processes with permits, readers and writers, for that long, or for 100000 acquisitions, " +
		"with fewer writers",
		everystore, "-v -run TestPlaces ./soak", "LOCKER_SOAK_PLACES", "10m", "LOCKER_SOAK_ONLY"},
	{"transfers", "locks that are passed on in texts, on each store that can do that, for so many transfers, while who " +
		"passes them on, or resumes them, is killed",
		everystore, "-v -run TestTransfers ./soak", "LOCKER_TRANSFERS", "1000", "LOCKER_SOAK_ONLY"},
	{"lists", "what lists of locks show on each store, while processes, servers and networks fail",
		everystore, "-v -run TestLists ./soak", "LOCKER_SOAK_LISTS", "2m", "LOCKER_SOAK_ONLY"},
	{"listed", "what a list of so many locks costs one Redis, a Cluster and PostgreSQL, and those who use them meanwhile",
		"cmd/locker", "-v -run TestLsOfMany ./cli", "LOCKER_LISTED", "1000000", ""},
	{"upgrade", "the soak with programs of the last release, or of d13e3dc until there is one, beside those of this " +
		"tree; LOCKER_UPGRADE_FROM names another commit",
		everystore, "-v -run TestUpgrade ./soak", "LOCKER_UPGRADE", "1m", "LOCKER_SOAK_ONLY"},
	{"peers", "this and other libraries meet faults, three times, each for that long; tables; half an hour with 30s",
		trials + "/peers", "-v -run TestPeers .", "LOCKER_PEERS", "30s", "LOCKER_PEERS_ONLY"},
	{"postgres-failovers", "primaries of PostgreSQL die under load, and synchronous standbys take over; 15 s each",
		"backends/postgreslock", "-v -parallel 3 -run TestFailover/synchronous .", "LOCKER_POSTGRES_FAILOVERS", "60", ""},
	{"late-commits", "transactions in PostgreSQL, stopped until others have their locks, with InTx and without",
		"backends/postgreslock", "-v -parallel 4 -run TestOneServer/LateCommits .", "LOCKER_LATE_COMMITS", "10000", ""},
	{"nats-leaders", "leaders of a bucket in NATS are killed under load, each with a holder; five seconds each",
		"backends/natslock", "-v -run TestFaults .", "LOCKER_NATS_LEADERS", "60", ""},
	{"crowd", "16 workers lock random subsets of 8 keys, in virtual time and on Redis",
		".", "-v -run TestCrowd . ./single", "LOCKER_CROWD", "100000", ""},
	{"drain", "a Client with so many leases, and as many callers that wait, drains, on each store",
		everystore, "-v -run TestDrainOfMany .", "LOCKER_DRAIN", "1000", ""},
	{"tokens", "Redlock's tokens over that many acquisitions under faults, on simulated nodes",
		".", "-v -run TestTokensUnderFaults ./redlock", "LOCKER_ACQUISITIONS", "100000", ""},
	{"outage", "what 200 callers that retry do to servers that are killed or stopped for that long",
		".", "-v -run TestOutageOfRealServers ./middleware", "LOCKER_MEASURE", "30s", ""},
}

// needs has what trials need beside Redis and PostgreSQL, by their names.
var needs = map[string][]string{"records": {"node", "mariadb"}, "transfers": {"node", "mariadb"},
	"lists": {"node", "mariadb"}}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "trial:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		for _, t := range all {
			fmt.Printf("%-19s %-7s %s\n", t.name, t.usual, t.about)
		}
		return nil
	}
	for _, t := range all {
		if t.name == args[0] {
			return t.run(args[1:])
		}
	}
	return fmt.Errorf("there is no trial %q; without arguments, this program lists them", args[0])
}

func (t *trial) run(args []string) error {
	scale, part := t.usual, ""
	switch {
	case len(args) > 2 || len(args) == 2 && t.part == "":
		return errors.New("too many arguments: a trial, how long or how often, and a part if it has parts")
	case len(args) == 2:
		part = args[1]
		fallthrough
	case len(args) == 1:
		scale = args[0]
	}
	env := append(os.Environ(), t.scale+"="+scale)
	if part != "" {
		env = append(env, t.part+"="+part)
	}
	for _, need := range append([]string{"redis", "postgres"}, needs[t.name]...) {
		if err := command(env, "scripts/need-"+need+".sh"); err != nil {
			return err
		}
	}
	test := append([]string{"test", "-C", t.module, "-count=1", "-timeout", "24h"}, strings.Fields(t.test)...)
	return command(env, "go", test...)
}

func command(env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
