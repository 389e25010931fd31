//go:build linux

package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/model/cluster"
)

// simOutcome is what sim run prints.
type simOutcome struct {
	Description string            `json:"description,omitempty"`
	Nodes       int               `json:"nodes"`
	GPUs        int               `json:"gpus"`
	Seeds       int               `json:"seeds"`
	Outcomes    []cluster.Outcome `json:"outcomes"`
}

func newSimRunCommand() *cobra.Command {
	var data string
	cmd := valueCommand(&cobra.Command{
		Use: "run SCENARIO", Short: "Fill a cluster with jobs, as servers and as a pool", Args: cobra.ExactArgs(1),
		Long: `Fill a cluster with jobs until their demand exceeds its GPUs, and compare how much of
the GPUs they get: with servers that own their GPUs, under the policies of schedulers,
and with a pool that gives GPUs of boxes to any host. The manager's own placement
chooses the pool's GPUs.

SCENARIO is a YAML file; scenarios/README.md describes the fields. It names node and
pod lists as CSV (those of Alibaba's openb trace, or your own), which are in the folder
--data, or describes servers and requests itself. The jobs come in random order and
stay. Each line is the mean of all seeds; equal files give equal results.`,
		Example: `  dxpu sim run scenarios/uniform.yaml
  dxpu sim run scenarios/openb-default.yaml --data ~/openb -o json`,
	}, func(cmd *cobra.Command, args []string) (simOutcome, error) {
		dir, name := filepath.Split(args[0])
		if dir == "" {
			dir = "."
		}
		if data == "" {
			data = dir
		}
		s, f, err := cluster.Load(os.DirFS(dir), name, os.DirFS(data))
		if err != nil {
			return simOutcome{}, fmt.Errorf("sim run: %w", err)
		}
		report := progress(cmd.ErrOrStderr())
		out, err := s.Run(cmd.Context(), f, func(n, of int) { report("%d of %d runs", n, of) })
		if err != nil {
			return simOutcome{}, fmt.Errorf("sim run: %w", err)
		}
		r := simOutcome{Description: s.Description, Nodes: len(f.Nodes), Seeds: s.Seeds, Outcomes: out}
		for i := range f.Nodes {
			r.GPUs += f.Nodes[i].GPUs
		}
		return r, nil
	}, printSimRun)
	cmd.Flags().StringVar(&data, "data", "", "folder of the node and pod lists (default: that of the scenario)")
	return cmd
}

func printSimRun(out io.Writer, r simOutcome) {
	if r.Description != "" {
		fmt.Fprintf(out, "%s\n", printable(r.Description))
	}
	fmt.Fprintf(out, "%d servers, %d GPUs; mean of %d runs\n\n", r.Nodes, r.GPUs, r.Seeds)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "GPU allocated, %, at a demand of\t")
	for _, p := range r.Outcomes[0].Points {
		fmt.Fprintf(w, "%.0f %%\t", p.Demand)
	}
	fmt.Fprint(w, "1 % refused at\t")
	sizes := r.Outcomes[0].BySize
	for _, s := range sizes {
		fmt.Fprintf(w, "%s\t", sizeName(s.GPUs))
	}
	fmt.Fprintln(w)
	for _, o := range r.Outcomes {
		fmt.Fprintf(w, "%s\t", printable(o.Name))
		for _, p := range o.Points {
			fmt.Fprintf(w, "%.2f\t", p.GPU)
		}
		if o.Refused1 > 0 {
			fmt.Fprintf(w, "%.0f %%\t", o.Refused1)
		} else {
			fmt.Fprint(w, "never\t")
		}
		for _, s := range sizes {
			fmt.Fprintf(w, "%s\t", accepted(o.BySize, s.GPUs))
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	fmt.Fprint(out, "\nThe last columns are the shares of jobs that were accepted, by their number of GPUs.\n")
}

// sizeName names a number of GPUs.
func sizeName(gpus float64) string {
	if gpus == 0.5 {
		return "part"
	}
	return fmt.Sprintf("%.0f", gpus)
}

func accepted(all []cluster.SizeShare, gpus float64) string {
	for _, s := range all {
		if s.GPUs == gpus && s.Pods > 0 {
			return fmt.Sprintf("%.1f %%", 100*float64(s.Accepted)/float64(s.Pods))
		}
	}
	return "-"
}
