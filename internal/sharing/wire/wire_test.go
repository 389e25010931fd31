package wire

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var messages = []struct {
	name   string
	m      Message
	answer bool
	hex    string // without the zeros at the end
}{
	{"hello", Message{Type: Hello, ID: Version, Arg: [Args]uint64{4711}}, false, "01000000 00000000 0100000000000000 0000000000000000 6712"},
	{"allocate", Message{Type: Allocate, GPU: 1, ID: 7, Bytes: 1 << 33}, false, "02000000 01000000 0700000000000000 0000000002"},
	{
		"launch",
		Message{Type: Launch, GPU: 15, ID: 1<<64 - 1, Arg: [Args]uint64{80, 256, 1, 0x1122334455667788}},
		false,
		"04000000 0f000000 ffffffffffffffff 0000000000000000 5000000000000000 0001000000000000 0100000000000000 8877665544332211",
	},
	{"usage", Message{Type: Usage, Arg: [Args]uint64{0, 1, 2, 3, 4}}, false, "0a000000 00000000 0000000000000000 0000000000000000 0000000000000000 0100000000000000 0200000000000000 0300000000000000 04"},
	{"welcome", Message{Type: Welcome, ID: Version, Arg: [Args]uint64{2}}, true, "41000000 00000000 0100000000000000 0000000000000000 02"},
	{"granted", Message{Type: Granted, ID: 3, Bytes: MaxBytes}, true, "42000000 00000000 0300000000000000 0000000000000400"},
	{"reject", Message{Type: Reject, Arg: [Args]uint64{uint64(ShareEnded)}}, true, "46000000 00000000 0000000000000000 0000000000000000 05"},
}

func unhex(t *testing.T, s string, size int) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, size-len(b))...)
}

func TestMessages(t *testing.T) {
	for _, c := range messages {
		t.Run(c.name, func(t *testing.T) {
			want := unhex(t, c.hex, MessageSize)
			if got := c.m.Append(nil); !bytes.Equal(got, want) {
				t.Errorf("Append gave %x, want %x", got, want)
			}
			read, other := Parse, ParseAnswer
			if c.answer {
				read, other = other, read
			}
			if got, err := read(want); err != nil || got != c.m {
				t.Errorf("parsed %+v, %v, want %+v", got, err, c.m)
			}
			if got, err := other(want); err == nil {
				t.Errorf("the other side's parser accepts %+v", got)
			}
			for n := range want {
				if _, err := read(want[:n]); err == nil {
					t.Errorf("parsed %d bytes", n)
				}
			}
			if _, err := read(append(want, 0)); err == nil {
				t.Error("parsed a longer message")
			}
		})
	}
}

func TestWrongMessages(t *testing.T) {
	for _, m := range []Message{
		{},
		{Type: lastOfProcess},
		{Type: lastOfAgent},
		{Type: Allocate, GPU: MaxGPUs},
		{Type: Allocate, Bytes: MaxBytes + 1},
	} {
		if got, err := Parse(m.Append(nil)); err == nil || got != (Message{}) {
			t.Errorf("parsed %+v", got)
		}
	}
}

func TestNames(t *testing.T) {
	for i := range Type(80) {
		if named := !strings.HasPrefix(i.String(), "Type("); named != (i.ofProcess() || i.ofAgent()) {
			t.Errorf("type %d has the name %v", i, i)
		}
	}
	for r := range lastReason + 1 {
		if named := !strings.HasPrefix(r.String(), "Reason("); named != (r > 0 && r < lastReason) {
			t.Errorf("reason %d has the name %v", r, r)
		}
	}
}

func examplePage() Page {
	return Page{
		Closed: true, End: true, Grace: 10 * time.Second, Silence: 2 * time.Second, Agent: 9, Processes: 3,
		GPUs: []GPU{
			{UUID: [16]byte{1, 2, 15: 16}, Domain: 1, Address: 0x3b00, Gate: Asked, Window: 4, Limit: 8 << 30, Used: 1 << 30, Compute: 300_000, Credit: 2},
			{Gate: Held, Window: 1, Limit: MaxBytes, Compute: 1_000_000},
		},
	}
}

func encoded(p *Page) []byte {
	var b [PageSize]byte
	p.Encode(&b)
	return b[:]
}

func TestPage(t *testing.T) {
	p := examplePage()
	b := encoded(&p)
	head := "44585348 01000000 00000000 03000000 0000000000000000 0094357700000000 00e40b5402000000 0900000000000000 02000000 03000000" + strings.Repeat("00", 8) +
		"01020000000000000000000000000010 01000000 003b0000 01000000 04000000 0000000002000000 0000004000000000 e0930400 02000000"
	if want := unhex(t, head, offsetGPUs+entrySize); !bytes.Equal(b[:len(want)], want) {
		t.Errorf("encoded\n%x, want\n%x", b[:len(want)], want)
	}
	got, err := ParsePage(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(p, got); d != "" {
		t.Error(d)
	}
	full := Page{GPUs: make([]GPU, MaxGPUs)}
	if got, err := ParsePage(encoded(&full)); err != nil || len(got.GPUs) != MaxGPUs {
		t.Errorf("%d GPUs, %v", len(got.GPUs), err)
	}
}

// Encode leaves no GPU of an earlier state behind, and leaves the words alone that the
// agent writes on their own.
func TestPageChange(t *testing.T) {
	var b [PageSize]byte
	p := examplePage()
	p.Encode(&b)
	b[OffsetSequence], b[OffsetHeartbeat] = 5, 6
	p.GPUs = p.GPUs[:1]
	p.Encode(&b)
	if b[OffsetSequence] != 5 || b[OffsetHeartbeat] != 6 {
		t.Error("the sequence or the heartbeat changed")
	}
	if !bytes.Equal(b[offsetGPUs+entrySize:], make([]byte, PageSize-offsetGPUs-entrySize)) {
		t.Error("the second GPU is still there")
	}
}

func TestWrongPages(t *testing.T) {
	p := examplePage()
	for _, at := range []int{offsetMagic, offsetVersion, offsetFlags, offsetCount, offsetSilence + 7, offsetGrace + 7, offsetGPUs + entryAddress + 2, offsetGPUs + entryGate, offsetGPUs + entryLimit + 7, offsetGPUs + entryUsed + 7, offsetGPUs + entryCompute + 3} {
		b := encoded(&p)
		b[at] = 0xff
		if got, err := ParsePage(b); err == nil || !reflect.DeepEqual(got, Page{}) {
			t.Errorf("parsed a page with a wrong byte at %d: %+v", at, got)
		}
	}
	if _, err := ParsePage(make([]byte, PageSize-1)); err == nil {
		t.Error("parsed a short page")
	}
	if pageEnd > PageSize {
		t.Error("the GPUs do not fit the page")
	}
}

// FuzzWire checks that what can be parsed is encoded to the same bytes.
func FuzzWire(f *testing.F) {
	for _, c := range messages {
		f.Add(c.m.Append(nil))
	}
	p := examplePage()
	f.Add(encoded(&p))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, read := range []func([]byte) (Message, error){Parse, ParseAnswer} {
			m, err := read(b)
			if err != nil {
				if m != (Message{}) {
					t.Errorf("%+v beside %v", m, err)
				}
			} else if got := m.Append(nil); !bytes.Equal(got, b) {
				t.Errorf("%x became %x", b, got)
			}
		}
		if p, err := ParsePage(b); err == nil {
			again, err := ParsePage(encoded(&p))
			if err != nil || !reflect.DeepEqual(again, p) {
				t.Errorf("%+v became %+v, %v", p, again, err)
			}
		}
	})
}

func TestNoAllocations(t *testing.T) {
	buffer := make([]byte, 0, MessageSize)
	m := Message{Type: Launch, ID: 1}
	if n := testing.AllocsPerRun(100, func() {
		buffer = m.Append(buffer[:0])
		if _, err := Parse(buffer); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for each message", n)
	}
}
