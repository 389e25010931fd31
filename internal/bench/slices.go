package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/quantile"
	"github.com/dxpu-project/dxpu/share"
)

// sliceSpec is one slice of a box's GPU.
type sliceSpec struct {
	Percent int // of the multiprocessors: request and limit
	Offline bool
}

func (s sliceSpec) client(memory int64) share.ClientSpec {
	c := share.ClientSpec{Request: share.Percent(s.Percent), Limit: share.Percent(s.Percent), Memory: memory}
	if s.Offline {
		c.Class = share.Offline
	}
	return c
}

const (
	sliceMemory = 64 << 20
	// sliceElements is the size of the kernels: some milliseconds of a processor.
	sliceElements = 1 << 20
	// besideLimit is the goal: the 99th percentile beside a flood, relative to alone.
	besideLimit = 1.2
	// shareLimit is the goal for the deviation of a share.
	shareLimit = 0.03
)

// Slices measures what two slices of one GPU, bound to two hosts, feel of each other: the
// time of an online slice's requests alone and while the other slice floods the GPU with
// kernels and copies, and the shares when both do. Policy is that of package share; "":
// mps.
func Slices(ctx context.Context, o Options) (report *Report, err error) {
	o = o.withDefaults()
	percent := []int{50, 50}
	latency, err := o.measureBeside(ctx, percent)
	if err != nil {
		return nil, err
	}
	report = o.report("slices", latency.mtu)
	alone := latency.values[0]
	report.Figures = append(report.Figures, figure("p99 of a request, alone", Microseconds, alone))
	for i, beside := range latency.values[1:] {
		name := []string{"the other slice floods with kernels", "with kernels and copies"}[i]
		report.Figures = append(report.Figures, figure("p99 of a request, "+name, Microseconds, beside).beside("alone", beside, alone))
	}
	for _, percent := range [][]int{{45, 45}, {30, 60}} {
		got, err := o.measureShares(ctx, percent)
		if err != nil {
			return nil, err
		}
		for i, v := range got {
			want := make([]float64, len(v))
			for k := range want {
				want[k] = float64(percent[i])
			}
			report.Figures = append(report.Figures, figure(fmt.Sprintf("share of slice %d of %v", i+1, percent), Percent, v).beside("its share", v, want))
		}
	}
	report.Notes = append(report.Notes,
		fmt.Sprintf("goals: p99 of a request within %.0f %% of alone, shares within %.0f %%", 100*(besideLimit-1), 100*shareLimit),
		"a request: two kernels, and a wait for the second; a flood: kernels of a second, and copies of a mebibyte, until the queues are full",
		"a share: the time for which the slice's kernels used the GPU, of the whole time; the rest of 100 % is room for the time between two kernels of a slice")
	return report, nil
}

// besideResult has the values of the probes by round.
type besideResult struct {
	values [][]float64
	mtu    int
}

// openSlices makes a box with a GPU of two slices, two hosts, and a driver for each.
func (o *Options) openSlices(ctx context.Context, percent []int) (*pair, []*opened, error) {
	spec := pairSpec{slots: len(percent), perSwitch: 1, gpu: gpu.Spec{VRAM: int64(len(percent)) * sliceMemory}, policy: o.Policy}
	for _, p := range percent {
		spec.slices = append(spec.slices, sliceSpec{Percent: p})
	}
	p, first, err := o.ready(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	devices := []*opened{first}
	for i := 1; i < len(percent); i++ {
		dev, err := p.open(ctx, i)
		if err != nil {
			return nil, nil, errors.Join(err, closeSlices(p, devices))
		}
		devices = append(devices, dev)
	}
	return p, devices, nil
}

func closeSlices(p *pair, devices []*opened) error {
	var errs []error
	for _, d := range devices {
		errs = append(errs, d.close())
	}
	return errors.Join(append(errs, p.close())...)
}

func (o *Options) measureBeside(ctx context.Context, percent []int) (r *besideResult, err error) {
	p, devices, err := o.openSlices(ctx, percent)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeSlices(p, devices)) }()
	s, err := devices[0].NewStream()
	if err != nil {
		return nil, err
	}
	request := func() error { return sliceRequest(ctx, s) }
	beside := func(copies bool) func(time.Duration) (float64, error) {
		return func(d time.Duration) (v float64, err error) {
			stop, err := startFlood(ctx, devices[1].Device, copies)
			if err != nil {
				return 0, err
			}
			defer func() { err = errors.Join(err, stop()) }()
			return p99(d, request)
		}
	}
	values, err := o.alternate([]probe{
		{"requests alone", func(d time.Duration) (float64, error) { return p99(d, request) }},
		{"requests beside kernels", beside(false)},
		{"requests beside kernels and copies", beside(true)},
	})
	if err != nil {
		return nil, p.explain(err)
	}
	return &besideResult{values, p.mtu}, nil
}

// sliceRequest runs two kernels, one after another, and waits for them.
func sliceRequest(ctx context.Context, s *driver.Stream) error {
	for range 2 {
		if err := s.Launch(ctx, sliceKernel()); err != nil {
			return err
		}
	}
	return s.Sync(ctx)
}

func sliceKernel() reg.Launch {
	return reg.Launch{Kernel: reg.KernelTriad, Type: reg.FP32, A: 0, B: 8 << 20, C: 16 << 20, M: sliceElements, Alpha: 3}
}

// p99 repeats call for about a duration and returns the 99th percentile of its time, in
// µs.
func p99(d time.Duration, call func() error) (float64, error) {
	var v []float64
	for start := time.Now(); time.Since(start) < d; {
		at := time.Now()
		if err := call(); err != nil {
			return 0, err
		}
		v = append(v, float64(time.Since(at).Nanoseconds())/1e3)
	}
	slices.Sort(v)
	return quantile.Of(v, 0.99), nil
}

// startFlood keeps the queues of a slice full of long kernels, and of copies to the
// device, until stop is called.
func startFlood(ctx context.Context, dev *driver.Device, withCopies bool) (stop func() error, err error) {
	kernels, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	copies, err := dev.NewStream()
	if err != nil {
		return nil, errors.Join(err, kernels.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	var flood sync.WaitGroup
	var errs [2]error
	flood.Go(func() {
		long := reg.Launch{Kernel: reg.KernelGEMM, Type: reg.FP32, A: 0, B: 8 << 20, C: 16 << 20, M: 1024, N: 1024, K: 1024, Alpha: 1}
		for ctx.Err() == nil && errs[0] == nil {
			errs[0] = kernels.Launch(ctx, long)
		}
	})
	flood.Go(func() {
		data := make([]byte, 1<<20)
		for withCopies && ctx.Err() == nil && errs[1] == nil {
			errs[1] = copies.Upload(ctx, 32<<20, data)
		}
	})
	return func() error {
		cancel()
		flood.Wait()
		for i := range errs {
			if errors.Is(errs[i], context.Canceled) {
				errs[i] = nil
			}
		}
		return errors.Join(append(errs[:], kernels.Close(), copies.Close())...)
	}, nil
}

// measureShares runs steady kernels in all slices at once, and returns the percentage of
// the time for which each used the GPU, by slice and round.
func (o *Options) measureShares(ctx context.Context, percent []int) (shares [][]float64, err error) {
	p, devices, err := o.openSlices(ctx, percent)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeSlices(p, devices)) }()
	var busy sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	errs := make([]error, len(devices))
	for i, dev := range devices {
		busy.Go(func() { errs[i] = keepBusy(ctx, dev.Device) })
	}
	shares, err = o.readShares(p, len(percent))
	cancel()
	busy.Wait()
	return shares, errors.Join(append(errs, err)...)
}

// readShares asks the box at the beginning and at the end of each round.
func (o *Options) readShares(p *pair, n int) ([][]float64, error) {
	shares := make([][]float64, n)
	for round := range o.Rounds {
		o.Progress("round %d of %d: shares", round+1, o.Rounds)
		var used [2][]float64
		var at [2]time.Time
		for k := range used {
			if k == 1 {
				time.Sleep(time.Until(at[0].Add(o.Duration)))
			}
			at[k] = time.Now()
			for i := range n {
				r, err := p.box.call(request{Used: true, Slot: i})
				if err != nil {
					return nil, p.explain(err)
				}
				used[k] = append(used[k], float64(r.Value))
			}
		}
		for i := range n {
			shares[i] = append(shares[i], 100*(used[1][i]-used[0][i])/float64(at[1].Sub(at[0])))
		}
	}
	return shares, nil
}

// keepBusy runs kernels until ctx ends.
func keepBusy(ctx context.Context, dev *driver.Device) (err error) {
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var last driver.Fence
	for {
		for range 2 { // behind those of the last fence: the GPU does not wait for the host
			if err == nil {
				err = s.Launch(ctx, sliceKernel())
			}
		}
		var f driver.Fence
		if err == nil {
			f, err = s.Fence(ctx)
		}
		if err == nil && last != 0 {
			err = s.Wait(ctx, last)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		last = f
	}
}
