package hostproxy_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

// BenchmarkMigration moves a device between two boxes on loopback, with memory that was
// written and a program that changes some of it at a set rate. It reports the longest and
// the median standstill, and the time of a whole migration.
func BenchmarkMigration(b *testing.B) {
	for _, bench := range []struct{ written, rate int }{
		{64, 0},
		{256, 0},
		{1024, 0},
		{256, 10},
		{256, 100},
		{256, 400},
	} {
		b.Run(fmt.Sprintf("%dMiB/dirty=%dMBps", bench.written, bench.rate), func(b *testing.B) {
			vram := int64(bench.written) << 20
			r := newCluster(b, options{boxes: 2, inside: true, timeout: time.Minute, spec: gpu.Spec{VRAM: vram + 16<<20}})
			bound := r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			defer closeBoth(b, bus, dev)
			memory, err := dev.Malloc(uint64(vram))
			if err != nil {
				b.Fatal(err)
			}
			s, err := dev.NewStream()
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			if err := s.Fill(b.Context(), memory, 0x5a5a5a5a, uint64(vram)); err != nil {
				b.Fatal(err)
			}
			if err := s.Sync(b.Context()); err != nil {
				b.Fatal(err)
			}
			defer dirty(b, s, memory, vram, bench.rate)()
			var pauses []time.Duration
			for b.Loop() {
				old := bound
				bound = r.migrate(bound, 1-bound.box, 0)
				pauses = append(pauses, r.atHost(bound).GetMigration().GetPause().AsDuration())
				r.until("the old box is free", func() bool { return r.boxes[old.box].Observe().Slots[0].Binding == nil })
			}
			slices.Sort(pauses)
			b.ReportMetric(quantile.Of(pauses, 0.5).Seconds()*1e3, "ms-standstill-median")
			b.ReportMetric(pauses[len(pauses)-1].Seconds()*1e3, "ms-standstill-longest")
		})
	}
}

// dirty changes blocks of 64 KiB at random places, rate megabytes a second if the device can, until
// the returned function is called. It reports the rate.
func dirty(b *testing.B, s *driver.Stream, memory driver.Ptr, size int64, rate int) (stop func()) {
	const block, every = 64 << 10, 10 * time.Millisecond
	begin, blocks := time.Now(), 0
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	if rate > 0 {
		wg.Go(func() {
			beat := time.NewTicker(every)
			defer beat.Stop()
			each := max(1, rate*1000*int(every/time.Millisecond)/block)
			rnd := rand.New(rand.NewPCG(1, 1))
			for ctx.Err() == nil {
				<-beat.C
				for range each {
					at := memory + driver.Ptr(rnd.Int64N(size/block)*block)
					if err := s.Fill(b.Context(), at, rnd.Uint32(), block); err != nil {
						b.Error(err)
						return
					}
				}
				if err := s.Sync(b.Context()); err != nil {
					b.Error(err)
					return
				}
				blocks += each
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
		b.ReportMetric(float64(blocks*block)/1e6/time.Since(begin).Seconds(), "MB-changed/s")
	}
}
