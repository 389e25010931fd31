package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"
)

// Usage is the processor time that the parts of a cluster, and other processes, have used.
type Usage map[string]time.Duration

// ProcessorTime returns the processor time that the process has used.
func (p *Process) ProcessorTime() (time.Duration, error) {
	of, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	stat, err := of.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}

// Usage returns the processor time of the cluster's parts and of other processes, by name. It
// leaves out those that have ended.
func (c *Cluster) Usage(others ...*Process) (Usage, error) {
	out := Usage{}
	for _, p := range append(append(c.processes(), c.etcd), others...) {
		used, err := p.ProcessorTime()
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		out[p.name] += used
	}
	return out, nil
}

// Since returns the processor time since an earlier Usage, as a text.
func (u Usage) Since(earlier Usage) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(u)) {
		out = append(out, fmt.Sprintf("%s %.1f s", name, (u[name]-earlier[name]).Seconds()))
	}
	return strings.Join(out, ", ")
}

// Writes returns the number of requests that have changed objects of the cluster, by verb and
// resource.
func (c *Cluster) Writes(ctx context.Context) (map[string]int, error) {
	raw, err := c.Kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		of := map[string]string{}
		for _, l := range m.Label {
			of[l.GetName()] = l.GetValue()
		}
		switch of["verb"] {
		case "POST", "PUT", "PATCH", "DELETE":
			name := of["verb"] + " " + of["resource"]
			if sub := of["subresource"]; sub != "" {
				name += "/" + sub
			}
			out[name] += int(m.Counter.GetValue())
		}
	}
	return out, nil
}
