package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// Process is the process's side: the session.Conn of its packets.
type Process struct {
	memory memory
	socket uintptr // of type SOCK_SEQPACKET, that blocks
	trash  rights.Disposer
	taken  uint64 // of Receive

	mu  sync.Mutex // guards the fields below
	put uint64     // events
}

// NewProcess makes the process's side.
func NewProcess(shared []byte, socket uintptr) (*Process, error) {
	m, err := newMemory(shared)
	if err != nil {
		return nil, err
	}
	return &Process{memory: m, socket: socket}, nil
}

// Receive copies the next packet to p, which has room for reg.MaxPacket, and returns its
// size. It returns io.EOF after the end of the box, and, without block, reader.ErrNothing if no
// packet is there. One goroutine at a time calls it.
func (r *Process) Receive(p []byte, block bool) (int, error) {
	for {
		n, err := r.take(p)
		if !block || !errors.Is(err, reader.ErrNothing) {
			return n, err
		}
		if err := r.sleep(); err != nil {
			return 0, err
		}
	}
}

// sleep waits for a wake-up.
func (r *Process) sleep() error {
	sleeps := r.memory.word(processSleeps)
	atomic.StoreUint32(sleeps, 1)
	defer atomic.StoreUint32(sleeps, 0)
	if atomic.LoadUint64(r.memory.count(packetsPut)) != r.taken {
		return nil
	}
	if err := Await(r.socket, true, &r.trash); !errors.Is(err, reader.ErrNothing) {
		return err
	}
	return nil
}

// take copies the next packet.
func (r *Process) take(p []byte) (int, error) {
	ready := atomic.LoadUint64(r.memory.count(packetsPut)) - r.taken
	if ready == 0 {
		return 0, reader.ErrNothing
	}
	var head [reg.PacketAlign]byte
	get(head[:], r.memory.packets(), r.taken)
	n := uint64(binary.LittleEndian.Uint32(head[:]))
	if ready > PacketBytes || n < reg.PacketHeaderSize || n > reg.MaxPacket || n%reg.PacketAlign != 0 || n > ready || n > uint64(len(p)) {
		return 0, fmt.Errorf("ring: a packet of %d bytes, of %d that are there", n, ready)
	}
	get(p[:n], r.memory.packets(), r.taken)
	binary.LittleEndian.PutUint32(p, uint32(n)) // as it was checked
	r.taken += n
	atomic.StoreUint64(r.memory.count(packetsTaken), r.taken)
	return int(n), nil
}

// Send puts whole events into the ring, each for a packet that was received, and wakes the box
// if it sleeps. Any goroutine may call it.
func (r *Process) Send(events []byte) error {
	n := uint64(len(events) / reg.EventSize)
	if n > Events {
		return fmt.Errorf("ring: %d events at one time", n)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	put(r.memory.events(), r.put*reg.EventSize, events)
	r.put += n
	atomic.StoreUint64(r.memory.count(eventsPut), r.put)
	if r.memory.woken(boxSleeps) {
		return Wake(r.socket)
	}
	return nil
}
