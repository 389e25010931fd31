// Package torture tests the manager under faults: real managers in network
// namespaces serve concurrent clients and nodes while the test kills and pauses
// managers, cuts the network between any two parties, lets clocks jump, fills disks
// and restarts nodes with old state.
//
// The test checks each history of calls for linearizability. The nodes keep the
// ground truth: no box receives a binding for a slot before it has reported that
// the slot's last binding is gone. After each history the test examines the calm pool: it
// must grant all that there is and refuse only what there is not, serve its queue,
// preempt, apply a quota, keep a reservation, move a GPU, and have the events of all of that.
//
//	make torture                    # a thousand histories
//	go test ./test/torture -histories 3 -seed 42
package torture
