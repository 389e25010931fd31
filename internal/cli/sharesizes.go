//go:build linux

package cli

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// listFlag is a flag with one value, or with one for each GPU, separated by commas. The flag of
// one value, which each part is given to, is made by one.
func listFlag[V any](typ string, to *[]V, one func(*pflag.FlagSet, *V, string, string)) pflag.Value {
	var texts []string
	return flagValue{typ: typ, set: func(s string) error {
		var out []V
		texts = strings.Split(s, ",")
		for _, text := range texts {
			var v V
			f := pflag.NewFlagSet("", pflag.ContinueOnError)
			one(f, &v, "value", "")
			if err := f.Lookup("value").Value.Set(text); err != nil {
				return err
			}
			out = append(out, v)
		}
		*to = out
		return nil
	}, text: func() string { return strings.Join(texts, ",") }}
}

// sizes returns one size for all GPUs of a share, or one for each.
func (o *sharePart) sizes() ([]agent.Size, error) {
	n := max(len(o.memory), len(o.compute), len(o.limit), 1)
	gpus := max(len(o.gpus), o.count)
	for _, l := range []struct {
		flag string
		n    int
	}{{"gpu-memory", len(o.memory)}, {"compute", len(o.compute)}, {"limit", len(o.limit)}} {
		if l.n > 1 && l.n != gpus {
			return nil, usagef("--%s has %d values: want one, or one for each GPU of --gpu or --gpus", l.flag, l.n)
		}
	}
	const ppm = 1000 // in a thousandth
	out := make([]agent.Size, n)
	for i := range out {
		memory, compute, limit := at(o.memory, i), at(o.compute, i), at(o.limit, i)
		if limit > 0 && limit < compute {
			return nil, usagef("--limit %s is below --compute %s", percentWord(limit), percentWord(compute))
		}
		out[i].Memory = int64(memory)
		if compute > 0 {
			out[i].Compute = new(int64(compute) * ppm)
		}
		if limit > 0 {
			out[i].Limit = new(int64(limit) * ppm)
		}
	}
	return out, nil
}

// at returns an element of a list that may have one for all, or none.
func at[V any](l []V, i int) (v V) {
	switch len(l) {
	case 0:
		return v
	case 1:
		return l[0]
	}
	return l[i]
}

// sizeWords returns memory, compute and limit of a share: one of each, or one for each GPU
// where they differ.
func sizeWords(s *agent.Share) (memory, compute, limit string) {
	var m, c, l []string
	for i := range s.Parts {
		if p := &s.Parts[i]; !p.Leaving {
			m, c, l = append(m, size(uint64(p.Memory))), append(c, ppmWord(p.Compute)), append(l, ppmWord(p.Limit))
		}
	}
	if len(m) == 0 { // of an agent before those with several sizes, or a share that ends
		return size(uint64(s.Memory)), ppmWord(s.Compute), ppmWord(s.Limit)
	}
	return oneOrAll(m), oneOrAll(c), oneOrAll(l)
}

func oneOrAll(words []string) string {
	if all := slices.Compact(slices.Clone(words)); len(all) == 1 {
		return all[0]
	}
	return strings.Join(words, ",")
}
