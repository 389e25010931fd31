package hostproxy_test

import (
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// busAddress returns where a memory BAR of a device lies for its peers.
func busAddress(bus driver.Bus, bar int) uint64 {
	low := bus.ConfigRead32(cfgspace.OffBAR0 + 4*bar)
	addr := uint64(low &^ 0xf)
	if low>>1&3 == 2 { // 64 bits wide (section 7.5.1.2.1)
		addr |= uint64(bus.ConfigRead32(cfgspace.OffBAR0+4*bar+4)) << 32
	}
	return addr
}

// restartEachOther makes two GPUs ring each other's doorbell for ever: the ring
// of each lies in the memory of the other, and its commands restart the other's
// queue.
func restartEachOther(t *testing.T, buses [2]driver.Bus, gpus [2]*driver.Device) {
	t.Helper()
	const entries = 4
	queue := uint64(reg.Queue + 7*reg.QueueStride) // a queue that the driver does not use
	for i, g := range gpus {
		q := busAddress(buses[i], reg.BARRegisters) + queue // of the GPU whose memory this is
		var ring []byte
		ring = reg.Fence(0, q+reg.QRingSize, entries).Append(ring) // stops the queue, and starts it
		ring = reg.Fence(0, q+reg.QRingSize, entries|1<<32).Append(ring)
		ring = reg.Fence(0, q+reg.QDoorbell, entries-1).Append(ring)
		ring = reg.Nop(0).Append(ring)
		check(t, g.WriteAperture(0, ring))
		check(t, g.Flush())
	}
	for i, g := range gpus {
		g.Registers().Write64(queue+reg.QRingBase, busAddress(buses[1-i], reg.BARVRAM))
		check(t, g.Flush())
	}
	a := gpus[0].Registers()
	a.Write32(queue+reg.QRingSize, entries)
	a.Write32(queue+reg.QControl, reg.QControlEnable)
	a.Write32(queue+reg.QDoorbell, entries-1)
}

// copyToPeer makes the first GPU write to the memory of the second, for seconds.
func copyToPeer(t *testing.T, buses [2]driver.Bus, gpus [2]*driver.Device) {
	t.Helper()
	s, err := gpus[0].NewStream()
	if err != nil {
		t.Fatal(err)
	}
	to := busAddress(buses[1], reg.BARVRAM)
	var cmds []reg.Command
	for range 48 {
		cmds = append(cmds, reg.CopyFromVRAM(0, to, 0, 64<<20))
	}
	check(t, s.Submit(t.Context(), cmds...))
}

// Two GPUs of a tenant that keep each other busy take nothing away from the
// other tenants of their box, whose datagrams the same goroutine reads, and can
// be taken away themselves.
func TestNeighbourOfBusyPeers(t *testing.T) {
	for _, c := range []struct {
		name  string
		start func(t *testing.T, buses [2]driver.Bus, gpus [2]*driver.Device)
	}{{"restarting each other", restartEachOther}, {"copying", copyToPeer}} {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{gpus: 3, hosts: 2, spec: gpu.Spec{VRAM: 64 << 20}})
			busy := []*binding{r.attach(0, 0, 0, 0), r.attach(0, 1, 0, 1)}
			good := r.attach(1, 0, 0, 2)
			var buses [2]driver.Bus
			var gpus [2]*driver.Device
			for i := range gpus {
				buses[i], gpus[i] = r.open1(0, i)
				t.Cleanup(func() { closeQuietly(buses[i], gpus[i]) })
			}
			bus, neighbour := r.open1(1, 0)
			t.Cleanup(func() { closeBoth(t, bus, neighbour) })
			c.start(t, buses, gpus)

			peers := func() float64 { return metric(t, r.boxes[0], "slot_peer_tlps_total") }
			before := peers()
			for end := time.Now().Add(time.Second); time.Now().Before(end); {
				// A read that waits longer than the Completion Timeout returns all ones.
				if v := neighbour.Registers().Read32(reg.ID); v != reg.Magic {
					t.Fatalf("the neighbour read %#x, want %#x", v, uint32(reg.Magic))
				}
			}
			if n := peers() - before; n < 1000 {
				t.Errorf("%v TLPs passed between the GPUs meanwhile, want thousands", n)
			}
			for _, b := range busy {
				r.detach(b)
			}
			if s := r.atHost(good).GetState(); s != dxpuv1.BindingState_BINDING_STATE_ATTACHED {
				t.Errorf("the binding of the neighbour is %v", s)
			}
		})
	}
}
