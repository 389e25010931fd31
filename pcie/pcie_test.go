package pcie

import "testing"

func TestBDF(t *testing.T) {
	for _, c := range []struct {
		text string
		want BDF
		ok   bool
	}{
		{"00:00.0", 0, true},
		{"01:02.3", 0x0113, true},
		{"ff:1f.7", 0xffff, true},
		{"0000:3a:00.1", 0x3a01, true},
		{"01:20.0", 0, false},
		{"01:00.8", 0, false},
		{"0001:01:00.0", 0, false},
		{"100:00.0", 0, false},
		{"", 0, false},
		{"01:00", 0, false},
	} {
		got, err := ParseBDF(c.text)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("ParseBDF(%q) = %v, %v; want %v, ok %v", c.text, got, err, c.want, c.ok)
		}
		if c.ok && len(c.text) == 7 && got.String() != c.text {
			t.Errorf("%v prints as %q, want %q", c.want, got, c.text)
		}
	}
	if b := NewBDF(3, 33, 9); b.Bus() != 3 || b.Device() != 1 || b.Function() != 1 {
		t.Errorf("NewBDF does not cut its fields: %v", b)
	}
}

func TestPayloadSize(t *testing.T) {
	for field := range uint8(8) {
		size, ok := DecodePayloadSize(field)
		if ok != (field <= 5) || ok && (!size.Valid() || size.Encode() != field) {
			t.Errorf("field %d: %d, %v", field, size, ok)
		}
	}
	for _, bad := range []PayloadSize{0, 64, 129, 3000, 8192} {
		if bad.Valid() {
			t.Errorf("%d is valid", bad)
		}
	}
}

func TestNames(t *testing.T) {
	for s, want := range map[CplStatus]string{SuccessfulCompletion: "SC", UnsupportedRequest: "UR", RequestRetry: "RRS", CompleterAbort: "CA", 3: "CplStatus(3)"} {
		if got := s.String(); got != want {
			t.Errorf("%d prints as %q, want %q", uint8(s), got, want)
		}
	}
	for g, want := range map[Generation]float64{Gen1: 2.5, Gen3: 8, Gen6: 64, 0: 0, 7: 0} {
		if got := g.TransferRate(); got != want {
			t.Errorf("generation %d: %v GT/s, want %v", g, got, want)
		}
	}
}
