// Package serve is a planning server for training loops: a loop submits the sequence
// lengths of coming batches ahead of time and fetches the plan of each step when it needs
// it. The protocol is HTTP with JSON, described in openapi.yaml.
//
// A submission that was acknowledged is planned, whatever other clients do. With a
// journal this holds across a crash, too (journal.go).
//
// # Main types
//
//   - [Config] configures a [Server]; [New] starts it, [Server.Serve] answers a listener
//     ([Listen] opens a Unix socket), [Server.Drain] and [Server.Close] end it.
//   - [Planner] plans one batch at a time; a server has several.
//   - [Submission], [Batch], [Answer], [Setup] and [Problem] are the bodies of requests
//     and answers. A plan is of groups side by side or, on the stages that an earlier plan
//     settled, a [Pipeline].
//
// server.go holds the server, routes.go the HTTP routes, queue.go and cache.go the state
// of batches, wire.go the bodies.
package serve
