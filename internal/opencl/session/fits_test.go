package session

import (
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// No packet names a handle of the platform, and no kernel sees one as a number.
func TestArgumentsFit(t *testing.T) {
	address := func(v byte) cl.Property { return cl.Property{Param: 0x1196, Value: []byte{v, 0x11, 0, 0}} }
	typeName := func(v string) cl.Property { return cl.Property{Param: 0x1198, Value: []byte(v + "\x00")} }
	access := func(v byte) cl.Property { return cl.Property{Param: 0x1197, Value: []byte{v, 0x11, 0, 0}} }
	for _, test := range []struct {
		name       string
		properties []cl.Property
		kind, size uint32
		want       bool
	}{
		{"a number", []cl.Property{address(0x9e), typeName("int")}, reg.ArgValue, 4, true},
		{"a buffer for a number", []cl.Property{address(0x9e), typeName("long")}, reg.ArgBuffer, 4, false},
		{"a buffer", []cl.Property{address(0x9b)}, reg.ArgBuffer, 4, true},
		{"a constant buffer", []cl.Property{address(0x9d)}, reg.ArgBuffer, 4, true},
		{"a forged buffer", []cl.Property{address(0x9b)}, reg.ArgValue, 8, false},
		{"local memory", []cl.Property{address(0x9c)}, reg.ArgLocal, 64, true},
		{"a forged sampler", []cl.Property{address(0x9e), typeName("sampler_t")}, reg.ArgValue, 8, false},
		{"a structure with an odd name", []cl.Property{address(0x9e), access(0xa3), typeName("image_pair_t")}, reg.ArgValue, 24, true},
		{"an image", []cl.Property{address(0x9b), access(0xa0), typeName("image2d_t")}, reg.ArgImage, 4, true},
		{"an image by another name", []cl.Property{address(0x9b), access(0xa1), typeName("tex_t")}, reg.ArgImage, 4, true},
		{"a forged image", []cl.Property{address(0x9b), access(0xa0), typeName("tex_t")}, reg.ArgBuffer, 4, false},
		{"a number without a description", nil, reg.ArgValue, 4, true},
		{"a handle without a description", nil, reg.ArgValue, 8, false},
	} {
		if got := fits(cl.ClassOf(test.properties), argument{kind: test.kind, size: test.size}); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
