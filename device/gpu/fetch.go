package gpu

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/tlp"
)

// maxFetches bounds the packets whose data are being read ahead.
const maxFetches = 8

// fetch is the reading of one packet's data from host memory to VRAM.
type fetch struct {
	at   uint32 // of the packet in the ring
	addr uint64 // VRAM address of the next byte
	left uint64 // bytes that are not requested
	out  int    // reads under way
}

// fetches reads the data of packets ahead of their turn, so that reads of one packet
// follow those of the packet before without a round trip between them.
//
// Invariant: the ring positions grow, and lie between channel.head and ahead.
type fetches struct {
	ahead uint32 // ring position of the first packet that was not looked at
	first uint32 // number of the oldest fetch; fetch n is list[n%maxFetches]
	next  uint32 // number of the next fetch
	list  [maxFetches]fetch
}

// fetchState says whether a packet has its data.
type fetchState uint8

const (
	fetchDone  fetchState = iota // or there is nothing to fetch
	fetchDue                     // not yet
	fetchWrong                   // the packet changed after it was looked at
)

// check returns the state of the packet at a ring position. flagged tells whether it has
// reg.PacketFetch now.
func (f *fetches) check(at uint32, flagged bool) fetchState {
	looked := int32(f.ahead-at) > 0
	switch {
	case !looked && flagged:
		return fetchDue
	case !looked:
		return fetchDone
	}
	here := f.first != f.next && f.list[f.first%maxFetches].at == at
	switch o := &f.list[f.first%maxFetches]; {
	case here != flagged:
		return fetchWrong
	case here && (o.left > 0 || o.out > 0):
		return fetchDue
	}
	return fetchDone
}

// pass ends the fetch of the packet at a ring position, if it has one.
func (f *fetches) pass(at uint32) {
	if f.first != f.next && f.list[f.first%maxFetches].at == at {
		f.first++
	}
}

// packetFlags returns the flags in the header of a packet.
func packetFlags(p []byte) uint16 { return binary.LittleEndian.Uint16(p[6:]) }

// stepFetch sends one read, or looks at one packet.
func (g *GPU) stepFetch(emit func(p *tlp.Packet) bool) stepResult {
	c := &g.channel
	f := &c.fetches
	if f.first != f.next {
		if o := &f.list[(f.next-1)%maxFetches]; o.left > 0 {
			return g.sendFetch(o, emit)
		}
	}
	if int32(f.ahead-c.head) < 0 {
		f.ahead = c.head
	}
	left := c.tail - f.ahead
	if left < reg.PacketHeaderSize || f.next-f.first == maxFetches {
		return stepIdle
	}
	b := c.packet[:reg.PacketHeaderSize]
	g.readRing(b, f.ahead)
	h, _, _ := reg.ParsePacketHeader(b) // a whole header
	if h.Size < reg.PacketHeaderSize || h.Size > reg.MaxPacket || h.Size%reg.PacketAlign != 0 || h.Size > left {
		return stepIdle // submitPacket fails the channel when the packets before have left
	}
	if h.Flags&reg.PacketFetch != 0 {
		if !g.vram.contains(h.Out, uint64(h.Room)) || h.Room == 0 {
			g.failChannel(reg.ComputeBadPacket)
			return stepMoved
		}
		f.list[f.next%maxFetches] = fetch{at: f.ahead, addr: h.Out, left: uint64(h.Room)}
		f.next++
	}
	f.ahead += h.Size
	return stepMoved
}

// sendFetch sends the next read of a fetch, which is the newest one.
func (g *GPU) sendFetch(o *fetch, emit func(p *tlp.Packet) bool) stepResult {
	c := &g.channel
	addr := c.mirror + o.addr
	n := g.readChunk(addr, o.left)
	r := g.sendRead(emit, addr, n, nil, read{
		kind: readFetch, epoch: c.epoch, first: c.fetches.next - 1, vram: int64(o.addr),
	})
	if r == readNoTag {
		return stepIdle
	}
	o.out++
	o.addr += uint64(n)
	o.left -= uint64(n)
	return r.step()
}

// fetched takes the end of a read of the current context.
func (g *GPU) fetched(r *read, res *transaction.Result) {
	if readError(res) != reg.NoError {
		g.failChannel(reg.ComputeBadFetch)
		return
	}
	g.channel.fetches.list[r.first%maxFetches].out--
}
