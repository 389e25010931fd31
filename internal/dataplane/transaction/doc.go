// Package transaction is the requester and the completer side of the PCI
// Express transaction layer as pure machines: tags, matching and reassembly of
// completions, completion timeouts; answering reads, writes and atomics.
//
// After construction, nothing in it allocates, starts goroutines or reads a
// clock. Times are arguments, relative to a start that the caller chooses.
//
// Section numbers refer to the PCI Express Base Specification, revision 6.0.
package transaction
