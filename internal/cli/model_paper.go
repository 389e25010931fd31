package cli

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
)

func newModelPaperCommand() *cobra.Command {
	var asJSON, notes bool
	cmd := &cobra.Command{
		Use: "paper", Short: "Compare the model with every figure of the paper", Args: cobra.NoArgs,
		Long: `Compare the model with every figure of the paper that it can compute.

Each row gives the role of the figure: input (the model uses it), fitted (a
constant was chosen to meet it and others), checked (the model does not know it),
bound (the model gives only an upper bound), or that the paper does not give
enough input; such rows have no model value. Deviations are in points for
percentages and in per cent of the paper's figure for other units.`,
		Example: `  dxpu model paper --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), struct {
					Fit  paper.Fit   `json:"fit"`
					Rows []paper.Row `json:"rows"`
				}{paper.Fitted(), paper.Compare()})
			}
			return printPaper(cmd.OutOrStdout(), notes)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&notes, "notes", true, "print how each value was obtained")
	return cmd
}

func printPaper(out io.Writer, notes bool) error {
	f := paper.Fitted()
	fmt.Fprintf(out, `Cost of one kernel in us = fixed part + %.3f x dRTT, with the fixed part
  %.2f  of the paper's software model: Figure 4 at 8 us and 19 us (fits the slope too)
  %.2f  of its hardware, synthetic input: Table 9, training, XLA off, batch 32 and 128
  %.2f  of its hardware, real input: the same rows of ImageNet
Table 4 does not name its input: its 89.56 %% agrees with Table 9's 89.4 %%
for ImageNet and not with 92.7 %% for synthetic input, so it is compared with the third part.

`, f.Slope, f.Model, f.Synthetic, f.Real)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	where := ""
	sums := map[paper.Use]int{}
	var deviation float64
	var points int
	for _, r := range paper.Compare() {
		if r.Where != where {
			where = r.Where
			fmt.Fprintf(w, "%s\tpaper\tmodel\tdeviation\tuse\n", where)
		}
		sums[r.Use]++
		model, dev := "-", "-"
		if r.HasModel() {
			model, dev = fmt.Sprintf("%.2f", r.Model), fmt.Sprintf("%+.2f", r.Deviation())
		}
		if r.Use == paper.Checked && r.Unit == "%" {
			deviation += math.Abs(r.Deviation())
			points++
		}
		note := ""
		if notes && r.Note != "" {
			note = ": " + r.Note
		}
		fmt.Fprintf(w, "  %s\t%.2f %s\t%s\t%s\t%s%s\n", r.What, r.Paper, r.Unit, model, dev, r.Use, note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d figures: %d checked (mean deviation of the %d percentages %.2f points), %d fitted, %d bounds, %d inputs, %d without enough input\n",
		sums[paper.Checked]+sums[paper.FitUse]+sums[paper.Bound]+sums[paper.Input]+sums[paper.Unknown],
		sums[paper.Checked], points, deviation/float64(max(points, 1)), sums[paper.FitUse], sums[paper.Bound], sums[paper.Input], sums[paper.Unknown])
	return nil
}
