package gpu

import (
	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// readKind is the purpose of an outstanding read.
type readKind uint8

const (
	readIdle    readKind = iota
	readRing             // ring entries
	readSegment          // scatter-gather entries
	readData             // data of a COPY
	readFetch            // data of a packet of the compute channel
)

// read is the state of an outstanding read.
type read struct {
	kind  readKind
	queue int
	epoch uint64
	addr  uint64
	first uint32 // index of the command; of the first one for readRing; number of the fetch
	entry uint32 // readSegment: first entry
	n     uint32 // readRing, readSegment: how many
	vram  int64  // readData, readFetch: where the first byte goes
}

// readOutcome is the outcome of sendRead.
type readOutcome uint8

const (
	readSent readOutcome = iota
	readHeld             // it has a tag, but emit refused it: flushStaged sends it
	readNoTag
)

func (o readOutcome) step() stepResult {
	if o == readHeld {
		return stepRefused
	}
	return stepMoved
}

// readChunk returns how many of the n bytes at addr one request may ask for.
// Requests end at multiples of their size, so only the first of a transfer is
// short.
func (g *GPU) readChunk(addr, n uint64) int { return chunkAt(addr, n, g.readSize()) }

func chunkAt(addr, n uint64, size int) int {
	return tlp.NextChunk(addr, int(min(n, uint64(size)-addr%uint64(size))), size)
}

// sendRead sends a memory read for n bytes into dst (nil for data that go to VRAM)
// and notes its purpose. The caller makes sure that no read is held.
func (g *GPU) sendRead(emit func(p *tlp.Packet) bool, addr uint64, n int, dst []byte, r read) readOutcome {
	g.staged = tlp.Packet{Type: tlp.MRd}
	g.staged.SetMemory(addr, n)
	if !g.req.Begin(g.now, g.deadline(), &g.staged, dst, 0) {
		return readNoTag
	}
	r.addr = addr
	g.reads[g.staged.Tag] = r
	g.regs.count(reg.CountReadTLPs, 1)
	g.regs.count(reg.CountReadBytes, uint64(n))
	if !emit(&g.staged) {
		g.held = true
		return readHeld
	}
	return readSent
}

// complete takes a completion.
func (g *GPU) complete(p *tlp.Packet) {
	res, ok := g.req.Complete(p)
	if !ok {
		g.regs.count(reg.CountUnexpected, 1)
		g.logError(p, cfgspace.AERUnexpected, true)
		return
	}
	r := &g.reads[res.Tag]
	current := g.current(r)
	if current && (r.kind == readData || r.kind == readFetch) && !res.Poisoned && res.Status == pcie.SuccessfulCompletion {
		g.vram.write(r.vram+int64(res.N-len(res.Data)), res.Data)
	}
	switch {
	case p.EP:
		g.logError(p, cfgspace.AERPoisoned, false)
	case res.Status == pcie.UnsupportedRequest:
		g.cfg.PokeBits(cfgspace.OffStatus, cfgspace.StaMasterAbort, 0)
	case res.Status == pcie.CompleterAbort:
		g.cfg.PokeBits(cfgspace.OffStatus, cfgspace.StaRcvAbort, 0)
	}
	if !res.Done {
		return
	}
	if current {
		g.finished(r, &res)
	}
	*r = read{}
}

// current reports whether the purpose of a read still exists.
func (g *GPU) current(r *read) bool {
	if r.kind == readFetch {
		return r.epoch == g.channel.epoch
	}
	return r.epoch == g.queues[r.queue].epoch
}

// expired takes a read that timed out or was canceled.
func (g *GPU) expired(res transaction.Result) {
	r := &g.reads[res.Tag]
	if g.held && g.staged.Tag == res.Tag {
		g.held = false
	}
	if res.Outcome == transaction.TimedOut {
		g.regs.count(reg.CountTimeouts, 1)
		g.logError(nil, cfgspace.AERTimeout, false)
	}
	if g.current(r) {
		g.finished(r, &res)
	}
	*r = read{}
}

// finished advances a queue, or the compute channel, after the end of one of its reads.
func (g *GPU) finished(r *read, res *transaction.Result) {
	if r.kind == readFetch {
		g.fetched(r, res)
		return
	}
	q := &g.queues[r.queue]
	e := readError(res)
	c := q.command(r.first)
	switch r.kind {
	case readRing:
		if e == reg.NoError {
			g.fetchedRing(q, r)
		}
	case readSegment:
		if e == reg.NoError {
			c.list.arrived(r.entry, r.n)
		}
		c.out--
	case readData:
		c.out--
	case readIdle, readFetch:
		return
	}
	if e != reg.NoError && c.fail == reg.NoError {
		c.fail, c.at = e, r.addr // retire halts the queue when c is the oldest command
	}
	if c.state == commandWaiting && c.out == 0 {
		c.state = commandDone
	}
}

func readError(res *transaction.Result) reg.Error {
	switch {
	case res.Outcome != transaction.Completed:
		return reg.ErrDMATimeout
	case res.Status == pcie.UnsupportedRequest:
		return reg.ErrDMARefused
	case res.Status != pcie.SuccessfulCompletion:
		return reg.ErrDMAAborted
	case res.Poisoned:
		return reg.ErrDMAPoison
	}
	return reg.NoError
}
