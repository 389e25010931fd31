package opencl_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// moveFaultsVar sets the number of moves of TestMoveFaults.
const moveFaultsVar = "DXPU_MOVE_FAULTS"

// After a fault at any step of a move, the context goes on where it is, and its results are right.
func TestMoveFaults(t *testing.T) {
	count := 8
	if v := os.Getenv(moveFaultsVar); v != "" {
		var err error
		if count, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	const n = 1 << 20 // bytes
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hA), uint32(0), uint64(1), uint64(n)))
	r.build("__kernel void more(__global uint *a) { a[get_global_id(0)] += get_global_id(0); }")
	r.kernel("more")
	zero := make([]byte, 8)
	r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hA), uint32(4), uint64(0), uint64(n), zero, noWaits))
	launched := uint32(0)
	launch := func() {
		r.do(0, reg.PacketNDRange, hQueue, 0, ndrange(n/4, bufferArg(hA)))
		launched++
	}
	check := func(what string) {
		t.Helper()
		data, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hA), uint32(0), uint64(0), uint64(n), uint64(0), noWaits))
		for i := range uint32(n / 4) {
			if v := binary.LittleEndian.Uint32(data[4*i:]); v != i*launched {
				t.Fatalf("%s: element %d is %d after %d launches", what, i, v, launched)
			}
		}
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range count {
		m := r.newMover(opencl.Spec{Memory: 256 << 20})
		m.mayFail = true
		launch()
		at, piece, what := 1+rnd.IntN(40), 0, [...]string{"given up", "a piece is lost", "a byte is wrong", "the target is reset"}[i%4]
		m.change = func(p []byte) (skip bool) {
			if piece++; piece != at {
				return false
			}
			switch i % 4 {
			case 1:
				return true
			case 2:
				p[rnd.IntN(len(p))] ^= 1 << rnd.IntN(8)
			case 3:
				m.next.Reset(m.host.Now, device.ConventionalReset)
			}
			return false
		}
		if i%4 == 0 {
			m.left = at
		}
		m.copy(1 << 20)
		launch()
		if m.left = 0; i%3 > 0 && m.failed == nil {
			state := m.stop()
			if m.copy(0); i%3 > 1 && m.failed == nil {
				m.restore(state) // and the host does not start it
			}
		}
		r.dev.Thaw(r.host.Now)
		r.dev.Track(false)
		m.next.Reset(m.host.Now, device.ConventionalReset)
		m.next.Scrub()
		m.stopNext()
		check(what)
		if i%4 == 3 {
			r.move()
			check("after a move")
		}
	}
}

// record is a record of a stream, padded and with text or data.
func record(op reg.PacketOp, number uint32, flags uint16, out uint64, body, data []byte) []byte {
	padded := append(data[:len(data):len(data)], make([]byte, -len(data)&7)...)
	h := reg.PacketHeader{
		Size: uint32(reg.PacketHeaderSize + len(body) + len(padded)), Op: op, Flags: flags, Out: out, Room: uint32(len(data)), Queue: number,
	}
	return append(append(h.Append(nil), body...), padded...)
}

// The target takes no objects that a tenant could not make, and is there for the next tenant.
func TestHostileStreams(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 64 << 20})
	r.addVectors(16)
	rgba := fields(uint32(0x10b5), uint32(0x10da))
	buffer := record(reg.PacketBuffer, 0, 0, 0, fields(uint32(1), uint32(0), uint64(1), uint64(64)), nil)
	kernel := "__kernel void f(void) {}"
	for name, records := range map[string][]byte{
		"nothing":                {},
		"a size that ends early": reg.PacketHeader{Size: 8}.Append(nil),
		"an endless record":      reg.PacketHeader{Size: 1 << 31}.Append(nil),
		"text beyond the record": reg.PacketHeader{Size: 40, Op: reg.PacketProgram, Room: 1 << 31}.Append(make([]byte, 0)),
		"an operation":           record(reg.PacketNDRange, 1, 0, 0, make([]byte, 64), nil),
		"no end":                 buffer,
		"a handle for nothing":   append(buffer, record(0, 0, 0, 0, nil, fields(uint32(5), uint32(9)))...),
		"two handles":            append(buffer, record(0, 0, 0, 0, nil, fields(uint32(5), uint32(1), uint32(6), uint32(1)))...),
		"handle 0":               append(buffer, record(0, 0, 0, 0, nil, fields(uint32(0), uint32(1)))...),
		"more after the end":     append(record(0, 0, 0, 0, nil, nil), buffer...),
		"data beyond a buffer":   append(buffer, record(reg.PacketWrite, 1, 0, 60, nil, make([]byte, 8))...),
		"data for no buffer":     record(reg.PacketWrite, 7, 0, 0, nil, make([]byte, 8)),
		"too much memory":        record(reg.PacketBuffer, 0, 0, 0, fields(uint32(1), uint32(0), uint64(1), uint64(65<<20)), nil),
		"pixels beyond an image": append(record(reg.PacketImage, 0, 0, 0, fields(uint32(1), uint32(0), uint64(1), rgba, uint32(image2D), uint32(0), uint64(4), uint64(4), uint64(1), uint64(0), uint64(0)), nil),
			record(reg.PacketWriteImage, 1, 0, 0, fields(uint64(0), uint64(0), uint64(0), uint64(5), uint64(4), uint64(1)), make([]byte, 80))...),
		"a kernel of no program": record(reg.PacketKernel, 0, 0, 0, fields(uint32(1), uint32(9), uint32(1), uint32(0), "f"), nil),
		"a program that fails": append(record(reg.PacketProgram, 3, uint16(reg.ProgramSource), 0, nil, []byte("__kernel void f(")),
			record(reg.PacketBuild, 3, 0, 0, nil, []byte("-cl-kernel-arg-info "))...),
		"a build without descriptions": append(record(reg.PacketProgram, 3, uint16(reg.ProgramSource), 0, nil, []byte(kernel)),
			record(reg.PacketBuild, 3, 0, 0, nil, []byte("-DX"))...),
		"a number twice": append(record(reg.PacketProgram, 3, uint16(reg.ProgramSource), 0, nil, []byte(kernel)),
			record(reg.PacketProgram, 3, uint16(reg.ProgramSource), 0, nil, []byte(kernel))...),
	} {
		t.Run(name, func(t *testing.T) {
			defer func(outer *testing.T) { r.t = outer }(r.t)
			r.t = t
			m := r.newMover(opencl.Spec{Memory: 64 << 20})
			m.mayFail = true
			m.copy(1 << 20)
			state := m.stop()
			m.copy(0)
			m.next.Reset(m.host.Now, device.ConventionalReset)
			m.next.Scrub()
			at := uint64(64 << 20) // the stream begins behind the aperture
			stream := append(fields(uint32(1), uint32(0), uint32(3), u32(len(records))), records...)
			for len(stream) > 0 && m.failed == nil {
				n := min(len(stream), 4096)
				for m.store(at, stream[:n]) {
					m.wait()
				}
				at, stream = at+uint64(n), stream[n:]
			}
			if m.restore(state) {
				t.Error("the target took the state over")
			}
			r.dev.Thaw(r.host.Now)
			r.dev.Track(false)
			m.stopNext()
			if m.failed != nil {
				t.Log(m.failed)
			}
		})
	}
	r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hC), uint32(0), uint64(0), uint64(64), uint64(0), noWaits))
}
