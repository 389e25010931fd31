package session

import (
	"testing"

	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// An image in a buffer lies in the buffer, whatever its pitch.
func TestImageInBuffer(t *testing.T) {
	s := &Session{objects: map[uint32]any{1: &buffer{size: 4096}}}
	for _, test := range []struct {
		name                 string
		width, height, pitch uint64
		want                 bool
	}{
		{"as large as the buffer", 16, 64, 0, true},
		{"one row too many", 16, 65, 0, false},
		{"a last row without its padding", 16, 32, 129, true},
		{"rows behind the end", 16, 33, 128, false},
		{"a pitch that is too small", 16, 2, 63, false},
		{"a product beyond 64 bits", 1, 1<<24 + 1, 1 << 40, false},
		{"the largest pitch", 1, 2, 1<<64 - 1, false},
	} {
		m := image{extent: [3]uint64{test.width, test.height, 1}, pixel: 4}
		d := cl.ImageDesc{Type: image2D, RowPitch: uintptr(test.pitch)}
		if _, _, err := s.imageMemory(1, d, m, test.width*test.height*4); (err == nil) != test.want {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
