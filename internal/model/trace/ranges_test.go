package trace

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// rangesIn describes the ranges of a workload.
func rangesIn(w *workload.Workload) (out []string) {
	for _, r := range w.Ranges {
		out = append(out, w.Names[r.Name]+" "+r.Start.String()+" "+r.Dur.String())
	}
	return out
}

// Annotations of the program and calls of its layers are ranges; steps, operators and other
// functions are not.
func TestRangesOfKineto(t *testing.T) {
	w, err := ReadKineto(strings.NewReader(`[
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":1,"tid":2,"ts":0,"dur":100},
{"ph":"X","cat":"python_function","name":"nn.Module: Conv2d_\u0033","pid":1,"tid":2,"ts":10,"dur":20,"args":{"Python id":3}},
{"ph":"X","cat":"python_function","name":"train.py(7): main","pid":1,"tid":2,"ts":0,"dur":90},
{"ph":"X","cat":"python_function","name":"nn.Module: ","pid":1,"tid":2,"ts":0,"dur":90},
{"ph":"X","cat":"python_function","name":"nn.Module: broken","pid":1,"tid":2,"ts":"soon","dur":90},
{"ph":"X","cat":"cpu_op","name":"aten::conv2d","pid":1,"tid":2,"ts":10,"dur":5},
{"ph":"X","cat":"user_annotation","name":"forward","pid":1,"tid":2,"ts":10,"dur":60},
{"ph":"X","cat":"gpu_user_annotation","name":"forward","pid":0,"tid":7,"ts":12,"dur":60},
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":12,"dur":1,"args":{"correlation":5}},
{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":14,"dur":3,"args":{"device":0,"stream":7,"correlation":5}}]`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := "forward 10µs 60µs|Conv2d_3 10µs 20µs"
	if got := strings.Join(rangesIn(w), "|"); got != want || len(w.Steps) != 1 || w.Report.Dropped() != 1 {
		t.Errorf("%s, want %s; %d steps, %d dropped", got, want, len(w.Steps), w.Report.Dropped())
	}
}

func TestWithoutNumbers(t *testing.T) {
	for text, want := range map[string]string{
		"aten::copy_, op_id = 7": "aten::copy_", "aten::mm, seq = 3, op_id = 7": "aten::mm", "layer 3": "layer 3", ", seq = 1": "",
	} {
		if got := withoutNumbers(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestRangesOfNsys(t *testing.T) {
	f, err := os.Open("testdata/small.sqlite")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	w, err := ReadSQLite(f, st.Size(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Ranges) != 1 || w.Names[w.Ranges[0].Name] != "aten::view" || w.Ranges[0].Dur != time.Microsecond || len(w.Steps) != 2 {
		t.Errorf("%v and %d steps, want aten::view and 2", rangesIn(w), len(w.Steps))
	}
}
