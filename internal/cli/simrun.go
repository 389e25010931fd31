//go:build linux

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/model/cluster"
)

// simFiles are the flags of the commands that run scenarios.
type simFiles struct {
	data, report, csv string
	seeds             int
	allocationTime    bool
}

func (s *simFiles) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.data, "data", "", "folder of the node and pod lists (default: that of the scenario)")
	f.IntVar(&s.seeds, "seeds", 0, "number of runs of each policy (default: that of the scenario)")
	f.BoolVar(&s.allocationTime, "allocation-time", false, "add a table of the time of one allocation on this machine (fill, churn and replay), which differs from run to run")
	f.StringVar(&s.report, "report", "", "write tables and plots to this `file`.html, which needs no other file")
	f.StringVar(&s.csv, "csv", "", "write all tables to this `file`.csv, one line for each cell")
}

// write writes the files that the flags name.
func (s *simFiles) write(r *cluster.Report) error {
	if s.report != "" {
		if err := writeSimReport(s.report, r); err != nil {
			return err
		}
	}
	if s.csv == "" {
		return nil
	}
	var table bytes.Buffer
	if err := r.WriteCSV(&table); err != nil {
		return err
	}
	return atomicfile.Output(s.csv, table.Bytes(), 0o666)
}

// run runs one scenario.
func (s *simFiles) run(ctx context.Context, file string, report func(format string, args ...any)) (*cluster.Report, error) {
	dir, name := filepath.Split(file)
	if dir == "" {
		dir = "."
	}
	data := s.data
	if data == "" {
		data = dir
	}
	if _, err := os.Stat(file); err != nil {
		return nil, err // with the whole path
	}
	e, err := cluster.Load(os.DirFS(dir), name, os.DirFS(data))
	if err != nil {
		var at *fs.PathError
		if errors.As(err, &at) && at.Path == name {
			at.Path = file // a file that is there, and cannot be read
		}
		return nil, err
	}
	if s.seeds != 0 {
		if err := e.SetSeeds(s.seeds); err != nil {
			return nil, usagef("--seeds: %v", err)
		}
	}
	if s.allocationTime {
		start := time.Now()
		e.Clock = func() time.Duration { return time.Since(start) }
	}
	var one sync.Mutex // runs and their parts report
	say := func(format string, args ...any) {
		one.Lock()
		defer one.Unlock()
		report("%s: "+format, append([]any{e.Name}, args...)...)
	}
	e.Doing = func(text string) { say("%s", text) }
	return e.Run(ctx, func(n, of int) { say("%d of %d runs", n, of) })
}

func newSimRunCommand() *cobra.Command {
	var files simFiles
	cmd := valueCommand(&cobra.Command{
		Use: "run SCENARIO", Short: "Run jobs on a cluster, as servers and as a pool", Args: cobra.ExactArgs(1),
		Long: `Run the jobs of a scenario on a cluster, and compare what they get: with servers that
own their GPUs, under the policies of schedulers, and with a pool that gives GPUs of
boxes to any host. The manager's own placement chooses the pool's GPUs.

SCENARIO is a YAML file; scenarios/README.md describes the fields. Its experiment is
one of these:
  fill      jobs arrive and stay, until they ask for more than all GPUs
  churn     jobs come and go at random, with a set load
  replay    jobs come and go at the times of the list
  failures  GPUs, hosts, boxes and proxies fail and are repaired; no jobs
  size      how many servers, or hosts and GPUs, jobs need

It names node and job lists as CSV, which are in the folder --data, or describes
servers and requests itself. Each line is the mean of all seeds. Equal files give equal
results, byte by byte, but for the table of --allocation-time.`,
		Example: `  dxpu sim run scenarios/uniform.yaml
  dxpu sim run scenarios/openb-default.yaml --data ~/openb --report openb.html
  dxpu sim run scenarios/churn.yaml -o json`,
	}, func(cmd *cobra.Command, args []string) (*cluster.Report, error) {
		r, err := files.run(cmd.Context(), args[0], progress(cmd.ErrOrStderr()))
		if err == nil {
			err = files.write(r)
		}
		if err != nil {
			return nil, fmt.Errorf("sim run: %w", err)
		}
		return r, nil
	}, printSimRun)
	files.register(cmd)
	return cmd
}

func newSimCompareCommand() *cobra.Command {
	var files simFiles
	cmd := valueCommand(&cobra.Command{
		Use: "compare SCENARIO SCENARIO", Short: "Run two scenarios and show them side by side", Args: cobra.ExactArgs(2),
		Long: `Run two scenarios, A and B, and show the figures that both have: for A, for B, and the
difference. They have a figure in common if table, line and column have the same name.`,
		Example: `  dxpu sim compare scenarios/uniform.yaml my-servers.yaml
  dxpu sim compare scenarios/churn.yaml my-churn.yaml --report both.html`,
	}, func(cmd *cobra.Command, args []string) (*cluster.Report, error) {
		report := progress(cmd.ErrOrStderr())
		var both [2]*cluster.Report
		for i, file := range args {
			var err error
			if both[i], err = files.run(cmd.Context(), file, report); err != nil {
				return nil, fmt.Errorf("sim compare: %w", err)
			}
		}
		r := cluster.Compare(both[0], both[1])
		if len(r.Tables) == 0 {
			return nil, fmt.Errorf("sim compare: %s and %s have no figure in common: give both the same experiment, and some policies or pools of the same name", args[0], args[1])
		}
		if err := files.write(r); err != nil {
			return nil, fmt.Errorf("sim compare: %w", err)
		}
		return r, nil
	}, printSimRun)
	files.register(cmd)
	return cmd
}

func printSimRun(out io.Writer, r *cluster.Report) {
	if r.Description != "" {
		fmt.Fprintf(out, "%s\n", printable(r.Description))
	}
	for _, f := range r.Facts {
		fmt.Fprintf(out, "%s\n", printable(f))
	}
	for i := range r.Tables {
		t := &r.Tables[i]
		fmt.Fprintf(out, "\n%s\n", t.Title)
		w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(w, "%s\t", t.First)
		for _, c := range t.Columns {
			fmt.Fprintf(w, "%s\t", c.Title)
		}
		fmt.Fprintln(w)
		for _, row := range t.Rows {
			fmt.Fprintf(w, "%s\t", printable(row.Name))
			for k, c := range t.Columns {
				fmt.Fprintf(w, "%s\t", c.Text(row.Values[k]))
			}
			fmt.Fprintln(w)
		}
		w.Flush()
		if t.Note != "" {
			fmt.Fprintf(out, "%s\n", t.Note)
		}
	}
}
