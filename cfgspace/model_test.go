package cfgspace_test

import (
	"math/rand/v2"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
)

// attribute is what software can do with bits of a register (section 7.4).
type attribute uint8

const (
	rw attribute = iota
	rw1c
	rws   // and a Function Level Reset leaves it
	rw1cs // likewise
	ros   // likewise
)

// register is a part of the model: everything else is read-only.
type register struct {
	off  int
	attr attribute
	bits uint32
}

// model is a function as the specification describes its registers, bit by bit.
type model struct {
	value, reset     [4096]byte
	attr             [4096 * 8]attribute
	free             [4096 * 8]bool // not read-only
	express, pm, aer int
	msi              int
	keepsState       bool // No_Soft_Reset
}

// newModel returns the model of a function in its reset state.
func newModel(s *cfgspace.Space, registers []register) *model {
	m := &model{express: s.ExpressOffset(), pm: s.PMOffset(), aer: s.AEROffset()}
	copy(m.reset[:], s.Bytes())
	m.value = m.reset
	for _, r := range registers {
		for i := range 32 {
			if at := r.off*8 + i; r.bits>>i&1 != 0 {
				m.attr[at], m.free[at] = r.attr, true
			}
		}
	}
	return m
}

// endpointRegisters describes the function of endpoint.
func endpointRegisters(s *cfgspace.Space) []register {
	msi, sta := cfgspace.Find(s.Bytes(), cfgspace.CapMSI), s.ExpressOffset()+0x08
	return append([]register{
		{0x04, rw, 0x0547},
		{0x04, rw1c, 0xf900 << 16},
		{0x0c, rw, 0xff},
		{0x3c, rw, 0xff},
		{0x10, rw, 0xffff0000},
		{0x18, rw, 0},
		{0x1c, rw, 0xfffffffe},
		{0x20, rw, 0xffffffe0}, // BARs: 64 KiB, 8 GiB, 32 ports
		{s.PMOffset() + 4, rw, 3},
		{msi, rw, 0x0071 << 16},
		{msi + 4, rw, 0xfffffffc},
		{msi + 8, rw, 0xffffffff},
		{msi + 12, rw, 0xffff},
		{msi + 16, rw, 0xffffffff},
		{s.MSIXOffset(), rw, 0xc000 << 16},
		{sta, rw, 0xf91f},
		{sta, rws, 0x00e0},
		{sta, rw1c, 0x000f << 16}, // Device Control with FLR, MPS, Device Status
		{s.ExpressOffset() + 0x10, rws, 0x03cb},
		{s.ExpressOffset() + 0x28, rw, 0x105f},
		{s.ExpressOffset() + 0x30, rws, 0xf},
	}, aerRegisters(s.AEROffset())...)
}

func aerRegisters(at int) []register {
	return []register{
		{at + 4, rw1cs, 0x007ff030},
		{at + 8, rws, 0x007ff030},
		{at + 12, rws, 0x007ff030},
		{at + 16, rw1cs, 0x000071c1},
		{at + 20, rws, 0x000071c1},
		{at + 24, ros, 0x1f},
		{at + 28, ros, 0xffffffff},
		{at + 32, ros, 0xffffffff},
		{at + 36, ros, 0xffffffff},
		{at + 40, ros, 0xffffffff},
	}
}

func (m *model) bit(at int) bool { return m.value[at/8]>>(at%8)&1 != 0 }

func (m *model) put(at int, on bool) {
	m.value[at/8] &^= 1 << (at % 8)
	if on {
		m.value[at/8] |= 1 << (at % 8)
	}
}

func (m *model) word(off int) (v uint32) {
	for i := range 4 {
		v |= uint32(m.value[off+i]) << (8 * i)
	}
	return v
}

// write stores bytes like software.
func (m *model) write(off int, b []byte) (flr, soft bool) {
	power := m.value[m.pm+4] & 3
	for i, v := range b {
		for bit := range 8 {
			at, one := (off+i)*8+bit, v>>bit&1 != 0
			switch {
			case off+i < 0 || off+i >= len(m.value) || !m.free[at]:
			case m.attr[at] == rw || m.attr[at] == rws:
				m.put(at, one)
			case (m.attr[at] == rw1c || m.attr[at] == rw1cs) && one:
				m.put(at, false)
			}
		}
	}
	if now := m.value[m.pm+4] & 3; now == 1 || now == 2 { // not supported: discarded
		m.value[m.pm+4] = m.value[m.pm+4]&^3 | power
	}
	flr = m.value[m.express+9]&0x80 != 0
	m.value[m.express+9] &^= 0x80
	return flr, !m.keepsState && power == 3 && m.value[m.pm+4]&3 == 0
}

// restart resets the function.
func (m *model) restart(keep bool) {
	for at := range m.attr {
		if sticky := m.free[at] && m.attr[at] >= rws; !keep || !sticky {
			m.put(at, m.reset[at/8]>>(at%8)&1 != 0)
		}
	}
}

// fail logs an uncorrectable error as figure 6-2 says, and returns the message.
func (m *model) fail(number int, advisory bool, header [16]byte) uint8 {
	unsupported := number == 20
	fatal := m.bit((m.aer+12)*8 + number)
	ctl, serr := m.word(m.express+8), m.word(4)&0x100 != 0
	if unsupported {
		m.put((m.express+10)*8+3, true)
	}
	if fatal || !advisory {
		class, allowed := 1, serr || ctl&2 != 0
		if fatal {
			class, allowed = 2, serr || ctl&4 != 0
		}
		m.put((m.express+10)*8+class, true)
		masked := m.log(number, header)
		if masked || !allowed || unsupported && ctl&8 == 0 {
			return 0
		}
		return uint8(0x30 + []int{1: 1, 2: 3}[class])
	}
	m.put((m.express+10)*8, true)
	m.put((m.aer+16)*8+13, true)
	if m.bit((m.aer+20)*8 + 13) {
		return 0
	}
	m.log(number, header)
	if ctl&1 == 0 || unsupported && ctl&8 == 0 {
		return 0
	}
	return 0x30
}

func (m *model) log(number int, header [16]byte) (masked bool) {
	masked = m.bit((m.aer+8)*8 + number)
	occupied := m.bit((m.aer+4)*8 + int(m.value[m.aer+24]&0x1f))
	m.put((m.aer+4)*8+number, true)
	if !masked && !occupied {
		m.value[m.aer+24] = m.value[m.aer+24]&^0x1f | byte(number)
		for i := range header {
			m.value[m.aer+28+i/4*4+3-i%4] = header[i]
		}
	}
	return masked
}

// Random accesses, resets and errors leave the registers that the specification describes.
func TestSpaceFollowsTheModel(t *testing.T) {
	known := []int{4, 5, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		s := endpoint(t)
		m := newModel(s, endpointRegisters(s))
		places := []int{0, 4, 0x10, 0x18, 0x1c, 0x20, 0x30, 0x3c, m.pm, m.express, m.express + 8, m.express + 0x10, m.express + 0x28, s.MSIXOffset(), m.aer, m.aer + 16, 4092}
		for step := range 400 {
			off, v := places[r.IntN(len(places))]+r.IntN(12)-4, r.Uint32()>>(r.IntN(4)*8)
			if r.IntN(6) == 0 {
				off = r.IntN(4108) - 6
			}
			b := []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}
			var change cfgspace.Change
			var flr, soft bool
			switch r.IntN(12) {
			case 0:
				number, advisory, header := known[r.IntN(len(known))], r.IntN(2) == 0, [16]byte{}
				for i := range header {
					header[i] = byte(r.Uint32())
				}
				got, want := s.LogUncorrectable(1<<number, advisory, header[:]), m.fail(number, advisory, header)
				if got != want {
					t.Fatalf("seed %d, step %d: error %d (advisory %v) sends message %#x, want %#x", seed, step, number, advisory, got, want)
				}
			case 1:
				keep := r.IntN(4) != 0
				s.Reset(keep)
				m.restart(keep)
			case 2, 3, 4:
				if off < 0 || off >= 4096 {
					continue
				}
				be := uint8(r.IntN(16))
				change = s.WriteBE(uint16(off), be, v)
				flr, soft = m.enabled(off&^3, be, b)
			default:
				width := 1 << r.IntN(3)
				change = s.Write(off, width, v)
				if off >= 0 {
					flr, soft = m.write(off, b[:width])
				}
			}
			if change.Has(cfgspace.FLR) != flr || change.Has(cfgspace.SoftReset) != soft {
				t.Fatalf("seed %d, step %d: effects %#x, want FLR %v, soft reset %v", seed, step, change.Effects, flr, soft)
			}
			m.compare(t, s, seed, step)
		}
	}
}

// enabled is write for the bytes of a double word that be enables.
func (m *model) enabled(off int, be uint8, b []byte) (flr, soft bool) {
	power := m.value[m.pm+4] & 3
	for i := range b {
		if be>>i&1 != 0 {
			f, _ := m.write(off+i, b[i:i+1])
			flr = flr || f
		}
	}
	return flr, !m.keepsState && power == 3 && m.value[m.pm+4]&3 == 0
}

// compare fails the test unless the space holds what the model holds.
func (m *model) compare(t *testing.T, s *cfgspace.Space, seed uint64, step int) {
	t.Helper()
	image := s.Bytes()
	if string(image) == string(m.value[:]) {
		return
	}
	for i, got := range image {
		if got != m.value[i] {
			t.Fatalf("seed %d, step %d: byte %#x is %#x, want %#x", seed, step, i, got, m.value[i])
		}
	}
}
