package reg

import "math"

// HalfToFloat widens an IEEE 754 binary16 number; every one is exact.
func HalfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10)&0x1f, uint32(h)&0x3ff
	switch {
	case exp == 0x1f: // infinity, NaN
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp == 0: // zero, subnormal: frac * 2^-24
		f := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// FloatToHalf narrows to binary16, rounding to nearest, ties to even. A number that
// is too large becomes infinity, and a NaN stays a (quiet) NaN.
func FloatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b>>16) & 0x8000
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x477ff000: // 65520, halfway between the largest half and 2^16
		return sign | 0x7c00
	case abs < 0x38800000: // below 2^-14: subnormal; adding 0.5 aligns the result to 2^-24 and rounds it
		return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-math.Float32bits(0.5))
	}
	odd := abs >> 13 & 1
	return sign | uint16((abs-(127-15)<<23+0xfff+odd)>>13)
}
