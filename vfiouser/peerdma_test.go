package vfiouser

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// answerDMA reads a DMA request and answers it as QEMU does, from mem.
func (p *rawPeer) answerDMA(mem []byte) (cmd uint16, addr uint64, n int) {
	p.tb.Helper()
	r := p.recv()
	if r.flags != 0 || r.cmd != 11 && r.cmd != 12 || len(r.body) < 16 {
		p.tb.Fatalf("not a DMA request: %+v", r)
	}
	addr, n = binary.LittleEndian.Uint64(r.body), int(binary.LittleEndian.Uint64(r.body[8:]))
	body := r.body[:16:16]
	if r.cmd == 12 {
		if len(r.body) != 16+n {
			p.tb.Fatalf("DMA_WRITE of %d bytes with %d", n, len(r.body)-16)
		}
		copy(mem[addr:], r.body[16:])
	} else {
		body = append(body, mem[addr:][:n]...)
	}
	p.reply(r, 0, body)
	return r.cmd, addr, n
}

// reply answers a request of the server.
func (p *rawPeer) reply(r reply, errno unix.Errno, body []byte) {
	p.tb.Helper()
	flags := uint32(1)
	if errno != 0 {
		flags = 0x21
	}
	id := p.id
	p.id = r.id - 1
	b := p.message(r.cmd, flags, body)
	p.id = id
	binary.LittleEndian.PutUint32(b[12:], uint32(errno))
	p.send(b)
}

func waitErr(tb testing.TB, ch <-chan error) error {
	tb.Helper()
	select {
	case err := <-ch:
		return err
	case <-time.After(patience):
		tb.Fatal("no answer")
		return nil
	}
}

func into(ch chan error) func(error) { return func(err error) { ch <- err } }
