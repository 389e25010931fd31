package session

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// constants are the specialization constants of a program of SPIR-V, by their numbers.
type constants struct {
	set   map[uint32][]byte // for the next build
	built map[uint32][]byte // of the last one
}

// take notes that a build takes the constants that are set.
func (c *constants) take() { c.built = maps.Clone(c.set) }

// setConstant sets a specialization constant of a program.
func (s *Session) setConstant(c *cursor) error {
	handle, id, size := c.u32(), c.u32(), c.count(maxScalar)
	c.u32()
	value := bytes.Clone(c.padded(size))
	p, err := object[*program](s, handle, cl.InvalidProgram)
	switch {
	case err != nil:
		return err
	case p.kind != reg.ProgramIL || p.program == 0:
		return cl.InvalidProgram
	case p.busy || p.users > 0:
		return cl.InvalidOperation
	case c.bad || size == 0 || size&(size-1) != 0:
		return cl.InvalidValue
	}
	if _, there := p.set[id]; !there && len(p.set) >= reg.MaxConstants {
		return cl.OutOfResources
	}
	if err := s.Library.SetConstant(p.program, id, value); err != nil {
		return err
	}
	if p.set == nil {
		p.set = map[uint32][]byte{}
	}
	p.set[id] = value
	p.version++
	return nil
}

// maxScalar is the size of the largest specialization constant, in bytes.
const maxScalar = 8

// addConstants appends the constants of a program to the stream of a move. One that was compiled
// goes as a binary, which takes none.
func (m *mover) addConstants(p *program, set map[uint32][]byte) {
	if p.state == programMade {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(set)) {
		body := words(p.number, id, uint32(len(set[id])), 0)
		body = append(append(body, set[id]...), make([]byte, -len(set[id])&7)...)
		m.add(reg.PacketHeader{Op: reg.PacketConstant}, body, nil)
	}
}

// subGroups answers a query of a kernel about sub-groups. The platform gets only queries that it
// may know, with an input of the right size.
func (s *Session) subGroups(c *cursor) result {
	handle, param, size := c.u32(), c.u32(), c.count(3*8)
	c.u32()
	input := c.padded(size)
	k, err := object[*kernel](s, handle, cl.InvalidKernel)
	if err != nil {
		return result{err: err}
	}
	room, ok := subGroupQuery(param, input)
	if !ok || c.bad {
		return result{err: cl.InvalidValue}
	}
	value, err := s.Library.SubGroupInfo(k.kernel, s.Device, param, input, room)
	return result{value, err}
}

// subGroupQuery returns the size of the value of a query about sub-groups, and whether the query
// may have this input.
func subGroupQuery(param uint32, input []byte) (room int, ok bool) {
	switch param {
	case cl.SubGroupMaxSize, cl.SubGroupCount:
		items := uint64(1)
		for i := 0; i+8 <= len(input); i += 8 {
			n := binary.LittleEndian.Uint64(input[i:])
			if n == 0 || n > maxGroup/items {
				return 0, false
			}
			items *= n
		}
		return 8, len(input) > 0 && len(input)%8 == 0
	case cl.SubGroupLocalSize:
		return 3 * 8, len(input) == 8
	case cl.SubGroupMaxNumber, cl.SubGroupCompiled, cl.SubGroupCompiledSize, cl.SubGroupSpilled:
		return 8, len(input) == 0
	}
	return 0, false
}

// maxGroup bounds the items of a work-group in a query; devices have fewer.
const maxGroup = 1 << 31
