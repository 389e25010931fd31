package manager

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// maxElements bounds the messages, list elements and map entries of a request. A
	// megabyte of empty messages takes 150 MB in memory, and compressed it is a kilobyte on
	// the network, so they are counted before they are decoded. A preview of 32 leases has ten thousand.
	maxElements = 1 << 14
	// maxReportElements is for a report: maxSlots slots have less than a hundred each.
	maxReportElements = 1 << 17
	// maxDepth bounds the nesting of a request; the API needs eight levels.
	maxDepth = 32
)

var errNoMessage = errors.New("manager: not a message of the API")

// strictCodecs replaces connect's own codecs by those that bound what they decode.
func strictCodecs() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithCodec(strictProto{}), connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}),
		connect.WithCompression("gzip", func() connect.Decompressor { return &boundedGzip{} }, func() connect.Compressor { return gzip.NewWriter(io.Discard) }))
}

// checkElements returns an error if an encoded request has too many elements. count is
// called only for a request that is long enough: an element takes a byte.
func checkElements(raw []byte, m proto.Message, count func(limit int) int) error {
	limit := maxElements
	if _, ok := m.(*dxpuv1.ReportRequest); ok {
		limit = maxReportElements
	}
	if len(raw) > limit && count(limit) > limit {
		return fmt.Errorf("the request has more than %d messages and elements of lists and maps", limit)
	}
	return nil
}

// strictProto encodes and decodes protocol buffers.
type strictProto struct{}

func (strictProto) Name() string { return "proto" }

func (p strictProto) Marshal(v any) ([]byte, error) { return p.MarshalAppend(nil, v) }

// MarshalAppend lets connect reuse its buffers.
func (strictProto) MarshalAppend(b []byte, v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, errNoMessage
	}
	return proto.MarshalOptions{}.MarshalAppend(b, m)
}

func (strictProto) Unmarshal(raw []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return errNoMessage
	}
	count := func(limit int) int { return protoElements(raw, m.ProtoReflect().Descriptor(), limit, maxDepth) }
	if err := checkElements(raw, m, count); err != nil {
		return err
	}
	return proto.UnmarshalOptions{RecursionLimit: maxDepth}.Unmarshal(raw, m)
}

// protoElements counts the messages and the elements of lists and maps of an encoded
// message, and stops beyond a limit, or where the encoding is broken.
func protoElements(raw []byte, d protoreflect.MessageDescriptor, limit, depth int) (n int) {
	for len(raw) > 0 && n <= limit && depth > 0 {
		number, kind, size := protowire.ConsumeField(raw)
		if size < 0 {
			break
		}
		field := raw[:size]
		raw = raw[size:]
		f := d.Fields().ByNumber(number)
		if f == nil || f.Message() == nil && !f.IsList() {
			continue
		}
		if kind != protowire.BytesType {
			n++
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		value, _ := protowire.ConsumeBytes(field[tag:])
		if f.Message() == nil {
			n += listElements(f.Kind(), value)
			continue
		}
		n += 1 + protoElements(value, f.Message(), limit-n, depth-1)
	}
	return n
}

// listElements returns the number of elements of a field of a list: those of a packed
// list (https://protobuf.dev/programming-guides/encoding/#packed), or one.
func listElements(kind protoreflect.Kind, value []byte) (n int) {
	switch kind {
	case protoreflect.StringKind, protoreflect.BytesKind:
		return 1
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return len(value) / 4
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return len(value) / 8
	default: // the last byte of a varint is below 0x80
		for _, b := range value {
			if b < 0x80 {
				n++
			}
		}
		return n
	}
}

// strictJSON decodes requests of people and scripts. It refuses unknown fields
// instead of ignoring them. Programs that must work with managers of other
// versions send protobuf.
type strictJSON struct{ name string }

func (c strictJSON) Name() string { return c.name }

func (strictJSON) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, errNoMessage
	}
	return protojson.Marshal(m)
}

func (strictJSON) Unmarshal(raw []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return errNoMessage
	}
	if len(raw) == 0 {
		return errors.New(`no JSON: send {} for a request without fields`)
	}
	if err := checkElements(raw, m, func(int) int { return jsonElements(raw) }); err != nil {
		return err
	}
	err := protojson.UnmarshalOptions{RecursionLimit: maxDepth}.Unmarshal(raw, m)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "unknown field"):
		return fmt.Errorf("%w; the fields are those of %s in api/dxpu/v1", err, m.ProtoReflect().Descriptor().Name())
	case strings.Contains(err.Error(), "google.protobuf.Duration"):
		return fmt.Errorf(`%w; write a duration like "90s"`, err)
	}
	return err
}

// jsonElements counts the objects, lists, members and elements of a JSON text, and the commas of
// strings: a field mask is a string, and its paths are the elements of a list.
func jsonElements(raw []byte) (n int) {
	text, escaped := false, false
	for _, c := range raw {
		switch {
		case escaped:
			escaped = false
		case text && c == '\\':
			escaped = true
		case c == '"':
			text = !text
		case c == ',' || !text && (c == '{' || c == '['):
			n++
		}
	}
	return n
}

// boundedGzip decompresses a request. Connect would decompress all of a request that is
// too large, only to say its size: four megabytes can contain four gigabytes.
//
// Nor may a request be more than gzipRatio times as large as its bytes on the network, beyond
// gzipFree bytes: these are what the limits of a caller count.
type boundedGzip struct {
	gzip.Reader
	in  countedReader
	out int
}

const (
	gzipRatio = 64
	gzipFree  = 64 << 10
)

// Reset implements [connect.Decompressor].
func (g *boundedGzip) Reset(r io.Reader) error {
	g.in, g.out = countedReader{r, 0}, 0
	return g.Reader.Reset(&g.in)
}

func (g *boundedGzip) Read(p []byte) (int, error) {
	switch {
	case g.out > maxRequest:
		return 0, errors.New("send several smaller ones")
	case g.out > gzipFree+gzipRatio*g.in.n:
		return 0, fmt.Errorf("it is more than %d times as large as it is compressed: send it as it is", gzipRatio)
	}
	n, err := g.Reader.Read(p)
	g.out += n
	return n, err
}

// countedReader counts the bytes that were read.
type countedReader struct {
	io.Reader
	n int
}

func (r *countedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.n += n
	return n, err
}
