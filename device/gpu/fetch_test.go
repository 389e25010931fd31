package gpu_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// fetching returns a packet for which the device reads n bytes to an offset in VRAM.
func fetching(cookie, at uint64, n uint32) []byte {
	return reg.PacketHeader{
		Size: reg.PacketHeaderSize, Op: reg.PacketWrite, Flags: reg.PacketFetch, Cookie: cookie, Out: at, Room: n,
	}.Append(nil)
}

// ringAndWait rings the doorbell and lets the reads end.
func (c *channelHost) ringAndWait() {
	c.ring()
	c.host.Run(time.Millisecond)
}

// place returns host memory that mirrors n bytes of VRAM.
func (c *channelHost) place(at uint64, n int) []byte { return c.mem[mirrorAt-memBase+at:][:n] }

func TestFetchBringsDataAheadOfThePacket(t *testing.T) {
	c := newChannelHost(t)
	c.enable()
	// More packets than are read ahead, with lengths around the sizes of reads.
	lengths := []int{1, 3, 4095, 4096, 4097, 8192, 12_345, 2, 4, 4096, 40_000, 5}
	at := uint64(chanOut)
	places := map[uint64][]byte{}
	for i, n := range lengths {
		p := c.place(at, n)
		for j := range p {
			p[j] = byte(j*7 + i)
		}
		places[at] = p
		c.put(fetching(uint64(i+1), at, uint32(n)))
		c.put(packet(uint64(100+i), 32)[:32])
		at += uint64(n) + 13
	}
	c.engine.hold = true // its results would overwrite the data
	c.ringAndWait()
	if c.engine.taken != 2*len(lengths) {
		t.Fatalf("the engine has %d packets: %v", c.engine.taken, reg.ComputeError(c.read32(reg.ComputeErrorReg)))
	}
	for at, want := range places {
		if !bytes.Equal(c.engine.vram[at:][:len(want)], want) {
			t.Errorf("%d bytes at %#x differ", len(want), at)
		}
	}
}

func TestFetchFailures(t *testing.T) {
	for name, test := range map[string]struct {
		act  func(c *channelHost)
		want reg.ComputeError
	}{
		"nothing": {func(c *channelHost) { c.put(fetching(1, chanOut, 0)) }, reg.ComputeBadPacket},
		"outside VRAM": {func(c *channelHost) {
			c.put(fetching(1, uint64(len(c.engine.vram))-4, 8))
		}, reg.ComputeBadPacket},
		"overflow": {func(c *channelHost) { c.put(fetching(1, 1<<64-4, 8)) }, reg.ComputeBadPacket},
		"no memory there": {func(c *channelHost) {
			c.restart(reg.ComputeMirror, 1<<40)
			c.put(fetching(1, chanOut, 8))
		}, reg.ComputeBadFetch},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChannelHost(t)
			c.enable()
			test.act(c)
			c.ringAndWait()
			if got := reg.ComputeError(c.read32(reg.ComputeErrorReg)); got != test.want {
				t.Errorf("error %v, want %v", got, test.want)
			}
			if c.engine.taken > 0 {
				t.Error("the engine has the packet")
			}
			// The next context is not disturbed.
			c.write32(reg.ComputeControl, 0)
			c.enable()
			c.put(fetching(1, chanOut, 64))
			c.ringAndWait()
			if e := c.event(); e.Cookie != 1 {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A driver that changes a packet after the device has looked at it gets an error, not
// the data of another packet.
func TestFetchOfAChangedPacket(t *testing.T) {
	c := newChannelHost(t)
	c.enable()
	c.engine.full = true
	c.put(packet(1, 32)[:32])
	c.put(fetching(2, chanOut, 64))
	c.ring()
	c.tail -= 32
	c.put(packet(2, 32)[:32]) // without the flag
	c.engine.full = false
	c.ring()
	if got := reg.ComputeError(c.read32(reg.ComputeErrorReg)); got != reg.ComputeBadPacket {
		t.Errorf("error %v", got)
	}
	if c.engine.taken != 1 {
		t.Errorf("the engine has %d packets", c.engine.taken)
	}
}

// With ComputeArmed, an interrupt comes only when the driver asks for one, and once.
func TestArmedInterrupts(t *testing.T) {
	c := newChannelHost(t)
	c.enable()
	c.write32(reg.ComputeControl, 0)
	c.write32(reg.ComputeControl, reg.ComputeEnable|reg.ComputeArmed)
	if v := c.read32(reg.ComputeControl); v != reg.ComputeEnable|reg.ComputeArmed {
		t.Errorf("control %#x", v)
	}
	want := func(n int) {
		t.Helper()
		if got := len(c.host.Interrupts); got != n {
			t.Fatalf("%d interrupts, want %d", got, n)
		}
	}
	post := func(cookie uint64) {
		c.put(packet(cookie, 32)[:32])
		c.ring()
	}
	post(1)
	want(0)
	c.write32(reg.ComputeArm, 1) // of the event that the driver has seen
	want(0)
	post(2)
	want(1)
	post(3)
	want(1)
	c.write32(reg.ComputeArm, 2) // an event has come before the driver asked
	want(2)
	c.write32(reg.ComputeArm, 3)
	c.engine.hold = true
	post(4)
	c.host.Run(2 * time.Second) // the time limit: a failure is always reported
	want(3)
}

// A context that does not start ends at the time limit.
func TestChannelThatDoesNotStart(t *testing.T) {
	c := newChannelHost(t)
	c.engine.slow = true
	c.enable()
	c.host.Run(999 * time.Millisecond)
	if s := c.read32(reg.ComputeStateReg); s != uint32(reg.ComputeStarting) {
		t.Errorf("state %d", s)
	}
	c.host.Run(time.Millisecond)
	if got := reg.ComputeError(c.read32(reg.ComputeErrorReg)); got != reg.ComputeTimeLimit {
		t.Errorf("error %v", got)
	}
}
