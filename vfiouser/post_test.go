package vfiouser

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
)

// recorder notes the numbers that are written, in order.
type recorder struct {
	NopHandler

	mu   sync.Mutex // guards the fields below
	seen []uint64
	more int // accesses of which others were here already
}

func (r *recorder) Access(_ *Conn, a *Access) {
	r.mu.Lock()
	if a.Write {
		var b [8]byte
		copy(b[:], a.Data)
		r.seen = append(r.seen, binary.LittleEndian.Uint64(b[:]))
	}
	if a.More {
		r.more++
	}
	r.mu.Unlock()
	a.Reply()
}

// Posted writes that follow each other leave together, and arrive in the order
// of the calls, with what other calls send among them.
func TestPostedWritesKeepTheirOrder(t *testing.T) {
	for _, multi := range []bool{true, false} {
		for _, n := range []int{1, 2, MaxMulti, MaxMulti + 1, 3 * MaxMulti, 20_000} {
			t.Run(fmt.Sprintf("multi %v, %d writes", multi, n), func(t *testing.T) {
				r := &recorder{}
				f := serve(t, func(c *Config) { c.Handler, c.WriteMultiple = r, multi })
				c, err := Dial(bg, f.path, ClientConfig{})
				must(t, err)
				var b [16]byte
				for i := range n {
					binary.LittleEndian.PutUint64(b[:], uint64(i))
					switch {
					case i%1000 == 999:
						must(t, c.RegionWrite(bg, 2, 0, b[:8]))
					case i%100 == 99: // too long to gather
						must(t, c.PostWrite(2, 0, b[:]))
					default:
						must(t, c.PostWrite(2, 0, b[:4+i%2*4]))
					}
				}
				must(t, c.RegionRead(bg, 2, 0, b[:1]))
				r.mu.Lock()
				defer r.mu.Unlock()
				if len(r.seen) != n {
					t.Fatalf("%d writes arrived, want %d", len(r.seen), n)
				}
				for i, got := range r.seen {
					if got != uint64(i) {
						t.Fatalf("write %d arrived as number %d", got, i)
					}
				}
				if n > 1000 && r.more == 0 {
					t.Error("no two writes arrived together")
				}
				must(t, c.Close())
			})
		}
	}
}

// The last of some writes in a row leaves though nothing follows it.
func TestPostedWritesLeaveByThemselves(t *testing.T) {
	arrived := make(chan struct{}, 1000)
	f := serve(t, func(c *Config) { c.Handler = countdown{left: arrived} })
	c, err := Dial(bg, f.path, ClientConfig{})
	must(t, err)
	const n = 500
	for range n {
		must(t, c.PostWrite(2, 0, []byte{1}))
	}
	for range n {
		<-arrived
	}
	must(t, c.Close())
}

type countdown struct {
	NopHandler
	left chan struct{}
}

func (d countdown) Access(_ *Conn, a *Access) {
	a.Reply()
	d.left <- struct{}{}
}

// A handler may keep long posted writes. Their data stay, though the server reads
// them in its own buffer and goes on reading.
func TestLongPostedWritesBelongToTheHandler(t *testing.T) {
	f := serve(t)
	held := f.dev.holding(2)
	c, _ := f.client(ClientConfig{})
	const n = 8
	data := make([]byte, n*MaxWriteData)
	for i := range data {
		data[i] = byte(i / MaxWriteData * 7)
	}
	must(t, c.PostWrite(2, 0, data))
	var accesses []*Access
	for range n {
		accesses = append(accesses, <-held)
	}
	for i, a := range accesses {
		if a.Offset != uint64(i*MaxWriteData) || !bytes.Equal(a.Data, data[i*MaxWriteData:(i+1)*MaxWriteData]) {
			t.Errorf("write %d: %d bytes at %#x are not those that were written", i, len(a.Data), a.Offset)
		}
		a.Reply()
	}
}
