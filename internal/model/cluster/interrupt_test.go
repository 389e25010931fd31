package cluster

import (
	"context"
	"fmt"
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
