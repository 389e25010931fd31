package session

import (
	"encoding/binary"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// FuzzSubGroupQuery checks that the platform gets only sizes that it can divide by and multiply.
func FuzzSubGroupQuery(f *testing.F) {
	le := binary.LittleEndian
	f.Add(uint32(cl.SubGroupCount), le.AppendUint64(nil, 64))
	f.Add(uint32(cl.SubGroupMaxSize), le.AppendUint64(le.AppendUint64(nil, 1<<31), 1<<31))
	f.Add(uint32(cl.SubGroupLocalSize), le.AppendUint64(nil, 2))
	f.Add(uint32(cl.SubGroupMaxNumber), []byte{})
	f.Fuzz(func(t *testing.T, param uint32, input []byte) {
		input = input[:min(len(input), 24)]
		room, ok := subGroupQuery(param, input)
		if !ok {
			return
		}
		if room != 8 && room != 24 || len(input)%8 != 0 {
			t.Errorf("query %x: room %d, input %x", param, room, input)
		}
		if param != cl.SubGroupCount && param != cl.SubGroupMaxSize {
			return
		}
		items := uint64(1)
		for i := 0; i < len(input); i += 8 {
			n := le.Uint64(input[i:])
			if n == 0 || n > maxGroup {
				t.Fatalf("size %d", n)
			}
			items *= n
		}
		if len(input) == 0 || items == 0 || items > maxGroup {
			t.Errorf("%d items", items)
		}
	})
}

// The constants of a program move with it: those of its build before the build, and those for the
// next build behind it.
func TestConstantsMove(t *testing.T) {
	p := &program{birth: birth{3}, program: 1, kind: reg.ProgramIL, text: []byte("text"), state: programBuilt}
	p.set = map[uint32][]byte{7: {1, 0, 0, 0}}
	p.take()
	p.set[7], p.set[8] = []byte{2, 0, 0, 0}, []byte{9}
	m := &mover{}
	m.addProgram(p, false)
	var got []reg.PacketOp
	var values []byte
	for b := m.out; len(b) > 0; {
		h, n, err := reg.ParsePacketHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.Op)
		if h.Op == reg.PacketConstant {
			values = append(values, b[n+16])
		}
		b = b[h.Size:]
	}
	want := []reg.PacketOp{reg.PacketProgram, reg.PacketConstant, reg.PacketBuild, reg.PacketConstant, reg.PacketConstant}
	if len(got) != len(want) || string(values) != "\x01\x02\x09" {
		t.Fatalf("records %v with %v, want %v", got, values, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("record %d: %v, want %v", i, got[i], want[i])
		}
	}
	p.state = programMade
	m.out = nil
	m.addConstants(p, p.set)
	if len(m.out) > 0 {
		t.Error("constants of a binary")
	}
}
