// Package conformance checks that an implementation keeps the promises of this module's contracts. It is for authors
// of drivers, backends and lockers inside and outside this repository, and needs nothing but the standard library.
//
//   - [RunDriver]: a drivers.Driver, on a real Redis.
//   - [RunLocker]: a locker.Locker, such as a locker.Client of a backend, with or without middleware.
//   - [RunBackend]: a locker.Backend. It runs RunLocker over a Client of the backend, and adds what only a backend by itself
//     can break.
//   - [RunQuorum]: a locker.Locker over several independent nodes, of which a minority may fail.
//
// A suite is a list of properties; each is a subtest named after it, and when it fails, it prints the rule that was
// broken, and why that matters, besides what was expected and what was seen. A suite takes a struct of functions that
// say how to build what is tested; a function left nil skips the properties that need it, with the reason. Suites may
// gain properties and structs may gain fields in any release.
//
// The suites may miss a fault but should not invent one. Run them under the race detector.
//
// README.md beside this file has "a driver in five steps", "a backend in five steps", "several nodes", and what the suites
// find in implementations as the field ships them. examples/customdriver and examples/custombackend follow it.
package conformance
