package frame_test

import (
	"fmt"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/tlp"
)

// The body of a datagram with one memory write, encoded and parsed. A datagram
// has a Header before the body and a trailer behind it, which package link adds.
func Example() {
	write := tlp.Packet{Type: tlp.MWr, Data: []byte("a payload of 24 bytes...")}
	write.SetMemory(0x1000, len(write.Data))

	header := frame.HeaderPacket{
		Source: frame.Endpoint{Node: 1, Slot: 0}, Destination: frame.Endpoint{Node: 2, Slot: 3},
		PayloadLen: len(write.Data), TLP: write.AppendHeader(nil),
	}
	header.HeaderCRC = frame.CRC(0, header.TLP)
	data := frame.DataPacket{PayloadLen: len(write.Data), Chunk: write.Data, ChunkCRC: frame.CRC(0, write.Data)}
	header.TLPCRC = frame.TLPCRC(header.HeaderCRC, data.ChunkCRC, len(write.Data))
	body := data.Append(header.Append(nil, frame.Checked), frame.Checked)

	for len(body) > 0 {
		var n int
		var err error
		switch frame.Kind(body[0]) {
		case frame.KindHeader:
			var p frame.HeaderPacket
			n, err = p.Parse(body, frame.Checked)
			fmt.Printf("header packet: TLP %d from %v to %v, %d bytes of payload\n", p.Seq, p.Source, p.Destination, p.PayloadLen)
		case frame.KindData:
			var p frame.DataPacket
			n, err = p.Parse(body, frame.Checked)
			fmt.Printf("data packet: TLP %d, offset %d: %s\n", p.Seq, p.Offset, p.Chunk)
		default:
			err = fmt.Errorf("unexpected %v", frame.Kind(body[0]))
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		body = body[n:]
	}
	// Output:
	// header packet: TLP 0 from 1/0 to 2/3, 24 bytes of payload
	// data packet: TLP 0, offset 0: a payload of 24 bytes...
}
