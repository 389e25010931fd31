package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/pcie"
)

// accessTimeout bounds one access of the CPU in virtual time: the root complex
// gives up earlier.
const accessTimeout = 2 * time.Second

var (
	_ rootcomplex.ConfigAccess = (*World)(nil)
	_ rootcomplex.MemoryAccess = (*World)(nil)
)

// errAbsent says that enumeration found nothing behind the link.
var errAbsent = errors.New("sim: no device answers behind the link")

// Enumerate does what firmware does and returns the device. Time passes.
func (w *World) Enumerate() (*rootcomplex.Function, error) {
	root, err := rootcomplex.Enumerate(w, w.enum)
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	if len(root.Children) != 1 {
		return nil, errAbsent
	}
	w.function = root.Children[0]
	return w.function, nil
}

// await lets time pass until an operation is over.
func (w *World) await(start func(cookie uint64)) (rootcomplex.Event, error) {
	w.cookie++
	id := w.cookie
	start(id)
	var e rootcomplex.Event
	err := w.RunUntil(w.clock.now+accessTimeout, func() (ok bool) {
		e, ok = w.done[id]
		return ok
	})
	delete(w.done, id)
	return e, err
}

// ConfigRead32 implements rootcomplex.ConfigAccess. Time passes.
func (w *World) ConfigRead32(id pcie.BDF, off uint16) (uint32, error) {
	e, err := w.await(func(cookie uint64) { w.root.ConfigRead(id, off, cookie) })
	return e.Value, err
}

// ConfigWrite32 implements rootcomplex.ConfigAccess. Time passes.
func (w *World) ConfigWrite32(id pcie.BDF, off uint16, v uint32) error {
	_, err := w.await(func(cookie uint64) { w.root.ConfigWrite(id, off, 0xf, v, cookie) })
	return err
}

// Read fills dst from a bus address, with all ones where nothing answers. Time
// passes.
func (w *World) Read(addr uint64, dst []byte) error {
	_, err := w.await(func(cookie uint64) { w.root.Read(addr, dst, cookie) })
	return err
}

// Write posts a write of src to a bus address. No time passes: it leaves when
// time does.
func (w *World) Write(addr uint64, src []byte) { w.root.Write(addr, src) }

// MemoryRead32 reads a double word from a bus address. Time passes.
func (w *World) MemoryRead32(addr uint64) (uint32, error) {
	var b [pcie.DW]byte
	err := w.Read(addr, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// MemoryWrite32 posts a write of a double word to a bus address.
func (w *World) MemoryWrite32(addr uint64, v uint32) error {
	w.Write(addr, binary.LittleEndian.AppendUint32(nil, v))
	return nil
}
