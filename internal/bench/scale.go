package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dxpu-project/dxpu/device/gpu"
)

// scaleSize is the largest size of one copy of a binding.
const scaleSize = 1 << 20

// Scale measures the total bandwidth of several concurrent bindings on one pair of
// proxies, beside that of the smallest number of them, and the memory of an idle
// binding.
func Scale(ctx context.Context, o Options) (report *Report, err error) {
	o = o.withDefaults()
	most := slices.Max(o.Bindings)
	p, err := o.newPair(ctx, pairSpec{slots: most, gpu: gpu.Spec{Tags: dmaTags}, memory: 128 << 20})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	o.Progress("attach %d devices", most)
	host, box, err := p.idleMemory(most)
	if err != nil {
		return nil, err
	}
	var copiers []*copier
	for i := range most {
		dev, err := p.open(ctx, i)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, dev.close()) }()
		c, err := newCopier(ctx, dev.Device, min(o.Size, scaleSize))
		if err != nil {
			return nil, err
		}
		copiers = append(copiers, c)
	}
	var probes []probe
	for _, way := range []struct {
		name string
		way
	}{{"device to host", deviceToHost}, {"host to device", hostToDevice}} {
		for _, n := range o.Bindings {
			probes = append(probes, way.probe(fmt.Sprintf("%s, %d bindings", way.name, n), copiers[:n]...))
		}
	}
	values, err := o.alternate(probes)
	if err != nil {
		return nil, p.explain(err)
	}
	report = o.report("scale", p.mtu)
	for i, pr := range probes {
		f := figure(pr.name, GigabytesSecond, values[i])
		if one := i - i%len(o.Bindings); one != i {
			f = f.beside(fmt.Sprintf("bindings: %d", o.Bindings[0]), values[i], values[one])
		}
		report.Figures = append(report.Figures, f)
	}
	report.Figures = append(report.Figures,
		figure("memory of an idle binding, host proxy", Bytes, []float64{host}),
		figure("memory of an idle binding, box proxy", Bytes, []float64{box}))
	report.Notes = append(report.Notes,
		"total of all bindings; the host proxy is two virtual switches of 32 slots behind one socket",
		"memory: heap and stacks after garbage collection, with all bindings up and idle less without any")
	return report, nil
}

// idleMemory attaches all bindings and returns the memory of each in bytes.
func (p *pair) idleMemory(n int) (host, box float64, err error) {
	hostBefore, boxBefore, err := p.memory()
	if err != nil {
		return 0, 0, err
	}
	if err := p.attach(n); err != nil {
		return 0, 0, err
	}
	hostAfter, boxAfter, err := p.memory()
	per := func(before, after uint64) float64 { return max(0, float64(after)-float64(before)) / float64(n) }
	return per(hostBefore, hostAfter), per(boxBefore, boxAfter), err
}

func (p *pair) memory() (host, box uint64, err error) {
	r, err := p.box.call(request{Memory: true})
	return processMemory(), r.Value, err
}
