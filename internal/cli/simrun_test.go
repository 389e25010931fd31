package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
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
			args := []string{"run", file, "-o", "json"}
			if strings.HasPrefix(filepath.Base(file), "openb") {
				data := os.Getenv("DXPU_OPENB")
				if data == "" {
					t.Skip("DXPU_OPENB is not set: the folder of Alibaba's openb lists")
				}
				args = append(args, "--data", data)
			}
			out, err := runSim(args...)
			if err != nil {
				t.Fatal(err)
			}
			var got simOutcome
			if err := json.NewDecoder(strings.NewReader(out[strings.Index(out, "{"):])).Decode(&got); err != nil {
				t.Fatal(err)
			}
			at100 := map[string]float64{}
			for _, o := range got.Outcomes {
				at100[o.Name] = o.Points[2].GPU
			}
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
