package cli

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// partFlags are the flags that describe a part of a GPU.
type partFlags struct {
	part  dxpuv1.Part
	rules dxpuv1.PartRules
}

func (o *partFlags) register(f *pflag.FlagSet) {
	memoryVar(f, &o.part.MemoryBytes, "gpu-memory", "memory of a part of each GPU, such as 16GiB, instead of whole GPUs; with --compute")
	computeVar(f, &o.part.Compute, "compute", "share of the compute of a part, such as 30%; with --gpu-memory")
	enumVar(f, &o.part.Class, "class", "class of the work on a part: online (bounded latency) or offline")
	enumVar(f, &o.part.Share, "share", "how the parts share their GPU: space, time or partition (default: any that the GPU has)")
	f.StringVar(&o.rules.Affinity, "affinity", "", "`label`: parts of the tenant with the same one are on the same GPU")
	f.StringVar(&o.rules.AntiAffinity, "anti-affinity", "", "`label`: parts of the tenant with the same one are never on the same GPU")
	f.StringVar(&o.rules.Exclusion, "exclusion", "", "`label`: the GPU has only parts of the tenant with the same one")
	f.StringVar(&o.rules.Workload, "workload", "", "`name` of the program, for its measured interference with others")
}

// apply adds the part to a spec, if a flag describes one.
func (o *partFlags) apply(s *dxpuv1.LeaseSpec) {
	if o.part.MemoryBytes != 0 || o.part.Compute != 0 || o.part.Class != 0 || o.part.Share != 0 {
		s.Part = &o.part
	}
	if o.rules.Affinity != "" || o.rules.AntiAffinity != "" || o.rules.Exclusion != "" || o.rules.Workload != "" {
		s.PartRules = &o.rules
	}
}

// computeVar adds a flag for a share of the compute, in per cent.
func computeVar(f *pflag.FlagSet, v *uint32, name, help string) {
	f.Var(flagValue{typ: "share", set: func(s string) (err error) {
		*v, err = parseCompute(s)
		return err
	}, text: func() string {
		if *v == 0 {
			return ""
		}
		return percentWord(*v)
	}}, name, help)
}

// parseCompute parses a share in per cent, such as "30%" or "12.5%", to thousandths.
func parseCompute(s string) (uint32, error) {
	number, ok := strings.CutSuffix(s, "%")
	if !ok {
		return 0, withHint(fmt.Errorf("%q has no unit", s), "write it like 30%%")
	}
	v, err := strconv.ParseFloat(number, 64)
	n := math.Round(v * 10)
	if err != nil || !(n >= 1 && n <= 1000) || math.Abs(v*10-n) > 1e-6 {
		return 0, withHint(fmt.Errorf("%q is not a share of 0.1%% to 100%%, in tenths of a per cent", s), "write it like 30%%")
	}
	return uint32(n), nil
}

func percentWord(thousandths uint32) string {
	return strconv.FormatFloat(float64(thousandths)/10, 'f', -1, 64) + "%"
}

// partWord returns a part as "16 GiB, 30%, online", "" for whole GPUs.
func partWord(p *dxpuv1.Part) string {
	if p == nil {
		return ""
	}
	return size(p.MemoryBytes) + ", " + percentWord(p.Compute) + ", " + enumWord(p.Class)
}

// partsWord returns the parts of a lease as "16 GiB, 30%, online, of each of 2 GPUs", "" for
// whole GPUs.
func partsWord(s *dxpuv1.LeaseSpec) string {
	if s.Part == nil || s.Count == 1 {
		return partWord(s.Part)
	}
	return fmt.Sprintf("%s, of each of %d GPUs", partWord(s.Part), s.Count)
}

// leasesOn returns the lease of a GPU, or those of its parts.
func leasesOn(g *dxpuv1.GPU) string {
	if len(g.Parts) == 0 {
		return g.LeaseId
	}
	var out []string
	for _, p := range g.Parts {
		out = append(out, p.LeaseId)
	}
	return strings.Join(out, ",")
}

// roomWord returns the room for more parts of a GPU that has some.
func roomWord(g *dxpuv1.GPU) string {
	if len(g.Parts) == 0 {
		return ""
	}
	return size(g.FreeMemoryBytes) + ", " + percentWord(g.FreeCompute)
}

func describeParts(w io.Writer, g *dxpuv1.GPU) {
	if len(g.Device.GetShareModes()) > 0 {
		var modes []string
		for _, m := range g.Device.ShareModes {
			modes = append(modes, enumWord(m))
		}
		fmt.Fprintf(w, "parts   %d, room for %d more: %s and %s of the compute; shared by %s\n",
			len(g.Parts), g.FreeParts, size(g.FreeMemoryBytes), percentWord(g.FreeCompute), strings.Join(modes, ", "))
	}
	if len(g.Parts) == 0 {
		return
	}
	t := newTable(w, "PART", "MEMORY", "COMPUTE", "CLASS", "SHARE", "LEASE", "TENANT", "HOST")
	for _, p := range g.Parts {
		t.row(p.Id, bytesCell(p.Part.GetMemoryBytes()), percentWord(p.Part.GetCompute()), enumWord(p.Part.GetClass()), enumWord(p.Part.GetShare()),
			p.LeaseId, p.Tenant, p.HostId)
	}
	t.flush()
}

// readInterference reads the slow-downs of programs from a file.
func readInterference(name string) (placement.Interference, error) {
	raw, err := readAtMost(name, maxFlagFile)
	if err != nil {
		return nil, err
	}
	out, err := parseInterference(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

// parseInterference parses lines of PROGRAM,BESIDE,SLOWDOWN.
func parseInterference(r io.Reader) (placement.Interference, error) {
	lines := csv.NewReader(r)
	lines.FieldsPerRecord, lines.TrimLeadingSpace, lines.Comment = 3, true, '#'
	out := placement.Interference{}
	for {
		row, err := lines.Read()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		at, _ := lines.FieldPos(0)
		pair := [2]string{row[0], row[1]}
		if _, twice := out[pair]; twice {
			return nil, fmt.Errorf("line %d: %s beside %s is there twice", at, row[0], row[1])
		}
		if out[pair], err = parseCompute(row[2]); err != nil {
			return nil, fmt.Errorf("line %d: %w", at, err)
		}
	}
}
