package cfgspace_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
)

const testPBA = 0x800

// A table is memory byte for byte, but for the bits that are reserved or read-only.
func TestMSIXTableBytes(t *testing.T) {
	m := cfgspace.NewMSIXTable(3, testPBA)
	ones := bytes.Repeat([]byte{0xff}, 2*testPBA)
	m.Write(0, ones)
	got := make([]byte, 2*testPBA)
	m.Read(0, got)
	want := make([]byte, 2*testPBA)
	for v := range 3 {
		copy(want[16*v:], []byte{0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	}
	if !bytes.Equal(got, want) {
		t.Errorf("after ones: %x", got[:64])
	}
	// The same in pieces of each size and place.
	for n := 1; n <= 20; n++ {
		a, b := cfgspace.NewMSIXTable(3, testPBA), cfgspace.NewMSIXTable(3, testPBA)
		src := make([]byte, 60)
		for i := range src {
			src[i] = byte(7*i + n)
		}
		a.Write(0, src)
		for at := 0; at < len(src); at += n {
			b.Write(at, src[at:min(at+n, len(src))])
		}
		if a != b {
			t.Errorf("pieces of %d bytes: %+v, whole %+v", n, b.Entries[:3], a.Entries[:3])
		}
	}
}

func TestMSIXTableFlush(t *testing.T) {
	m := cfgspace.NewMSIXTable(3, testPBA)
	for v := range uint64(3) {
		var e [16]byte
		binary.LittleEndian.PutUint64(e[:], 0xfee00000+v<<4)
		binary.LittleEndian.PutUint32(e[8:], uint32(v))
		e[12] = byte(v & 1) // vector 1 is masked
		m.Write(int(16*v), e[:])
		m.Fire(uint32(v))
	}
	m.Fire(3)
	m.Fire(1 << 31)
	var sent []uint32
	refuse := func(uint64, uint32) bool { return false }
	send := func(addr uint64, data uint32) bool {
		if addr != 0xfee00000+uint64(data)<<4 {
			t.Errorf("message %d to %#x", data, addr)
		}
		sent = append(sent, data)
		return true
	}
	if m.Flush(refuse) || !m.Flush(send) {
		t.Error("a refused message must end the flush, and the next one send it")
	}
	var pending [8]byte
	m.Read(testPBA, pending[:])
	if len(sent) != 2 || sent[0] != 0 || sent[1] != 2 || pending[0] != 1<<1 {
		t.Errorf("sent %v, pending %x", sent, pending)
	}
	m.Write(28, []byte{0}) // unmask vector 1
	if m.Flush(send); len(sent) != 3 || sent[2] != 1 {
		t.Errorf("sent %v after the mask", sent)
	}
	m.Fire(0)
	m.Reset()
	if m.Flush(send); len(sent) != 3 || m != cfgspace.NewMSIXTable(3, testPBA) {
		t.Errorf("after a reset: %+v", m)
	}
}
