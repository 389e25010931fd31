package opencl_test

import (
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/device/opencl"
)

// divide makes parts of the first device, and a tenant for the first of them. Its turns come
// at once: the host of the tests runs each job.
func divide(t *testing.T, memory ...uint64) (*opencl.Divided, *tenant) {
	t.Helper()
	sizes := func(uint64) ([]uint64, error) { return memory, nil }
	d, err := opencl.Divide(t.Context(), requirePlatform(t), opencl.Spec{Aperture: 16 << 20}, sizes, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := tenantOf(t, d.GPUs[0])
	r.pause = time.Second // the host takes a job back when its cost is over
	return d, r
}

// A part computes what the whole device does, in ordered queues and in others.
func TestPartComputes(t *testing.T) {
	d, r := divide(t, 64<<20)
	r.addVectors(10_000)
	if d.Device.SMs < 1 || d.Device.Memory < 64<<20 {
		t.Errorf("device %+v", d.Device)
	}
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hQueue), uint32(0)))
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hProgram), uint32(0)))
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hKernel), uint32(0)))
	r.do(0, reg.PacketQueue, 0, 0, fields(u32(hQueue), u32(reg.QueueOutOfOrder|reg.QueueWithoutTimes)))
	r.build("__kernel void advance(__global int *a) { a[get_global_id(0)] = a[get_global_id(0)] * 3 + 1; }")
	r.kernel("advance")
	turns := 0
	r.host.OnJob = func(run func()) { turns++; run() }
	chain := func(steps int, link func(last uint64)) int {
		r.post(reg.PacketFill, hQueue, 0, fields(u32(hA), uint32(4), uint64(0), uint64(4096), make([]byte, 8), noWaits))
		last := r.post(reg.PacketMarker, hQueue, reg.MarkerBarrier, noWaits)
		for range steps {
			link(last)
			last = r.cookie
		}
		return 2 + steps
	}
	value := func(steps int) (v int32) {
		for range steps {
			v = v*3 + 1
		}
		return v
	}
	for name, link := range map[string]func(last uint64){
		"waits": func(last uint64) {
			body := ndrange(1024, bufferArg(hA))
			r.post(reg.PacketNDRange, hQueue, 0, append(body[:len(body)-8], fields(uint32(1), uint32(0), last)...))
		},
		"barriers": func(uint64) {
			r.post(reg.PacketNDRange, hQueue, 0, ndrange(1024, bufferArg(hA)))
			r.post(reg.PacketMarker, hQueue, reg.MarkerBarrier, noWaits)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.t = t
			const steps = 15
			turns = 0
			events := chain(steps, link)
			if name == "barriers" {
				events += steps
			}
			for range events {
				if e, _, ok := r.next(); !ok || e.Status != 0 {
					t.Fatalf("%v %+v", ok, e)
				}
			}
			// Kernels that wait for each other may have one turn, those behind a barrier have one each.
			if turns > steps+1 || name == "barriers" && turns != steps+1 {
				t.Errorf("%d turns, want one for each kernel and one for the fill", turns)
			}
			data, _ := r.do(0, reg.PacketRead, hQueue, 0, fields(u32(hA), uint32(0), uint64(0), uint64(4096), uint64(0), noWaits))
			for i := range 1024 {
				if v := int32(binary.LittleEndian.Uint32(data[4*i:])); v != value(steps) {
					t.Fatalf("element %d is %d, want %d", i, v, value(steps))
				}
			}
		})
	}
}

// The memory of a part is its size, to the byte, for buffers and images together, and changes
// while the tenant's process runs.
func TestMemoryOfAPart(t *testing.T) {
	const size = 8<<20 + 3
	d, r := divide(t, 0, size)
	part := d.GPUs[0]
	if part.Info().Memory > 1 {
		t.Errorf("a part without memory has %d bytes", part.Info().Memory)
	}
	if err := part.SetMemory(size); err != nil {
		t.Fatal(err)
	}
	r.enable()
	buffer := func(status int32, handle int, n uint64) {
		t.Helper()
		r.do(status, reg.PacketBuffer, 0, 0, fields(u32(handle), uint32(0), uint64(1), n))
	}
	image := imageFields(hB, 0, 0x10b5, 0x10da, 0x10f1, 1024, 1024, 0) // 4 MiB
	buffer(-4, hA, size+1)
	buffer(0, hA, size)
	buffer(-4, hC, 1)
	r.do(-4, reg.PacketImage, 0, 0, image)
	r.do(0, reg.PacketRelease, 0, 0, fields(u32(hA), uint32(0)))
	r.do(0, reg.PacketImage, 0, 0, image)
	buffer(-4, hA, size-4<<20+1)
	buffer(0, hA, size-4<<20)
	if got := r.read32(reg.ComputeMemory); got != size {
		t.Errorf("the register says %d bytes, want %d", got, size)
	}
	if err := part.SetMemory(size + 5); err != nil {
		t.Fatal(err)
	}
	r.grown(hC, 5)
	buffer(-4, hC+10, 1)
	if err := part.SetMemory(d.Device.Memory + 1); err == nil {
		t.Error("a part has more memory than the device")
	}
}

// grown makes a buffer as soon as the process knows that there is room for it.
func (r *tenant) grown(handle int, n uint64) {
	r.t.Helper()
	for r.t.Context().Err() == nil {
		r.post(reg.PacketBuffer, 0, 0, fields(u32(handle), uint32(0), uint64(1), n))
		if e, _, ok := r.next(); !ok {
			r.t.Fatal("the channel failed")
		} else if e.Status == 0 {
			return
		}
	}
}

// Packets that are almost right have a turn each if they take one, or none, and the part computes
// afterwards as before.
func TestMutatedTurns(t *testing.T) {
	_, r := divide(t, 256<<20)
	r.mutated(100)
	r.enable()
	r.addVectors(1000)
}
