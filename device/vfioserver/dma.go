package vfioserver

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// dmaState is the state of the server's reads from the host's memory.
type dmaState struct {
	finish func(*vfiouser.DMARequest, error) // answers a request, with success or an error number
	limits device.Limits

	requester *transaction.Requester
	reads     map[uint64]*dmaRead // by cookie
	waiting   []*dmaRead          // with requests to send, oldest first
	last      uint64              // cookie
	staged    tlp.Packet          // a request that has its tag and that emit refused
	held      bool
}

func (d *dmaState) init(finish func(*vfiouser.DMARequest, error), limits device.Limits) {
	d.finish, d.limits, d.reads = finish, limits, map[uint64]*dmaRead{}
	d.requester = transaction.NewRequester(transaction.RequesterConfig{Tags: limits.Tags})
}

// open reports whether the server waits for the answer to a read.
func (d *dmaState) open() bool { return len(d.reads) > 0 }

// dmaRead is one DMA_READ of the server.
type dmaRead struct {
	req    *vfiouser.DMARequest
	cookie uint64
	sent   int   // bytes asked for
	open   int   // requests outstanding
	failed error // an error number, or nil
}

func (d *dmaState) tagsInUse() (n, limit int) { return d.requester.InFlight(), d.requester.Tags() }

// serverDMA takes a DMA request, in the goroutine that reads the socket.
func (c *connection) serverDMA(_ *vfiouser.Client, req *vfiouser.DMARequest) {
	if !c.postDMA(req) {
		c.refuseDMA(req)
	}
}

// errNotMaster is QEMU's answer to a device that may not master the bus.
const errNotMaster = unix.ENODEV

func (c *connection) refuseDMA(req *vfiouser.DMARequest) { c.finishDMA(req, errNotMaster) }

// finishDMA queues the answer to a request.
func (c *connection) finishDMA(req *vfiouser.DMARequest, err error) {
	c.answers.push(0, func() {
		if err != nil {
			req.Fail(err)
			return
		}
		req.Reply()
	})
}

// add begins a read.
func (d *dmaState) add(req *vfiouser.DMARequest) {
	if len(req.Data) == 0 {
		d.finish(req, nil)
		return
	}
	d.last++
	rd := &dmaRead{req: req, cookie: d.last}
	d.reads[rd.cookie] = rd
	d.waiting = append(d.waiting, rd)
}

// stop ends the reads that have requests to send: the function may not master the bus any
// more. A server that waits for their answers goes on.
func (d *dmaState) stop() {
	for _, rd := range d.waiting {
		if d.reads[rd.cookie] != nil && rd.sent < len(rd.req.Data) { // the last request may have been held
			rd.failed = errNotMaster
			d.settle(rd)
		}
	}
	d.waiting = nil
}

// transmit sends requests while there are tags and the function may master the bus, until
// emit refuses one. One that has its tag has begun before.
func (d *dmaState) transmit(now time.Duration, master bool, emit func(p *tlp.Packet) bool) {
	if d.held {
		if !emit(&d.staged) {
			return
		}
		d.held = false
	}
	if !master {
		d.stop()
	}
	for len(d.waiting) > 0 {
		rd := d.waiting[0]
		if d.reads[rd.cookie] == nil { // answered: the request is the client's again
			d.waiting = d.waiting[1:]
			continue
		}
		addr, left := rd.req.Addr+uint64(rd.sent), len(rd.req.Data)-rd.sent
		if rd.failed != nil || left == 0 {
			d.waiting = d.waiting[1:]
			d.settle(rd)
			continue
		}
		n := tlp.NextChunk(addr, left, int(d.limits.MaxReadRequest))
		d.staged = tlp.Packet{Type: tlp.MRd}
		d.staged.SetMemory(addr, n)
		if !d.requester.Begin(now, now+completionTimeout, &d.staged, rd.req.Data[rd.sent:rd.sent+n], rd.cookie) {
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
func (d *dmaState) complete(p *tlp.Packet) {
	if res, ok := d.requester.Complete(p); ok && res.Done {
		d.ended(&res)
	}
}

// expire ends the requests that have waited too long.
func (d *dmaState) expire(now time.Duration, slack func(transaction.Overdue) time.Duration) {
	d.requester.Expire(now, slack, func(res transaction.Result) {
		if d.held && d.staged.Tag == res.Tag {
			d.held = false
		}
		d.ended(&res)
	})
}

// ended counts the end of one request.
func (d *dmaState) ended(res *transaction.Result) {
	rd := d.reads[res.Cookie]
	if rd == nil {
		return
	}
	rd.open--
	if rd.failed == nil && !res.OK() {
		rd.failed = unix.EFAULT
	}
	d.settle(rd)
}

// settle answers a read without outstanding or unsent requests.
func (d *dmaState) settle(rd *dmaRead) {
	if rd.open > 0 || rd.failed == nil && rd.sent < len(rd.req.Data) {
		return
	}
	delete(d.reads, rd.cookie)
	d.finish(rd.req, rd.failed)
}

// cancel ends every read.
func (d *dmaState) cancel(now time.Duration) {
	d.requester.CancelAll(now, func(transaction.Result) {})
	for _, rd := range d.reads {
		d.finish(rd.req, errNotMaster)
	}
	clear(d.reads)
	d.waiting, d.held = nil, false
	d.staged = tlp.Packet{}
}

// message queues an interrupt message, a write of a double word.
func (c *connection) message(addr uint64, data uint32) {
	item := outItem{packet: tlp.Packet{Type: tlp.MWr, Requester: c.fn.ID}}
	item.packet.SetMemory(addr&^3, pcie.DW)
	for i := range item.word {
		item.word[i] = byte(data >> (8 * i))
	}
	c.out.push(item)
}
