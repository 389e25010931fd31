package vfiouser

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/internal/rawio/eventfd"
)

// setIRQs sends SET_IRQS with any flags, any range, and descriptors that may be too many, too few
// or of no events.
func (w *vmm) setIRQs() {
	flags := 1<<w.r.IntN(3) | 8<<w.r.IntN(3)
	switch w.r.IntN(10) {
	case 0:
		flags = w.r.IntN(128)
	case 1, 2, 3, 4:
		flags = arm
	}
	index := w.r.IntN(6)
	start, count := w.r.IntN(3), w.r.IntN(4)
	switch w.r.IntN(16) {
	case 0:
		start = 1 + w.r.IntN(70)
	case 1:
		start, count = math.MaxUint32-w.r.IntN(3), w.r.IntN(8)
	case 2:
		count = 0
	case 3, 4, 5, 6, 7:
		start, count = 0, 1
	}
	bools := make([]byte, 0, 8)
	short := false
	if flags&2 != 0 {
		for range min(count, 8) {
			bools = append(bools, byte(w.r.IntN(2)))
		}
		if len(bools) > 0 && w.r.IntN(8) == 0 {
			bools, short = bools[:len(bools)-1], true
		}
	}
	var fds, events []int
	if n := []int{0, count, count, count, count + 1, count - 1}[w.r.IntN(6)]; flags&4 != 0 || w.r.IntN(6) == 0 {
		for range min(max(n, 0), 5) {
			e := w.r.IntN(len(w.events))
			events = append(events, e)
			f := w.events[e]
			if flags == unmaskFD { // the server reads this one
				f = w.resample
			}
			fds = append(fds, mustFD(w.tb, f))
		}
	}
	strange := len(fds) > 0 && w.r.IntN(10) == 0
	if strange {
		fds[w.r.IntN(len(fds))] = mustFD(w.tb, w.files[0])
	}
	reply := modelReply{errno: einval}
	if !short && w.apply(flags, index, start, count, bools, events, strange) {
		reply = modelReply{}
	}
	w.put(8, setIRQs(flags, index, start, count, bools...), reply, fds...)
}

// apply carries out a SET_IRQS, and reports whether it is right.
func (w *vmm) apply(flags, index, start, count int, bools []byte, events []int, strange bool) bool {
	if !slices.Contains([]int{0x09, 0x0a, 0x0c, 0x11, 0x12, 0x14, 0x21, 0x22, 0x24}, flags) || index >= NumIRQs || start+count > math.MaxUint32 {
		return false
	}
	all := w.irqs[index]
	if flags == disable && count == 0 {
		for i := range all {
			all[i] = modelVector{event: -1}
		}
		return true
	}
	if start+count > len(all) {
		return false
	}
	vs := all[start:][:count]
	switch {
	case flags&4 == 0:
	case len(events) > 0 && (len(events) != count || strange), flags == 0x0c, flags == unmaskFD && index != int(IRQINTx):
		return false
	case flags == unmaskFD:
		return true
	}
	for i := range vs {
		v := &vs[i]
		switch {
		case flags&2 != 0 && bools[i] == 0:
		case flags == arm && len(events) == 0:
			*v = modelVector{event: -1}
		case flags == arm && v.event < 0:
			*v = modelVector{event: events[i]}
		case flags == arm:
			v.event = events[i] // masked and pending as before
		case flags&8 != 0:
			v.masked = true
		case flags&16 != 0:
			if v.masked = false; v.pending {
				w.fire(index, v)
			}
		default:
			w.fire(index, v)
		}
	}
	return true
}

// fire signals a vector, and reports whether it has a descriptor.
func (w *vmm) fire(index int, v *modelVector) bool {
	switch {
	case v.event < 0:
		return false
	case v.masked:
		v.pending = true
	default:
		v.pending, v.masked = false, index == int(IRQINTx)
		w.fired[v.event]++
	}
	return true
}

// check compares the server with the account.
func (w *vmm) check(t *testing.T, f *fixture) {
	t.Helper()
	for i := range w.mem {
		if !bytes.Equal(f.dev.peek(i, 0, len(w.mem[i])), w.mem[i]) {
			t.Errorf("region %d differs", i)
		}
	}
	if got := w.conn.Memory().Mappings(); !slices.Equal(got, w.maps) {
		t.Errorf("mappings %+v, want %+v", got, w.maps)
	}
	for range 4 {
		w.access(t)
	}
	for range 12 {
		index := w.r.IntN(NumIRQs)
		vector := w.r.IntN(min(4, len(w.irqs[index])))
		armed := w.fire(index, &w.irqs[index][vector])
		if err := w.conn.TriggerIRQ(uint32(index), uint32(vector)); (err == nil) != armed || !armed && !errors.Is(err, ErrNotArmed) {
			t.Errorf("trigger %d/%d: %v; armed: %v", index, vector, err, armed)
		}
	}
	for i, e := range w.events {
		n, err := eventfd.Read(mustFD(t, e))
		if err != nil {
			n = 0
		}
		if n != w.fired[i] {
			t.Errorf("event %d: %d signals, want %d", i, n, w.fired[i])
		}
		w.fired[i] = 0
	}
}

// access lets the device use the memory of the VMM.
func (w *vmm) access(t *testing.T) {
	t.Helper()
	addr, n, write := uint64(w.r.IntN(modelPages*modelPage)), 1+w.r.IntN(3*modelPage), w.r.IntN(2) == 0
	got, plain := make([]byte, n), make([]byte, n)
	type part struct{ file, own []byte }
	var parts []part
	ok, at := true, addr
	for at < addr+uint64(n) && ok { // each mapping that the range lies in
		i := slices.IndexFunc(w.maps, func(m Mapping) bool { return m.Addr <= at && at <= m.last() })
		if ok = i >= 0 && w.maps[i].InPlace && (write && w.maps[i].Writable || !write && w.maps[i].Readable); ok {
			m := w.maps[i]
			p := part{w.ram[w.fileOf[m.Addr]][m.Offset+at-m.Addr : m.Offset+m.Size], got[at-addr:]}
			parts = append(parts, p)
			at += uint64(copy(plain[at-addr:], p.file))
		}
	}
	if write {
		for i := range got {
			got[i] = byte(w.r.Uint32())
		}
		if err := w.conn.Memory().Write(addr, got); (err == nil) != ok {
			t.Errorf("DMA write of %d at %#x: %v; want success: %v", n, addr, err, ok)
		}
		if ok { // the last part: a page may be mapped twice
			p := parts[len(parts)-1]
			if k := min(len(p.file), len(p.own)); !bytes.Equal(p.file[:k], p.own[:k]) {
				t.Errorf("DMA write of %d at %#x is not in its file", n, addr)
			}
		}
		return
	}
	if err := w.conn.Memory().Read(addr, got); (err == nil) != ok || ok && !bytes.Equal(got, plain) {
		t.Errorf("DMA read of %d at %#x: %v; want success: %v, as in the file: %v", n, addr, err, ok, bytes.Equal(got, plain))
	}
}
