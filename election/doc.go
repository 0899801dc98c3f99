// Package election lets one of several candidates lead at a time, on any [locker.Locker].
//
//	import _ "github.com/golocker/locker/drivers/all" // the drivers of Redis, for config.Open
//
//	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
//	defer stop()
//	l, err := config.Open(ctx, "redis://localhost:6379") // or single.New, redlock.New; memory.New is for one process
//	if err != nil {
//		return err
//	}
//	defer l.Close()
//	err = election.Run(ctx, l, "shard-7", election.Config{
//		OnElected: func(ctx context.Context, term election.Term) error {
//			return serve(ctx, term.Number) // until ctx ends; pass the number to what is written
//		},
//	})
//
// Start two processes, and end the leader in different ways: after SIGTERM the other one leads as soon as serve has
// returned, after kill -9 when the TTL since the last renewal has ended. The TTL is 10 s by default, and is renewed
// after each third.
//
// [Run] campaigns, leads, and campaigns again until ctx ends. A candidate is elected when it gets the lock of the key,
// and leads for as long as its OnElected runs. [Config] has the functions that a candidate may have. [New] returns an
// [Election], whose Resign hands on. [Observe] says who leads, to candidates and to others.
//
// # What is promised
//
// Let all candidates use the same store, key and prefix.
//
//   - The context of OnElected ends before anybody else is elected. It ends Config.StopTime earlier if the leader asks
//     for time to stop.
//   - A candidate that resigns, is not healthy or ends keeps the lock until its OnElected has returned. Then the next
//     one is elected at once.
//   - After a crash the next candidate is elected when the TTL since the last renewal has ended. With a short
//     TTL it may take up to two seconds; docs/behaviour.md has the times of each store.
//   - Numbers of terms grow, whatever happens to clocks, processes and networks, as long as the store keeps its data.
//   - OnElected of one Election never runs twice at a time.
//   - When the store fails, the leader goes on for as long as its lease is valid. The candidates wait, and try again
//     with pauses.
//
// The promises are those of the lock; docs/safety.md has their assumptions, and what each store needs for them. A
// store that loses its data, and an operator who takes the lock away, can let another candidate lead before the first
// one learns of it, at its next renewal.
//
// # What is not promised
//
// A process that is stopped, by its garbage collector or its hypervisor, does not know that its term is over, and does
// not look. When it goes on, its next step may come after the first steps of another leader. The same holds for work
// that ignores its context. No election can prevent this. What the leader works on can: pass [Term.Number] with each
// access, and refuse numbers that are smaller than the greatest one seen; see examples/fencing. If that is not
// possible, ask [locker.Verify] before a step that others rely on.
//
// Config.OnOverrun is told if OnElected does not return in time, and may end the program. It runs in the same process,
// so it comes late, too, if that is stopped.
//
// # Compared with client-go's leaderelection
//
// Kubernetes' client-go keeps a record with a timestamp, which candidates read and write.
//
//   - Waiting: its candidates look every 2 s by default. Here they queue at the store, which hands on to the first
//     one, if it has Order of backend.Capabilities. Otherwise the fastest one is elected.
//   - Handing on: with ReleaseOnCancel it gives up the record while the work may still be running, and leaves it to
//     the program to have ended that before. Here the lock is released when OnElected has returned.
//   - The end of a term: OnStoppedLeading is called while OnStartedLeading may still be running. Here OnDemoted is
//     called after OnElected. Work that does not stop is reported.
//   - After a lost term, its Run returns, and programs usually exit. Here Run campaigns again.
//   - Tokens: its documentation says that it does not guarantee that one client leads at a time (fencing), and it
//     gives the work no number. Here each term has one.
//   - Time to stop: its RenewDeadline of 10 s is 5 s before the record expires. Here it is Config.StopTime.
//   - IsLeader answers from the record that was seen last. Here Leading reads the clock.
//   - Health: its adaptor tells Kubernetes that a leader has not renewed. Here a leader that cannot work hands on.
//   - OnNewLeader is called on a new goroutine each time, so the order may change. Here it is called in order.
//   - It needs only the Kubernetes API, whose data a consensus of etcd servers keeps.
//
// # Compared with etcd's concurrency.Election
//
// etcd's candidates create keys that belong to a session, and the oldest one leads.
//
//   - Waiting: both queue, and both hand on to the first in the queue, here on stores with Order.
//   - Loss: Campaign returns when the candidate leads, and a loss closes Done of the session. The program has to watch
//     it, and to campaign again with a new session. Here the context of the work ends.
//   - Tokens: Rev is one, if the program passes it on. Here it is [Term.Number].
//   - The end of a term, health, and work that does not stop are left to the program.
//   - Observe there is told of each change by the store. Here that is so if the backend is an inspect.Watcher; other
//     stores are asked, about once per renewal interval. Its sequence ends when the watch is disrupted. Here it goes on
//     when the store is back.
//   - The leader there can change its value with Proclaim. Here an identity lasts for a term.
//   - etcd is a consensus of several servers, which agree on the time of leases. One Redis is one server, and Redlock
//     needs clocks that run at about the same speed.
package election
