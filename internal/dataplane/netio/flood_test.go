package netio

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
)

// flooder sends forged hellos of a binding, in versions in turn, from a proxy's own
// address, as an attacker who claims that address would.
func flooder(cfg link.Config, from, to *Fabric, versions ...uint8) func() {
	w := from.paths[0].conn.NewWriter()
	forged := make([][]byte, len(versions))
	for i, v := range versions {
		h := frame.Header{Version: v, Type: frame.TypeHello, Binding: cfg.Binding, Epoch: cfg.Epoch}
		forged[i] = append(h.Append(nil), make([]byte, frame.HelloSize(v)+frame.TagSize)...)
	}
	session := uint64(0)
	return func() {
		session++
		d := forged[session%uint64(len(forged))]
		binary.BigEndian.PutUint64(d[frame.HeaderSize:], session)
		_ = w.Write(d, len(d), to.Addrs()[0])
	}
}

// A link opens while forged hellos of its binding arrive as fast as the reader takes
// them. Faster, the kernel drops the peer's datagrams, too, and what it keeps waits for
// thousands of others: only the network limits that.
func TestALinkOpensDuringAFlood(t *testing.T) {
	r := joinFabrics(t)
	cfg := r.configs(1, link.CipherAES256GCM)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		const waiting = 128 // datagrams, less than the kernel's default buffer holds
		sent := uint64(0)
		for send := flooder(cfg[0], r.fabric[0], r.fabric[1], frame.Version1, frame.Version2); ctx.Err() == nil; {
			if sent >= r.fabric[1].Stats().Paths[0].RxDatagrams+waiting {
				runtime.Gosched()
				continue
			}
			send()
			sent++
		}
	})
	defer func() {
		stop()
		running.Wait()
	}()
	var a, b end
	r.attach(cfg[1], 1, &b)
	r.awaitForged(1000) // the flood has begun
	r.attach(cfg[0], 0, &a)
	a.await(t, link.Up)
	b.await(t, link.Up)
	s := r.fabric[1].Stats()
	t.Logf("up after %d forged hellos, %d beyond the rate", s.Forged, s.Flood)
	r.awaitForged(s.Forged + 1000) // it goes on
}

func (r *fabrics) awaitForged(n uint64) {
	r.t.Helper()
	for limit := time.Now().Add(patience); r.fabric[1].Stats().Forged < n; runtime.Gosched() {
		if time.Now().After(limit) {
			r.t.Fatalf("want %d forged datagrams: %+v", n, r.fabric[1].Stats())
		}
	}
}

// Forged hellos do not wait for the group of their binding, and do not reach its
// link: the users of the group are not delayed.
func TestAFloodDoesNotEnterTheGroup(t *testing.T) {
	r := joinFabrics(t)
	cfg := r.configs(1, link.CipherAES256GCM)
	var b end
	r.attach(cfg[1], 1, &b) // without a peer, whose datagrams would enter
	send := flooder(cfg[0], r.fabric[0], r.fabric[1], frame.Version2)

	at := b.group.Enter()
	defer func() { b.group.Leave(at) }()
	for limit := time.Now().Add(patience); r.fabric[1].Stats().Forged < 200; {
		if time.Now().After(limit) {
			t.Errorf("while the group is entered the reader stops: %+v", r.fabric[1].Stats())
			break
		}
		send()
		runtime.Gosched()
	}
	if drops := b.binding.Stats(at).Drops; drops != (link.Drops{}) {
		t.Errorf("they reached the link: %+v", drops)
	}
}
