package manager

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func gzipped(t *testing.T, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A request of a few kilobytes takes little memory, with any content and from any caller.
func TestBombs(t *testing.T) {
	const report, preview, events = "/dxpu.v1.NodeService/Report", "/dxpu.v1.PoolService/Preview", "/dxpu.v1.PoolService/ListEvents"
	slots := bytes.Repeat([]byte{10<<3 | 2, 0}, (maxRequest-16)/2)
	packed, err := proto.Marshal(&dxpuv1.ListEventsRequest{Filter: &dxpuv1.EventFilter{Types: make([]dxpuv1.EventType, maxRequest-64)}})
	if err != nil {
		t.Fatal(err)
	}
	bombs := []struct {
		name, procedure, contentType string
		plain                        []byte
		want                         string
	}{
		{"empty messages", report, "application/proto", protowire.AppendBytes([]byte{1<<3 | 2}, slots), "elements of lists"},
		{"empty messages in a list of the pool's", preview, "application/proto", bytes.Repeat([]byte{1<<3 | 2, 0}, (maxRequest-16)/2), "elements of lists"},
		{"a packed list", events, "application/proto", packed, "elements of lists"},
		{"empty objects", report, "application/json", []byte(`{"state":{"slots":[{}` + strings.Repeat(",{}", maxRequest/3-16) + "]}}"), "elements of lists"},
		{"a field mask", preview, "application/json", []byte(`{"changes":[{"putTenant":{"updateMask":"a` + strings.Repeat(",a", maxRequest/2-64) + `"}}]}`), "elements of lists"},
		{"spaces", preview, "application/json", bytes.Repeat([]byte{' '}, 64<<20), ""},
	}
	w := newAccessWorld(t)
	for _, b := range bombs {
		for encoding, body := range map[string][]byte{"gzip": gzipped(t, b.plain), "identity": b.plain[:min(len(b.plain), maxRequest)]} {
			for _, caller := range []string{"nobody", "tenant", "operator", "host"} {
				t.Run(strings.Join([]string{b.name, encoding, caller}, "/"), func(t *testing.T) {
					r := httptest.NewRequest(http.MethodPost, b.procedure, bytes.NewReader(body))
					r.RemoteAddr = "192.0.2.7:1"
					r.Header.Set("Content-Type", b.contentType)
					r.Header.Set("Content-Encoding", encoding)
					if secret := w.secrets[caller]; secret != "" {
						r.Header.Set("Authorization", "Bearer "+secret)
					}
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					res := httptest.NewRecorder()
					w.handler.ServeHTTP(res, r)
					runtime.ReadMemStats(&after)
					most := int64(40 << 20) // buffers for the 4 MiB of the largest request
					if encoding == "gzip" {
						most = 4 << 20
					}
					if took := int64(after.TotalAlloc - before.TotalAlloc); took > most {
						t.Errorf("a request of %d bytes took %d bytes of memory", len(body), took)
					}
					want := b.want
					if encoding == "gzip" {
						want = "more than 64 times as large"
					}
					// Of callers that may not make the call, less is read.
					rightful := caller == "host" && b.procedure != events || b.procedure != report && caller != "nobody"
					if got := res.Body.String(); res.Code == http.StatusOK || rightful && !strings.Contains(got, want) {
						t.Errorf("the answer is %d %.200s", res.Code, got)
					}
				})
			}
		}
	}
}

// The elements of encoded requests are counted as those of the decoded ones.
func TestElementsAreCounted(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 5))
	for seed := range 500 {
		m := []proto.Message{&dxpuv1.ReportRequest{}, &dxpuv1.PreviewRequest{}, &dxpuv1.PutTenantRequest{}, &dxpuv1.PlanMaintenanceRequest{}}[seed%4]
		fill(r, m.ProtoReflect(), 6)
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		want := decodedElements(m.ProtoReflect())
		if got := protoElements(raw, m.ProtoReflect().Descriptor(), 1<<30, maxDepth); got != want {
			t.Fatalf("seed %d: %d elements counted, want %d: %v", seed, got, want, m)
		}
		if got := protoElements(raw, m.ProtoReflect().Descriptor(), want/2, maxDepth); want > 0 && got <= want/2 {
			t.Fatalf("seed %d: %d elements counted of %d up to more than %d", seed, got, want, want/2)
		}
		for cut := range min(len(raw), 64) { // no length may be read beyond the end
			protoElements(raw[:len(raw)-cut], m.ProtoReflect().Descriptor(), 1<<30, maxDepth)
		}
		text, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(text, &tree); err != nil {
			t.Fatal(err)
		}
		if got, want := jsonElements(text), treeElements(tree); got != want {
			t.Fatalf("seed %d: %d elements counted, want %d: %s", seed, got, want, text)
		}
	}
}

// decodedElements counts the messages and the elements of lists and maps below a message.
func decodedElements(m protoreflect.Message) (n int) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			n += v.Map().Len()
		case f.IsList():
			n += v.List().Len()
			for i := 0; f.Message() != nil && i < v.List().Len(); i++ {
				n += decodedElements(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			n += 1 + decodedElements(v.Message())
		}
		return true
	})
	return n
}

// treeElements counts one for each object and list, for each further member, and for each comma of a string.
func treeElements(v any) int {
	n := 0
	switch v := v.(type) {
	case map[string]any:
		n = max(1, len(v))
		for key, e := range v {
			n += strings.Count(key, ",") + treeElements(e)
		}
	case []any:
		n = max(1, len(v))
		for _, e := range v {
			n += treeElements(e)
		}
	case string:
		n = strings.Count(v, ",")
	}
	return n
}

// fill sets about half of the fields of a message to random values.
func fill(r *rand.Rand, m protoreflect.Message, depth int) {
	scalar := func(f protoreflect.FieldDescriptor) protoreflect.Value {
		switch f.Kind() {
		case protoreflect.StringKind:
			return protoreflect.ValueOfString([]string{"", "a", `{"b":[1,2],`, `\"`, "ü\n"}[r.IntN(5)])
		case protoreflect.BytesKind:
			return protoreflect.ValueOfBytes([]byte{1, 2})
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(true)
		case protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(protoreflect.EnumNumber(1))
		case protoreflect.DoubleKind:
			return protoreflect.ValueOfFloat64(1.5)
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(r.Int32N(999))
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(r.Int64N(999))
		case protoreflect.Uint64Kind:
			return protoreflect.ValueOfUint64(r.Uint64N(999))
		default:
			return protoreflect.ValueOfUint32(r.Uint32N(999))
		}
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if r.IntN(2) == 0 || depth == 0 || f.FullName() == "google.protobuf.FieldMask.paths" { // JSON has but some values of it
			continue
		}
		switch {
		case f.IsMap():
			values := m.Mutable(f).Map()
			for range r.IntN(3) {
				values.Set(scalar(f.MapKey()).MapKey(), scalar(f.MapValue()))
			}
		case f.IsList():
			list := m.Mutable(f).List()
			for range r.IntN(4) {
				if f.Message() == nil {
					list.Append(scalar(f))
				} else {
					fill(r, list.AppendMutable().Message(), depth-1)
				}
			}
		case f.Message() != nil:
			fill(r, m.Mutable(f).Message(), depth-1)
		default:
			m.Set(f, scalar(f))
		}
	}
}
