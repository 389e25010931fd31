// Package torture holds no code, only tests: real managers, in network
// namespaces of their own, serve concurrent clients and nodes while managers are
// killed and paused, the network is cut between any two parties, clocks jump, disks
// fill and nodes restart with old state.
//
// Each history of calls is checked for linearizability, and the nodes keep the
// ground truth: no box is told to hold a binding in a slot from which it has not
// reported the one before gone.
//
//	make torture                    # a thousand histories
//	go test ./test/torture -histories 3 -seed 42
package torture
