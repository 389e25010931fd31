package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/model/predict"
)

// pathJSON is a part of the critical path's time, by cause.
type pathJSON struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	Time  int64  `json:"time_ns"`
	Added int64  `json:"added_ns"`
}

// printCritical prints what the critical path consists of.
func (a *analysis) printCritical(out io.Writer, top int) {
	a.printPath(out, a.path, "critical path at", top)
	a.printPath(out, a.byRange, "by layer and range at", top)
}

// printPath prints the first lines of sums of the critical path.
func (a *analysis) printPath(out io.Writer, sums []predict.PathSum, title string, top int) {
	var all, added time.Duration
	for _, s := range sums {
		all += s.Time
		added += s.Added
	}
	if top == 0 || all == 0 {
		return
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "\n%s %v\tnumber\ttime\tshare\tadded by the round trip\n", title, a.setting.RTT)
	for i, s := range sums {
		if i == top {
			break
		}
		fmt.Fprintf(t, "%s\t%d\t%v\t%.1f %%\t%v\n", short(s.Name), s.Count, ms(s.Time), percent(s.Time, all), ms(s.Added))
	}
	fmt.Fprintf(t, "all\t\t%v\t100.0 %%\t%v\n", ms(all), ms(added))
	t.Flush()
}

// Processes of the written timeline.
const (
	hostRows = iota + 1
	gpuRows
	pathRow
	rangeRows
)

// chromeEvent is an event of the Trace Event Format, which Perfetto reads. Times are
// microseconds.
type chromeEvent struct {
	Name     string         `json:"name"`
	Phase    string         `json:"ph"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	At       float64        `json:"ts"`
	Duration float64        `json:"dur,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// writeTimeline writes the replayed run with its critical path for Perfetto.
func (a *analysis) writeTimeline(file string, c *predict.Critical) error {
	err := atomicfile.Replace(file, func(f *os.File) error {
		w := bufio.NewWriter(f)
		if _, err := w.WriteString("["); err != nil {
			return err
		}
		first := true
		var failed error
		a.timeline(c, func(e chromeEvent) {
			text, err := json.Marshal(e)
			if err != nil {
				failed = err
			}
			if !first {
				_, _ = w.WriteString(",\n")
			}
			first = false
			_, _ = w.Write(text) // the error stays in w until Flush
		})
		if failed != nil {
			return failed
		}
		_, _ = w.WriteString("]\n")
		return w.Flush()
	})
	if err != nil {
		return fmt.Errorf("--perfetto: %w", err)
	}
	return nil
}

// timeline makes the events of a replay.
func (a *analysis) timeline(c *predict.Critical, emit func(chromeEvent)) {
	w := a.plan.Workload()
	for i, name := range []string{"host, replayed", "GPU, replayed", "critical path", "layers and ranges, by their calls"} {
		emit(chromeEvent{Name: "process_name", Phase: "M", Process: hostRows + i, Args: map[string]any{"name": name}})
	}
	slice := func(name string, process, thread int, from, to time.Duration, args map[string]any) {
		emit(chromeEvent{Name: name, Phase: "X", Process: process, Thread: thread, At: us(from), Duration: us(to - from), Args: args})
	}
	for i := range w.Calls {
		call := &w.Calls[i]
		slice(w.Names[call.Name], hostRows, int(call.Thread), c.CallStart[i], c.CallEnd[i], nil)
	}
	for i := range w.Ops {
		op := &w.Ops[i]
		slice(w.Names[op.Name], gpuRows, int(op.Stream), c.OpStart(int32(i)), c.OpEnd[i], map[string]any{"recorded_us": us(op.Dur)})
	}
	for i, s := range a.plan.RangeIntervals(c) {
		if r := &w.Ranges[i]; s.To >= s.From {
			slice(w.Names[r.Name], rangeRows, int(r.Thread), s.From, s.To, nil)
		}
	}
	for _, part := range c.Parts() {
		name := [...]string{predict.OnHost: "host", predict.Latency: "launch", predict.Return: "return of a wait"}[part.Kind]
		if part.Kind == predict.OnGPU {
			name = w.Names[w.Ops[part.Op].Name]
		}
		slice(name, pathRow, 1, part.From, part.To, map[string]any{"added_us": us(part.Added)})
	}
}
