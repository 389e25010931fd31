package session

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// copyBuffer puts a part of a buffer that has changed into the ring, and reports whether there
// may be more.
func (m *mover) copyBuffer(root *buffer) (more bool, err error) {
	s := m.s
	s.mu.Lock()
	if s.track == nil || root.users == 0 || !m.has(root) {
		s.mu.Unlock()
		return false, nil
	}
	offset, n := root.next(s.track, pieceSize)
	if n == 0 {
		s.mu.Unlock()
		return false, nil
	}
	e, err := s.Library.Read(m.queue, root.mem, offset, m.piece[:n], nil)
	s.mu.Unlock()
	if err := m.wait(e, err); err != nil {
		return false, err
	}
	m.add(reg.PacketHeader{Op: reg.PacketWrite, Queue: root.number, Out: offset}, nil, m.piece[:n])
	return true, m.flush()
}

// wait waits for a command of the mover's queue.
func (m *mover) wait(e cl.Event, err error) error {
	if err == nil {
		err = m.s.Library.Flush(m.queue)
	}
	if err == nil {
		err = m.s.Library.Wait(e)
	}
	if e != 0 {
		_ = m.s.Library.Release(e)
	}
	return err
}

// copyImage is copyBuffer for the memory of an image: whole rows of one slice.
func (m *mover) copyImage(root *buffer) (more bool, err error) {
	s, i := m.s, root.image
	row := i.extent[0] * i.pixel
	s.mu.Lock()
	if s.track == nil || root.users == 0 || !m.has(root) {
		s.mu.Unlock()
		return false, nil
	}
	offset, n := root.next(s.track, pieceSize)
	s.mu.Unlock()
	if n == 0 {
		return false, nil
	}
	for y, end := offset/row, (offset+n-1)/row+1; y < end; {
		z := y / i.extent[1]
		rows := min(end-y, i.extent[1]-y%i.extent[1])
		if err := m.copyRows(root, y%i.extent[1], z, rows); err != nil {
			return false, err
		}
		y += rows
	}
	return true, nil
}

func (m *mover) copyRows(root *buffer, y, z, rows uint64) error {
	s, i := m.s, root.image
	origin := [3]uintptr{0, uintptr(y), uintptr(z)}
	region := [3]uintptr{uintptr(i.extent[0]), uintptr(rows), 1}
	data := make([]byte, i.extent[0]*i.pixel*rows)
	s.mu.Lock()
	if root.users == 0 {
		s.mu.Unlock()
		return nil
	}
	e, err := s.Library.ReadImage(m.queue, root.mem, origin, region, data, nil)
	s.mu.Unlock()
	if err := m.wait(e, err); err != nil {
		return err
	}
	var box []byte
	for _, v := range append(origin[:], region[:]...) {
		box = binary.LittleEndian.AppendUint64(box, uint64(v))
	}
	m.add(reg.PacketHeader{Op: reg.PacketWriteImage, Queue: root.number}, box, data)
	return m.flush()
}
