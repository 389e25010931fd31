package hostproxy_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// liar is a GPU that sends other completions before each of its own, or in place of it.
type liar struct {
	*gpu.GPU
	random *rand.Rand
	lies   atomic.Int64
	never  atomic.Bool // the true ones are missing
}

// Transmit implements device.Device.
func (l *liar) Transmit(now time.Duration, emit func(*tlp.Packet) bool) {
	l.GPU.Transmit(now, func(p *tlp.Packet) bool {
		if !p.Type.Completion() {
			return emit(p)
		}
		for range 1 + l.random.IntN(3) {
			if lie := l.lie(p); lie.Validate() == nil && emit(&lie) {
				l.lies.Add(1)
			}
		}
		return l.never.Load() || emit(p)
	})
}

// lie returns a completion that answers no request: it has the right tag, and more or fewer bytes than
// were asked for, or other fields that do not fit.
func (l *liar) lie(p *tlp.Packet) tlp.Packet {
	out := *p
	out.Data = bytes.Repeat([]byte{0xa5}, len(p.Data)) // a reader that takes it shows it
	more := func(n int) {
		out.Data = slices.Concat(out.Data, bytes.Repeat([]byte{0xa5}, n))
		out.Length = uint16(len(out.Data) / pcie.DW)
	}
	switch l.random.IntN(9) {
	case 0:
		out.ByteCount = uint16(1 + l.random.IntN(4096))
		if out.ByteCount == p.ByteCount {
			out.ByteCount ^= 1
		}
	case 1:
		out.ByteCount--
	case 2:
		out.ByteCount++
	case 3:
		out.ByteCount, out.LowerAddr = out.ByteCount+pcie.DW, out.LowerAddr^1
		more(pcie.DW)
	case 4:
		more(pcie.DW * (1 + l.random.IntN(1000)))
	case 5:
		if out.LowerAddr == 0 {
			out.ByteCount++ // a read of configuration space may have any lower address
		}
		out.LowerAddr ^= uint8(1 + l.random.IntN(127))
	case 6:
		out.Requester ^= pcie.BDF(1 + l.random.IntN(0xffff))
	case 7:
		out.Tag = (out.Tag + pcie.Tag(1+l.random.IntN(255))) % 256
		out.ByteCount++ // no answer to another request either
	case 8:
		out.Type = tlp.CplDLk
	}
	return out
}

// A box sends completions with odd byte counts and other fields that fit no request, before each true one.
// The VMM reads true values only. Without the true ones it reads ones at the deadline, and the device works
// again afterwards, as that of another slot did meanwhile.
func TestOddCompletions(t *testing.T) {
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			var first *liar
			r := newCluster(t, options{gpus: 2, inside: c.inside, timeout: 200 * time.Millisecond, wrap: func(d device.Device) device.Device {
				if first != nil {
					return d
				}
				first = &liar{GPU: d.(*gpu.GPU), random: rand.New(rand.NewPCG(1, 2))}
				return first
			}})
			b := r.attach(0, 0, 0, 0)
			r.attach(0, 1, 0, 1)
			bus, dev := r.open1(0, 0)
			_, other := r.open1(0, 1)
			regs := dev.Registers()
			for i := range uint32(300) {
				regs.Write32(scratch, i|i<<16)
				if v := regs.Read32(scratch); v != i|i<<16 {
					t.Fatalf("read %d gives %#x", i, v)
				}
				if v := other.Registers().Read32(scratch); v != 0 {
					t.Fatalf("a read of the other GPU gives %#x", v)
				}
			}
			copyBothWays(t, dev, 256<<10+5)

			first.never.Store(true)
			if v := regs.Read32(scratch); v != 0xffff_ffff {
				t.Errorf("a read without a true completion gives %#x", v)
			}
			first.never.Store(false)
			if v := regs.Read32(scratch); v != 299|299<<16 {
				t.Errorf("the read after it gives %#x", v)
			}
			if s := r.atHost(b); s.GetState() != attached {
				t.Errorf("the binding is %v: %s", s.GetState(), s.GetDetail())
			}
			t.Logf("%d lies", first.lies.Load())
			if first.lies.Load() < 300 {
				t.Error("the box has hardly lied")
			}
			closeBoth(t, bus, dev)
		})
	}
}
