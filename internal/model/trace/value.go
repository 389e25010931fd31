package trace

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// text is the content of a JSON string, with its escapes. It aliases the window.
type text []byte

// decode resolves escapes. It keeps invalid ones unchanged, because some profilers
// write file names without escaping them. The result aliases t if t has no
// escapes.
func (t text) decode() []byte {
	i := bytes.IndexByte(t, '\\')
	if i < 0 {
		return t
	}
	out := append(make([]byte, 0, len(t)), t[:i]...)
	for i < len(t) {
		if t[i] != '\\' || i+1 == len(t) {
			out = append(out, t[i])
			i++
			continue
		}
		if k := strings.IndexByte(`"\/ntrbf`, t[i+1]); k >= 0 {
			out = append(out, "\"\\/\n\t\r\b\f"[k])
			i += 2
			continue
		}
		r, n := unicodeEscape(t[i:])
		if n == 0 {
			out = append(out, '\\')
			i++
			continue
		}
		out = utf8.AppendRune(out, r)
		i += n
	}
	return out
}

// unicodeEscape reads \uXXXX or a surrogate pair; n is 0 without one.
func unicodeEscape(t []byte) (r rune, n int) {
	one := func(t []byte) (rune, bool) {
		if len(t) < 6 || t[0] != '\\' || t[1] != 'u' {
			return 0, false
		}
		v, err := strconv.ParseUint(string(t[2:6]), 16, 16)
		return rune(v), err == nil
	}
	r, ok := one(t)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(r) {
		if low, ok := one(t[6:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, 12
			}
		}
		return utf8.RuneError, 6
	}
	return r, 6
}

// parseMicros reads a decimal number of microseconds. The result is exact for up
// to three decimals and rounded for more.
func parseMicros(b []byte) (time.Duration, bool) {
	neg := len(b) > 0 && b[0] == '-'
	digits := b
	if neg {
		digits = b[1:]
	}
	var v int64
	i := 0
	for ; i < len(digits) && digits[i] >= '0' && digits[i] <= '9'; i++ {
		if v > (math.MaxInt64/1000-9)/10 {
			return 0, false
		}
		v = v*10 + int64(digits[i]-'0')
	}
	if i == 0 {
		return 0, false
	}
	v *= 1000
	if i < len(digits) && digits[i] == '.' {
		i++
		for scale := int64(100); i < len(digits) && digits[i] >= '0' && digits[i] <= '9'; i++ {
			if scale == 0 && digits[i] >= '5' && digits[i-1] != '.' {
				v++
			}
			v += scale * int64(digits[i]-'0')
			if scale == 0 {
				i = len(digits) - len(bytes.TrimLeft(digits[i:], "0123456789"))
				break
			}
			scale /= 10
		}
	}
	if i < len(digits) {
		return parseFloatMicros(b)
	}
	if neg {
		v = -v
	}
	return time.Duration(v), true
}

// parseFloatMicros reads numbers with an exponent, which are rare.
func parseFloatMicros(b []byte) (time.Duration, bool) {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.IsNaN(f) || math.Abs(f*1000) >= math.MaxInt64 {
		return 0, false
	}
	return time.Duration(math.Round(f * 1000)), true
}

// parseInt reads an integer in one of the forms 7, 7.0 and "7".
func parseInt(b []byte) (int64, bool) {
	b = unquote(b)
	neg := len(b) > 0 && b[0] == '-'
	digits := b
	if neg {
		digits = b[1:]
	}
	if len(digits) == 0 {
		return 0, false // usually the key is absent
	}
	if len(digits) > 18 {
		return parseIntSlow(b)
	}
	var v int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return parseIntSlow(b)
		}
		v = v*10 + int64(c-'0')
	}
	if neg {
		v = -v
	}
	return v, true
}

func parseIntSlow(b []byte) (int64, bool) {
	if v, err := strconv.ParseInt(string(b), 10, 64); err == nil {
		return v, true
	}
	if v, err := strconv.ParseUint(string(b), 10, 64); err == nil {
		return int64(v), true // identifiers of 64 bits; only equality matters
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= math.MaxInt64 {
		return 0, false
	}
	return int64(f), true
}

func unquote(b []byte) []byte {
	if len(b) >= 2 && b[0] == '"' {
		return b[1 : len(b)-1]
	}
	return b
}
