// Package torture tests the manager under faults: real managers in network
// namespaces serve concurrent clients and nodes while the test kills and pauses
// managers, cuts the network between any two parties, lets clocks jump, fills disks
// and restarts nodes with old state.
//
// The test checks each history of calls for linearizability: leases with their counts and
// versions, tenants, and the cordons of nodes. A change that depends on a version which has
// passed is refused, and no other is. No call with a token is accepted after its revocation was
// acknowledged, and none is refused before. A node that is drained gets no binding. A watch that
// goes on from manager to manager has the events that the log has.
//
// The nodes keep the ground truth: no box receives a binding for a slot before it has reported
// that the slot's last binding is gone, and no binding is ever at two slots. After each history
// the test examines the calm pool: it must grant all that there is and refuse only what there is
// not, serve its queue, preempt, apply a quota, keep a reservation, move a GPU, resize a lease,
// and have the events of all of that.
//
// In one of three histories a client makes a backup during the faults, which is a list of leases
// like any other. The test restores it twice into new clusters, to which the old nodes come back:
// no revision, epoch, lease or binding gets a number that was given out before.
//
//	make torture                    # a thousand histories
//	go test ./test/torture -histories 3 -seed 42
package torture
