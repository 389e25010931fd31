// Package revision reads the numbers that order the states of a pool. Manager
// and nodes share it.
//
// A revision has two parts. The lower one counts changes. The upper one is the
// incarnation: 0 in a new pool, and another random number after every restore of
// a backup. Revisions of different incarnations have no order, because a backup
// may be restored more than once, and each of the pools counts from the same
// number:
//
//	63    53 52          28 27             0
//	+-------+--------------+---------------+
//	|   0   |  incarnation |    changes    |
//	+-------+--------------+---------------+
//
// Revisions stay below 2^53, so that programs which keep numbers in floating point,
// such as a page in a browser, do not round them. A pool that makes 2^28 changes
// moves on to the next incarnation, which does no harm: nodes accept every state of
// another incarnation.
package revision

const changeBits = 28

// MaxIncarnation is the largest incarnation.
const MaxIncarnation = 1<<(53-changeBits) - 1

// Incarnation returns the upper part of a revision.
func Incarnation(revision uint64) uint64 { return revision >> changeBits }

// Changes returns the lower part of a revision.
func Changes(revision uint64) uint64 { return revision & (1<<changeBits - 1) }

// First returns the first revision of an incarnation.
func First(incarnation uint64) uint64 { return incarnation << changeBits }

// Replaces reports whether a state of revision a replaces one of revision b: it
// is later, or of another incarnation.
func Replaces(a, b uint64) bool { return Incarnation(a) != Incarnation(b) || a > b }

// Common returns the oldest of several revisions, and 0 when they are not all of
// one incarnation.
func Common(revisions ...uint64) uint64 {
	if len(revisions) == 0 {
		return 0
	}
	oldest := revisions[0]
	for _, r := range revisions {
		if Incarnation(r) != Incarnation(oldest) {
			return 0
		}
		oldest = min(oldest, r)
	}
	return oldest
}
