package virtio_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
)

var errChain = errors.New("a chain that breaks the rules")

// walk is a plain reference of section 2.7.5: the buffers to read and to write of the chain
// from head on, in the memory of h.
func walk(h *host, table uint64, entries, head int) (read, write []extent, err error) {
	indirect, total := false, 0
	for seen := 0; ; seen++ {
		at := table + 16*uint64(head)
		if head >= entries || seen > entries || at < memBase || at > memBase+uint64(len(h.mem))-16 {
			return nil, nil, errChain
		}
		d := h.mem[at-memBase:]
		addr, n := binary.LittleEndian.Uint64(d), int(binary.LittleEndian.Uint32(d[8:]))
		flags, next := binary.LittleEndian.Uint16(d[12:]), int(binary.LittleEndian.Uint16(d[14:]))
		if flags&virtiotest.FlagIndirect != 0 {
			if indirect || flags&virtiotest.FlagNext != 0 || n == 0 || n%16 != 0 || n > 16*1024 {
				return nil, nil, errChain
			}
			indirect, table, entries, head, seen = true, addr, n/16, 0, -1
			continue
		}
		if total += n; addr+uint64(n) < addr || total > len(newEcho(h.t).pools[0]) {
			return nil, nil, errChain
		}
		switch toWrite := flags&virtiotest.FlagWrite != 0; {
		case !toWrite && len(write) > 0:
			return nil, nil, errChain
		case n == 0: // takes no part in the order
		case toWrite:
			write = append(write, extent{addr, n})
		default:
			read = append(read, extent{addr, n})
		}
		if flags&virtiotest.FlagNext == 0 {
			break
		}
		head = next
	}
	if total == 0 {
		return nil, nil, errChain
	}
	for _, e := range read {
		if e.addr < memBase || e.addr+uint64(e.n) > memBase+uint64(len(h.mem)) {
			return nil, nil, errChain
		}
	}
	return read, write, nil
}

// describe writes a descriptor at random into b, mostly one within the rules: of the 64 KiB of buffers at
// an address, and in a table of some entries.
func describe(r *rand.Rand, b []byte, at uint64, entries int) {
	addr := at + uint64(r.IntN(32<<10))
	n := []uint32{0, 1, 5, 64, 300, 4096, 16, 48, 128}[r.IntN(9)]
	flags := []uint16{0, 1, 1, 1, 2, 2, 3, 3, 4, 4}[r.IntN(10)]
	if flags == 4 {
		addr, n = at+40<<10+16*uint64(r.IntN(64)), 16*uint32(1+r.IntN(20))
	}
	switch r.IntN(60) {
	case 0:
		addr = []uint64{0x1000, 1<<64 - 8, memBase + 4<<20 - 8}[r.IntN(3)]
	case 1:
		n = []uint32{40 << 10, 0xffffffff, 0x80000000, 17}[r.IntN(4)]
	case 2:
		flags = uint16(r.Uint32())
	}
	binary.LittleEndian.PutUint64(b, addr)
	binary.LittleEndian.PutUint32(b[8:], n)
	binary.LittleEndian.PutUint16(b[12:], flags)
	next := uint16(r.IntN(entries))
	if r.IntN(30) == 0 {
		next = uint16(r.Uint32())
	}
	binary.LittleEndian.PutUint16(b[14:], next)
}

// copied returns memory after the echo has answered a request, and how many bytes it wrote: those
// that the device has read, each one more, and 0xee for what is left.
func copied(mem []byte, read, write []extent) (want []byte, in int) {
	want = slices.Clone(mem)
	var content []byte
	for _, e := range read {
		content = append(content, mem[e.addr-memBase:][:e.n]...)
	}
	for _, e := range write {
		for i := range e.n {
			v := byte(0xee)
			if in < len(content) {
				v = content[in] + 1
			}
			in++
			if p := e.addr + uint64(i) - memBase; e.addr+uint64(i) >= memBase && p < uint64(len(want)) {
				want[p] = v
			}
		}
	}
	return want, in
}

// Random descriptors do what a plain walk over them says, or make the device need a reset.
func TestDescriptorsAgainstReference(t *testing.T) {
	var good, bad int
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		h, d, _ := start(t)
		data, at := d.Alloc(64 << 10)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		q := d.Queues[0]
		for i := range 16 {
			describe(r, q.Ring[16*i:], at, 16)
		}
		for i := range 200 {
			describe(r, data[40<<10+16*i:], at, 20)
		}
		for range 3 {
			head := r.IntN(16)
			read, write, err := walk(h, d.Queues[0].Addr(), 16, head)
			want, in := copied(h.mem, read, write)
			q.Offer(uint16(head))
			h.settle()
			got, n, ok := q.Used()
			if ok != (err == nil) || (h.dev.Broken() != "") != (err != nil) {
				t.Fatalf("seed %d: used %v, broken %q, reference %v", seed, ok, h.dev.Broken(), err)
			}
			if err != nil {
				bad++
				break
			}
			good++
			if got != uint32(head) || n != uint32(in) {
				t.Fatalf("seed %d: used %d of %d bytes, want %d of %d", seed, got, n, head, in)
			}
			copy(want[:16<<10], h.mem) // rings
			if i := firstDifference(h.mem, want); i >= 0 {
				t.Fatalf("seed %d: byte %#x is %#x, want %#x", seed, i, h.mem[i], want[i])
			}
		}
	}
	t.Logf("%d chains within the rules, %d not", good, bad)
}
