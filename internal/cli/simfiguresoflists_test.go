package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// The figures of docs/planner.md that need Alibaba's lists, which are not part of the
// project.
func TestPlannerFiguresOfLists(t *testing.T) {
	t.Run("openb", func(t *testing.T) {
		checkFigures(t, openbFigures, folderOf(t, "DXPU_OPENB"))
	})
	t.Run("dlrm", func(t *testing.T) {
		page := "On 430 servers of 8 GPUs and 1,900 without, `fgd` starts 99.7 % of the GPUs\nasked for, `best-fit` 99.6, `gpu-packing` 95.6, `random` 95.1, the pool 100.0. `first-fit` starts 14.7 %"
		checkFigures(t, map[string][]pageFigure{"dlrm": {
			{"fgd 92.88 99.72", page},
			{"best-fit 92.87 99.57", page},
			{"gpu-packing 92.77 95.64", page},
			{"random 92.34 95.14", page},
			{"pool 92.88 100.00", page},
			{"first-fit 31.54 14.70", page},
		}}, folderOf(t, "DXPU_DLRM"))
	})
	t.Run("faults", func(t *testing.T) {
		page := "servers miss 74.1 on average (99 % of the time at most 248), a pool 19.2 (82)"
		checkFigures(t, map[string][]pageFigure{"faults": {
			{"servers 74.1 2.31 56 248", page},
			{"pool 19.2 0.60 12 82", page},
			{"pool, all unclear faults hit boxes 44.5 1.39 27 202", "If all these hit boxes it is 44.5 (202), if none does 2.9 (6)"},
			{"pool, all unclear faults hit hosts 2.9 0.09 3 6", "If all these hit boxes it is 44.5 (202), if none does 2.9 (6)"},
		}}, filepath.Dir(folderOf(t, "DXPU_FAULTS")))
	})
}

// folderOf returns the folder, or the file, that a variable of the environment names.
func folderOf(t *testing.T, variable string) string {
	t.Helper()
	folder := os.Getenv(variable)
	if folder == "" {
		t.Skipf("%s is not set: the folder of the list, or its file", variable)
	}
	return folder
}

var openbFigures = map[string][]pageFigure{
	"openb-whole": {
		{"random 79.33 88.88 96.42", "| random | 96.42 |"},
		{"gpu-packing 80.01 90.01 97.38", "| gpu-packing | 97.38 |"},
		{"first-fit 80.01 90.01 99.66", "| first-fit | 99.66 |"},
		{"best-fit 80.01 90.01 98.93", "| best-fit | 98.93 |"},
		{"fgd 80.01 90.01 99.82", "| fgd | 99.82 |"},
		{"pool 80.01 90.01 99.97", "| pool, one box preferred or required | **99.97** |"},
		{"pool within one box 80.01 90.01 99.97", "| pool, one box preferred or required | **99.97** |"},
		{"pool of 4-GPU boxes 76.37 85.92 95.29", "| pool of 4-GPU boxes | 95.29 |"},
	},
	"openb-default": {
		{"fgd 80.02 90.01 95.23", "FGD 95.23"},
		{"first-fit 80.02 90.01 94.24", "first-fit 94.24"},
		{"best-fit 80.02 90.01 92.88", "best-fit 92.88"},
		{"pool 80.02 90.01 95.94", "**pool 95.94**"},
		{"pool, parts on one host 80.02 90.01 92.92", "pool with parts on one host 92.92"},
		{"pool of whole GPUs 80.02 81.88 81.88", "pool of whole GPUs 81.88"},
	},
	"openb-parts": {
		{"fgd 80.00 86.46 86.56", "FGD 86.56"},
		{"best-fit 80.00 84.41 84.55", "best-fit 84.55"},
		{"pool, parts placed by the manager 80.00 87.00 87.07", "**pool 87.07**"},
		{"pool, parts anywhere 80.00 86.97 87.04", "best fit over the parts of all hosts 87.04"},
		{"pool, parts on one host 80.00 83.30 83.37", "pool with parts on one host 83.37"},
		{"pool of whole GPUs 55.95 55.95 55.95", "pool of whole GPUs 55.95"},
	},
	"openb-models": {
		{"pool blind to models 67.89 75.08 82.30", "82.3 % instead of 95.8 %"},
		{"pool 79.36 87.58 95.82", "82.3 % instead of 95.8 %"},
	},
	"openb-hosts": {
		{"pool 99.91 99.91 99.91 99.91 99.91 95.84 88.40 30", "30 % of the hosts can go; with 65 % of them the pool allocates 95.8 % of the GPUs, with 60 % 88.4 %"},
	},
	"openb-churn": {
		{"random 76.19 84.09", "| random | 84.1, 55 |"},
		{"random 100.0 100.0 100.0 100.0 54.6", "| random | 84.1, 55 |"},
		{"first-fit 86.51 95.69", "| first-fit | 95.7, 88 |"},
		{"best-fit 86.07 90.18", "| best-fit | 94.4, 84 | 90.2, 72 |"},
		{"fgd 91.79 96.19", "| fgd | 96.2, 89 | 96.2, 89 |"},
		{"pool 95.26 99.85", "| pool | 100.0, 100 | 99.9, 100 |"},
		{"pool within one box 94.64 99.33", "| pool within one box | 100.0, 100 | 99.3, 98 |"},
		{"pool of the emptiest boxes 73.18 76.83", "| pool of the emptiest boxes | 78.3, 38 | 76.8, 34 |"},
	},
}
