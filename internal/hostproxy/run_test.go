package hostproxy_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/tlp"
)

// pageWrites are consecutive writes of whole pages, which cross the network as a run.
func pageWrites(addr uint64, seed byte, n int) (out []tlp.Packet, content []byte) {
	for i := range n {
		page := bytes.Repeat([]byte{seed, byte(i), 0xa5, byte(i * 7)}, 1024)
		p := tlp.Packet{Type: tlp.MWr, Requester: 0x100, Data: page}
		p.SetMemory(addr+uint64(i*len(page)), len(page))
		out, content = append(out, p), append(content, page...)
	}
	return out, content
}

// A run of writes leaves what its TLPs leave one by one: in one mapping, over several,
// and where some of its pages are not mapped. Each TLP is counted.
func TestRunsActLikeTheirTLPs(t *testing.T) {
	const pages, page = 4, 4096
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			var f *forger
			r := newCluster(t, options{inside: c.inside, spec: gpu.Spec{Tags: 64}, wrap: func(d device.Device) device.Device {
				f = &forger{Device: d}
				return f
			}})
			r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			defer closeBoth(t, bus, dev)
			var memory [2]driver.DMA // one after the other
			for i := range memory {
				var err error
				if memory[i], err = dev.AllocDMA(pages * page); err != nil {
					t.Fatal(err)
				}
			}
			first, second := memory[0].Segments()[0].Addr, memory[1].Segments()[0].Addr
			if second != first+pages*page {
				t.Fatalf("memory at %#x and %#x", first, second)
			}
			send := func(packets []tlp.Packet) {
				t.Helper()
				sent := func() float64 { return metric(t, r.hosts[0], "slot_tlps_total", "direction", "from_device") }
				before := sent()
				f.mu.Lock()
				f.forged = slices.Clone(packets)
				f.mu.Unlock()
				dev.Registers().Write32(reg.Scratch, 1)
				r.until("the TLPs to be counted", func() bool { return sent() >= before+float64(len(packets)) })
				check(t, dev.Flush())
			}
			stored := func() []byte { return slices.Concat(memory[0].Bytes(), memory[1].Bytes()) }

			packets, content := pageWrites(first, 1, 2*pages)
			if send(packets); !bytes.Equal(stored(), content) {
				t.Error("a run over both pieces of memory left other bytes")
			}
			if n := metric(t, r.hosts[0], "slot_dma_refused_total"); n != 0 {
				t.Errorf("%v writes were refused", n)
			}
			if c.inside {
				return // all of its memory is in one piece, and it shows no counters here
			}
			packets, content = pageWrites(second, 2, 2*pages)
			if send(packets); !bytes.Equal(memory[1].Bytes(), content[:pages*page]) {
				t.Error("a run over the end of the memory left other bytes")
			}
			if n := metric(t, r.hosts[0], "slot_dma_refused_total"); n != pages {
				t.Errorf("%v writes were refused, want %d", n, pages)
			}
			interrupts := metric(t, r.hosts[0], "slot_interrupts_total")
			packets, _ = pageWrites(0xfee0_0000-page, 3, 3)
			send(packets)
			if n := metric(t, r.hosts[0], "slot_dma_refused_total"); n != pages+3 {
				t.Errorf("%v writes were refused, want %d", n, pages+3)
			}
			if n := metric(t, r.hosts[0], "slot_interrupts_total"); n != interrupts {
				t.Errorf("%v interrupts, want %v", n, interrupts)
			}
		})
	}
}
