package trace

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// kinetoWaits is the trace of testdata/waits.sql in the profiler's form; sync are its
// synchronisation records.
func kinetoWaits(sync string) string {
	var b strings.Builder
	b.WriteString(`{"traceEvents":[`)
	call := func(name string, ts, dur float64, corr int) {
		fmt.Fprintf(&b, `{"ph":"X","cat":"cuda_runtime","name":%q,"pid":5,"tid":6,"ts":%g,"dur":%g,"args":{"correlation":%d}},`, name, ts, dur, corr)
	}
	kernel := func(ts, dur float64, stream, corr int) {
		fmt.Fprintf(&b, `{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":%d,"ts":%g,"dur":%g,"args":{"stream":%d,"device":0,"correlation":%d}},`, stream, ts, dur, stream, corr)
	}
	call("cudaLaunchKernel", 1, 1, 1)
	call("cudaEventRecord", 2, .1, 10)
	call("cudaLaunchKernel", 3, 1, 2)
	call("cudaEventRecord", 4, .1, 3)
	call("cudaStreamWaitEvent", 4.2, .1, 4)
	call("cudaLaunchKernel", 5, 1, 5)
	call("cudaEventRecord", 6, .1, 6)
	call("cudaStreamWaitEvent", 6.2, .1, 7)
	call("cudaLaunchKernel", 7, 1, 8)
	call("cudaEventSynchronize", 9, 43, 9)
	kernel(10, 10, 7, 1)
	kernel(21, 9, 7, 2)
	kernel(32, 18, 20, 5)
	kernel(60, 10, 7, 8)
	b.WriteString(sync + "]}")
	return b.String()
}

const kinetoSyncs = `
{"ph":"X","cat":"cuda_sync","name":"Stream Wait Event","pid":0,"tid":20,"ts":4.2,"dur":0.1,"args":{"stream":20,"wait_on_stream":7,"wait_on_cuda_event_record_corr_id":3,"wait_on_cuda_event_id":5,"correlation":4,"device":0}},
{"ph":"X","cat":"cuda_event","name":"cudaEventRecord","pid":0,"tid":20,"ts":6,"dur":0.1,"args":{"stream":20,"correlation":6,"device":0}},
{"ph":"X","cat":"cuda_sync","name":"Stream Wait Event","pid":0,"tid":7,"ts":6.2,"dur":0.1,"args":{"stream":7,"wait_on_stream":-1,"wait_on_cuda_event_record_corr_id":6,"wait_on_cuda_event_id":6,"correlation":7,"device":0}},
{"ph":"X","cat":"cuda_sync","name":"Event Sync","pid":0,"tid":-1,"ts":9,"dur":43,"args":{"stream":4294967295,"wait_on_stream":20,"wait_on_cuda_event_record_corr_id":6,"wait_on_cuda_event_id":6,"correlation":9,"device":0}}`

// A trace tells which operation of another stream each cudaStreamWaitEvent waits
// for; without these records the order of the calls tells it.
func TestStreamsThatWait(t *testing.T) {
	read := map[string]func() (*workload.Workload, error){
		"nsys": func() (*workload.Workload, error) { return Open("testdata/waits.sqlite", Options{}) },
		"kineto": func() (*workload.Workload, error) {
			return ReadKineto(strings.NewReader(kinetoWaits(kinetoSyncs)), Options{})
		},
		"calls only": func() (*workload.Workload, error) {
			s := strings.TrimSuffix(kinetoWaits(""), ",]}") + "]}"
			return ReadKineto(strings.NewReader(s), Options{})
		},
	}
	for name, open := range read {
		t.Run(name, func(t *testing.T) {
			w, err := open()
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff([]workload.Wait{{Op: 2, On: 1}, {Op: 3, On: 2}}, w.Waits); d != "" {
				t.Error(d)
			}
			sync := w.Calls[len(w.Calls)-1]
			if want := map[bool]int32{true: workload.None, false: 2}[name == "calls only"]; sync.Event != want {
				t.Errorf("the synchronisation waits for operation %d, want %d", sync.Event, want)
			}
			if len(w.Calls) != 5 || w.Report.Dropped() != 0 {
				t.Errorf("%d calls, %s", len(w.Calls), w.Report.Warning())
			}
		})
	}
}

// A wait that the recorded times contradict is left out and said.
func TestWaitThatDidNotHappen(t *testing.T) {
	wrong := strings.Replace(kinetoSyncs, `"stream":20,"wait_on_stream":7,"wait_on_cuda_event_record_corr_id":3`,
		`"stream":7,"wait_on_stream":20,"wait_on_cuda_event_record_corr_id":6`, 1)
	file := strings.Replace(kinetoWaits(wrong), `"ts":32,"dur":18`, `"ts":32,"dur":48`, 1)
	w, err := ReadKineto(strings.NewReader(file), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Waits) != 0 || !slices.ContainsFunc(w.Report.Notes, func(s string) bool { return strings.Contains(s, "contradict the recorded times") }) {
		t.Errorf("%v, %q", w.Waits, w.Report.Notes)
	}
}

// The profiler's own time is read from both of its tables and joined.
func TestOverheads(t *testing.T) {
	w, err := Open("testdata/overhead.sqlite", Options{})
	if err != nil {
		t.Fatal(err)
	}
	first := w.Calls[0]
	want := []workload.Overhead{{Thread: first.Thread, Start: first.Start + time.Microsecond, Dur: 900 * time.Nanosecond}}
	if d := cmp.Diff(want, w.Overheads); d != "" || w.Report.Dropped() != 0 {
		t.Error(d, w.Report.Warning())
	}
}
