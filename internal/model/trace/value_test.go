package trace

import (
	"math"
	"testing"
	"time"
)

func TestParseMicros(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want time.Duration
		ok   bool
	}{
		{"0", 0, true},
		{"1", 1000, true},
		{"1623142623460000", 1623142623460000 * 1000, true},
		{"1712195495519695.8", 1712195495519695800, true},
		{"4213.001", 4213001, true},
		{"4213.0014", 4213001, true},
		{"4213.0015", 4213002, true},
		{"0.9999", 1000, true},
		{"63.813", 63813, true},
		{"7.", 7000, true},
		{"1e1", 10000, true},
		{"1.5e-3", 2, true},
		{"-2.5", -2500, true},
		{"-0", 0, true},
		{"9223372036854765", 9223372036854765 * 1000, true},
		{"92233720368547758", 0, false},
		{"99999999999999999999999", 0, false},
		{"1e300", 0, false},
		{"NaN", 0, false},
		{"", 0, false},
		{"-", 0, false},
		{".5", 0, false},
		{"12x", 0, false},
		{"null", 0, false},
	} {
		if got, ok := parseMicros([]byte(tc.in)); got != tc.want || ok != tc.ok {
			t.Errorf("%q: %d, %v; want %d, %v", tc.in, got, ok, tc.want, tc.ok)
		}
	}
}

func TestParseInt(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want int64
		ok   bool
	}{
		{"7", 7, true},
		{"-1", -1, true},
		{`"25738"`, 25738, true},
		{"7.0", 7, true},
		{"9223372036854775807", math.MaxInt64, true},
		{"18446744073709551615", -1, true}, // an identifier of 64 bits
		{"7.5", 0, false},
		{"", 0, false},
		{`""`, 0, false},
		{`"stream 7"`, 0, false},
		{"1e400", 0, false},
	} {
		if got, ok := parseInt([]byte(tc.in)); got != tc.want || ok != tc.ok {
			t.Errorf("%q: %d, %v; want %d, %v", tc.in, got, ok, tc.want, tc.ok)
		}
	}
}

func TestDecode(t *testing.T) {
	for in, want := range map[string]string{
		"plain":               "plain",
		`a\"b\\c\/d`:          `a"b\c/d`,
		`\b\f\n\r\t`:          "\b\f\n\r\t",
		`\u0041\u00e9`:        "Aé",
		`\ud83d\ude00`:        "😀",
		`\ud83dx`:             "\uFFFDx",
		`C:\path\x`:           `C:\path\x`,
		`end\`:                `end\`,
		`\u12`:                `\u12`,
		`\uzzzz`:              `\uzzzz`,
		"raw\xffbyte\ttab":    "raw\xffbyte\ttab",
		`\ud83d\u0041 single`: "\uFFFDA single",
	} {
		if got := string(text(in).decode()); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`a\"b\u0041\ud83d\ude00\x`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := text(b).decode(); len(got) > len(b) {
			t.Fatalf("%q grew to %q", b, got)
		}
	})
}

func FuzzParseMicros(f *testing.F) {
	f.Add([]byte("1712195495519695.8"))
	f.Add([]byte("1e3"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, ok := parseMicros(b); !ok && d != 0 {
			t.Fatalf("%q: %d without ok", b, d)
		}
	})
}
