package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// describe prints the steps, calls and operations of a workload, one a line.
func describe(w *workload.Workload) []string {
	var out []string
	for _, s := range w.Steps {
		out = append(out, fmt.Sprintf("step %s %v+%v", s.Name, s.Start, s.Dur))
	}
	for _, c := range w.Calls {
		st := ""
		if c.Stream != workload.None {
			st = fmt.Sprintf(" stream %d", w.Streams[c.Stream].ID)
		}
		out = append(out, fmt.Sprintf("call %s %v+%v %v%s", w.Names[c.Name], c.Start, c.Dur, c.Kind, st))
	}
	for _, o := range w.Ops {
		out = append(out, fmt.Sprintf("op %s %v+%v %v call %d stream %d.%d bytes %d", w.Names[o.Name], o.Start, o.Dur, o.Kind, o.Call,
			w.Streams[o.Stream].Device, w.Streams[o.Stream].ID, o.Bytes))
	}
	return out
}

func TestFormatOf2021(t *testing.T) {
	w, err := Open("testdata/2021.json", Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"step ProfilerStep#5 0s+200µs",
		"call cudaMemcpyAsync 10µs+30µs copy",
		"call cudaLaunchKernel 50µs+8µs launch",
		"call cudaDeviceSynchronize 70µs+16µs device sync",
		"op Memcpy HtoD (Pageable -> Device) 20µs+15µs copy HtoD call 0 stream 0.7 bytes 4096",
		"op void k<float>(int) 60µs+20µs kernel call 1 stream 0.7 bytes 0",
		"op Memset (Device) 100µs+1µs memset call -1 stream 0.7 bytes 512",
	}
	if d := cmp.Diff(want, describe(w)); d != "" {
		t.Error(d)
	}
	if w.Report.Dropped() != 0 || w.Report.Orphans != 1 || w.Devices[0] != "Test GPU" || w.Format != "kineto" {
		t.Errorf("%+v %v", w.Report, w.Devices)
	}
}

func TestFormatOf2025(t *testing.T) {
	w, err := Open("testdata/2025.json", Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"step ProfilerStep#0 0s+200.5µs",
		"call cudaGraphLaunch 7.124µs+10.25µs graph launch",
		"call cuLaunchKernelEx 19.999µs+4µs launch",
		"call cudaMemcpyAsync 26.999µs+3µs copy",
		"call cudaStreamSynchronize 30.999µs+14µs stream sync stream 7",
		`op fused_é\u0041/x 22.499µs+3.072µs graph kernel call 0 stream 0.7 bytes 0`,
		"op plain 25.999µs+3µs graph kernel call 0 stream 0.7 bytes 0",
		"op triton_poi 29.122µs+10µs kernel call 1 stream 0.20 bytes 0",
		"op Memcpy DtoH (Device -> Pinned) 39.499µs+2.4µs copy DtoH call 2 stream 0.7 bytes 4",
	}
	if d := cmp.Diff(want, describe(w)); d != "" {
		t.Error(d)
	}
	if w.Report.Dropped() != 0 {
		t.Error(w.Report.Warning())
	}
}

const kernelA = `{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":10,"dur":2,"args":{"stream":7,"device":0,"correlation":1}}`

// Each case is a file that yields exactly one kernel "a".
func TestVariants(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		dropped    int64
		warning    string
	}{
		{"plain", `{"traceEvents":[` + kernelA + `]}`, 0, ""},
		{"bare array", `[` + kernelA + `]`, 0, ""},
		{"array without end", `[` + kernelA + `,`, 1, "truncated"},
		{"byte order mark", "\xef\xbb\xbf" + `{"traceEvents":[` + kernelA + `]}`, 0, ""},
		{"keys after", `{"traceEvents":[` + kernelA + `],"baseTimeNanoseconds":1,"x":{"y":["]}"]}}`, 0, ""},
		{"big value before", `{"stats":{"deep":[[[["` + strings.Repeat("]", 100) + `"]]]]},"traceEvents":[` + kernelA + `]}`, 0, ""},
		{"args first", `{"traceEvents":[{"args":{"stream":7,"device":0,"correlation":1,"grid":[1,2,{"x":"}"}]},"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":10,"dur":2}]}`, 0, ""},
		{"no args", `{"traceEvents":[{"ph":"X","cat":"Kernel","name":"a","pid":0,"tid":"stream 7","ts":10,"dur":2}]}`, 0, ""},
		{"quoted numbers", `{"traceEvents":[{"ph":"X","cat":"kernel","name":"a","pid":"0","tid":"7","ts":"10","dur":"2"}]}`, 0, ""},
		{"trailing commas", `{"traceEvents":[` + kernelA[:len(kernelA)-2] + `,},},]}`, 0, ""},
		{"other phases", `{"traceEvents":[{"ph":"B","cat":"cpu_op","name":"x","ts":1},{"ph":"i","cat":"kernel"},{},` + kernelA + `]}`, 0, ""},
		{"kernel in two parts", `{"traceEvents":[{"ph":"B","cat":"kernel","name":"x","ts":1},{"ph":"E","cat":"kernel","ts":2},` + kernelA + `]}`, 1, "begin and end"},
		{"no time", `{"traceEvents":[{"ph":"X","cat":"kernel","name":"x","pid":0,"tid":7,"dur":1},` + kernelA + `]}`, 1, "ts or dur"},
		{"time is no number", `{"traceEvents":[{"ph":"X","cat":"kernel","name":"x","pid":0,"tid":7,"ts":null,"dur":1},` + kernelA + `]}`, 1, "ts or dur"},
		{"negative duration", `{"traceEvents":[{"ph":"X","cat":"kernel","name":"x","pid":0,"tid":7,"ts":1,"dur":-1},` + kernelA + `]}`, 1, "negative"},
		{"no stream", `{"traceEvents":[{"ph":"X","cat":"kernel","name":"x","ts":1,"dur":1},` + kernelA + `]}`, 1, "stream"},
		{"no thread", `{"traceEvents":[{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","ts":1,"dur":1},` + kernelA + `]}`, 1, "thread"},
		{"quote inside a name", `{"traceEvents":[{"ph":"X","cat":"kernel","name":"x"y","ts":1,"dur":1},` + kernelA + `]}`, 1, "not valid JSON"},
		{"missing colon", `{"traceEvents":[{"ph" "X"},` + kernelA + `]}`, 1, "not valid JSON"},
		{"number for an event", `{"traceEvents":[17,` + kernelA + `]}`, 1, "not valid JSON"},
		{"braces missing", `{"traceEvents":["ph":"X","cat":"kernel",` + kernelA + `]}`, 1, "not valid JSON"},
		{"too deep", `{"traceEvents":[{"ph":"X","args":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `},` + kernelA + `]}`, 1, "not valid JSON"},
		{"cut in an event", `{"traceEvents":[` + kernelA + `,{"ph":"X","na`, 1, "truncated"},
		{"cut after an event", `{"traceEvents":[` + kernelA, 1, "truncated"},
		{"cut in a later key", `{"traceEvents":[` + kernelA + `],"x":"yy`, 1, "truncated"},
		{"zero bytes behind it", `{"traceEvents":[` + kernelA + "]}\x00\x00", 0, ""},
		{"two documents", `{"traceEvents":[` + kernelA + `]}{"traceEvents":[` + kernelA + `]}`, 0, "the rest of the file was not read"},
		{"year 2600", `{"traceEvents":[{"ph":"X","cat":"kernel","name":"x","pid":0,"tid":7,"ts":19880000000000000,"dur":1},` + kernelA + `]}`, 1, "ts or dur"},
	} {
		for _, small := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", tc.name, small), func(t *testing.T) {
				var r io.Reader = strings.NewReader(tc.file)
				if small {
					r = iotest.OneByteReader(r)
				}
				w, err := ReadKineto(r, Options{})
				if err != nil {
					t.Fatal(err)
				}
				if len(w.Ops) != 1 || w.Names[w.Ops[0].Name] != "a" || w.Ops[0].Dur != 2*time.Microsecond {
					t.Errorf("%q", describe(w))
				}
				if w.Report.Dropped() != tc.dropped || !strings.Contains(w.Report.Warning(), tc.warning) {
					t.Errorf("%d dropped, want %d: %q", w.Report.Dropped(), tc.dropped, w.Report.Warning())
				}
			})
		}
	}
}

func TestNoTrace(t *testing.T) {
	for name, file := range map[string]string{
		"empty": "", "text": "hello", "number": "17", "object": `{"a":1}`, "events are no array": `{"traceEvents":{}}`,
		"broken before": `{"a" 1,"traceEvents":[]}`, "elf": "\x7fELF", "gzip of nothing": string(zip(nil)), "string": `"x"`,
	} {
		w, err := ReadKineto(strings.NewReader(file), Options{})
		if !errors.Is(err, ErrFormat) || w != nil {
			t.Errorf("%s: %v, %v", name, w, err)
		}
	}
	for name, file := range map[string]string{"no events": `{"traceEvents":[]}`, "empty array": `[]`, "only the CPU": `[{"ph":"X","cat":"cpu_op"}]`} {
		if w, err := ReadKineto(strings.NewReader(file), Options{}); err == nil || !strings.Contains(err.Error(), "no kernel") || w != nil {
			t.Errorf("%s: %v, %v", name, w, err)
		}
	}
	if _, err := ReadKineto(iotest.ErrReader(errors.New("disk failure")), Options{}); err == nil || !strings.Contains(err.Error(), "disk failure") {
		t.Errorf("a read error: %v", err)
	}
	if _, err := Open("testdata/nothing", Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func zip(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b)
	_ = z.Close()
	return out.Bytes()
}

func TestGzip(t *testing.T) {
	plain, err := os.ReadFile("testdata/2021.json")
	if err != nil {
		t.Fatal(err)
	}
	want, err := ReadKineto(bytes.NewReader(plain), Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadKineto(bytes.NewReader(zip(plain)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(describe(want), describe(got)); d != "" {
		t.Error(d)
	}
	broken := zip(plain)
	broken[len(broken)-6] ^= 1 // the checksum
	got, err = ReadKineto(bytes.NewReader(broken), Options{})
	if err != nil || !strings.Contains(got.Report.Warning(), "checksum") {
		t.Errorf("a wrong checksum: %v, %v", got, err)
	}
	cut := zip(plain)
	if got, err = ReadKineto(bytes.NewReader(cut[:len(cut)-30]), Options{}); err == nil && got.Report.Dropped() == 0 {
		t.Error("a truncated gzip file was not reported")
	}
}

// Reading any prefix of a trace does not panic and reports that it is truncated.
func TestTruncationAtEachLengthOfJSON(t *testing.T) {
	for _, name := range []string{"testdata/2021.json", "testdata/2025.json"} {
		plain, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		plain = bytes.TrimSpace(plain)
		for n := range plain {
			w, err := ReadKineto(bytes.NewReader(plain[:n]), Options{})
			if err == nil && (w.Report.Dropped() == 0 || !w.Report.Incomplete) {
				t.Fatalf("%s, %d of %d bytes: no report of the truncation", name, n, len(plain))
			}
			if err != nil && w != nil {
				t.Fatalf("%s, %d bytes: a workload and an error", name, n)
			}
		}
	}
}

// An event larger than the window is dropped.
func TestHugeEvent(t *testing.T) {
	huge := io.MultiReader(
		strings.NewReader(`{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"`),
		io.LimitReader(zeros{}, maxWindow+1000),
		strings.NewReader(`"},`+kernelA+`]}`))
	w, err := ReadKineto(huge, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Ops) != 1 || w.Report.Dropped() == 0 {
		t.Errorf("%d operations, %s", len(w.Ops), w.Report.Warning())
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '0'
	}
	return len(b), nil
}

func TestStepPrefix(t *testing.T) {
	file := `[{"ph":"X","cat":"user_annotation","name":"epoch 3","pid":1,"tid":1,"ts":1,"dur":50},` + kernelA + `]`
	w, err := ReadKineto(strings.NewReader(file), Options{StepPrefix: "epoch "})
	if err != nil || len(w.Steps) != 1 {
		t.Errorf("%v, %v", w, err)
	}
}

// A trace of gigabytes has millions of events, so parse must not allocate.
func TestParseAllocatesNothing(t *testing.T) {
	var e event
	b := []byte(kernelA)
	if n := testing.AllocsPerRun(100, func() {
		if _, st := e.parse(b); st != done || !e.wanted() {
			t.Fatal(st)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzReadKineto(f *testing.F) {
	for _, name := range []string{"testdata/2021.json", "testdata/2025.json"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`[` + kernelA + `]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := ReadKineto(bytes.NewReader(b), Options{})
		if (err == nil) != (w != nil) {
			t.Fatalf("%v and %v", w, err)
		}
		if w == nil {
			return
		}
		for i := range w.Ops {
			if op := &w.Ops[i]; op.Start < 0 || op.Dur < 0 || int(op.Call) >= len(w.Calls) {
				t.Fatalf("operation %+v", *op)
			}
		}
	})
}

func BenchmarkReadKineto(b *testing.B) {
	var file bytes.Buffer
	file.WriteString(`{"traceEvents":[`)
	for i := range 20000 {
		fmt.Fprintf(&file, `{"ph":"X","cat":"cpu_op","name":"aten::empty_strided","pid":100,"tid":100,"ts":%d.125,"dur":3.25,"args":{"External id":%d,"Record function id":0,"Sequence number":12,"Ev Idx":%d}},`+"\n", i*20, i, i)
		fmt.Fprintf(&file, `{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":100,"tid":100,"ts":%d.5,"dur":5.125,"args":{"External id":%d,"cbid":211,"correlation":%d}},`+"\n", i*20+4, i, i+1)
		fmt.Fprintf(&file, `{"ph":"X","cat":"kernel","name":"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int)","pid":0,"tid":7,"ts":%d.25,"dur":6.5,"args":{"External id":%d,"queued":0,"device":0,"context":1,"stream":7,"correlation":%d,"registers per thread":16,"shared memory":0,"blocks per SM":0.5,"warps per SM":1.0,"grid":[40,1,1],"block":[64,1,1],"est. achieved occupancy %%":3}},`+"\n", i*20+8, i, i+1)
	}
	file.WriteString(`{}]}`)
	b.SetBytes(int64(file.Len()))
	for b.Loop() {
		if _, err := ReadKineto(bytes.NewReader(file.Bytes()), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// The ranks of a job in one file use the same correlation numbers.
func TestSeveralProcesses(t *testing.T) {
	const rank = `{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":%d,"tid":1,"ts":%d,"dur":2,"args":{"correlation":1}},` +
		`{"ph":"X","cat":"kernel","name":"k","pid":%d,"tid":7,"ts":%d,"dur":2,"args":{"device":%d,"stream":7,"correlation":1}}`
	file := `{"traceEvents":[` + fmt.Sprintf(rank, 100, 10, 0, 16, 0) + `,` + fmt.Sprintf(rank, 200, 12, 1, 20, 1) + `]}`
	w, err := ReadKineto(strings.NewReader(file), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Threads) != 2 || len(w.Report.Doubts) != 1 || !strings.Contains(w.Report.Warning(), "2 of 2 operations have a correlation number that several processes used") {
		t.Errorf("%d threads, %q", len(w.Threads), w.Report.Warning())
	}
}

// Queries until the work has ended are a wait, and a copy tells whether its memory is
// pageable.
func TestKinetoQueriesAndPageableMemory(t *testing.T) {
	const file = `{"traceEvents":[
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":5,"tid":6,"ts":1,"dur":1,"args":{"correlation":1}},
{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":7,"dur":10,"args":{"stream":7,"device":0,"correlation":1}},
{"ph":"X","cat":"cuda_runtime","name":"cudaEventQuery","pid":5,"tid":6,"ts":10,"dur":1,"args":{"correlation":2}},
{"ph":"X","cat":"cuda_runtime","name":"cudaEventQuery","pid":5,"tid":6,"ts":13,"dur":1,"args":{"correlation":3}},
{"ph":"X","cat":"cuda_runtime","name":"cudaEventQuery","pid":5,"tid":6,"ts":16,"dur":2,"args":{"correlation":4}},
{"ph":"X","cat":"cuda_runtime","name":"cudaMemcpyAsync","pid":5,"tid":6,"ts":20,"dur":12,"args":{"correlation":5}},
{"ph":"X","cat":"gpu_memcpy","name":"Memcpy DtoH (Device -> Pageable)","pid":0,"tid":7,"ts":27,"dur":2,"args":{"stream":7,"device":0,"correlation":5,"bytes":4}}]}`
	w, err := ReadKineto(strings.NewReader(file), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Calls) != 3 || w.Calls[1].Kind != workload.StreamSync || w.Calls[1].Dur != 8*time.Microsecond || !w.Ops[1].Pageable || w.Ops[0].Pageable || w.Ops[1].Call != 2 {
		t.Errorf("%+v, %+v", w.Calls, w.Ops)
	}
}
