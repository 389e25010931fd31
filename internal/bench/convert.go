package bench

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/tlp"
)

// converter converts a TLP to packets and back, as a link does, without the link's
// bookkeeping and cipher.
type converter struct {
	hp     frame.HeaderPacket
	dp     frame.DataPacket
	out    tlp.Packet
	header []byte
	wire   []byte
}

func (c *converter) convert(p *tlp.Packet) error {
	c.header = p.AppendHeader(c.header[:0])
	headerCRC, dataCRC := frame.CRC(0, c.header), uint32(0)
	if len(p.Data) > 0 {
		dataCRC = frame.CRC(0, p.Data)
	}
	c.hp = frame.HeaderPacket{
		Source: frame.Endpoint{Node: 1, Slot: 2}, Destination: frame.Endpoint{Node: 3, Slot: 4},
		PayloadLen: len(p.Data), TLP: c.header, HeaderCRC: headerCRC,
		TLPCRC: frame.TLPCRC(headerCRC, dataCRC, len(p.Data)),
	}
	c.wire = c.hp.Append(c.wire[:0], frame.Checked)
	if len(p.Data) > 0 {
		c.dp = frame.DataPacket{PayloadLen: len(p.Data), Chunk: p.Data, ChunkCRC: dataCRC}
		c.wire = c.dp.Append(c.wire, frame.Checked)
	}
	return c.back()
}

// back converts the packets to the TLP.
func (c *converter) back() error {
	n, err := c.hp.Parse(c.wire, frame.Checked)
	if err != nil {
		return err
	}
	c.dp = frame.DataPacket{}
	if c.hp.PayloadLen > 0 {
		if _, err := c.dp.Parse(c.wire[n:], frame.Checked); err != nil {
			return err
		}
	}
	if frame.TLPCRC(c.hp.HeaderCRC, c.dp.ChunkCRC, c.hp.PayloadLen) != c.hp.TLPCRC {
		return frame.ErrCRC
	}
	if _, err := c.out.DecodeHeader(c.hp.TLP); err != nil {
		return err
	}
	c.out.Data = c.dp.Chunk
	return nil
}

// minimal is the least work of any conversion: a checksum of the bytes at each end,
// and one copy.
type minimal struct {
	header, wire []byte
	size         int // of the packets' own headers
}

func (m *minimal) convert(p *tlp.Packet) error {
	m.header = p.AppendHeader(m.header[:0])
	m.wire = append(m.wire[:0], make([]byte, m.size)...)
	m.wire = append(m.wire, m.header...)
	m.wire = append(m.wire, p.Data...)
	if frame.CRC(frame.CRC(0, m.wire[:m.size+len(m.header)]), p.Data) != frame.CRC(0, m.wire) {
		return frame.ErrCRC
	}
	return nil
}

// Convert measures the conversion of a TLP to a frame and back, without cipher.
func Convert(_ context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	report := o.report("convert", 0)
	for _, size := range []int{0, 64, 4096} {
		p := tlp.Packet{Type: tlp.MRd, Requester: 0x100, Tag: 7}
		name := "header only"
		p.SetMemory(1<<40, 4)
		if size > 0 {
			p = tlp.Packet{Type: tlp.MWr, Requester: 0x100, Data: make([]byte, size)}
			pattern(p.Data, uint64(size))
			p.SetMemory(1<<40, size)
			name = fmt.Sprintf("%d bytes of payload", size)
		}
		var c converter
		least := minimal{size: frame.HeaderPacketSize(0, frame.Checked)}
		if size > 0 {
			least.size += frame.DataPacketSize(0, frame.Checked)
		}
		values, err := o.alternate([]probe{
			{name, func(d time.Duration) (float64, error) { return nanoseconds(d, func() error { return c.convert(&p) }) }},
			{name, func(d time.Duration) (float64, error) {
				return nanoseconds(d, func() error { return least.convert(&p) })
			}},
		})
		if err != nil {
			return nil, err
		}
		if c.out.Type != p.Type || c.out.Addr != p.Addr || c.out.Length != p.Length || !bytes.Equal(c.out.Data, p.Data) {
			return nil, fmt.Errorf("bench: %s: the converted TLP differs", name)
		}
		allocs := testing.AllocsPerRun(100, func() { err = c.convert(&p) })
		if err != nil {
			return nil, err
		}
		f := figure(name, Nanoseconds, values[0]).beside("one copy, two CRC-32C", values[0], values[1])
		f.Allocs = &allocs
		report.Figures = append(report.Figures, f)
	}
	return report, nil
}

// nanoseconds returns the time of one call: the median over short batches, which
// ignores the batches that another process interrupted.
func nanoseconds(d time.Duration, call func() error) (float64, error) {
	const batch = 256
	samples, err := timeEach(d, func() error {
		for range batch {
			if err := call(); err != nil {
				return err
			}
		}
		return nil
	}, false)
	return median(samples) * 1e3 / batch, err
}
