package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Each scenario that comes with the project runs, and says what its description says.
func TestShippedScenarios(t *testing.T) {
	files, err := filepath.Glob("../../scenarios/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			args := []string{"run", file, "-o", "json", "--seeds", "1"}
			if strings.HasSuffix(file, "faults.yaml") {
				t.Skip("it needs InfiniteHBD's list of faults")
			}
			for prefix, folder := range map[string]string{"openb": "DXPU_OPENB", "dlrm": "DXPU_DLRM"} {
				if !strings.HasPrefix(filepath.Base(file), prefix) {
					continue
				}
				data := os.Getenv(folder)
				if data == "" {
					t.Skipf("%s is not set: the folder of Alibaba's list", folder)
				}
				args = append(args, "--data", data)
			}
			out, err := runSim(args...)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(file, "churn") || strings.HasSuffix(file, "queue.yaml") || strings.HasSuffix(file, "worth.yaml") || strings.HasSuffix(file, "failures.yaml") {
				return // the model's own tests look at the figures
			}
			if strings.HasSuffix(file, "dlrm.yaml") {
				started := simColumn(t, out, "use_replay", "gpu_accepted")
				if started["pool"] < 99.99 || started["fgd"] < 99.5 || started["first-fit"] > 50 {
					t.Errorf("started, %% of the GPUs asked for: %v", started)
				}
				return
			}
			at100 := simColumn(t, out, "allocation", "gpu_at_100")
			switch filepath.Base(file) {
			case "uniform.yaml":
				if at100["pool"] != at100["best-fit"] {
					t.Errorf("the pool flatters: %v", at100)
				}
			case "few-processors.yaml", "small-servers.yaml":
				if at100["pool"] < at100["fgd"]+15 {
					t.Errorf("the pool does not help: %v", at100)
				}
			}
		})
	}
}

// simColumn returns a column of a table of a report as JSON, by name of the row.
func simColumn(t *testing.T, out, table, column string) map[string]float64 {
	t.Helper()
	var got struct {
		Tables []struct {
			Name string
			Rows []map[string]any
		}
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&got); err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, tab := range got.Tables {
		for _, row := range tab.Rows {
			if v, ok := row[column].(float64); ok && tab.Name == table {
				values[row["name"].(string)] = v
			}
		}
	}
	return values
}

func TestSimRunText(t *testing.T) {
	out, err := runSim("run", "../../scenarios/small-servers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"180 servers, 480 GPUs; mean of 5 runs", "100 %", "gpu-packing", "pool spread over boxes", "1 % refused at"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if _, err := runSim("run", "no.yaml"); err == nil || !strings.Contains(err.Error(), "no.yaml") {
		t.Errorf("%v", err)
	}
}

// Two runs of a scenario write the same bytes, and the page refers to nothing outside.
func TestSimFiles(t *testing.T) {
	dir := t.TempDir()
	var all [2]string
	for i := range all {
		page, table := filepath.Join(dir, "page.html"), filepath.Join(dir, "table.csv")
		out, err := runSim("run", "../../scenarios/small-servers.yaml", "--report", page, "--csv", table, "-o", "json")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{page, table} {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all[i] += string(b)
		}
		all[i] += out
	}
	if all[0] != all[1] {
		t.Error("two runs differ")
	}
	for _, want := range []string{"<svg", "GPU allocated, % of the cluster", "table,name,column,value", "allocation,fgd,gpu_at_100,"} {
		if !strings.Contains(all[0], want) {
			t.Errorf("no %q in the files", want)
		}
	}
	for _, no := range []string{"src=", "href=\"http", "<script", "@import"} {
		if strings.Contains(all[0], no) {
			t.Errorf("%q in the page", no)
		}
	}
}

// The time of allocations is in a table of its own, and only if it is asked for.
func TestSimAllocationTime(t *testing.T) {
	for _, file := range []string{"small-servers", "queue"} {
		out, err := runSim("run", "../../scenarios/"+file+".yaml", "--seeds", "1", "--allocation-time", "-o", "json")
		if err != nil {
			t.Fatal(err)
		}
		n, mean, longest := simColumn(t, out, "allocation_time", "allocations"), simColumn(t, out, "allocation_time", "mean_us"), simColumn(t, out, "allocation_time", "longest_us")
		if n["pool"] < 1 || mean["pool"] <= 0 || longest["pool"] < mean["pool"] || len(n) < 2 {
			t.Errorf("%s: %v allocations, mean %v, longest %v", file, n, mean, longest)
		}
	}
}

func TestSimCompare(t *testing.T) {
	out, err := runSim("compare", "../../scenarios/uniform.yaml", "../../scenarios/uniform.yaml", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range simColumn(t, out, "allocation", "gpu_at_100_change") {
		if change != 0 {
			t.Errorf("%s: %v between equal scenarios", name, change)
		}
	}
	a, b := simColumn(t, out, "allocation", "gpu_at_100_a"), simColumn(t, out, "allocation", "gpu_at_100_b")
	if len(a) == 0 || a["pool"] != b["pool"] || a["pool"] < 90 {
		t.Errorf("%v and %v", a, b)
	}
}

// An error of a scenario that is there, and cannot be read, names it with its folder. The file
// is one that root cannot read either.
func TestUnreadableScenario(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	if _, err := runSim("run", "/proc/self/mem"); err == nil || !strings.Contains(err.Error(), "/proc/self/mem: input/output error") {
		t.Errorf("%v", err)
	}
}
