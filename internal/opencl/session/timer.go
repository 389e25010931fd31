package session

import "encoding/binary"

// timer answers with the time of the device.
func (s *Session) timer() result {
	t, err := s.Library.DeviceTime(s.Device)
	if err != nil {
		return result{err: err}
	}
	return result{data: binary.LittleEndian.AppendUint64(nil, t)}
}
