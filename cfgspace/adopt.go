package cfgspace

import "fmt"

// Adopt takes over the state of another function of the same kind from its registers,
// as Bytes returned them: the bits that software can change, and the error log of AER.
// All other bits keep their own values, so that no image makes a function lie about what
// it is. The error is that of an image of another size.
func (s *Space) Adopt(image []byte) error {
	if len(image) != len(s.value) {
		return fmt.Errorf("cfgspace: registers of %d bytes, want %d", len(image), len(s.value))
	}
	before := s.snapshot()
	for i, b := range image {
		change := s.write[i] | s.clear[i]
		s.value[i] = s.value[i]&^change | b&change
	}
	s.keepPower(before.pm)
	if s.express != 0 {
		s.value[s.express+flrByte] &^= flrBit & s.write[s.express+flrByte]
	}
	if s.aer != 0 {
		const from, to = OffAERHeader, OffAERHeader + 16
		copy(s.value[s.aer+from:s.aer+to], image[s.aer+from:s.aer+to])
		s.value[s.aer+OffAERControl] = s.value[s.aer+OffAERControl]&^firstError | image[s.aer+OffAERControl]&firstError
	}
	return nil
}

// firstError is the First Error Pointer in OffAERControl (section 7.8.4.7).
const firstError = 0x1f
