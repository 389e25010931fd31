package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/bench"
)

func TestBenchPlacement(t *testing.T) {
	var out, stderr bytes.Buffer
	args := strings.Fields("bench placement --gpus 64,200 --hosts 10 --decisions 50 --scans 50 --json")
	if code := Main(args, strings.NewReader(""), &out, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	var r bench.PlacementReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 2*11+4 {
		t.Errorf("%d rows", len(r.Rows))
	}
	for _, row := range r.Rows {
		if row.IndexP50 <= 0 || row.IndexP99 < row.IndexP50 {
			t.Errorf("%+v", row)
		}
	}
	if printPlacement(&out, &r); !strings.Contains(out.String(), "8, spread over boxes") {
		t.Errorf("printed %s", out.String())
	}
}

func TestBenchPlacementRefuses(t *testing.T) {
	for _, args := range []string{"--gpus 1", "--hosts 0", "--decisions 0", "--scans 0"} {
		var out, stderr bytes.Buffer
		if code := Main(strings.Fields("bench placement "+args), strings.NewReader(""), &out, &stderr); code != exitUsage {
			t.Errorf("%s: exit code %d", args, code)
		}
	}
}
