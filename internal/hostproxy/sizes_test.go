package hostproxy_test

import (
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/tlp"
)

// meter records the largest TLPs of a GPU.
type meter struct {
	*gpu.GPU

	mu   sync.Mutex // guards most
	most largest
}

// largest are sizes in bytes.
type largest struct{ write, readRequest, completion, hostWrite int }

func (m *meter) Receive(now time.Duration, p *tlp.Packet) bool {
	m.mu.Lock()
	switch {
	case p.Type == tlp.MWr:
		m.most.hostWrite = max(m.most.hostWrite, len(p.Data))
	case p.Type.Completion():
		m.most.completion = max(m.most.completion, len(p.Data))
	}
	m.mu.Unlock()
	return m.GPU.Receive(now, p)
}

func (m *meter) Transmit(now time.Duration, emit func(*tlp.Packet) bool) {
	m.GPU.Transmit(now, func(p *tlp.Packet) bool {
		m.mu.Lock()
		switch p.Type {
		case tlp.MWr:
			m.most.write = max(m.most.write, len(p.Data))
		case tlp.MRd:
			m.most.readRequest = max(m.most.readRequest, int(p.Length)*4)
		}
		m.mu.Unlock()
		return emit(p)
	})
}

// take returns the sizes since the last call.
func (m *meter) take() largest {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.most = largest{} }()
	return m.most
}

// express returns the offset of the PCI Express capability.
func express(t *testing.T, bus driver.Bus) int {
	t.Helper()
	for at := int(bus.ConfigRead32(cfgspace.OffCapPtr) & 0xff); at != 0; at = int(bus.ConfigRead32(at) >> 8 & 0xff) {
		if bus.ConfigRead32(at)&0xff == cfgspace.CapExpress {
			return at
		}
	}
	t.Fatal("no PCI Express capability")
	return 0
}

// The sizes in Device Control are the guest's own: a device uses those of the
// network, and its own capabilities alone bound them. Resets do not change that.
func TestSizesAreThoseOfTheNetwork(t *testing.T) {
	const guest = cfgspace.DevCtlRelaxed | cfgspace.DevCtlNoSnoop // MPS and MRRS 128, no extended tags
	for _, c := range []struct {
		name   string
		inside bool
		spec   gpu.Spec
		want   largest
	}{
		{"vfio-user", false, gpu.Spec{}, largest{4096, 4096, 4096, 4096}},
		{"vfio-user, a small device", false, gpu.Spec{MaxPayload: 256, MaxReadRequest: 1024}, largest{256, 1024, 256, 256}},
		{"embedded", true, gpu.Spec{}, largest{4096, 4096, 4096, 4096}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m *meter
			r := newCluster(t, options{inside: c.inside, spec: c.spec, wrap: func(d device.Device) device.Device {
				m = &meter{GPU: d.(*gpu.GPU)}
				return m
			}})
			r.attach(0, 0, 0, 0)
			bus := r.bus(0, 0, vfiouserbus.Options{})
			at := express(t, bus) + cfgspace.OffDevCtl
			bus.ConfigWrite32(at, guest)
			for _, state := range []string{"as the guest set it", "after a reset"} {
				dev, err := driver.Open(t.Context(), bus, driver.Options{})
				if err != nil {
					t.Fatal(err)
				}
				m.take()
				copyBothWays(t, dev, 64<<10)
				writeAndFlush(t, dev, 64<<10)
				if got := m.take(); got != c.want {
					t.Errorf("%s: %+v, want %+v", state, got, c.want)
				}
				if info := dev.Info(); info.Tags != 140 {
					t.Errorf("%s: %d tags, want those of the GPU", state, info.Tags)
				}
				check(t, dev.Close())
				if state == "after a reset" {
					continue
				}
				if got := bus.ConfigRead32(at) & 0xffff; got != guest {
					t.Errorf("Device Control reads %#x, the guest wrote %#x", got, guest)
				}
				check(t, bus.Reset())
				if got := bus.ConfigRead32(at) & cfgspace.DevCtlMRRS; !c.inside && got != 2<<12 {
					t.Errorf("Max_Read_Request_Size after the reset is %#x, want 512 bytes", got)
				}
			}
			check(t, bus.Close())
		})
	}
}

// writeAndFlush writes n bytes to the device's memory with CPU stores.
func writeAndFlush(t *testing.T, dev *driver.Device, n uint64) {
	t.Helper()
	p, err := dev.Malloc(n)
	if err != nil {
		t.Fatal(err)
	}
	check(t, dev.WriteAperture(p, make([]byte, n)))
	check(t, dev.Flush())
	check(t, dev.Free(p))
}
