package transaction_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/tlp"
)

func TestInspect(t *testing.T) {
	write := tlp.Packet{Type: tlp.MWr, Data: []byte{1, 2, 3, 4}}
	write.SetMemory(0x1000, 4)
	for _, c := range []struct {
		name     string
		edit     func(*tlp.Packet)
		want     transaction.Integrity
		routable bool
	}{
		{"a write", func(*tlp.Packet) {}, transaction.Intact, true},
		{"with a digest", func(p *tlp.Packet) { p.SetECRC() }, transaction.Intact, true},
		{"poisoned", func(p *tlp.Packet) { p.EP = true }, transaction.Poisoned, true},
		{"poisoned on the way, with a digest", func(p *tlp.Packet) { p.SetECRC(); p.EP = true }, transaction.Poisoned, true},
		{"wrong digest", func(p *tlp.Packet) { p.SetECRC(); p.Digest ^= 1 }, transaction.BadDigest, true},
		{"wrong digest, poisoned", func(p *tlp.Packet) { p.SetECRC(); p.Digest ^= 1; p.EP = true }, transaction.BadDigest, true},
		{"other data than the digest's", func(p *tlp.Packet) { p.SetECRC(); p.Data = []byte{1, 2, 3, 5} }, transaction.BadDigest, true},
		{"translated", func(p *tlp.Packet) { p.AT = tlp.ATTranslated }, transaction.Intact, false},
		{"translation request", func(p *tlp.Packet) { p.AT = tlp.ATTranslationRequest }, transaction.Intact, false},
		{"reserved address type", func(p *tlp.Packet) { p.AT = 3 }, transaction.Intact, false},
		{"PASID", func(p *tlp.Packet) { p.Prefix = []byte{0x91, 0, 0, 1} }, transaction.Intact, false},
		{"poisoned completion", func(p *tlp.Packet) { p.Type, p.EP = tlp.CplD, true }, transaction.Intact, true},
		{"EP without data", func(p *tlp.Packet) { p.Type, p.EP, p.Data = tlp.MRd, true, nil }, transaction.Intact, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := write
			c.edit(&p)
			if got := transaction.Inspect(&p); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
			if got := transaction.Routable(&p); got != c.routable {
				t.Errorf("routable: %v, want %v", got, c.routable)
			}
		})
	}
}
