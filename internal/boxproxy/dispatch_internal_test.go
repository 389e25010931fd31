package boxproxy

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// grid is a job of one kernel, series one of several.
type grid struct{ blocks int64 }

func (grid) Cost() time.Duration { return time.Second }
func (grid) Run() bool           { return false }
func (g grid) Blocks() int64     { return g.blocks }

type series struct {
	grid
	widest int64
}

func (s series) Widest() int64 { return s.widest }

// Kernels that run one after another fill no more multiprocessors than the largest of them.
func TestKernelOfAJob(t *testing.T) {
	d := share.Device{SMs: 4, ThreadsPerSM: 2 * blockThreads, Memory: 1}
	for _, c := range []struct {
		name   string
		job    Grid
		blocks int64
		sms    int32
	}{
		{"one block", grid{1}, 1, 1},
		{"three blocks", grid{3}, 3, 2},
		{"more than there is", grid{1000}, 1000, 4},
		{"a series", series{grid{9}, 3}, 9, 2},
	} {
		var k share.Kernel
		switch job := c.job.(type) {
		case grid:
			k = kernelOf(job, d)
		case series:
			k = kernelOf(job, d)
		}
		if k.Blocks != c.blocks || k.SMs != c.sms || k.Expected != time.Second {
			t.Errorf("%s: %+v", c.name, k)
		}
	}
}
