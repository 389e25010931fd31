package opencl_test

import (
	"encoding/binary"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// A command that waits for one that was refused does not start, and neither does one that waits for it, if
// the driver asks for it. The driver may post all of them before it knows of the error.
func TestCommandsBehindARefusedOne(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	const hOther, hLoose, hNone = hKernel + 1, hKernel + 2, hKernel + 3
	for h, flags := range map[int]int{hQueue: 0, hOther: 0, hLoose: reg.QueueOutOfOrder} {
		r.do(0, reg.PacketQueue, 0, 0, fields(u32(h), u32(flags)))
	}
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hA), uint32(0), uint64(1), uint64(4)))
	fill := func(queue uint32, buffer int, value byte, must uint32, waits ...any) uint64 {
		list := fields(u32(len(waits)), must)
		return r.post(reg.PacketFill, queue, 0, fields(u32(buffer), uint32(1), uint64(0), uint64(4), []byte{value, 0, 0, 0, 0, 0, 0, 0}, append(list, fields(waits...)...)))
	}
	for _, queue := range []uint32{hQueue, hOther, hLoose} {
		r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hA), uint32(1), uint64(0), uint64(4), make([]byte, 8), noWaits))
		var want []int32
		var last uint64
		r.burst(func() {
			refused := fill(hQueue, hNone, 1, 0)
			second := fill(queue, hA, 2, 1, refused)
			third := fill(hOther, hA, 3, 2, last, second)
			last = fill(queue, hA, 4, 0, refused) // an old driver, or an order alone
			r.post(reg.PacketMarker, queue, 0, fields(uint32(2), uint32(1), last, third))
			want = []int32{int32(cl.InvalidMemObject), int32(cl.FailedWait), int32(cl.FailedWait), 0, 0}
		})
		got := map[uint64]int32{}
		for range want {
			e, _, ok := r.next()
			if !ok {
				t.Fatal("the channel failed")
			}
			got[e.Cookie] = e.Status
		}
		for i, status := range want {
			if cookie := last - 3 + uint64(i); got[cookie] != status {
				t.Errorf("queue %d, packet %d: status %d, want %d", queue, i, got[cookie], status)
			}
		}
		data, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hA), uint32(0), uint64(0), uint64(4), uint64(0), noWaits))
		if v := binary.LittleEndian.Uint32(data); v != 0x04040404 {
			t.Errorf("queue %d: %#x", queue, v)
		}
	}
	// More than those in the list cannot have to succeed.
	r.do(int32(cl.InvalidValue), reg.PacketMarker, hQueue, 0, fields(uint32(0), uint32(1)))
}

// A packet that waits for one that failed may be in the ring when the context moves: it does not start on the
// other device either.
func TestMoveBehindARefusedCommand(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	const hNone = hKernel + 1
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hA), uint32(0), uint64(1), uint64(4)))
	fill := func(want cl.Status, buffer int, waits ...any) uint64 {
		list := append(fields(u32(len(waits)), u32(len(waits))), fields(waits...)...)
		cookie := r.post(reg.PacketFill, hQueue, 0, fields(u32(buffer), uint32(1), uint64(0), uint64(4), make([]byte, 8), list))
		if e, _, ok := r.next(); !ok || e.Cookie != cookie || e.Status != int32(want) {
			t.Errorf("%v %+v, want status %d of packet %d", ok, e, want, cookie)
		}
		return cookie
	}
	refused := fill(cl.InvalidMemObject, hNone)
	done := fill(0, hA)
	for range 2 {
		r.move()
		fill(cl.FailedWait, hA, done, refused)
		fill(0, hA, done)
	}
}
