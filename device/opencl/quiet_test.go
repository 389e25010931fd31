package opencl_test

import (
	"encoding/binary"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// burst posts packets with one write of the tail, so that each but the last has another one
// behind it.
func (r *tenant) burst(post func()) {
	tail := r.tail
	r.held = true
	post()
	r.held = false
	if r.tail != tail {
		r.write32(reg.ComputeTail, r.tail)
	}
}

// The kernels of a chain have no event of their own in the engine, and end all the same, in their
// order, whatever comes behind them: a wait of another queue, a packet that is no command, a
// command of another queue.
func TestEveryKernelOfAChainEnds(t *testing.T) {
	r := newTenant(t, opencl.Spec{})
	const hOther, kernels = hKernel + 1, 100
	for _, h := range []int{hQueue, hOther} {
		r.do(0, reg.PacketQueue, 0, 0, fields(u32(h), u32(reg.QueueWithoutTimes)))
	}
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hA), uint32(0), uint64(1), uint64(4)))
	r.do(0, reg.PacketFill, hQueue, 0, fields(u32(hA), uint32(4), uint64(0), uint64(4), make([]byte, 8), noWaits))
	r.build("__kernel void f(__global int *a) { a[0]++; }")
	r.kernel("f")
	run := func(n int) (cookies []uint64) {
		for range n {
			cookies = append(cookies, r.post(reg.PacketNDRange, hQueue, 0, ndrange(1, bufferArg(hA))))
		}
		return cookies
	}
	read := func(queue uint32, waits ...any) uint64 {
		list := fields(u32(len(waits)), uint32(0))
		return r.post(reg.PacketRead, queue, 0, fields(u32(hA), uint32(0), uint64(0), uint64(4), uint64(0), append(list, fields(waits...)...)))
	}
	counts := map[string]uint32{}
	ends := func(cookies []uint64, reads map[uint64]string, others int) {
		t.Helper()
		for len(cookies) > 0 || len(reads) > 0 || others > 0 {
			e, data, ok := r.next()
			if !ok || e.Status != 0 {
				t.Fatalf("%v %+v", ok, e)
			}
			switch name, isRead := reads[e.Cookie]; {
			case len(cookies) > 0 && e.Cookie == cookies[0]:
				cookies = cookies[1:]
			case isRead:
				counts[name] = binary.LittleEndian.Uint32(data)
				delete(reads, e.Cookie)
			default:
				others--
			}
		}
		if others < 0 {
			t.Fatalf("%d events too many, or not in order", -others)
		}
	}

	var cookies []uint64
	reads := map[uint64]string{}
	r.burst(func() {
		cookies = run(kernels)
		reads[read(hOther, cookies[kernels/2-1])] = "waits"
		cookies = append(cookies, run(kernels/2)...)
		reads[read(hQueue)] = "behind"
	})
	ends(cookies, reads, 0)
	if n := counts["waits"]; n < kernels/2 {
		t.Errorf("the other queue reads after %d kernels, want %d or more", n, kernels/2)
	}
	if counts["behind"] != 3*kernels/2 {
		t.Errorf("%d kernels ran, want %d", counts["behind"], 3*kernels/2)
	}

	r.burst(func() {
		cookies = run(3)
		r.post(reg.PacketInfo, 0, 0, nil)
	})
	ends(cookies, nil, 1)
	r.burst(func() {
		cookies = run(3)
		r.post(reg.PacketMarker, hOther, 0, noWaits)
	})
	ends(cookies, nil, 1)
	r.burst(func() { // each waits for the one before it
		cookies = run(1)
		for range kernels {
			body := ndrange(1, bufferArg(hA))
			body = append(body[:len(body)-len(noWaits)], fields(uint32(1), uint32(0), cookies[len(cookies)-1])...)
			cookies = append(cookies, r.post(reg.PacketNDRange, hQueue, 0, body))
		}
		r.post(reg.PacketRelease, 0, 0, fields(u32(hQueue), uint32(0)))
	})
	ends(cookies, nil, 1)
}
