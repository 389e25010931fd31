package hostproxy_test

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// forger is a GPU that sends TLPs of a test as well.
type forger struct {
	device.Device

	mu      sync.Mutex // guards the fields below
	forged  []tlp.Packet
	answers []tlp.Packet // completions with forgedTag or a later one
}

const forgedTag = 200 // the GPU has fewer tags

func (f *forger) Transmit(now time.Duration, emit func(*tlp.Packet) bool) {
	f.Device.Transmit(now, emit)
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.forged) > 0 && emit(&f.forged[0]) {
		f.forged = f.forged[1:]
	}
}

func (f *forger) Receive(now time.Duration, p *tlp.Packet) bool {
	if p.Type.Completion() && p.Tag >= forgedTag {
		f.mu.Lock()
		defer f.mu.Unlock()
		kept := *p
		kept.Data = slices.Clone(p.Data)
		f.answers = append(f.answers, kept)
		return true
	}
	return f.Device.Receive(now, p)
}

// The host is the last receiver of a device's DMA: it stores no poisoned data and
// nothing with a wrong digest, and it refuses requests that claim a translated
// address or another address space (PCI Express Base Specification, sections 2.7
// and 2.2.4.1). Each is counted.
func TestDefectiveRequestsAreRefused(t *testing.T) {
	var forgers []*forger
	r := newCluster(t, options{gpus: 2, spec: gpu.Spec{Tags: 64}, wrap: func(d device.Device) device.Device {
		forgers = append(forgers, &forger{Device: d})
		return forgers[len(forgers)-1]
	}})
	f := forgers[0]
	r.attach(0, 0, 0, 0)
	r.attach(0, 1, 0, 1)
	bus, dev := r.open1(0, 0)
	defer closeBoth(t, bus, dev)
	peerBus, peer := r.open1(0, 1)
	defer closeBoth(t, peerBus, peer)
	m, err := dev.AllocDMA(4096)
	if err != nil {
		t.Fatal(err)
	}
	addr := m.Segments()[0].Addr
	write := func(edit func(*tlp.Packet)) tlp.Packet {
		p := tlp.Packet{Type: tlp.MWr, Requester: 0x100, Data: bytes.Repeat([]byte{0xbd}, 64)}
		p.SetMemory(addr, 64)
		edit(&p)
		return p
	}
	request := func(typ tlp.Type, edit func(*tlp.Packet)) tlp.Packet {
		p := tlp.Packet{Type: typ, Requester: 0x100, Tag: forgedTag}
		if typ.HasData() {
			p.Data = []byte{1, 2, 3, 4}
		}
		p.SetMemory(addr, 4)
		if typ.Atomic() {
			p.FirstBE = 0
		}
		edit(&p)
		return p
	}
	for _, c := range []struct {
		name, metric string
		packet       tlp.Packet
		answered     bool
	}{
		{"poisoned write", "slot_poisoned_tlps_total", write(func(p *tlp.Packet) { p.EP = true }), false},
		{"poisoned AtomicOp", "slot_poisoned_tlps_total", request(tlp.FetchAdd, func(p *tlp.Packet) { p.EP = true }), true},
		{"write with a wrong ECRC", "slot_ecrc_errors_total", write(func(p *tlp.Packet) { p.SetECRC(); p.Digest++ }), false},
		{"translated write", "slot_translated_requests_total", write(func(p *tlp.Packet) { p.AT = tlp.ATTranslated }), false},
		{"translated write to a peer", "slot_translated_requests_total", write(func(p *tlp.Packet) {
			p.AT = tlp.ATTranslated
			p.SetAddr(busAddress(peerBus, reg.BARVRAM))
		}), false},
		{"write of a process", "slot_translated_requests_total", write(func(p *tlp.Packet) { p.Prefix = []byte{0x91, 0, 0, 1} }), false},
		{"translated read", "slot_translated_requests_total", request(tlp.MRd, func(p *tlp.Packet) { p.AT = tlp.ATTranslated }), true},
		{"translation request", "slot_translated_requests_total", request(tlp.MRd, func(p *tlp.Packet) { p.AT = tlp.ATTranslationRequest }), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := metric(t, r.hosts[0], c.metric)
			f.mu.Lock()
			f.forged, f.answers = append(f.forged, c.packet), nil
			f.mu.Unlock()
			dev.Registers().Write32(reg.Scratch, 1)
			r.until("the TLP to be counted", func() bool { return metric(t, r.hosts[0], c.metric) == before+1 })
			answered := func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return len(f.answers) > 0
			}
			if c.answered {
				r.until("the answer", answered)
				if s := f.answers[0].Status; s != pcie.UnsupportedRequest {
					t.Errorf("answered %v, want Unsupported Request", s)
				}
			} else if check(t, dev.Flush()); answered() {
				t.Error("answered")
			}
			if !bytes.Equal(m.Bytes()[:64], make([]byte, 64)) {
				t.Errorf("memory is % x", m.Bytes()[:64])
			}
			got := make([]byte, 64)
			check(t, peer.ReadAperture(got, 0))
			if !bytes.Equal(got, make([]byte, 64)) {
				t.Errorf("the memory of the peer is % x", got)
			}
		})
	}
	p := write(func(p *tlp.Packet) { p.SetECRC() })
	f.mu.Lock()
	f.forged = append(f.forged, p)
	f.mu.Unlock()
	dev.Registers().Write32(reg.Scratch, 1)
	r.until("a write with a correct ECRC", func() bool { return bytes.Equal(m.Bytes()[:64], p.Data) })
}
