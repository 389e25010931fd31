package opencl_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// A tenant that releases objects at any time, also in the middle of commands that use them,
// gets a status for each packet, and the engine goes on.
func TestReleaseAtAnyTime(t *testing.T) {
	const (
		hF, hG  = 200, 201
		packets = 1000
		// The first of four handles each, most of which are free or of their kind.
		queues, buffers, regions, images, samplers = 300, 310, 320, 330, 340
	)
	r := newTenant(t, opencl.Spec{Memory: 256 << 20})
	r.build(`__kernel void f(__global volatile long *a, __global volatile long *b) {
			for (int i = 0; i < 100000; i++) a[i % 500] += b[i % 500];
		}
		__kernel void g(__read_only image2d_t i, sampler_t s, __global volatile long *b) {
			long sum = 0;
			for (int n = 0; n < 100000; n++) sum += read_imageui(i, s, (int2)(n % 16, n % 16)).x;
			b[0] = sum;
		}`)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	posted := 0
	handle := func(kind int) int {
		if rng.IntN(20) == 0 {
			kind = queues + 10*rng.IntN(5)
		}
		return kind + rng.IntN(3)
	}
	launch := func(kernel int, args ...[]byte) []byte {
		return fields(u32(kernel), uint32(1), u32(len(args)), uint32(0), make([]byte, 24), uint64(1), make([]byte, 40), slices.Concat(args...), noWaits)
	}
	shared := func() []byte { return sharedArg(handle(regions), 8) }
	buf := func() []byte { return bufferArg(handle(buffers)) }
	create := func() {
		switch rng.IntN(9) {
		case 0:
			r.post(reg.PacketQueue, 0, 0, fields(u32(handle(queues)), u32(rng.IntN(4))))
		case 1:
			r.post(reg.PacketBuffer, 0, 0, fields(u32(handle(buffers)), uint32(0), uint64(1), uint64(8<<20)))
		case 2, 3:
			r.post(reg.PacketSVM, 0, 0, fields(u32(handle(regions)), uint32(0), uint64(1), uint64(8<<20)))
		case 4:
			r.post(reg.PacketSVMBuffer, 0, 0, fields(u32(handle(buffers)), u32(handle(regions)), uint64(1), uint64(4096), uint64(4<<20)))
		case 5:
			r.post(reg.PacketSubBuffer, 0, 0, fields(u32(handle(buffers)), u32(handle(buffers)), uint64(1), uint64(4096), uint64(1<<20)))
		case 6:
			r.post(reg.PacketImage, 0, 0, imageFields(handle(images), 0, 0x10b5, 0x10da, 0x10f1, 1024, 1024, 0))
		case 7:
			r.post(reg.PacketSampler, 0, 0, fields(u32(handle(samplers)), uint32(0), uint32(0x1130), uint32(0x1140)))
		case 8:
			for k, name := range map[int]string{hF: "f", hG: "g"} {
				r.post(reg.PacketKernel, 0, 0, fields(u32(k), u32(hProgram), uint32(1), uint32(0), name))
				posted++
			}
			posted--
		}
	}
	use := func() {
		q := u32(handle(queues))
		switch rng.IntN(5) {
		case 0:
			r.post(reg.PacketFill, q, 0, fields(u32(handle(regions)), uint32(8), uint64(0), uint64(1<<20), uint64(0), noWaits))
		case 1:
			r.post(reg.PacketCopy, q, 0, fields(u32(handle(regions)), u32(handle(buffers)), uint64(0), uint64(0), uint64(1<<20), noWaits))
		case 2:
			r.post(reg.PacketNDRange, q, 0, launch(hF, shared(), shared()))
		case 3:
			r.post(reg.PacketNDRange, q, 0, launch(hF, buf(), shared()))
		case 4:
			image := fields(u32(reg.ArgImage), uint32(4), u32(handle(images)), uint32(0))
			sampler := fields(u32(reg.ArgSampler), uint32(4), u32(handle(samplers)), uint32(0))
			r.post(reg.PacketNDRange, q, 0, launch(hG, image, sampler, buf()))
		}
	}
	statuses := map[int32]int{}
	for ended := 0; ended < posted || posted < packets; {
		if posted < packets && posted-ended < 48 {
			switch posted++; rng.IntN(10) {
			case 0, 1:
				r.post(reg.PacketRelease, 0, 0, fields(u32(handle(buffers+10*rng.IntN(4))), uint32(0)))
			case 2:
				r.post(reg.PacketRelease, 0, 0, fields(u32(hF+rng.IntN(2)), uint32(0)))
			case 3, 4, 5:
				create()
			default:
				use()
			}
			continue
		}
		e, _, ok := r.next()
		if !ok {
			t.Fatalf("the channel failed after %d packets: %v", ended, reg.ComputeError(r.read32(reg.ComputeErrorReg)))
		}
		statuses[e.Status]++
		ended++
	}
	t.Logf("packets by status: %v", statuses)
}

// A sampler lives until the last kernel that uses it has ended, although its handle is gone and
// others have been made.
func TestSamplerOfAKernelThatWaits(t *testing.T) {
	const (
		hSlow, hSampled, samplers = 200, 201, 300
		count                     = 32
		toEdge, clamp, nearest    = 0x1131, 0x1132, 0x1140
	)
	r := newTenant(t, opencl.Spec{Memory: 64 << 20})
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), uint32(0)))
	r.do(0, reg.PacketImage, 0, 0, imageFields(hA, 0, 0x10b5, 0x10da, 0x10f1, 4, 4, 0))
	r.do(0, reg.PacketBuffer, 0, 0, fields(u32(hB), uint32(0), uint64(1), uint64(4*count)))
	color := make([]byte, 16)
	color[0] = 7
	r.do(0, reg.PacketFillImage, hQueue, 0, fields(u32(hA), uint32(0), uint64(0), uint64(0), uint64(0), uint64(4), uint64(4), uint64(1), color, noWaits))
	r.build(`__kernel void slow(__global volatile int *a) { for (int i = 0; i < 300000000; i++) a[0] = i; }
		__kernel void sampled(__read_only image2d_t i, sampler_t s, __global int *b, int at) { b[at] = read_imageui(i, s, (int2)(-1, 0)).x; }`)
	for k, name := range map[int]string{hSlow: "slow", hSampled: "sampled"} {
		r.do(0, reg.PacketKernel, 0, 0, fields(u32(k), u32(hProgram), u32(len(name)), uint32(0), name))
	}
	launch := func(kernel int, args ...[]byte) []byte {
		return fields(u32(kernel), uint32(1), u32(len(args)), uint32(0), make([]byte, 24), uint64(1), make([]byte, 40), slices.Concat(args...), noWaits)
	}
	sampled := func(sampler, at int) []byte {
		return launch(hSampled, fields(u32(reg.ArgImage), uint32(4), u32(hA), uint32(0)), fields(u32(reg.ArgSampler), uint32(4), u32(sampler), uint32(0)),
			bufferArg(hB), fields(u32(reg.ArgValue), uint32(4), u32(at), uint32(0)))
	}
	sampler := func(handle int, mode uint32) {
		r.post(reg.PacketSampler, 0, 0, fields(u32(handle), uint32(0), mode, uint32(nearest)))
	}
	sampler(samplers, toEdge)
	r.post(reg.PacketNDRange, hQueue, 0, sampled(samplers, 0)) // PoCL compiles it once
	r.post(reg.PacketNDRange, hQueue, 0, launch(hSlow, bufferArg(hB)))
	posted := 3
	for i := range count {
		sampler(samplers+i+1, toEdge)
		r.post(reg.PacketNDRange, hQueue, 0, sampled(samplers+i+1, i))
		r.post(reg.PacketRelease, 0, 0, fields(u32(samplers+i+1), uint32(0)))
		posted += 3
	}
	for i := range count { // in the memory of the former, if that is free
		sampler(samplers+i+1, clamp)
		posted++
	}
	for ; posted > 0; posted-- {
		if e, _, ok := r.next(); !ok || e.Status != 0 {
			t.Fatalf("event %+v, the channel goes on: %v", e, ok)
		}
	}
	data, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hB), uint32(0), uint64(0), uint64(4*count), uint64(0), noWaits))
	for i := range count {
		if got := binary.LittleEndian.Uint32(data[4*i:]); got != 7 {
			t.Errorf("kernel %d read %d with its sampler, want the pixel at the edge, 7", i, got)
		}
	}
}
