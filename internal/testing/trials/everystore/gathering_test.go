package everystore

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/rwlock"
)

// BenchmarkReaders measures what 10,000 readers of one key cost a Redis, ten of each of 1,000 Clients: while they wait
// for a writer, when they all read after it, and when they leave and another writer has waited for that. The one
// process is late where a thousand would not be. It measures once, whatever b.N is.
func BenchmarkReaders(b *testing.B) {
	const processes, each, key = 1000, 10, "gathering"
	s := redistest.Start(b)
	s.Cmd(b, "CONFIG", "SET", "slowlog-max-len", 100000)
	s.Cmd(b, "CONFIG", "SET", "slowlog-log-slower-than", 0)
	clients := openClients(b, "redis://"+s.Addr(), processes+2)
	var readers []locker.Locker
	for _, c := range clients[2:] {
		readers = append(readers, rwlock.New(c).Shared())
	}
	writers := []locker.Locker{rwlock.New(clients[0]).Exclusive(), rwlock.New(clients[1]).Exclusive()}
	acquire := func(l locker.Locker) locker.Lease {
		for {
			lease, err := l.Lock(b.Context(), key)
			if errors.Is(err, locker.ErrUnavailable) {
				continue
			}
			if err != nil {
				b.Error(err)
			}
			return lease
		}
	}
	queue := script.KeysOf("lock:", "{"+key+"}#rw").Queue()
	waiting := func(n int64) {
		for s.Cmd(b, "ZCARD", queue) != n && b.Context().Err() == nil && !b.Failed() {
			<-time.After(10 * time.Millisecond)
		}
	}
	writes := acquire(writers[0])
	got := make(chan locker.Lease, processes*each)
	for _, l := range readers {
		for range each {
			go func() { got <- acquire(l) }()
		}
		<-time.After(time.Millisecond)
	}
	waiting(processes)
	calls := scriptCalls(b, s)
	<-time.After(watched / 3)
	b.ReportMetric((scriptCalls(b, s)-calls)*60/(watched/3).Seconds()/processes, "requests/min")

	cpu, start := serverCPU(b), time.Now()
	s.Cmd(b, "SLOWLOG", "RESET")
	steady.Unlock(b, writes)
	var leases []locker.Lease
	for range each * processes {
		leases = append(leases, <-got)
	}
	b.ReportMetric(float64(time.Since(start).Milliseconds()), "all-read-ms")
	next := make(chan locker.Lease)
	go func() { next <- acquire(writers[1]) }()
	waiting(1)
	var all sync.WaitGroup
	for _, lease := range leases {
		all.Go(func() {
			if lease != nil {
				steady.Unlock(b, lease)
			}
		})
	}
	all.Wait()
	left := time.Now()
	last := <-next
	b.ReportMetric(float64(time.Since(left).Microseconds())/1000, "writer-ms")
	b.ReportMetric(float64((serverCPU(b)-cpu).Microseconds())/(each*processes), "server-µs/reader")
	var took []int64
	for _, of := range s.Cmd(b, "SLOWLOG", "GET", -1).([]any) {
		words := of.([]any)[3].([]any)
		if strings.EqualFold(words[0].(string), "EVALSHA") {
			took = append(took, of.([]any)[2].(int64))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*999/1000])/1000, "script-p999-ms")
	b.ReportMetric(float64(took[len(took)-1])/1000, "script-longest-ms")
	b.ReportMetric(0, "ns/op")
	steady.Unlock(b, last)
}

// scriptCalls returns how many scripts a server has called.
func scriptCalls(b *testing.B, s *redistest.Server) float64 {
	_, stats, _ := strings.Cut(s.Cmd(b, "INFO", "commandstats").(string), "cmdstat_evalsha:calls=")
	number, _, _ := strings.Cut(stats, ",")
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
