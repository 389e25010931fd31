package devicetest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Conform checks the rules that hold for every endpoint function. open makes a new
// one.
func Conform(t *testing.T, open func(t testing.TB) device.Device) {
	t.Run("configuration space", func(t *testing.T) { conformConfig(t, open(t)) })
	t.Run("BAR sizing", func(t *testing.T) { conformSizing(t, open(t)) })
	t.Run("BAR accesses", func(t *testing.T) { conformBARs(t, open(t)) })
	t.Run("MSI-X table", func(t *testing.T) { conformMSIX(t, open(t)) })
	t.Run("refused TLPs", func(t *testing.T) { conformRefusal(t, open(t), open(t)) })
	t.Run("random TLPs", func(t *testing.T) {
		for seed := range uint64(20) {
			Soup(t, open(t), rand.New(rand.NewPCG(seed, 1)), 2000)
		}
	})
}

// conformConfig reads and writes every offset in every width.
func conformConfig(t *testing.T, d device.Device) {
	h := NewHost(d)
	before := h.ReadConfigSpace()
	for _, width := range []int{1, 2, 4} {
		for off := 0; off < pcie.ConfigSize; off += width {
			if off/4*4 == cfgspace.OffCommand {
				continue // Soup tests bus mastering with random addresses
			}
			v := h.ConfigRead(off, width)
			h.ConfigWrite(off, width, 0xffffffff)
			h.ConfigWrite(off, width, v)
			if got := h.ConfigRead(off, 1); got > 0xff {
				t.Fatalf("offset %#x", off)
			}
		}
	}
	after := h.ReadConfigSpace()
	for _, off := range []int{cfgspace.OffVendor, cfgspace.OffRevision, cfgspace.OffCapPtr} {
		if string(before[off:off+4]) != string(after[off:off+4]) {
			t.Errorf("read-only double word %#x changed from %x to %x", off, before[off:off+4], after[off:off+4])
		}
	}
	// Every capability is still where it was.
	for id, at := range cfgspace.Capabilities(before) {
		if after[at] != id {
			t.Errorf("capability %#02x at %#x is gone", id, at)
		}
	}
	// Another function of the device does not exist: Unsupported Request.
	p := tlp.Packet{Type: tlp.CfgRd0, Length: 1, FirstBE: 0xf, Target: h.BDF | 1}
	if _, status, ok := h.Request(&p); !ok || status != pcie.UnsupportedRequest {
		t.Errorf("function 1 answers %v, %v", status, ok)
	}
}

func conformSizing(t *testing.T, d device.Device) {
	h := NewHost(d)
	for i, b := range h.Enumerate() {
		if b.Kind == cfgspace.NoBAR {
			continue
		}
		if b.Size == 0 || b.Size&(b.Size-1) != 0 {
			t.Errorf("BAR %d has size %#x", i, b.Size)
		}
		if got := cfgspace.DecodeBARs(h.ReadConfigSpace())[i]; got.Addr != b.Addr {
			t.Errorf("BAR %d reads %#x, want %#x", i, got.Addr, b.Addr)
		}
		if b.Kind == cfgspace.IO {
			continue
		}
		if _, err := h.Read(b.Addr+b.Size-4, 4); err != nil {
			t.Errorf("last word of BAR %d: %v", i, err)
		}
		h.ConfigWrite(cfgspace.OffCommand, 2, 0)
		if _, err := h.Read(b.Addr, 4); err == nil {
			t.Errorf("BAR %d answers with Memory Space Enable off", i)
		}
		h.ConfigWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory)
	}
}

// conformBARs touches every BAR at every offset of its first pages, and then
// in strides, in every width, and checks that each read is answered once.
func conformBARs(t *testing.T, d device.Device) {
	h := NewHost(d)
	// No bus mastering: a random register value may start DMA.
	bars := h.Enumerate()
	h.ConfigWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory)
	for i, b := range bars {
		if b.Kind != cfgspace.Memory32 && b.Kind != cfgspace.Memory64 {
			continue
		}
		limit := min(b.Size, 1<<20)
		for _, width := range []int{1, 2, 4, 8} {
			for off := uint64(0); off+uint64(width) <= limit; off += uint64(width) {
				if off > 3*pcie.PageSize {
					off += 1021 * uint64(width)
					if off+uint64(width) > limit {
						break
					}
				}
				data, err := h.Read(b.Addr+off, width)
				if err != nil {
					t.Fatalf("BAR %d offset %#x width %d: %v", i, off, width, err)
				}
				h.Write(b.Addr+off, data)
				h.Write(b.Addr+off, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}[:width])
				h.Write(b.Addr+off, data)
			}
		}
	}
}

func conformMSIX(t *testing.T, d device.Device) {
	h := NewHost(d)
	bars := h.Enumerate()
	m, ok := cfgspace.FindMSIX(h.ReadConfigSpace())
	if !ok {
		t.Skip("the device has no MSI-X capability")
	}
	table := bars[m.TableBAR]
	if uint64(m.TableOffset)+uint64(m.Vectors)*16 > table.Size || uint64(m.PBAOffset)+uint64(m.Vectors+7)/8 > bars[m.PBABAR].Size {
		t.Fatalf("table or pending bits outside their BAR: %+v", m)
	}
	entry := []byte{0x10, 0x20, 0xe0, 0xfe, 1, 0, 0, 0, 0x45, 0x67, 0, 0, 1, 0, 0, 0}
	for v := range m.Vectors {
		at := table.Addr + uint64(m.TableOffset) + uint64(v)*16
		if e, err := h.Read(at+12, 4); err != nil || e[0]&1 == 0 {
			t.Fatalf("vector %d is not masked after reset: %x, %v", v, e, err)
		}
		h.Write(at, entry)
		if e, err := h.Read(at, 16); err != nil || string(e) != string(entry) {
			t.Fatalf("vector %d reads %x, %v", v, e, err)
		}
	}
}

// conformRefusal checks that a device emits the same TLPs when some of them are
// refused at first.
func conformRefusal(t *testing.T, a, b device.Device) {
	collect := func(d device.Device, refuse bool) (log []tlp.Type) {
		r := rand.New(rand.NewPCG(7, 7))
		send := func(p *tlp.Packet) {
			d.Receive(0, p)
			for range 3 {
				d.Transmit(0, func(p *tlp.Packet) bool {
					if refuse && r.IntN(3) != 0 {
						return false
					}
					log = append(log, p.Type)
					return true
				})
			}
		}
		for i := range 200 {
			send(&tlp.Packet{Type: tlp.CfgRd0, Length: 1, FirstBE: 0xf, Tag: pcie.Tag(i), Register: uint16(i * 4)})
		}
		for range 1000 {
			d.Transmit(0, func(p *tlp.Packet) bool {
				if refuse && r.IntN(3) != 0 {
					return false
				}
				log = append(log, p.Type)
				return true
			})
		}
		return log
	}
	plain, refused := collect(a, false), collect(b, true)
	if len(plain) != 200 || len(refused) != len(plain) {
		t.Errorf("%d answers without refusals, %d with, want 200", len(plain), len(refused))
	}
}

// Soup sends n random TLPs, resets and time steps to a device, and fails when a
// non-posted request is not completed exactly once. It answers the requests of the
// device at random.
func Soup(t testing.TB, d device.Device, r *rand.Rand, n int) {
	s := &soup{t: t, d: d, r: r, want: map[pcie.Tag]bool{}, h: NewHost(d)}
	s.h.AddMemory(0x1000, 1<<16)
	s.bars = s.h.Enumerate()
	dump := s.h.ReadConfigSpace()
	s.express, s.power = cfgspace.Find(dump, cfgspace.CapExpress), cfgspace.Find(dump, cfgspace.CapPM)
	for range n {
		s.step()
	}
	for range 10 { // until all answers are out
		d.Transmit(s.now, s.take)
	}
	for tag, must := range s.want {
		if must {
			t.Fatalf("request %d was never completed", tag)
		}
	}
}

// soupTags is the number of tags that Soup uses for its requests.
const soupTags = 1000

type soup struct {
	t    testing.TB
	d    device.Device
	r    *rand.Rand
	h    *TestHost
	bars [pcie.MaxBARs]cfgspace.BAR
	now  time.Duration
	tag  pcie.Tag
	owed []tlp.Packet // reads of the device
	job  device.Job
	// want holds the requests without a final completion: true for those that must get
	// one, false for those that a reset may have dropped (section 6.6.2).
	want           map[pcie.Tag]bool
	express, power int // capabilities by which software resets a function; 0: it has none
}

func (s *soup) step() {
	s.now += time.Duration(s.r.IntN(100_000))
	switch s.r.IntN(40) {
	case 0:
		s.d.Reset(s.now, device.ResetKind(s.r.IntN(2)))
		clear(s.want)
		s.owed = nil
	case 1:
		s.now += time.Duration(s.r.Int64N(int64(3 * time.Second)))
	case 2:
		s.h.Now = s.now
	default:
		p := s.packet()
		if s.mayReset(&p) {
			for tag := range s.want {
				s.want[tag] = false
			}
		}
		if p.Type.NonPosted() {
			s.want[p.Tag] = true
		}
		s.d.Receive(s.now, &p)
	}
	s.d.Transmit(s.now, s.take)
	if wake := s.d.Wake(); wake <= s.now {
		s.t.Fatalf("Wake is %v at %v right after Transmit", wake, s.now)
	}
	if s.job != nil {
		s.d.FinishJob(s.now, s.job)
		s.job = nil
	} else if j, ok := s.d.NextJob(); ok {
		if j.Cost() < time.Second { // random dimensions can ask for minutes of computing
			finish(j)
		}
		s.job = j
	}
}

// mayReset reports whether a TLP may reset the function: by Initiate Function Level Reset, or
// by the power state D0, after D3hot.
func (s *soup) mayReset(p *tlp.Packet) bool {
	if p.Type != tlp.CfgWr0 || p.EP || len(p.Data) != pcie.DW {
		return false
	}
	flr := s.express != 0 && int(p.Register) == s.express+cfgspace.OffDevCtl && p.FirstBE&2 != 0 && p.Data[1]&(cfgspace.DevCtlFLR>>8) != 0
	d0 := s.power != 0 && int(p.Register) == s.power+cfgspace.OffPMStatus && p.FirstBE&1 != 0 && p.Data[0]&3 == 0
	return flr || d0
}

// take checks what the device emits.
func (s *soup) take(p *tlp.Packet) bool {
	if s.r.IntN(8) == 0 {
		return false
	}
	if err := p.Validate(); err != nil {
		s.t.Fatalf("the device emits an invalid TLP: %v: %+v", err, p)
	}
	switch {
	case p.Type.Completion():
		// Answers to requests from before a reset may still be on their way.
		left := int(p.ByteCount)
		if p.Type.HasData() {
			left -= len(p.Data) - int(p.LowerAddr%pcie.DW)
		}
		if p.Status != pcie.SuccessfulCompletion || left <= 0 || !p.Type.HasData() {
			if _, ok := s.want[p.Tag]; !ok {
				s.t.Fatalf("completion for a request that is not outstanding: %+v", p)
			}
			delete(s.want, p.Tag)
		}
	case p.Type == tlp.MRd && len(s.owed) < 64:
		s.owed = append(s.owed, *p)
	}
	return true
}

// packet makes a random TLP, mostly for addresses of the device.
func (s *soup) packet() tlp.Packet {
	r := s.r
	types := []tlp.Type{
		tlp.MRd, tlp.MRd, tlp.MRd, tlp.MWr, tlp.MWr, tlp.MWr, tlp.MWr, tlp.CfgRd0, tlp.CfgWr0, tlp.CplD, tlp.CplD, tlp.Cpl,
		tlp.MRdLk, tlp.IORd, tlp.IOWr, tlp.CfgRd1, tlp.CfgWr1, tlp.Msg, tlp.MsgD, tlp.FetchAdd, tlp.Swap, tlp.CAS, tlp.Invalid, tlp.CplDLk,
	}
	p := tlp.Packet{Type: types[r.IntN(len(types))], TC: uint8(r.IntN(8)), Attr: tlp.Attr(r.IntN(8)), EP: r.IntN(30) == 0}
	switch {
	case p.Type.Completion():
		s.randomCompletion(&p)
		return p
	case p.Type.Config():
		p.Length, p.FirstBE = 1, uint8(r.IntN(16))
		p.Target = s.h.BDF | pcie.BDF(r.IntN(20)/19)
		p.Register = uint16(r.IntN(pcie.ConfigSize)) &^ 3
	default:
		addr := r.Uint64()
		if b := s.bars[r.IntN(len(s.bars))]; b.Size != 0 && r.IntN(10) != 0 {
			addr = b.Addr + r.Uint64N(min(b.Size, 1<<14))
		}
		n := 1 + r.IntN(16)
		if r.IntN(8) == 0 {
			n = 1 + r.IntN(pcie.PageSize)
		}
		p.SetMemory(addr, min(n, pcie.PageSize-int(addr%pcie.PageSize)))
	}
	// A tag is free again once its request is over.
	for {
		s.tag = (s.tag + 1) % soupTags
		if _, taken := s.want[s.tag]; !taken {
			break
		}
	}
	p.Tag = s.tag
	if p.Type.HasData() {
		p.Data = make([]byte, int(p.Length)*pcie.DW)
		for i := range p.Data {
			p.Data[i] = byte(r.Uint32() >> (r.IntN(4) * 8))
		}
		if r.IntN(2) == 0 {
			clear(p.Data[1:])
		}
		if r.IntN(50) == 0 {
			p.Data = p.Data[:r.IntN(len(p.Data))] // a wrong length
		}
	}
	return p
}

// randomCompletion answers a read of the device, or one that it did not make.
func (s *soup) randomCompletion(p *tlp.Packet) {
	r := s.r
	n := 1 + r.IntN(8)
	p.Tag, p.ByteCount = pcie.Tag(r.IntN(pcie.MaxTags)), uint16(r.IntN(4096))
	p.Status = pcie.CplStatus(r.IntN(6) / 4)
	if len(s.owed) > 0 && r.IntN(4) != 0 {
		i := r.IntN(len(s.owed))
		req := s.owed[i]
		s.owed = append(s.owed[:i], s.owed[i+1:]...)
		count, lower := req.CompletionBytes()
		p.Tag, p.Requester, p.ByteCount, p.LowerAddr = req.Tag, req.Requester, uint16(count), lower
		n = int(req.Length)
	}
	if p.Type.HasData() {
		p.Data = make([]byte, n*pcie.DW)
		for i := range p.Data {
			p.Data[i] = byte(r.IntN(256) * (r.IntN(8) / 7))
		}
		p.Length = uint16(n)
	}
}
