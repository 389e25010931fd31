package device

import (
	"errors"
	"time"

	"github.com/dxpu-project/dxpu/pcie"
)

// Migratable is a device whose state can move to another device of the same model
// while its driver goes on (docs/migration.md). The owner of the source calls, in this
// order: Track, ChangedMemory until little is left, Freeze, Snapshot, ChangedMemory until
// nothing is left. It calls Thaw if the move has failed. The owner of the target calls
// Reset, StoreMemory, Restore and then Thaw.
type Migratable interface {
	// Movable returns the reason why the state cannot move; nil: it can. The device may find
	// one during a move, which the owner ends then.
	Movable() error

	// Track begins to record which memory changes, or ends it. At the beginning all
	// memory that may hold data counts as changed.
	Track(on bool)
	// Changed returns how many bytes have changed and were not read by ChangedMemory.
	Changed() uint64
	// ChangedMemory copies a piece of changed memory into buf: the first one at or after
	// the address from, up to len(buf) bytes, which is a multiple of 4096. The piece counts
	// as unchanged from then on. n is 0 if there is none; with later, the device is still
	// fetching it, and the owner calls again after Transmit. Addresses beyond the memory that
	// the driver sees are the device's own; the target stores them in their order.
	ChangedMemory(from uint64, buf []byte) (addr uint64, n int, later bool)

	// Freeze stops the device: it starts no command and no DMA. It still takes
	// completions and answers the requests that it has received. Reset ends it too.
	Freeze()
	// Snapshot returns the state of the frozen device without its memory. ok is false
	// while reads are outstanding or answers wait: the owner calls it again after
	// Transmit. The memory of the device does not change between Snapshot and Thaw. The
	// device goes on from this state if it is thawed instead.
	Snapshot(now time.Duration) (state []byte, ok bool)
	// Thaw ends Freeze.
	Thaw(now time.Duration)

	// StoreMemory stores memory of the source. It returns an error for a range outside
	// the memory, and ErrBusy if the device cannot take it now: the owner calls again after
	// Transmit.
	StoreMemory(addr uint64, p []byte) error
	// Settled reports whether the device has done all that StoreMemory took: if not, the owner
	// asks again after Transmit.
	Settled() bool
	// Restore takes over the state of another device, which may be hostile. The device
	// has been reset, and is frozen afterwards. ok is false while the device still works on
	// what StoreMemory has stored: the owner calls again after Transmit. After an error it
	// needs another reset.
	Restore(now time.Duration, state []byte) (ok bool, err error)
	// Window returns the address of the function and its first 64 bytes of configuration
	// space, from which a router learns the BARs.
	Window() (id pcie.BDF, header [64]byte)
}

// ErrBusy means that a device takes no more at present.
var ErrBusy = errors.New("the device is busy")

// MaxState bounds the state that Snapshot returns, in bytes.
const MaxState = 1 << 20
