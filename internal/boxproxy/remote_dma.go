package boxproxy

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// dmaState is what the server reads from the host's memory.
type dmaState struct {
	payload, read, tags int // limits: bytes of a write, bytes of a read request, tags

	requester *transaction.Requester
	reads     map[uint64]*dmaRead // by cookie
	waiting   []*dmaRead          // with requests to send, oldest first
	last      uint64              // cookie
	staged    tlp.Packet          // a request that has its tag and that emit refused
	held      bool
}

// dmaRead is one DMA_READ of the server.
type dmaRead struct {
	req    *vfiouser.DMARequest
	cookie uint64
	sent   int // bytes asked for
	open   int // requests outstanding
	failed bool
}

// TagsInUse implements device.TagCounter.
func (r *remote) TagsInUse() (n, limit int) {
	if r.dma.requester == nil {
		return 0, r.dma.tags
	}
	return r.dma.requester.InFlight(), r.dma.requester.Tags()
}

// finishFunc answers a DMA request: with success, or with an error number.
type finishFunc func(*vfiouser.DMARequest, error)

// serverDMA takes a DMA request in the goroutine that reads the socket.
func (r *remote) serverDMA(_ *vfiouser.Client, req *vfiouser.DMARequest) {
	if !r.master.Load() {
		r.refuseDMA(req)
		return
	}
	r.post(arrival{dma: req})
}

// refuseDMA answers with what QEMU answers a device that may not master the bus.
func (r *remote) refuseDMA(req *vfiouser.DMARequest) { r.finishDMA(req, unix.ENODEV) }

// finishDMA answers a request, when its turn comes.
func (r *remote) finishDMA(req *vfiouser.DMARequest, err error) {
	r.answers.push(0, func() {
		if err != nil {
			req.Fail(err)
			return
		}
		req.Reply()
	})
}

// limits takes the limits of Device Control.
func (d *dmaState) limits(payload, read, tags int) {
	d.payload, d.read, d.tags = payload, read, tags
	if d.reads == nil {
		d.reads = map[uint64]*dmaRead{}
	}
	d.retag()
}

// retag changes the number of tags as soon as none is in use.
func (d *dmaState) retag() bool {
	switch {
	case d.requester == nil:
		d.requester = transaction.NewRequester(transaction.RequesterConfig{Tags: d.tags})
	case d.requester.Tags() == d.tags:
	case d.requester.InFlight() > 0:
		return false
	default:
		d.requester = transaction.NewRequester(transaction.RequesterConfig{ID: d.requester.ID(), Tags: d.tags})
	}
	return true
}

func (d *dmaState) wake() time.Duration { return d.requester.Wake() }

// add takes a read whose turn has come.
func (d *dmaState) add(req *vfiouser.DMARequest, finish finishFunc) {
	if len(req.Data) == 0 {
		finish(req, nil)
		return
	}
	d.last++
	rd := &dmaRead{req: req, cookie: d.last}
	d.reads[rd.cookie] = rd
	d.waiting = append(d.waiting, rd)
}

// transmit sends requests while there are tags, until emit refuses one.
func (d *dmaState) transmit(now time.Duration, r *remote, emit func(p *tlp.Packet) bool) {
	if d.held {
		if !emit(&d.staged) {
			return
		}
		d.held = false
	}
	if !d.retag() {
		return
	}
	d.requester.Free(now) // ends quarantines, so that wake does not stay in the past
	for len(d.waiting) > 0 {
		rd := d.waiting[0]
		if d.reads[rd.cookie] == nil { // answered: the request is the client's again
			d.waiting = d.waiting[1:]
			continue
		}
		addr, left := rd.req.Addr+uint64(rd.sent), len(rd.req.Data)-rd.sent
		if rd.failed || left == 0 {
			d.waiting = d.waiting[1:]
			d.settle(rd, r.finishDMA)
			continue
		}
		n := tlp.NextChunk(addr, left, d.read)
		d.staged = tlp.Packet{Type: tlp.MRd}
		d.staged.SetMemory(addr, n)
		if !d.requester.Begin(now, now+remoteDMATimeout, &d.staged, rd.req.Data[rd.sent:rd.sent+n], rd.cookie) {
			return
		}
		rd.sent += n
		rd.open++
		if !emit(&d.staged) {
			d.held = true
			return
		}
	}
}

// complete takes a completion of the host.
func (d *dmaState) complete(p *tlp.Packet, finish finishFunc) {
	if res, ok := d.requester.Complete(p); ok && res.Done {
		d.ended(&res, finish)
	}
}

// expire ends the requests that have waited too long.
func (d *dmaState) expire(now time.Duration, finish finishFunc) {
	d.requester.Expire(now, func(res transaction.Result) {
		if d.held && d.staged.Tag == res.Tag {
			d.held = false
		}
		d.ended(&res, finish)
	})
}

// ended takes the end of one request.
func (d *dmaState) ended(res *transaction.Result, finish finishFunc) {
	rd := d.reads[res.Cookie]
	if rd == nil {
		return
	}
	rd.open--
	rd.failed = rd.failed || !res.OK()
	d.settle(rd, finish)
}

// settle answers a read that has nothing outstanding and nothing left to send.
func (d *dmaState) settle(rd *dmaRead, finish finishFunc) {
	if rd.open > 0 || !rd.failed && rd.sent < len(rd.req.Data) {
		return
	}
	delete(d.reads, rd.cookie)
	if rd.failed {
		finish(rd.req, unix.EFAULT)
		return
	}
	finish(rd.req, nil)
}

// cancel ends every read.
func (d *dmaState) cancel(now time.Duration, refuse func(*vfiouser.DMARequest)) {
	d.requester.CancelAll(now, func(transaction.Result) {})
	for _, rd := range d.reads {
		refuse(rd.req)
	}
	clear(d.reads)
	d.waiting, d.held = nil, false
	d.staged = tlp.Packet{}
}

// message makes an interrupt message: a write of a double word.
func (r *remote) message(addr uint64, data uint32) {
	item := outItem{packet: tlp.Packet{Type: tlp.MWr, Requester: r.fn.ID}}
	item.packet.SetMemory(addr&^3, pcie.DW)
	for i := range item.word {
		item.word[i] = byte(data >> (8 * i))
	}
	r.out.push(item)
}
