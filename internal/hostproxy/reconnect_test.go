package hostproxy_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// A VMM ends while its guest's device works, and the next one connects to the same
// socket. The last writes of the device for the old guest do not reach the memory of the
// new one, which is at the same addresses.
func TestNextVMMGetsNothingOfTheFormer(t *testing.T) {
	r := newCluster(t, options{})
	r.attach(0, 0, 0, 0)
	bus, dev := r.open1(0, 0)
	s, err := dev.NewStream()
	check(t, err)
	m, err := bus.AllocDMA(4096)
	check(t, err)
	addr, queue := m.Segments()[0].Addr, reg.Queue+uint64(s.Queue())*reg.QueueStride
	const first, late = 1 << 40, 1<<40 + 1
	check(t, s.Submit(t.Context(), reg.Fence(0, addr+8, first), reg.Delay(0, uint64(500*time.Millisecond)), reg.Fence(0, addr, late)))
	for dev.Registers().Read64(queue+reg.QFence) != first { // the ring has been read
	}
	check(t, bus.Close())

	next := r.bus(0, 0, vfiouserbus.Options{})
	var memory []byte
	for { // where the old guest had it
		m, err := next.AllocDMA(4096)
		check(t, err)
		if m.Segments()[0].Addr == addr {
			memory = m.Bytes()
			break
		}
	}
	registers, err := next.BAR(0)
	check(t, err)
	for registers.Read32(queue+reg.QControl)&reg.QControlEnable != 0 && registers.Read64(queue+reg.QFence) != late {
	}
	if v := binary.LittleEndian.Uint64(memory); v != 0 {
		t.Errorf("the memory of the new guest has %#x of the old one's device", v)
	}
	check(t, next.Close())
}
