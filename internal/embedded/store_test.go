package embedded

import (
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/tlp"
)

// Stores in a row gather, and still leave once each and in order, before the
// load that follows them.
func TestStoresKeepTheirOrder(t *testing.T) {
	const count = 3 * maxStores
	var mu sync.Mutex // held while the host transmits, as its owner does
	var h *Computer
	seen := uint32(0)
	loaded := make(chan uint32, 1)
	kick := func() {
		mu.Lock()
		defer mu.Unlock()
		h.Transmit(0, func(p *tlp.Packet) bool {
			switch got := uint32(0); p.Type {
			case tlp.MWr:
				if got = binary.LittleEndian.Uint32(p.Data); got != seen {
					t.Errorf("store %d came after %d", got, seen)
				}
				seen++
			default:
				loaded <- seen
			}
			return true
		})
	}
	var err error
	if h, err = New(rootcomplex.Spec{MemoryBase: 1 << 20}, 1<<16, kick); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(count) {
		h.Store(0xc000_0000, binary.LittleEndian.AppendUint32(nil, i))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var b [4]byte
		_, _ = h.Load(0xc000_0000, b[:]) // ended by Close
	}()
	if n := <-loaded; n != count {
		t.Errorf("the load left after %d stores, want %d", n, count)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	<-done
}

// A program that stores faster than the link takes it waits, so that what is
// queued is bounded.
func TestStoresWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // held while the host transmits, as its owner does
		var h *Computer
		open, seen := false, 0
		kick := func() {
			mu.Lock()
			defer mu.Unlock()
			h.Transmit(0, func(p *tlp.Packet) bool {
				if open {
					seen += len(p.Data)
				}
				return open
			})
		}
		var err error
		if h, err = New(rootcomplex.Spec{MemoryBase: 1 << 20}, 1<<16, kick); err != nil {
			t.Fatal(err)
		}
		const size = 4 * maxQueued
		done := false
		go func() {
			h.Store(0xc000_0000, make([]byte, size))
			done = true
		}()
		synctest.Wait()
		h.mu.Lock()
		queued := h.rc.Queued()
		h.mu.Unlock()
		if done || queued < maxQueued || queued > maxQueued+2*maxStore {
			t.Errorf("with the link full %d bytes are queued; all stored: %v", queued, done)
		}
		mu.Lock()
		open = true
		mu.Unlock()
		kick()
		synctest.Wait()
		kick()
		if !done || seen != size {
			t.Errorf("%d bytes of %d came; all stored: %v", seen, size, done)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
}
