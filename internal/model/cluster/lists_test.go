package cluster

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestWrongLists(t *testing.T) {
	const nodes, pods = "name,cpu_milli,memory_mib,gpu,model\n", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
	for _, tc := range [][2]string{
		{"", "no header"},
		{"a,b\n", "no column name or sn"},
		{nodes, "no nodes"},
		{nodes + "a,1,1,x,\n", `line 2: gpu "x"`},
		{nodes + "a,1,1,99,\n", `line 2: node "a": 99 GPUs`},
		{nodes + "a,1,1\n", "line 2: 3 columns: want 5"},
		{nodes + "a,1,,8,\n", "line 2: memory_mib is empty"},
		{nodes + "a,1,1,0.5,\n", "line 2: gpu 0.5: want a whole number"},
		{"name,name,cpu_milli,memory_mib,gpu\n", "two columns name"},
		{nodes + "a,1,1,-1,\n", `gpu "-1"`},
		{nodes + "a,1e300,1,1,\n", `cpu_milli "1e300"`},
		{nodes + "a,1e13,1,1,\n", `cpu_milli "1e13"`},
		{nodes + "a,1,1,0,\n", "has a GPU"},
		{nodes + "a,1,1,1,\nb,1,1,1,\na,1,1,1,\n", `line 4: name "a" is in line 2, too`},
		{nodes + "a,1,1,1," + strings.Repeat("m", 257) + "\n", "line 2: model has 257 bytes: want at most 256"},
	} {
		text, want := tc[0], tc[1]
		if _, err := ReadNodes(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for _, tc := range [][2]string{
		{pods, "no pods"},
		{pods + "a,1,1,2,500\n", "2 GPUs of 500 thousandths"},
		{pods + "a,1,1,1,0\n", "1 GPUs of 0 thousandths"},
		{pods + "a,1,1,0,0\n", "asks for a GPU"},
		{pods + "a,NaN,1,1,1\n", `cpu_milli "NaN"`},
		{pods + "a,1,1,1,1000\nb,1,1,32,1000\n", `line 3: pod "b": 32 GPUs`},
		{pods + "a,1,1,1,\n", "line 2: gpu_milli is empty"},
		{pods + "a,1,1,1,0.5\n", "line 2: gpu_milli 0.5: want a whole number"},
		{pods + ",1,1,1,1000\n,1,1,1,1000\n\"a\",1,1,1,5\na,1,1,1,5\n", `line 5: name "a" is in line 4, too`},
		{pods + "a,1,1,0.5,1000\n", "line 2: num_gpu 0.5: want a whole number"},
		{pods + "a,1,1,1,1000,\n", "line 2: 6 columns: want 5"},
		{strings.ReplaceAll(pods, "\n", ",creation_time,deletion_time\n") + "a,1,1,1,1000,7,6\n", "line 2: pod \"a\": deleted at 6 s"},
		{strings.ReplaceAll(pods+"a,1,1,1,1000\n", "\n", "\r"), "CR alone"},
		{strings.ReplaceAll(pods, ",", ";"), "separated by commas"},
		{"\xff\xfen\x00a\x00", "UTF-8"},
	} {
		text, want := tc[0], tc[1]
		if _, err := ReadPods(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// endless is a file that repeats a text without end, and counts what is read of it.
type endless struct {
	text string
	read int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		n += copy(p[n:], e.text[(e.read+n)%len(e.text):])
	}
	e.read += n
	return n, nil
}

// A line without end is refused before it fills the memory, a quoted field with many lines
// of text, too.
func TestEndlessLine(t *testing.T) {
	const header = "name,cpu_milli,memory_mib,gpu,model\n"
	for _, tc := range []struct{ start, text string }{
		{"", "name,"}, {header, "a"}, {header + "a,1,1,8,\n", ","}, {header + "\"", "a\n"}, {header + "a,\"", "\"\""},
	} {
		in := &endless{text: strings.Repeat(tc.text, 1024)}
		_, err := ReadNodes(io.MultiReader(strings.NewReader(tc.start), in))
		if err == nil || !strings.Contains(err.Error(), "a line of more than 1048576 bytes") || in.read > 2*maxLine {
			t.Errorf("%q and then %q: %v after %d bytes", tc.start, tc.text, err, in.read)
		}
	}
	long := "x,name,cpu_milli,memory_mib,gpu\n"
	for i := range 4 {
		long += fmt.Sprint(strings.Repeat("x", maxLine/2), ",", i, ",1,1,8\n")
	}
	if nodes, err := ReadNodes(strings.NewReader(long)); err != nil || len(nodes) != 4 {
		t.Errorf("%d nodes in lines of half the length: %v", len(nodes), err)
	}
}

// Lists of other sources: other columns, in another order, with other ends of lines.
func TestOddLists(t *testing.T) {
	want := []Pod{{Name: "a,b", MilliCPU: 500, MemoryMiB: 1, GPUs: 1, MilliGPU: 460, Models: "A|B C"}, {}}
	for _, text := range []string{
		"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n\"a,b\",499.6,1,1,460,A | B C\n,0,0,0,1000,\n",
		"\ufeff\"name\",\"cpu_milli\",\"memory_mib\",\"num_gpu\",\"gpu_milli\",\"gpu_spec\"\r\n\"a,b\",\"500\",\"1\",\"1\",\"460\",\"A|B C\"\r\n\"\",\"0\",\"0\",\"0\",\"1000\",\"\"",
		"\ufeffx,GPU_SPEC , Num_GPU,memory_mib,cpu_milli,gpu_milli,name\r\n,A|B C,1.0,1,500,460,\"a,b\"\r\n\r\n,,0,0,0,1000,\r\n",
	} {
		pods, err := ReadJobs(strings.NewReader("\n"+text), JobDefaults{})
		if strings.HasPrefix(text, "\ufeff") {
			pods, err = ReadJobs(strings.NewReader(text), JobDefaults{})
		}
		if err != nil || fmt.Sprint(pods) != fmt.Sprint(want) {
			t.Errorf("%q: %v: %+v, want %+v", text, err, pods, want)
		}
	}
}

// First-fit takes the first server of the list that fits, whatever the names.
func TestFirstOfTheList(t *testing.T) {
	nodes, err := ReadNodes(strings.NewReader("sn,cpu_milli,memory_mib,gpu,model\nn-2,9,9,0,\nn-10,9,9,4,\nn-1,9,9,4,\n"))
	if err != nil {
		t.Fatal(err)
	}
	nodes = withGPUs(nodes)
	order := orderOf("first-fit", nodes, rngOf(1, 3))
	if got := newFirstFit(nodes); order[0].Name != "n-10" || got.place[&nodes[0]] != 0 {
		t.Errorf("%v, %v", order, got)
	}
}

// The report says which jobs can never start, and why.
func TestMisfits(t *testing.T) {
	nodes := []Node{{GPUs: 8, MilliCPU: 10, MemoryMiB: 10, Model: "A"}, {GPUs: 2, MilliCPU: 90, MemoryMiB: 90, Model: "A"}, {GPUs: 4, MilliCPU: 1, MemoryMiB: 1, Model: "B"}}
	pods := []Pod{
		{GPUs: 8, MilliGPU: Milli, MilliCPU: 10},
		{GPUs: 1, MilliGPU: 5, MilliCPU: 90, Models: "A|C"},
		{MilliCPU: 90, Models: "C"},
		{GPUs: 1, MilliGPU: Milli, Models: "C"},
		{GPUs: 8, MilliGPU: Milli, Models: "B"},
		{GPUs: 9, MilliGPU: Milli},
		{GPUs: 8, MilliGPU: Milli, MilliCPU: 11},
		{MilliCPU: 91},
	}
	if got, want := countMisfits(nodes, slices.Repeat(pods, 2)), (misfits{models: 2, gpus: 4, other: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r := run(t, `
servers: [{count: 4, gpus: 8, cores: 8, memory-gib: 8, model: A}]
requests: [{weight: 3, gpus: 1, models: B}, {weight: 2, gpus: 1}]
policies: [fgd]
seeds: 1
`)
	if want := "3 of the 5 jobs fit on no server, not even an empty one: 3 accept no model that a server has"; !slices.Contains(r.Facts, want) {
		t.Errorf("%q, want %q", r.Facts, want)
	}
}

// A list without times cannot be replayed.
func TestReplayWithoutTimes(t *testing.T) {
	_, err := load(t, "experiment: replay\nnodes: nodes.csv\npods: pods.csv\npolicies: [fgd]\n")
	if err == nil || !strings.Contains(err.Error(), "pods.csv: the list has no times") {
		t.Errorf("%v", err)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for _, tc := range []struct {
		v        float64
		decimals int
		want     string
	}{{0, 0, "0"}, {999, 0, "999"}, {-999, 1, "-999.0"}, {1000, 0, "1,000"}, {-1000, 1, "-1,000.0"}, {-123456, 0, "-123,456"}, {1234567.891, 2, "1,234,567.89"}, {none, 0, "-"}} {
		if got := (Column{Decimals: tc.decimals}).Text(tc.v); got != tc.want {
			t.Errorf("%v with %d decimals: %q, want %q", tc.v, tc.decimals, got, tc.want)
		}
	}
	if one, two := count(1, "run"), count(2, "run"); one != "1 run" || two != "2 runs" {
		t.Errorf("%q, %q", one, two)
	}
}
