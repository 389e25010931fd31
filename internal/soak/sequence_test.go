package soak

import (
	"errors"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

// page is a register that counts the writes to it. The device is reset behind a read.
type page struct {
	driver.Region
	numbers *numbers
	value   uint32
	reset   bool
}

func (p *page) Write32(_ uint64, v uint32) {
	p.numbers.note(v)
	p.value = v
}

func (p *page) Read32(uint64) uint32 {
	if p.reset {
		p.numbers.restart()
	}
	return p.value
}

// A reset between the read and the look at the counter is no loss of writes: the read has
// returned the last one.
func TestResetBehindPostedWrites(t *testing.T) {
	var n numbers
	n.restart() // of the time before
	region := &page{numbers: &n}
	s := &session{worker: &worker{ledger: &ledger{}}}
	r := newRegisters(s, region, 0, &n, nil)
	if err := r.posted(5); err != nil {
		t.Fatal(err)
	}
	region.reset = true
	var wrong wrongError
	if err := r.posted(5); !errors.Is(err, errReset) || errors.As(err, &wrong) {
		t.Errorf("a reset behind the read: %v", err)
	}

	r = newRegisters(s, region, 0, &n, nil)
	region.reset = false
	n.note(0) // a write that comes twice
	if err := r.posted(5); !errors.As(err, &wrong) {
		t.Errorf("a write twice: %v", err)
	}
}
