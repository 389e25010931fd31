package vfiouser

import (
	"context"
	"encoding/binary"
)

// RegionRead fills p from the region at offset. It splits accesses that are
// longer than the server's limit.
func (c *Client) RegionRead(ctx context.Context, region uint32, offset uint64, p []byte) error {
	most := int(min(c.caps.maxData(), DefaultMaxData))
	for {
		n := min(len(p), most)
		if err := c.region(ctx, CmdRegionRead, region, offset, p[:n:n]); err != nil || n == len(p) {
			return err
		}
		p, offset = p[n:], offset+uint64(n)
	}
}

// RegionWrite writes p to the region at offset and waits for the answer. It
// splits writes of more than MaxWriteData.
func (c *Client) RegionWrite(ctx context.Context, region uint32, offset uint64, p []byte) error {
	for {
		n := min(len(p), c.maxWrite())
		if err := c.region(ctx, CmdRegionWrite, region, offset, p[:n]); err != nil || n == len(p) {
			return err
		}
		p, offset = p[n:], offset+uint64(n)
	}
}

// PostWrite writes p to the region at offset and waits only for room in the
// socket. It does not report failures of the device. Short writes that follow
// each other closely leave together.
func (c *Client) PostWrite(region uint32, offset uint64, p []byte) error {
	if len(p) <= maxSmall {
		return c.postSmall(region, offset, p)
	}
	for {
		n := min(len(p), c.maxWrite())
		if err := c.postNow(region, offset, p[:n]); err != nil || n == len(p) {
			return err
		}
		p, offset = p[n:], offset+uint64(n)
	}
}

// PostWrites posts writes of up to 8 bytes, up to MaxMulti in one message if the
// server supports that.
func (c *Client) PostWrites(writes []MultiWrite) error {
	if !c.caps.WriteMultiple {
		for i := range writes {
			w := &writes[i]
			if err := c.PostWrite(w.Region, w.Offset, w.Data[:min(w.Count, 8)]); err != nil {
				return err
			}
		}
		return nil
	}
	for len(writes) > 0 {
		n := min(len(writes), MaxMulti)
		b := binary.LittleEndian.AppendUint64(make([]byte, 0, multiCountSize+n*multiEntrySize), uint64(n))
		for _, w := range writes[:n] {
			b = w.Append(b)
		}
		if err := c.post(CmdRegionWriteMulti, b, nil); err != nil {
			return err
		}
		writes = writes[n:]
	}
	return nil
}

// StartRead is RegionRead without the wait: it calls done once, from another
// goroutine; done must not block. The client owns p until then; p must not be
// longer than the server's limit for one access. StartRead returns ErrQueueFull,
// and does not call done, when too many requests are under way.
func (c *Client) StartRead(region uint32, offset uint64, p []byte, done func(error)) error {
	return c.begin(CmdRegionRead, region, offset, p, done)
}

// StartWrite is RegionWrite without the wait; see StartRead. p may hold up to
// MaxWriteData; the caller may reuse it when StartWrite returns.
func (c *Client) StartWrite(region uint32, offset uint64, p []byte, done func(error)) error {
	return c.begin(CmdRegionWrite, region, offset, p, done)
}

func (c *Client) maxWrite() int { return int(min(c.caps.maxData(), MaxWriteData)) }

// region makes one access and waits for it.
func (c *Client) region(ctx context.Context, cmd Command, region uint32, offset uint64, p []byte) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	cl := c.newCall(cmd)
	c.sendRegion(cl, region, offset, p)
	if ctx.Done() == nil {
		return c.await(cl)
	}
	err := c.wait(ctx, cl)
	if err == nil {
		c.recycle(cl)
	}
	return err
}

// begin starts one access without waiting.
func (c *Client) begin(cmd Command, region uint32, offset uint64, p []byte, done func(error)) error {
	select {
	case c.sem <- struct{}{}:
	default:
		return ErrQueueFull
	}
	cl := c.newCall(cmd)
	cl.done = done
	c.sendRegion(cl, region, offset, p)
	c.reader.Attend()
	return nil
}

func (c *Client) sendRegion(cl *call, region uint32, offset uint64, p []byte) {
	var b [regionAccessSize]byte
	head := RegionAccess{Offset: offset, Region: region, Count: uint32(len(p))}.Append(b[:0])
	if cl.cmd == CmdRegionRead {
		cl.buf = p
		c.submit(cl, head, nil, nil)
		return
	}
	c.submit(cl, head, p, nil)
}
