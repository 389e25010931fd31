package hostproxy_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/pcie"
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

// newForger attaches a GPU that sends what the test gives it.
func newForger(t *testing.T, inside bool) (r *cluster, f *forger, bus driver.Bus, dev *driver.Device) {
	t.Helper()
	r = newCluster(t, options{inside: inside, spec: gpu.Spec{Tags: 64}, wrap: func(d device.Device) device.Device {
		f = &forger{Device: d}
		return f
	}})
	r.attach(0, 0, 0, 0)
	bus, dev = r.open1(0, 0)
	return r, f, bus, dev
}

// allocTwo allocates two pieces of memory, one after the other.
func allocTwo(t *testing.T, dev *driver.Device, size int) (memory [2]driver.DMA) {
	t.Helper()
	for i := range memory {
		var err error
		if memory[i], err = dev.AllocDMA(size); err != nil {
			t.Fatal(err)
		}
	}
	if first, second := memory[0].Segments()[0].Addr, memory[1].Segments()[0].Addr; second != first+uint64(size) {
		t.Fatalf("memory at %#x and %#x", first, second)
	}
	return memory
}

// A run of writes leaves what its TLPs leave one by one: in one mapping, over several,
// and where some of its pages are not mapped. Each TLP is counted.
func TestRunsActLikeTheirTLPs(t *testing.T) {
	const pages, page = 4, 4096
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			r, f, bus, dev := newForger(t, c.inside)
			defer closeBoth(t, bus, dev)
			memory := allocTwo(t, dev, pages*page)
			first, second := memory[0].Segments()[0].Addr, memory[1].Segments()[0].Addr
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

// pageReads are reads of n pages in a row, whose tags follow each other: a run.
func pageReads(requester pcie.BDF, addr uint64, n int) (out []tlp.Packet) {
	for i := range n {
		p := tlp.Packet{Type: tlp.MRd, Requester: requester, Tag: forgedTag + pcie.Tag(i)}
		p.SetMemory(addr+uint64(i)*4096, 4096)
		out = append(out, p)
	}
	return out
}

// Each read of a run has the answer that it has on its own: its bytes, also across two
// mappings and where the memory changes between two runs, or Unsupported Request where
// no memory is. All of them together are in the order of the requests.
func TestRunsOfReads(t *testing.T) {
	const page = 4096
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			r, f, bus, dev := newForger(t, c.inside)
			defer closeBoth(t, bus, dev)
			memory := allocTwo(t, dev, 10*page)
			requester := pcie.BDF(0x100)
			if b, ok := bus.(*embedded.Bus); ok {
				requester = b.Function().ID
			}
			first := memory[0].Segments()[0].Addr
			for round := range byte(2) {
				metric(t, r.hosts[0], "slot_dma_refused_total") // enters the group, so its reads of the memory are over
				var content []byte
				for _, m := range memory {
					for i := range m.Bytes() {
						m.Bytes()[i] = byte(i/page) ^ byte(i>>3) ^ round
					}
					content = append(content, m.Bytes()...)
				}
				for name, tc := range map[string]struct{ pages, from, good int }{
					"inside": {20, 0, 20}, "one mapping": {5, 3, 5}, "over the end": {6, 17, 3}, "outside": {3, 20, 0}, "more than a datagram": {40, 0, 20},
				} {
					if c.inside && tc.good < tc.pages {
						continue // its memory does not end here
					}
					f.mu.Lock()
					f.forged, f.answers = pageReads(requester, first+uint64(tc.from)*page, tc.pages), nil
					f.mu.Unlock()
					dev.Registers().Write32(reg.Scratch, 1)
					var got []tlp.Packet
					r.until("the answers of "+name, func() bool {
						f.mu.Lock()
						defer f.mu.Unlock()
						got = f.answers
						return len(got) >= tc.pages
					})
					for i, p := range got {
						at := (tc.from + i) * page
						switch {
						case int(p.Tag) != forgedTag+i:
							t.Fatalf("%s: answer %d has tag %d", name, i, p.Tag)
						case i < tc.good && (p.Status != pcie.SuccessfulCompletion || p.ByteCount != page || p.LowerAddr != 0 || !bytes.Equal(p.Data, content[at:at+page])):
							t.Errorf("%s: answer %d: %v, %d bytes, or other bytes", name, i, p.Status, p.ByteCount)
						case i >= tc.good && (p.Status != pcie.UnsupportedRequest || len(p.Data) > 0):
							t.Errorf("%s: answer %d: %v, %d bytes of data", name, i, p.Status, len(p.Data))
						}
					}
				}
			}
		})
	}
}

// Single reads between runs are answered in the order of the requests. If they were not, the
// tags of a device's further reads would not follow each other, and make no runs.
func TestReadsAreAnsweredInOrder(t *testing.T) {
	const pages, short = 24, 64
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			r, f, bus, dev := newForger(t, c.inside)
			defer closeBoth(t, bus, dev)
			memory := allocTwo(t, dev, pages/2*4096)
			reads := pageReads(pcie.BDF(0x100), memory[0].Segments()[0].Addr, pages)
			if b, ok := bus.(*embedded.Bus); ok {
				for i := range reads {
					reads[i].Requester = b.Function().ID
				}
			}
			for i := 3; i < pages; i += 5 {
				reads[i].SetMemory(reads[i].Addr, short)
			}
			f.mu.Lock()
			f.forged, f.answers = reads, nil
			f.mu.Unlock()
			dev.Registers().Write32(reg.Scratch, 1)
			var got []pcie.Tag
			r.until("all answers", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				got = nil
				for i := range f.answers {
					got = append(got, f.answers[i].Tag-forgedTag)
				}
				return len(got) >= pages
			})
			if !slices.IsSorted(got) || len(got) != pages {
				t.Errorf("answers of %v, want those of 0 to %d", got, pages-1)
			}
		})
	}
}
