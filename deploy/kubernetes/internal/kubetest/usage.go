package kubetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Usage is the processor time that the parts of a cluster, and other processes, have used.
type Usage map[string]time.Duration

// ticks is the number of units of /proc/PID/stat in a second, on all architectures of Linux.
const ticks = 100

// ProcessorTime returns the processor time that the process has used.
func (p *Process) ProcessorTime() (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", p.cmd.Process.Pid, len(fields))
	}
	var sum int64
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks, nil
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
	out := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		labels, ok := strings.CutPrefix(line, "apiserver_request_total{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(labels, "} ")
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, err
		}
		of := map[string]string{}
		for l := range strings.SplitSeq(labels, ",") {
			name, text, _ := strings.Cut(l, "=")
			of[name] = strings.Trim(text, `"`)
		}
		switch of["verb"] {
		case "POST", "PUT", "PATCH", "DELETE":
			name := of["verb"] + " " + of["resource"]
			if sub := of["subresource"]; sub != "" {
				name += "/" + sub
			}
			out[name] += int(n)
		}
	}
	return out, nil
}
