package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// countdown is a context that ends when it has been looked at a number of times.
type countdown struct {
	context.Context
	looks, ends int64
}

func (c *countdown) Err() error {
	if atomic.AddInt64(&c.looks, 1) > c.ends {
		return context.Canceled
	}
	return nil
}

// TestInterrupt ends the context in the first run of each experiment. It must end soon, though
// the rest of the experiment would look at the context hundreds of times.
func TestInterrupt(t *testing.T) {
	const cluster = `
servers: [{count: 100, cores: 96, memory-gib: 768, gpus: 8}]
requests: [{weight: 1, gpus: 1, cores: 8, memory-gib: 64}]
lives: 1000
policies: [best-fit]
pools: [{name: pool}]
seeds: 20
`
	for name, text := range map[string]string{
		"size":  "experiment: size\nsize: {gpus: 700}",
		"churn": "experiment: churn\nloads: [0.9]",
		"fill":  "experiment: fill\ndemand: 1.3",
	} {
		t.Run(name, func(t *testing.T) {
			e, err := load(t, text+cluster)
			if err != nil {
				t.Fatal(err)
			}
			ctx := &countdown{Context: context.Background(), ends: 4}
			r, err := e.Run(ctx, nil)
			if r != nil || err == nil || !strings.Contains(fmt.Sprint(err), "interrupted") {
				t.Errorf("report %v, error %v", r, err)
			}
			if after := ctx.looks - ctx.ends; after > 100 {
				t.Errorf("it looked at the context %d times after the end", after)
			}
		})
	}
}

// TestInterruptSetUp ends the context while a run makes the boxes of a large pool. It must
// make no more of them, and have told how far it was.
func TestInterruptSetUp(t *testing.T) {
	for name, experiment := range map[string]string{
		"fill": "experiment: fill\ndemand: 0.5", "churn": "experiment: churn\nloads: [0.5]\nlives: 1", "size": "experiment: size\nsize: {gpus: 16000}",
	} {
		t.Run(name, func(t *testing.T) {
			e, err := load(t, experiment+`
servers: [{count: 2000, cores: 96, memory-gib: 768, gpus: 16}]
requests: [{weight: 1, gpus: 1, cores: 8, memory-gib: 64}]
pools: [{name: pool}]
seeds: 1
`)
			if err != nil {
				t.Fatal(err)
			}
			ctx := &countdown{Context: context.Background(), ends: 3}
			var said []string
			e.Doing = func(text string) { said = append(said, text) }
			_, err = e.Run(ctx, nil)
			if err == nil || !strings.Contains(err.Error(), "interrupted") {
				t.Errorf("error %v", err)
			}
			if len(said) == 0 {
				t.Fatal("it told nothing")
			}
			if last := said[len(said)-1]; !strings.HasPrefix(last, "pool: ") || !strings.HasSuffix(last, " boxes") || strings.Contains(last, " 0 of ") {
				t.Errorf("it was not interrupted amid the boxes: %q", said)
			}
			if after := ctx.looks - ctx.ends; after > 10 {
				t.Errorf("it looked at the context %d times after the end", after)
			}
		})
	}
}

// A pool whose making does not go on has no more boxes.
func TestPoolStops(t *testing.T) {
	nodes := slices.Repeat([]Node{{GPUs: 16}}, 5000)
	boxes := countBoxes(nodes, PoolOptions{})
	if whole := newPoolOf(nil, nodes, PoolOptions{}, nil); len(whole.state) != boxes {
		t.Errorf("%d boxes of %d", len(whole.state), boxes)
	}
	p := newPoolOf(nil, nodes, PoolOptions{}, func(done, of int) bool {
		if of != boxes {
			t.Errorf("%d boxes in all, want %d", of, boxes)
		}
		return done < 2*checkEvery
	})
	if len(p.state) != 2*checkEvery {
		t.Errorf("%d boxes, want %d", len(p.state), 2*checkEvery)
	}
}
