package ring

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Errors of a process that breaks the rules.
var (
	errTaken  = errors.New("ring: the process has taken what is not there")
	errEvents = errors.New("ring: the process has put more events than fit")
	errWakes  = errors.New("ring: the process wakes the box without an event")
)

// Box is the box's side. One goroutine at a time calls Put, one calls Take and Woken, and
// any may call Sleep and Awake.
type Box struct {
	memory memory

	put, taken uint64        // of Put
	events     atomic.Uint64 // taken; changed by Take only
	wakes      uint64        // of Woken

	mu       sync.Mutex // guards the fields below
	sleepers int
}

// NewBox makes the box's side of memory that is all zero, which Close unmaps.
func NewBox(shared []byte) (*Box, error) {
	m, err := newMemory(shared)
	if err != nil {
		return nil, err
	}
	return &Box{memory: m}, nil
}

// Put copies a packet, whose size is a multiple of reg.PacketAlign, to the ring. ok is false
// if there is no room: then events are due. With wake, the caller calls Wake. After an error
// the caller ends the process.
func (b *Box) Put(packet []byte) (ok, wake bool, err error) {
	n := uint64(len(packet))
	if b.put-b.taken+n > PacketBytes {
		taken := atomic.LoadUint64(b.memory.count(packetsTaken))
		if taken < b.taken || taken > b.put {
			return false, false, errTaken
		}
		if b.taken = taken; b.put-taken+n > PacketBytes {
			return false, false, nil
		}
	}
	put(b.memory.packets(), b.put, packet)
	b.put += n
	atomic.StoreUint64(b.memory.count(packetsPut), b.put)
	return true, b.memory.woken(processSleeps), nil
}

// ready returns the number of events that are there, and how many the process has put.
func (b *Box) ready() (n, put uint64, err error) {
	put = atomic.LoadUint64(b.memory.count(eventsPut))
	if n = put - b.events.Load(); n > Events { // also for a count that went back
		return 0, 0, errEvents
	}
	return n, put, nil
}

// Take copies whole events to p and returns their size. After an error the caller ends the
// process.
func (b *Box) Take(p []byte) (int, error) {
	ready, _, err := b.ready()
	if ready == 0 || err != nil {
		return 0, err
	}
	n := min(ready, uint64(len(p)/reg.EventSize))
	done := b.events.Load()
	get(p[:n*reg.EventSize], b.memory.events(), done*reg.EventSize)
	b.events.Store(done + n)
	return int(n * reg.EventSize), nil
}

// Woken notes a wake-up that came over the socket. Each one follows an event of its own, so
// after an error the caller ends the process, which could otherwise keep the box busy.
func (b *Box) Woken() error {
	b.wakes++
	_, put, err := b.ready()
	if err == nil && b.wakes > put {
		err = fmt.Errorf("%w: %d after %d events", errWakes, b.wakes, put)
	}
	return err
}

// Sleep asks the process to wake the box with its next event, until Awake. It returns false, and
// there is no Awake, if the caller must not sleep: an event is there, or the ring is closed.
func (b *Box) Sleep() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.memory == nil {
		return false
	}
	b.sleepers++
	atomic.StoreUint32(b.memory.word(boxSleeps), 1)
	if atomic.LoadUint64(b.memory.count(eventsPut)) == b.events.Load() {
		return true
	}
	b.awakeLocked()
	return false
}

// Awake ends a Sleep.
func (b *Box) Awake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.awakeLocked()
}

func (b *Box) awakeLocked() {
	if b.sleepers--; b.sleepers == 0 && b.memory != nil {
		atomic.StoreUint32(b.memory.word(boxSleeps), 0)
	}
}

// Asleep reports whether a Sleep has no Awake yet: a wake-up may be in the socket.
func (b *Box) Asleep() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sleepers > 0
}

// Close releases the memory, after the last call of Put, Take and Woken.
func (b *Box) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.memory
	b.memory = nil
	return unix.Munmap(m)
}
