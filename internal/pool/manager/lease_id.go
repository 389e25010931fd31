package manager

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// Leases are numbered from 1: "l-1", "l-2". After a restore of a backup the numbers
// continue, and the incarnation of the pool follows them, as in "l-7-k3f9z": people and
// programs remember leases that were created after the backup was made, and must not find
// others under their IDs.

// leaseID returns the ID of the next lease.
func (t *tx) leaseID() string {
	if t.meta.NextLease == 0 { // earlier versions took revisions for numbers
		t.meta.NextLease = revision.Changes(t.meta.Revision) + 1
	}
	id := t.numbered("l-", t.meta.NextLease)
	t.meta.NextLease++
	return id
}

// numbered returns an ID with a number and, after a restore, the incarnation of the pool.
func (t *tx) numbered(prefix string, n uint64) string {
	id := prefix + strconv.FormatUint(n, 10)
	if t.meta.FirstRevision != 0 { // the pool was restored
		id += "-" + strconv.FormatUint(t.meta.Incarnation, 36)
	}
	return id
}

// leaseNumber returns the digits of a lease's ID, and what follows them.
func leaseNumber(id string) (digits, rest string) {
	digits, rest, _ = strings.Cut(strings.TrimPrefix(id, "l-"), "-")
	return digits, rest
}

// compareLeaseIDs orders leases by their numbers, that is in the order of their creation.
func compareLeaseIDs(a, b string) int {
	numberA, restA := leaseNumber(a)
	numberB, restB := leaseNumber(b)
	return cmp.Or(cmp.Compare(len(numberA), len(numberB)), strings.Compare(numberA, numberB), strings.Compare(restA, restB), strings.Compare(a, b))
}
