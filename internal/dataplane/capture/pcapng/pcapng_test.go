package pcapng_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/dataplane/capture/pcapng"
)

var (
	section = pcapng.Section{Program: "dxpu"}
	iface   = pcapng.Interface{Link: pcapng.LinkUser0, SnapLen: 256, Name: "a", About: "bc"}
	packet  = pcapng.Packet{
		Time: 0x0123456789abcdef, Direction: pcapng.Out, Dropped: 3, Length: 100, Data: []byte{1, 2, 3, 4, 5},
	}
	stats = pcapng.Statistics{Time: 0x0123456789abcdef, Received: 7, Dropped: 3}
)

// The golden bytes were written by hand from the figures of the draft.
func TestGolden(t *testing.T) {
	for _, tc := range []struct {
		name string
		got  []byte
		want string
	}{
		{"section", section.Append(nil), `0a0d0d0a 28000000 4d3c2b1a 01000000 ffffffffffffffff 04000400 64787075 00000000 28000000`},
		{
			"interface", iface.Append(nil),
			`01000000 30000000 93000000 00010000 02000100 61000000 03000200 62630000 09000100 09000000 00000000 30000000`,
		},
		{
			"packet", packet.Append(nil),
			`06000000 40000000 00000000 67452301 efcdab89 05000000 64000000 0102030405000000
			 02000400 02000000 04000800 0300000000000000 00000000 40000000`,
		},
		{"plain packet", (&pcapng.Packet{Length: 4, Data: []byte{1, 2, 3, 4}}).Append(nil), `06000000 24000000 00000000 00000000 00000000 04000000 04000000 01020304 24000000`},
		{
			"statistics", stats.Append(nil),
			`05000000 34000000 00000000 67452301 efcdab89 04000800 0700000000000000 05000800 0300000000000000 00000000 34000000`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(tc.want)
			if got := hex.EncodeToString(tc.got); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func stream() []byte {
	b := section.Append(nil)
	b = iface.Append(b)
	b = packet.Append(b)
	return stats.Append(b)
}

func TestReadBlocks(t *testing.T) {
	r := bytes.NewReader(stream())
	var types []pcapng.BlockType
	var again, buf []byte
	for {
		typ, block, err := pcapng.ReadBlock(r, buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if typ == pcapng.BlockPacket {
			var p pcapng.Packet
			if err := p.Parse(block); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(packet, p); diff != "" {
				t.Error(diff)
			}
		}
		types, again, buf = append(types, typ), append(again, block...), block
	}
	want := []pcapng.BlockType{pcapng.BlockSection, pcapng.BlockInterface, pcapng.BlockPacket, pcapng.BlockStatistics}
	if diff := cmp.Diff(want, types); diff != "" {
		t.Error(diff)
	}
	if !bytes.Equal(again, stream()) {
		t.Error("the blocks are not the stream")
	}
}

func TestTruncatedAtEveryLength(t *testing.T) {
	block := packet.Append(nil)
	for n := 1; n < len(block); n++ {
		if _, _, err := pcapng.ReadBlock(bytes.NewReader(block[:n]), nil); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v", n, len(block), err)
		}
		var p pcapng.Packet
		if err := p.Parse(block[:n]); err == nil {
			t.Errorf("%d of %d bytes: parsed", n, len(block))
		}
	}
}

func TestHostileBlocks(t *testing.T) {
	unhex := func(s string) []byte {
		b, _ := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		return b
	}
	for name, b := range map[string][]byte{
		"too short":          unhex("06000000 08000000"),
		"too long":           unhex("06000000 fcffffff"),
		"not double words":   unhex("06000000 0d000000 0d000000 00"),
		"lengths differ":     unhex("06000000 10000000 00000000 0c000000"),
		"another byte order": unhex("0a0d0d0a 10000000 1a2b3c4d 10000000"),
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := pcapng.ReadBlock(bytes.NewReader(b), nil); !errors.Is(err, pcapng.ErrBlock) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Wireshark's own tool reads what is written.
func TestCapinfosReadsIt(t *testing.T) {
	tool, err := exec.LookPath("capinfos")
	if err != nil {
		t.Skip("capinfos (package wireshark-common) is not installed")
	}
	file := filepath.Join(t.TempDir(), "a.pcapng")
	if err := os.WriteFile(file, stream(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), tool, "-M", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Number of packets:   1", "Encapsulation = USER 0", "Name = a", "Description = bc", "Capture length = 256",
		"Time precision = nanoseconds", "Number of stat entries = 1", "Capture application: dxpu",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(stream())
	f.Add(packet.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		var buf []byte
		for {
			typ, block, err := pcapng.ReadBlock(r, buf)
			if err != nil {
				break
			}
			buf = block
			var p, q pcapng.Packet
			if err := p.Parse(block); err != nil || typ != pcapng.BlockPacket {
				continue
			}
			if err := q.Parse(p.Append(nil)); err != nil || cmp.Diff(p, q) != "" {
				t.Fatalf("%+v was read as %+v: %v", p, q, err)
			}
		}
	})
}

func TestAppendDoesNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 4096)
	p := packet
	if n := testing.AllocsPerRun(100, func() { buf = p.Append(buf[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := len(buf) - len(p.Data); n > pcapng.MaxPacketOverhead {
		t.Errorf("%d bytes around the data, more than MaxPacketOverhead", n)
	}
}
