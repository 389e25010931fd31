package opencl_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// Handles of buffers in shared virtual memory.
const (
	hShared = 500
	hOver   = 501
)

// sharedArg is an argument in shared virtual memory.
func sharedArg(handle int, offset uint64) []byte {
	return fields(u32(reg.ArgSVM), uint32(16), u32(handle), uint32(0), offset)
}

// newShared makes a buffer in shared virtual memory and returns its address.
func (r *tenant) newShared(handle int, size uint64) uint64 {
	r.t.Helper()
	data, _ := r.do(0, reg.PacketSVM, 0, 0, fields(u32(handle), uint32(0), uint64(1), size))
	if len(data) != 8 {
		r.t.Fatalf("address %x", data)
	}
	return binary.LittleEndian.Uint64(data)
}

// withShared makes a tenant with a queue, a kernel that adds to longs, and 8 KiB of shared
// virtual memory, which holds zeros.
func withShared(t *testing.T) (r *tenant, address uint64) {
	t.Helper()
	r = newTenant(t, opencl.Spec{Memory: 256 << 20})
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.build("__kernel void f(__global long *a, __global long *b) { a[0] = (long)b; b[0]++; }")
	r.kernel("f")
	address = r.newShared(hShared, 8192)
	r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hShared), uint32(8), uint64(0), uint64(8192), uint64(0), noWaits))
	return r, address
}

// A kernel sees shared virtual memory at the address that the tenant has been told, also in the
// middle, and a buffer that is a part of it has the same content.
func TestSharedVirtualMemory(t *testing.T) {
	r, address := withShared(t)
	if address == 0 || address%4096 != 0 {
		t.Errorf("address %#x", address)
	}
	r.do(0, reg.PacketSVMBuffer, 0, 0, fields(u32(hOver), u32(hShared), uint64(1), uint64(4096), uint64(4096)))
	r.do(0, reg.PacketNDRange, hQueue, 0, ndrange(1, sharedArg(hShared, 0), sharedArg(hShared, 4104)))
	data, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hShared), uint32(0), uint64(0), uint64(8), uint64(0), noWaits))
	if got := binary.LittleEndian.Uint64(data); got != address+4104 {
		t.Errorf("the kernel saw %#x, want %#x", got, address+4104)
	}
	r.do(0, reg.PacketNDRange, hQueue, 0, ndrange(1, sharedArg(hShared, 0), bufferArg(hOver)))
	data, _ = r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hShared), uint32(0), uint64(4096), uint64(16), uint64(0), noWaits))
	if want := fields(uint64(1), uint64(1)); !bytes.Equal(data, want) {
		t.Errorf("content %x, want %x", data, want)
	}
	// The part keeps the memory.
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hShared), uint32(0)))
	data, _ = r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hOver), uint32(0), uint64(0), uint64(16), uint64(0), noWaits))
	if want := fields(uint64(1), uint64(1)); !bytes.Equal(data, want) {
		t.Errorf("content %x, want %x", data, want)
	}
}

// The engine refuses an argument outside of the tenant's memory, whose size is bounded.
func TestSharedVirtualMemoryOfOthers(t *testing.T) {
	r, _ := withShared(t)
	launch := func(shared uint32, list []byte, args ...[]byte) []byte {
		body := fields(u32(hKernel), uint32(1), u32(len(args)), shared, make([]byte, 24), uint64(1), make([]byte, 40))
		for _, a := range args {
			body = append(body, a...)
		}
		return append(append(body, list...), fields(noWaits)...)
	}
	good := [][]byte{sharedArg(hShared, 0), sharedArg(hShared, 8)}
	for i, p := range []struct {
		want int32
		body []byte
	}{
		{-50, ndrange(1, sharedArg(hShared, 8192), sharedArg(hShared, 0))},
		{-50, ndrange(1, sharedArg(hShared, ^uint64(0)), sharedArg(hShared, 0))},
		{-50, ndrange(1, sharedArg(hQueue, 0), sharedArg(hShared, 0))},
		{-51, ndrange(1, fields(u32(reg.ArgSVM), uint32(8), u32(hShared), uint32(0)), sharedArg(hShared, 0))},
		{-30, launch(1, fields(u32(hQueue), uint32(0)), good...)},
		{-30, launch(^uint32(0), nil, good...)},
		{-30, launch(reg.MaxShared, nil, good...)},
		{0, launch(3, fields(u32(hShared), u32(hShared), u32(hShared), uint32(0)), good...)},
	} {
		r.do(p.want, reg.PacketNDRange, hQueue, flagShared*uint16(min(i/4, 1)), p.body)
	}
	r.do(-30, reg.PacketSVMBuffer, 0, 0, fields(u32(hOver), u32(hShared), uint64(1), uint64(8192), uint64(8)))
	// The memory is bounded, and comes back.
	for range 40 {
		r.newShared(hOver, 160<<20)
		//	r.do(-4, reg.PacketSVM, 0, 0, fields(uint32(700), uint32(0), uint64(1), uint64(160<<20)))
		r.do(0, reg.PacketRelease, 0, 0, fields(u32(hOver), uint32(0)))
	}
}

// flagShared is the flag of NDRANGE for a list of shared virtual memory.
const flagShared = 1 << 2

// A context with shared virtual memory does not move, says why, and goes on; without it, it moves.
func TestSharedVirtualMemoryDoesNotMove(t *testing.T) {
	r, _ := withShared(t)
	r.dev.Track(true)
	buf := make([]byte, 64<<10)
	for from := uint64(0); r.dev.Movable() == nil; {
		addr, n, later := r.dev.ChangedMemory(from, buf)
		if from = addr + uint64(n); n > 0 {
			continue
		}
		if !later {
			t.Fatal("the context moves")
		}
		select {
		case <-r.notice:
		case <-t.Context().Done():
			t.Fatal("the process does not answer")
		}
		r.host.Run(0)
	}
	if err := r.dev.Movable(); err == nil || !strings.Contains(err.Error(), "shared virtual memory") {
		t.Errorf("%v", err)
	}
	r.dev.Track(false)
	r.do(0, reg.PacketNDRange, hQueue, 0, ndrange(1, sharedArg(hShared, 0), sharedArg(hShared, 8)))
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hShared), uint32(0)))
	r.move()
	r.do(0, reg.PacketMarker, hQueue, 0, noWaits)
}

// A tenant that releases its shared virtual memory while a kernel writes there hits no memory
// of the engine: the memory goes when the kernel has ended.
func TestSharedVirtualMemoryInUse(t *testing.T) {
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.build("__kernel void f(__global volatile long *a) { for (long i = 0; i < 200000000; i++) a[i % 8000000] = i; }")
	r.kernel("f")
	for range 3 { // 2 are more than the memory of the tenant
		r.newShared(hShared, 96<<20)
		launch := r.post(reg.PacketNDRange, hQueue, 0, ndrange(1, sharedArg(hShared, 0)))
		release := r.post(reg.PacketRelease, 0, 0, fields(u32(hShared), uint32(0)))
		for range 2 {
			if e, _, ok := r.next(); !ok || e.Status != 0 || e.Cookie != launch && e.Cookie != release {
				t.Fatalf("event %+v, %v", e, ok)
			}
		}
	}
}
