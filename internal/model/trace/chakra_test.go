package trace

import (
	"bytes"
	"compress/gzip"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// wire builds a message.
type wire []byte

func (w wire) varint(num protowire.Number, v uint64) wire {
	return protowire.AppendVarint(protowire.AppendTag(w, num, protowire.VarintType), v)
}

func (w wire) text(num protowire.Number, v string) wire {
	return protowire.AppendString(protowire.AppendTag(w, num, protowire.BytesType), v)
}

// attr adds an attribute with an int64, a bool or a string.
func (w wire) attr(name string, v any) wire {
	a := wire{}.text(attrName, name).text(2, "doc")
	switch v := v.(type) {
	case int:
		a = a.varint(attrInt64, uint64(v))
	case bool:
		a = a.varint(attrBool, protowire.EncodeBool(v))
	case string:
		a = a.text(attrString, v)
	}
	return w.text(nodeAttr, string(a))
}

func (w wire) deps(ids ...uint64) wire {
	var packed []byte
	for _, id := range ids {
		packed = protowire.AppendVarint(packed, id)
	}
	return w.text(nodeDataDeps, string(packed))
}

// chakraNodeOf is a node as PyTorch's converter writes it.
func chakraNodeOf(id uint64, name string, kind, micros uint64, host bool, queue int) wire {
	w := wire{}.varint(nodeID, id).text(nodeName, name).varint(nodeType, kind).varint(nodeMicros, micros).text(8, "").attr("is_cpu_op", host)
	if host {
		return w.attr("tid", queue)
	}
	return w.attr("stream", queue)
}

// chakraFile frames messages, behind the metadata of version 1.
func chakraFile(nodes ...wire) []byte {
	out := protowire.AppendBytes(nil, wire{}.text(metadataVersion, "1.0.0"))
	for _, n := range nodes {
		out = protowire.AppendBytes(out, n)
	}
	return out
}

// exampleChakra has two threads, of which the second waits for the first, an operator
// that launches two kernels, one that launches a copy, a collective on another stream that
// waits for a kernel, and an operator that waits for the GPU.
func exampleChakra() []wire {
	return []wire{
		chakraNodeOf(1, "aten::linear", 4, 20, true, 1),
		chakraNodeOf(2, "gemm", 4, 50, false, 7).deps(1),
		chakraNodeOf(3, "bias", 4, 5, false, 7).deps(1),
		chakraNodeOf(4, "aten::copy_", 4, 10, true, 1).deps(1),
		chakraNodeOf(5, "Memcpy HtoD (Pageable -> Device)", 4, 8, false, 7).deps(4),
		chakraNodeOf(6, "backward", 4, 30, true, 2).varint(nodeDataDeps, 4),
		chakraNodeOf(7, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 7, 40, false, 20).deps(6, 3).attr("comm_type", 0).attr("comm_size", 4096).attr("pg_name", "default_pg"),
		chakraNodeOf(8, "aten::item", 4, 2, true, 1).deps(4, 7),
		chakraNodeOf(9, "## process_group:init ##", typeMetadata, 0, false, 7),
	}
}

func readExample(b []byte) (*workload.Workload, error) { return ReadChakra(bytes.NewReader(b)) }

func TestChakra(t *testing.T) {
	w, err := readExample(chakraFile(exampleChakra()...))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"call aten::linear 0s+10µs launch",
		"call aten::linear 10µs+10µs launch",
		"call aten::copy_ 20µs+10µs launch",
		"call aten::item 30µs+85.001µs stream sync stream 20",
		"call backward 30µs+30µs launch",
		"op gemm 20µs+50µs kernel call 0 stream 0.7 bytes 0",
		"op bias 70µs+5µs kernel call 1 stream 0.7 bytes 0",
		"op Memcpy HtoD (Pageable -> Device) 75µs+8µs copy HtoD call 2 stream 0.7 bytes 0",
		"op ncclDevKernel_AllReduce_Sum_f32_RING_LL(args) 75µs+40µs kernel call 4 stream 0.20 bytes 0",
	}
	if d := cmp.Diff(want, describe(w)); d != "" {
		t.Error(d)
	}
	if w.Format != "chakra" || !w.Scheduled || w.Report.Warning() != "" || w.Names[w.Ops[3].Group] != "default_pg" {
		t.Errorf("%+v", w.Report)
	}
}

// Memory nodes are copies with their sizes, recorded starts hold, nodes without a stream
// have one of their kind, and metadata of before version 1.0 is skipped.
func TestChakraOfSimulators(t *testing.T) {
	node := func(id, kind, start, micros uint64) wire {
		return wire{}.varint(nodeID, id).varint(nodeType, kind).varint(nodeStart, start).varint(nodeMicros, micros)
	}
	old := protowire.AppendBytes(nil, wire{}.text(1, string(wire{}.text(attrName, "schema").text(attrString, "1.0.1"))))
	for _, n := range []wire{node(1, typeMemLoad, 1000, 10).attr("tensor_size", 1<<20), node(2, 4, 0, 30).deps(1), node(3, typeColl, 1100, 5).deps(2, 2), node(4, typeMemStore, 0, 7).deps(3, 99)} {
		old = protowire.AppendBytes(old, n)
	}
	if !isChakra(old) {
		t.Error("the file is not recognised")
	}
	w, err := readExample(old)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"op  0s+10µs copy HtoD call -1 stream 0.2 bytes 1048576",
		"op  10µs+30µs kernel call -1 stream 0.0 bytes 0",
		"op  100µs+5µs kernel call -1 stream 0.1 bytes 0",
		"op  105µs+7µs copy DtoH call -1 stream 0.2 bytes 0",
	}
	if d := cmp.Diff(want, describe(w)); d != "" {
		t.Error(d)
	}
	if !slices.Contains(w.Report.Notes, "1 dependencies are on nodes that are not in the file") {
		t.Errorf("%q", w.Report.Notes)
	}
}

func TestChakraThatIsWrong(t *testing.T) {
	kernel := func(id uint64) wire { return chakraNodeOf(id, "k", 4, 5, false, 7) }
	for name, tc := range map[string]struct {
		nodes      []wire
		err, doubt string
		drops      int64
	}{
		"a circle":             {[]wire{kernel(1).deps(2), kernel(2).deps(1), kernel(3)}, "2 nodes depend on each other in a circle", "", 0},
		"itself":               {[]wire{kernel(1).deps(1)}, "in a circle", "", 0},
		"no node":              {nil, "no kernel, copy or memset", "", 0},
		"no time":              {[]wire{chakraNodeOf(1, "k", 4, 0, false, 7)}, "has a duration", "", 0},
		"a time too long":      {[]wire{kernel(1), chakraNodeOf(2, "k", 4, math.MaxUint64, false, 7)}, "more than a year", "", 0},
		"times that overflow":  {[]wire{chakraNodeOf(1, "k", 4, 1<<44, false, 7), chakraNodeOf(2, "k", 4, 1<<44, false, 7)}, "more than a year", "", 0},
		"a start of long ago":  {[]wire{kernel(1).varint(nodeStart, 1), kernel(2).varint(nodeStart, math.MaxUint64)}, "more than a year", "", 0},
		"the same id":          {[]wire{kernel(1), kernel(1)}, "", "1 nodes have the id of another one", 0},
		"a broken node":        {[]wire{kernel(1), wire("\x0a\xff")}, "", "", 1},
		"a broken list":        {[]wire{kernel(1), wire{}.text(nodeDataDeps, "\xff")}, "", "", 1},
		"a broken attribute":   {[]wire{kernel(1), wire{}.text(nodeAttr, "\x0a")}, "", "", 1},
		"an unknown attribute": {[]wire{kernel(1).attr("weight", "heavy").text(100, "new"), wire(protowire.AppendFixed32(protowire.AppendTag(kernel(2), 99, protowire.Fixed32Type), 1))}, "", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := readExample(chakraFile(tc.nodes...))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || w.Report.Dropped() != tc.drops || !strings.Contains(w.Report.Warning(), tc.doubt) {
				t.Errorf("%v, %+v", err, w)
			}
		})
	}
	huge := protowire.AppendVarint(chakraFile(kernel(1)), maxChakraMessage+1)
	if _, err := readExample(huge); err == nil || !strings.Contains(err.Error(), "want at most") {
		t.Errorf("a message of %d bytes: %v", maxChakraMessage+1, err)
	}
}

// A file that is cut off is incomplete, or refused where nothing is left of it.
func TestChakraCutOff(t *testing.T) {
	whole := chakraFile(exampleChakra()...)
	ends := map[int]bool{}
	for n, at := 0, 0; at < len(whole); n++ {
		ends[at] = true
		_, size := protowire.ConsumeBytes(whole[at:])
		at += size
	}
	for n := range whole {
		w, err := readExample(whole[:n])
		if err == nil && w.Report.Incomplete == ends[n] {
			t.Errorf("%d of %d bytes: %+v", n, len(whole), w.Report)
		}
		if err == nil && len(w.Ops) > 4 {
			t.Errorf("%d of %d bytes: %d operations", n, len(whole), len(w.Ops))
		}
	}
}

// The formats are told apart by their contents.
func TestChakraIsRecognised(t *testing.T) {
	example := chakraFile(exampleChakra()...)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(example); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	kernel := chakraNodeOf(1, "k", 4, 5, false, 7)
	for name, tc := range map[string]struct {
		file []byte
		want string
	}{
		"plain":           {example, "chakra"},
		"gzip":            {zipped.Bytes(), "chakra"},
		"empty metadata":  {protowire.AppendBytes([]byte{0}, kernel), "chakra"},
		"attributes only": {append(protowire.AppendBytes(nil, wire{}.text(metadataAttr, string(wire{}.text(attrName, "pid")))), protowire.AppendBytes(nil, kernel)...), "chakra"},
		"JSON":            {[]byte("{\n    \"traceEvents\": [" + kernelA + "]}"), "kineto"},
		"an array":        {[]byte("[" + kernelA + "]"), "kineto"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "trace")
			if err := os.WriteFile(path, tc.file, 0o600); err != nil {
				t.Fatal(err)
			}
			w, err := Open(path, Options{})
			if err != nil || w.Format != tc.want {
				t.Errorf("%+v, %v", w, err)
			}
		})
	}
}

func FuzzReadChakra(f *testing.F) {
	f.Add(chakraFile(exampleChakra()...))
	f.Add(chakraFile(chakraNodeOf(1, "k", 4, 5, false, 7).deps(2), chakraNodeOf(2, "k", 4, 5, true, 7)))
	f.Fuzz(func(t *testing.T, b []byte) {
		isChakra(b)
		w, err := readExample(b)
		if (err == nil) != (w != nil) {
			t.Fatalf("%v and %v", w, err)
		}
		if w == nil {
			return
		}
		for i := range w.Ops {
			if op := &w.Ops[i]; op.Start < 0 || op.Dur < 0 || int(op.Call) >= len(w.Calls) || op.Call != workload.None && w.Calls[op.Call].End() > op.Start {
				t.Fatalf("operation %+v", *op)
			}
		}
		for i := range w.Calls {
			if c := &w.Calls[i]; c.Dur < 0 || i > 0 && w.Calls[i-1].Thread == c.Thread && w.Calls[i-1].End() > c.Start {
				t.Fatalf("call %+v", *c)
			}
		}
	})
}
