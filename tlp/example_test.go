package tlp_test

import (
	"fmt"
	"os"

	"github.com/dxpu-project/dxpu/tlp"
)

func ExampleParse() {
	wire := []byte{0x00, 0x00, 0x00, 0x01, 0x01, 0x00, 0x17, 0x02, 0xfe, 0xe0, 0x10, 0x04}
	p, n, err := tlp.Parse(wire)
	if err != nil {
		fmt.Println(err)
		return
	}
	addr, bytes := p.ByteRange()
	fmt.Printf("%v from %v, tag %d: %d byte at %#x, in %d bytes\n", p.Type, p.Requester, p.Tag, bytes, addr, n)
	// Output: MRd from 01:00.0, tag 23: 1 byte at 0xfee01005, in 12 bytes
}

func ExampleSplitRead() {
	for c := range tlp.SplitRead(0x1fc0, 256, 128) {
		p := tlp.Packet{Type: tlp.MRd}
		p.SetMemory(c.Addr, c.Len)
		fmt.Printf("%#x: %d DW\n", p.Addr, p.Length)
	}
	// Output:
	// 0x1fc0: 16 DW
	// 0x2000: 32 DW
	// 0x2080: 16 DW
}

func ExampleWriteTable() {
	p := tlp.Packet{Type: tlp.Cpl, Requester: 0x100, ByteCount: 4, Status: 1}
	if err := tlp.WriteTable(os.Stdout, &p); err != nil {
		fmt.Println(err)
	}
	// Output:
	// BYTE  BITS  FIELD       VALUE  MEANING
	// 0     7:5   fmt         0x0    3 DW header, no data
	// 0     4:0   type        0xa    Cpl
	// 1     7     t9          0x0    bit 9 of the tag
	// 1     6:4   tc          0x0    traffic class
	// 1     3     t8          0x0    bit 8 of the tag
	// 1     2     attr[2]     0x0    no ID-based ordering
	// 1     1     ln          0x0    reserved
	// 1     0     th          0x0    no processing hints
	// 2     7     td          0x0    no digest
	// 2     6     ep          0x0    not poisoned
	// 2     5:4   attr[1:0]   0x0    snooped, strongly ordered
	// 2     3:2   at          0x0    untranslated address
	// 2-3   9:0   length      0x0    reserved: no data
	// 4-5   15:0  completer   0x0    00:00.0
	// 6     7:5   status      0x1    UR
	// 6     4     bcm         0x0    byte count not modified
	// 6-7   11:0  byte_count  0x4    4 bytes left
	// 8-9   15:0  requester   0x100  01:00.0
	// 10    7:0   tag[7:0]    0x0    tag 0 with T9 and T8
	// 11    7     reserved    0x0    reserved
	// 11    6:0   lower_addr  0x0
}
