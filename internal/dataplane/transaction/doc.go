// Package transaction is the requester and the completer side of the PCI
// Express transaction layer as pure machines: tags, matching and reassembly of
// completions, completion timeouts; answering reads, writes and atomics.
//
// Nothing in it allocates once it is built, starts goroutines or knows a clock:
// time is an argument, counted since a start that the caller chose.
package transaction
