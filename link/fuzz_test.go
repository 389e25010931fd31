package link_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// FuzzHandshake gives both ends arbitrary datagrams, and recorded ones with changes,
// through their guards. The ends then open their link all the same.
func FuzzHandshake(f *testing.F) {
	for _, version := range []uint8{frame.Version1, frame.Version2} {
		ends := linktest.Ends(link.CipherAES256GCM, ethernet)
		ends[0].MaxVersion = version
		n, err := linktest.New(linktest.Config{Ends: ends, Paths: make([]linktest.Path, 1)})
		if err != nil {
			f.Fatal(err)
		}
		n.OnDatagram = func(_ linktest.Side, _ uint8, d []byte) { f.Add(slices.Clone(d), uint16(0), byte(0)) }
		n.Run(10 * time.Millisecond)
		h := frame.Header{
			Version: version, Type: frame.TypeCookie, Binding: ends[0].Binding, Epoch: ends[0].Epoch, Initiator: ends[0].Session,
		}
		f.Add(h.Append(nil), uint16(40), byte(1))
	}
	f.Fuzz(func(t *testing.T, d []byte, at uint16, change byte) {
		ends := linktest.Ends(link.CipherAES256GCM, ethernet)
		n, err := linktest.New(linktest.Config{Ends: ends, Paths: make([]linktest.Path, 1)})
		if err != nil {
			t.Fatal(err)
		}
		n.OnDeliver = func(linktest.Side, *tlp.Packet) { t.Error("a TLP was delivered") }
		if len(d) > 0 {
			d[int(at)%len(d)] ^= change
		}
		for side := range n.Link {
			for range 3 {
				_ = n.Inject(linktest.Side(side), 0, d)
			}
		}
		if !n.RunUntil(time.Second, func() bool {
			return n.Link[0].State() == link.Up && n.Link[1].State() == link.Up
		}) {
			t.Errorf("not up: %v %v", n.Link[0].State(), n.Link[1].State())
		}
	})
}
