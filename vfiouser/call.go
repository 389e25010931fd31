package vfiouser

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// call is one request that waits for its reply.
type call struct {
	cmd       Command
	id        uint16
	buf       []byte // of a region read: filled with the data
	wantBody  bool   // copy the payload, keep the descriptors
	body      []byte
	fds       []int
	abandoned bool // the caller has left; the identifier stays in use until the reply arrives
	done      func(error)
	ch        chan error  // of one, where done is nil
	over      atomic.Bool // the outcome is in ch, or will be at once
	// The wait of a caller that reads the socket itself; made once. err is its outcome.
	waiter reader.Wait
	err    error
	taken  bool

	deadline time.Duration
	order    element[call] // in Client.order
}

// acquire waits until the client may have one more request under way.
func (c *Client) acquire(ctx context.Context) error {
	select {
	case c.sem <- struct{}{}:
		return nil
	default:
	}
	select {
	case c.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.end:
		return c.Err()
	}
}

// newCall returns a call to fill in.
func (c *Client) newCall(cmd Command) *call {
	c.mu.Lock()
	cl := c.freeCalls.take()
	c.mu.Unlock()
	if cl.ch == nil {
		cl.ch = make(chan error, 1)
		cl.waiter = reader.Wait{Ready: cl.over.Load, Block: cl.take}
	}
	cl.cmd = cmd
	return cl
}

// take receives the outcome.
func (cl *call) take() {
	if !cl.taken {
		cl.err, cl.taken = <-cl.ch, true
	}
}

// await waits for the outcome of a call that only its reply or its timeout ends,
// and recycles it. The caller reads the socket itself meanwhile.
func (c *Client) await(cl *call) error {
	c.reader.Await(&cl.waiter)
	cl.take()
	err := cl.err
	c.recycle(cl)
	return err
}

// reset returns a call to its initial state.
func (cl *call) reset() {
	cl.cmd, cl.id, cl.buf, cl.wantBody, cl.body, cl.fds = 0, 0, nil, false, nil, nil
	cl.abandoned, cl.done, cl.err, cl.taken, cl.deadline = false, nil, nil, false, 0
	cl.over.Store(false)
}

// recycle takes a call back that nothing refers to.
func (c *Client) recycle(cl *call) {
	cl.reset()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freeCalls = append(c.freeCalls, cl)
}

// submit registers the call and sends its request. After an error the call has
// been delivered or will not be; the error of a call is what it delivers.
func (c *Client) submit(cl *call, payload, data []byte, fds []int) {
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		c.deliver(cl, err)
		return
	}
	h := c.registerLocked(cl)
	c.mu.Unlock()
	if err := c.send(h, payload, data, fds); err != nil {
		_ = c.sendFailed(err) // delivers the call
	}
}

// registerLocked adds a call to the open ones and returns the header of its request.
func (c *Client) registerLocked(cl *call) Header {
	cl.id = c.nextIDLocked()
	cl.deadline = time.Since(c.start) + c.cfg.Timeout
	c.calls[cl.id] = cl
	c.order.push(cl, &cl.order)
	if !c.timerOn {
		c.timerOn = true
		c.timer.Reset(c.cfg.Timeout)
	}
	return Header{ID: cl.id, Command: cl.cmd}
}

// post sends a request without a reply.
func (c *Client) post(cmd Command, payload, data []byte) error {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	h := Header{ID: c.nextIDLocked(), Command: cmd, Flags: FlagNoReply}
	c.mu.Unlock()
	if err := c.send(h, payload, data, nil); err != nil {
		return c.sendFailed(err)
	}
	c.reader.Attend()
	return nil
}

// nextIDLocked returns an identifier that no open request has; there are fewer
// of those than identifiers.
func (c *Client) nextIDLocked() uint16 {
	for {
		c.id++
		if _, taken := c.calls[c.id]; !taken {
			return c.id
		}
	}
}

// wait returns the call's outcome, or abandons it when ctx ends.
func (c *Client) wait(ctx context.Context, cl *call) error {
	c.reader.Attend()
	select {
	case err := <-cl.ch:
		return err
	case <-ctx.Done():
	}
	c.mu.Lock()
	if c.calls[cl.id] != cl || cl.abandoned { // delivered, or about to be
		c.mu.Unlock()
		return <-cl.ch
	}
	c.abandonLocked(cl)
	give := c.unanswered > maxUnanswered
	c.mu.Unlock()
	<-c.sem
	if give {
		c.giveUp()
	}
	return ctx.Err()
}

// abandonLocked keeps the identifier in use and drops the rest, above all the
// caller's buffer.
func (c *Client) abandonLocked(cl *call) {
	c.order.remove(&cl.order)
	c.unanswered++
	c.calls[cl.id] = &call{cmd: cl.cmd, id: cl.id, abandoned: true}
}

func (c *Client) giveUp() {
	c.shut(fmt.Errorf("vfiouser: %d requests without an answer: %w", maxUnanswered, ErrTimeout))
}

// expire times out the oldest calls.
func (c *Client) expire() {
	for {
		c.mu.Lock()
		cl := c.order.first()
		if cl == nil || c.err != nil {
			c.timerOn = false
			c.mu.Unlock()
			return
		}
		if left := cl.deadline - time.Since(c.start); left > 0 {
			c.timer.Reset(left)
			c.mu.Unlock()
			return
		}
		c.abandonLocked(cl)
		give := c.unanswered > maxUnanswered
		c.mu.Unlock()
		c.deliver(cl, fmt.Errorf("vfiouser: %v: %w", cl.cmd, ErrTimeout))
		if give {
			c.giveUp()
		}
	}
}

// deliver passes the outcome to the caller; the call has left all tables.
func (c *Client) deliver(cl *call, err error) {
	<-c.sem
	if done := cl.done; done != nil {
		c.recycle(cl)
		done(err)
		return
	}
	cl.over.Store(true)
	cl.ch <- err
}

// finish matches a reply with its call by the identifier alone: servers differ in
// the command field of their replies.
func (c *Client) finish(ch *channel, m *message) {
	c.mu.Lock()
	cl := c.calls[m.ID]
	if cl == nil || ch != c.main {
		c.mu.Unlock()
		c.unsolicited.Add(1)
		c.cfg.Logger.Debug("vfio-user reply to nothing", "command", m.Command.String(), "id", m.ID)
		return
	}
	delete(c.calls, m.ID)
	if cl.abandoned {
		c.unanswered--
		c.mu.Unlock()
		return
	}
	c.order.remove(&cl.order)
	c.mu.Unlock()
	var err error
	switch {
	case m.Flags&FlagError != 0: // an error number of 0 is an error all the same
		err = &RemoteError{Command: cl.cmd, Errno: unix.Errno(m.Errno)}
	case cl.wantBody:
		cl.body = append([]byte(nil), m.body...)
		cl.fds = m.fds
		ch.fr.keep()
	case cl.buf != nil:
		err = takeRegion(m, cl.buf)
	}
	c.deliver(cl, err)
}

// takeRegion copies the data of a REGION_READ's reply. A short one is an error.
func takeRegion(m *message, p []byte) error {
	a, n, err := ParseRegionAccess(m.body)
	if err != nil {
		return err
	}
	if uint64(a.Count) != uint64(len(p)) || len(m.body)-n != len(p) {
		return fmt.Errorf("vfiouser: region read: %d bytes instead of %d", len(m.body)-n, len(p))
	}
	copy(p, m.body[n:])
	return nil
}

// roundTrip sends a request and returns the payload of its reply and the
// descriptors, which become the caller's.
func (c *Client) roundTrip(ctx context.Context, cmd Command, payload []byte, fds []int) ([]byte, []int, error) {
	if err := c.acquire(ctx); err != nil {
		return nil, nil, err
	}
	cl := c.newCall(cmd)
	cl.wantBody = true
	c.submit(cl, payload, nil, fds)
	if err := c.wait(ctx, cl); err != nil {
		return nil, nil, err
	}
	body, got := cl.body, cl.fds
	c.recycle(cl)
	return body, got, nil
}
