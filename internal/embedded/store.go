package embedded

import (
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// A store is sent at once unless it closely follows another one. A program that fills an
// aperture stores in a row, and a datagram for each store would cost a system call on
// each side (half of the processor in a profile). Such stores gather while one goroutine
// sends the earlier ones, as in a processor's posted-write buffer.
const (
	// storeGap is the time between stores in a row: less than a system call takes.
	storeGap = 4 * time.Microsecond
	// maxStores bounds the gathered stores; the caller then sends them itself.
	maxStores = 4096
	// maxQueued bounds the bytes of queued stores: twice the default window of a link.
	maxQueued = 8 << 20
	// maxStore is the size of the pieces into which a longer store is divided.
	maxStore = 256 << 10
)

// stores is the state of posted writes. It is guarded by the host's mutex.
type stores struct {
	last     time.Time // end of the newest store
	gathered int       // stores since the last kick
	sending  bool      // a goroutine sends them
	senders  sync.WaitGroup
}

// Store writes p to memory space: posted. It waits while maxQueued bytes are queued.
func (h *Computer) Store(addr uint64, p []byte) {
	for ; len(p) > maxStore; addr, p = addr+maxStore, p[maxStore:] {
		h.store(addr, p[:maxStore])
	}
	h.store(addr, p)
}

func (h *Computer) store(addr uint64, p []byte) {
	h.mu.Lock()
	for h.fullLocked() {
		h.waitRoomLocked()
	}
	h.rc.Write(addr, p)
	s := &h.stores
	now := time.Now()
	row := now.Sub(s.last) < storeGap && h.virtual == nil
	s.last = now
	s.gathered++
	if row && s.gathered < maxStores && !h.closed {
		if !s.sending {
			s.sending = true
			s.senders.Go(h.sendStores)
		}
		h.mu.Unlock()
		return
	}
	s.gathered = 0
	h.mu.Unlock()
	h.kick()
	if h.net != nil {
		h.net.Attend()
	}
	h.mu.Lock()
	s.last = time.Now()
	h.mu.Unlock()
}

func (h *Computer) fullLocked() bool { return h.rc.Queued() >= maxQueued && !h.closed }

// waitRoomLocked unlocks the host until stores may have room.
func (h *Computer) waitRoomLocked() {
	if h.virtual == nil {
		h.room.Wait()
		return
	}
	h.mu.Unlock()
	h.virtual.WaitUntil(machine.Never, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return !h.fullLocked()
	})
	h.mu.Lock()
}

// sendStores sends gathered stores until there are none.
func (h *Computer) sendStores() {
	for {
		h.mu.Lock()
		if h.stores.gathered == 0 || h.closed {
			h.stores.sending = false
			h.mu.Unlock()
			return
		}
		h.stores.gathered = 0
		h.mu.Unlock()
		h.kick()
	}
}
