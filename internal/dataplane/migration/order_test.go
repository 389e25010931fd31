package migration_test

import (
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/tlp"
)

func TestMessagesReturn(t *testing.T) {
	for o := migration.Stop; o <= migration.Settled; o++ {
		m := migration.Message{Order: o, Epoch: 0xbeef}
		if o == migration.Commit {
			m.Sum = migration.SumOf([]byte("state"))
		}
		if o == migration.Refused {
			m.Why = "no room"
		}
		p := m.Packet()
		back, _, err := tlp.Parse(p.Append(nil))
		if err != nil {
			t.Fatalf("%v: %v", o, err)
		}
		if got, ok := migration.Parse(&back); !ok || got != m {
			t.Errorf("%v came back as %+v, %v", m, got, ok)
		}
	}
}

// TestReasonsAreBounded sends a reason that is longer than a message carries, and one that is
// no text.
func TestReasonsAreBounded(t *testing.T) {
	for why, want := range map[string]string{
		strings.Repeat("é", 200): strings.Repeat("é", 128), "x" + strings.Repeat("é", 200): "x" + strings.Repeat("é", 127), "a\xffb": "ab", "": "",
	} {
		p := migration.Message{Order: migration.Refused, Why: why}.Packet()
		if m, ok := migration.Parse(&p); !ok || m.Why != want {
			t.Errorf("%q came back as %q, %v", why, m.Why, ok)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, change := range map[string]func(p *tlp.Packet){
		"another vendor":   func(p *tlp.Packet) { p.MsgHeader[2] ^= 1 },
		"another version":  func(p *tlp.Packet) { p.MsgHeader[5]++ },
		"order 0":          func(p *tlp.Packet) { p.MsgHeader[4] = 0 },
		"an unknown order": func(p *tlp.Packet) { p.MsgHeader[4] = 99 },
		"another type":     func(p *tlp.Packet) { p.Code = tlp.CodeVendorType0 },
		"a reason without end": func(p *tlp.Packet) {
			p.Type, p.MsgHeader[4], p.Data = tlp.MsgD, uint8(migration.Refused), make([]byte, 260)
		},
		"data with a stop":     func(p *tlp.Packet) { p.Type, p.Data = tlp.MsgD, make([]byte, 4) },
		"a commit without sum": func(p *tlp.Packet) { p.MsgHeader[4] = uint8(migration.Commit) },
		"a write":              func(p *tlp.Packet) { p.Type = tlp.MWr },
	} {
		p := migration.Message{Order: migration.Stop}.Packet()
		if change(&p); true {
			if m, ok := migration.Parse(&p); ok {
				t.Errorf("%s: parsed as %+v", name, m)
			}
		}
	}
}

// A host that does not know reasons drops each REFUSED with data, and takes the one that follows.
func TestRefusedForOlderHosts(t *testing.T) {
	told := 0
	for m := (&migration.Message{Order: migration.Refused, Epoch: 7, Why: "no room"}); m != nil; m = m.Next() {
		p := m.Packet()
		if got, ok := migration.Parse(&p); !ok || got != *m {
			t.Errorf("%+v came back as %+v, %v", *m, got, ok)
		}
		if len(p.Data) == 0 {
			told++
		}
	}
	if told != 1 {
		t.Errorf("an older host is told %d times", told)
	}
	for o := migration.Stop; o <= migration.Settled; o++ {
		if m := (migration.Message{Order: o}); m.Next() != nil {
			t.Errorf("something follows %v", o)
		}
	}
}
