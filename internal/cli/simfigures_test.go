package cli

import (
	"os"
	"strings"
	"testing"
)

// A pageFigure is a row that a scenario prints, and the words of the page that
// give the row.
type pageFigure struct {
	row  string // begin of a row, its columns separated by one space each
	page string
}

// The figures of docs/planner.md that need no foreign list are those that the
// scenarios print. The others need the lists, and are in [TestPlannerFiguresOfLists].
func TestPlannerFigures(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes it eight times slower; scripts/norace.sh runs it")
	}
	checkFigures(t, map[string][]pageFigure{
		"few-processors": {
			{"random 70.33 70.58 70.58", "instead of\n  70.6 to 74.8 % in `few-processors.yaml`"},
			{"gpu-packing 74.75 74.75 74.75", "70.6 to 74.8 %"},
			{"pool 80.12 90.10 99.85", "99.9 % instead"},
		},
		"small-servers": {
			{"fgd 94.4 96.1 96.3 0.0", "jobs of 8 GPUs in `small-servers.yaml`, of which servers accept none"},
			{"pool 75.7 74.6 74.7 84.0", "wins much"},
		},
		"churn": {
			{"best-fit 91.95 94.64", "as much as `best-fit` within one box"},
			{"pool within one box 91.95 94.64", "as much as `best-fit` within one box"},
			{"pool 93.45 96.90", "2.3 points more at a load of 95 % if a job may spread over boxes (96.9 % of the GPUs asked for)"},
		},
		"size": {
			{"first-fit 66 528 - - 99.09 73.0 32 6,089,952 0.0", "| first-fit, best-fit | 66 | 528 | 73.0 | 32 |"},
			{"best-fit 66 528 - - 99.20 73.0 32 6,089,952 0.0", "| first-fit, best-fit | 66 | 528 | 73.0 | 32 |"},
			{"fgd 96 768 - - 99.09 50.2 40", "| fgd, which does not look at processors | 96 | 768 | 50.2 | 40 |"},
			{"pool 74 504 63 63 99.49 84.3 16 6,009,360 1.3", "| pool | 74 | 504 (63 boxes) | 84.3 | 16 |"},
			{"pool within one box 74 536 67 67 99.09 79.1 17 6,341,364 -4.1", "| pool within one box | 74 | 536 (67 boxes) | 79.1 | 17 |"},
		},
		"failures": {
			{"servers, 99 % 24 24", "| 99 % | 24, 24 | 9, 9 |"},
			{"pool, 99 % 9 9", "| 99 % | 24, 24 | 9, 9 |"},
			{"servers, 99.9 % 32 32", "| 99.9 % | 32, 32 | 16, 17 |"},
			{"pool, 99.9 % 16 17", "| 99.9 % | 32, 32 | 16, 17 |"},
			{"servers, 99.99 % 40 40", "| 99.99 % | 40, 40 | 18, 18 |"},
			{"pool, 99.99 % 18 18", "| 99.99 % | 40, 40 | 18, 18 |"},
			// The servers lose 28,115 + 16,896 + 2,703 GPU hours, the pool 3,514 + 2,703 + 2,703.
			{"GPU fails 26.6 132.0 8 1 28,115 3,514", "failures takes 47,714 GPU hours of the servers and 8,920 of the pool"},
			{"host fails 16.0 132.0 8 0 16,896 0", "47,714 GPU hours"},
			{"box fails 2.6 132.0 8 8 2,703 2,703", "47,714 GPU hours"},
			{"proxy fails 2.6 132.0 0 8 0 2,703", "(2,703 of them)"},
			// 6,144 + 512, and 102 + 512.
			{"host software upgrade 768.0 1.0 8 0 6,144 0", "A year of upgrades takes 6,656 and 614"},
			{"proxy upgrade 128.0 0.1 0 8 0 102", "6,656 and 614"},
			{"box firmware upgrade 64.0 1.0 8 8 512 512", "6,656 and 614"},
		},
	}, "")
}

// checkFigures runs each scenario, with the lists of the folder if it is not empty,
// and compares what it prints with the figures.
func checkFigures(t *testing.T, scenarios map[string][]pageFigure, folder string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/planner.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, figures := range scenarios {
		t.Run(name, func(t *testing.T) {
			args := []string{"run", "../../scenarios/" + name + ".yaml"}
			if folder != "" {
				args = append(args, "--data", folder)
			}
			out, err := runSim(args...)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range figures {
				if !strings.Contains(inRows(out), "\n"+f.row+" ") {
					t.Errorf("no row %q in\n%s", f.row, out)
				}
				if !strings.Contains(string(page), f.page) {
					t.Errorf("docs/planner.md does not say %q", f.page)
				}
			}
		})
	}
}

// The figures of the network are those that the commands beside them print.
func TestNetworkFigures(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes it eight times slower; scripts/norace.sh runs it")
	}
	page, err := os.ReadFile("../../docs/planner.md")
	if err != nil {
		t.Fatal(err)
	}
	printed := map[string]string{}
	for _, c := range []struct{ command, row, page string }{
		{"network", "1 1 2.64 GB/s 2.31 GB/s 2.31 GB/s", "| 1 | 2.31 GB/s | 2.31 GB/s | 2.64 GB/s |"},
		{"network", "8 1 2.64 GB/s 1.51 GB/s 12.1 GB/s", "| 8 | 1.51 GB/s | 12.1 GB/s | |"},
		{"packets", "8 1 1 2.64 GB/s 2.49 GB/s to 2.51 GB/s 20.0 GB/s", "one GPU 2.63 GB/s (Equation 1 says 2.64), eight 20.0 GB/s"},
		{"packets --gpus 1", "1 1 1 2.64 GB/s 2.63 GB/s 2.63 GB/s 0.00 B/s 6.829µs", "6.8 µs | 6.83 µs | +0.4 %"},
		{"packets --gpus 1 --wire-time 0s", "1 1 1 3.65 GB/s 3.63 GB/s 3.63 GB/s", "3.66 GB/s | 3.63 GB/s | −0.9 %"},
		{"packets --gpus 1 --in 0 --out 1MiB", "1 1 1 2.64 GB/s 12.2 GB/s 0.00 B/s 12.2 GB/s", "11.6 GB/s | 12.2 GB/s | +5.1 %"},
		{
			"packets --gpus 16 --box-gpus 1 --host-gpus 16 --in 0 --out 1MiB --tlps 8 --buffer 256KiB --mark 64KiB",
			"16 1 16 2.64 GB/s 1.36 GB/s to 1.56 GB/s 0.00 B/s 24.2 GB/s 6.021µs 6.909µs 47353 0 0", "24.2 GB/s, 6.9 µs at 99 %, nothing dropped",
		},
		{
			"packets --gpus 8 --paths 2 --fail-after 1ms --detect 100us --time 2ms",
			"8 GPUs: 20.0 GB/s before the failure of a path, 10.0 GB/s after it; no data for a GPU for up to 117.734µs", "has no data for 118 µs",
		},
		{tableTwelve, "1 1 1 2.64 GB/s 2.21 GB/s 1.44 GB/s 767 MB/s", "1.5, 1.4 GB/s | 1.44 GB/s | −4.0, +2.9 % | 0.8, 0.7 GB/s | 0.77 GB/s | −4.1, +9.6 %"},
		{tableTwelve, "2 1 1 2.64 GB/s 1.95 GB/s to 2.00 GB/s 2.66 GB/s 1.29 GB/s", "2.6, 2.6 GB/s | 2.66 GB/s | +2.3 % | 1.3, 1.3 GB/s | 1.29 GB/s | −0.8 %"},
		{tableTwelve, "4 1 1 2.64 GB/s 1.81 GB/s to 1.83 GB/s 4.99 GB/s 2.29 GB/s", "4.9, 5.0 GB/s | 4.99 GB/s | +1.8, −0.2 % | 2.3, 2.3 GB/s | 2.29 GB/s | −0.4 %"},
		{tableTwelve, "8 1 1 2.64 GB/s 1.46 GB/s to 1.52 GB/s 8.27 GB/s 3.67 GB/s", "8.4, 8.3 GB/s | 8.27 GB/s | −1.5, −0.4 % | 3.6, 3.6 GB/s | 3.67 GB/s | +1.9 %"},
	} {
		if printed[c.command] == "" {
			if printed[c.command], err = runSim(strings.Fields(c.command)...); err != nil {
				t.Fatal(err)
			}
		}
		if !strings.Contains(inRows(printed[c.command]), "\n"+c.row+" ") {
			t.Errorf("%s: no row %q in\n%s", c.command, c.row, printed[c.command])
		}
		if !strings.Contains(string(page), c.page) {
			t.Errorf("docs/planner.md does not say %q", c.page)
		}
	}
}

// The command of docs/planner.md for the paper's Table 12.
const tableTwelve = "packets --gpus 1,2,4,8 --in-process 180 --in 308KiB --shared-in 112KiB --out 132KiB --shared-out 90KiB --compute 132us --time 40ms"

// inRows returns the lines of a table with one space between columns, each after a
// line feed and before a space.
func inRows(out string) string {
	var rows strings.Builder
	for line := range strings.Lines(out) {
		rows.WriteString("\n" + strings.Join(strings.Fields(line), " ") + " ")
	}
	return rows.String()
}
