// Package conformance checks that an implementation keeps the promises of this module's contracts. It is for authors of
// drivers, backends, lockers, semaphores, and locks for readers and writers, inside and outside this repository. It
// depends only on the standard library.
//
//   - [RunDriver]: a drivers.Driver, on a real Redis.
//   - [RunLocker]: a locker.Locker, such as a locker.Client of a backend, with or without middleware.
//   - [RunBackend]: a backend.Backend. It runs RunLocker over a Client of the backend, and checks the rules that
//     concern only the backend.
//   - [RunSemaphore], [RunRWLock]: packages semaphore and rwlock over a store, or others that do the same. RunBackend
//     does not include them, because a writer's 64 requests would delay other properties that run beside it.
//
// A suite is a list of properties. Each property is a subtest of that name. A failed property prints what was expected,
// what was seen, the rule that was broken, and why the rule matters. A suite takes a harness: a struct of functions
// that build the implementation under test. If a function is nil, the properties that need it are skipped, with the
// reason. Any release may add properties to suites and fields to harnesses.
//
// A suite may miss a fault, but should not report one that does not exist. Run the suites under the race detector.
//
// README.md in this directory has "a driver in five steps" and "a backend in five steps". examples/customdriver follows
// the first, and examples/custombackend has a backend of three methods, over package record.
package conformance
