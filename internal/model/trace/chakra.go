package trace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// A Chakra execution trace of MLCommons (schema/protobuf/et_def.proto) is a sequence of
// messages, each behind its length as a varint: one GlobalMetadata, then Nodes.
//
//	message GlobalMetadata {        message Node {
//	  string version = 1;             uint64 id = 1;
//	  repeated AttributeProto         string name = 2;
//	    attr = 2;                     NodeType type = 3;
//	}                                 repeated uint64 ctrl_deps = 4, data_deps = 5;
//	                                  uint64 start_time_micros = 6;
//	message AttributeProto {          uint64 duration_micros = 7;
//	  string name = 1;                IOInfo inputs = 8, outputs = 9;
//	  oneof value { ... }             repeated AttributeProto attr = 10;
//	}                               }
//
// Before version 1.0 the attributes of the metadata were field 1.
const (
	metadataVersion, metadataAttr = 1, 2

	nodeID, nodeName, nodeType, nodeDataDeps, nodeStart, nodeMicros, nodeAttr = 1, 2, 3, 5, 6, 7, 10

	attrName, attrInt32, attrInt64, attrUint32, attrUint64, attrBool, attrString = 1, 7, 9, 11, 13, 27, 29

	// Values of NodeType.
	typeMetadata, typeMemLoad, typeMemStore, typeSend, typeColl = 1, 2, 3, 5, 7
)

// Limits, so that a hostile file cannot exhaust memory. A message holds one operator with
// the list of its tensors, some kilobytes.
const (
	maxChakraMessage = 16 << 20
	maxChakraNodes   = 1_000_000
	maxChakraDeps    = 8_000_000
)

// chakraNode is what a Node tells of the run.
type chakraNode struct {
	id, start, micros  uint64
	kind               uint64 // NodeType
	bytes              int64
	stream, thread     int64 // notQueued: not told
	name, group        uint32
	op                 workload.OpKind // of a node of the GPU
	host               bool            // an operator of the host (is_cpu_op)
	firstDep, afterDep int32           // in chakra.deps
}

const notQueued = -1

// chakra reads one execution trace.
type chakra struct {
	b     *workload.Builder
	nodes []chakraNode
	deps  []uint64 // ids, by node
}

// isChakra reports whether a file that begins with head can be an execution trace: its
// first message is a GlobalMetadata or empty, and what follows within head fits.
func isChakra(head []byte) bool {
	n, size := protowire.ConsumeVarint(head)
	if size < 0 || n > maxChakraMessage {
		return false
	}
	head = head[size:]
	if n == 0 {
		n, size = protowire.ConsumeVarint(head)
		return size > 0 && n > 0 && n <= maxChakraMessage && len(head) > size && (head[size] == nodeID<<3 || head[size] == nodeName<<3|byte(protowire.BytesType))
	}
	num, typ, size := protowire.ConsumeTag(head)
	if size < 0 || typ != protowire.BytesType || num != metadataVersion && num != metadataAttr {
		return false
	}
	length, size2 := protowire.ConsumeVarint(head[size:])
	value := head[size+max(size2, 0):]
	if size2 < 0 || length == 0 || uint64(size+size2)+length > n || len(value) == 0 {
		return false
	}
	if num == metadataVersion && value[0] >= '0' && value[0] <= '9' {
		return true
	}
	return value[0] == attrName<<3|byte(protowire.BytesType)
}

// readChakra reads an execution trace from a reader without compression.
func readChakra(r *bufio.Reader) (*workload.Workload, error) {
	c := &chakra{b: workload.NewBuilder("chakra")}
	if err := c.messages(r); err != nil {
		return nil, err
	}
	if err := c.schedule(); err != nil {
		return nil, err
	}
	return c.b.Build()
}

// messages reads all messages.
func (c *chakra) messages(r *bufio.Reader) error {
	var buf []byte
	for n := 0; ; n++ {
		size, err := binary.ReadUvarint(r)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			c.truncated(n)
			return nil
		case err != nil:
			return fmt.Errorf("chakra: message %d: %w", n, err)
		case size > maxChakraMessage:
			return fmt.Errorf("chakra: message %d has %d bytes: want at most %d", n, size, maxChakraMessage)
		}
		if uint64(cap(buf)) < size {
			buf = make([]byte, size)
		}
		buf = buf[:size]
		if _, err := io.ReadFull(r, buf); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			c.truncated(n)
			return nil
		} else if err != nil {
			return fmt.Errorf("chakra: message %d: %w", n, err)
		}
		if n > 0 { // the first one is the metadata
			if err := c.add(buf, n); err != nil {
				return err
			}
		}
	}
}

func (c *chakra) truncated(n int) {
	c.b.Report.Incomplete = true
	c.b.Report.Doubt("the file ends within message %d", n)
}

// add parses a node and keeps it.
func (c *chakra) add(b []byte, message int) error {
	c.b.Report.Events++
	from := len(c.deps)
	node, err := c.node(b)
	if err != nil {
		c.deps = c.deps[:from]
		c.b.Report.Drop("that are not valid nodes", fmt.Sprintf("message %d", message))
		return nil
	}
	if len(c.nodes) == maxChakraNodes || len(c.deps) > maxChakraDeps {
		return fmt.Errorf("chakra: more than %d nodes or %d dependencies", maxChakraNodes, maxChakraDeps)
	}
	node.firstDep, node.afterDep = int32(from), int32(len(c.deps))
	c.nodes = append(c.nodes, node)
	return nil
}

var errChakra = errors.New("chakra: malformed message")

// fields calls f with each field of a message: the value of a varint, or the bytes of a
// string or message. Fields of other types are skipped.
func fields(b []byte, f func(num protowire.Number, v uint64, text []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errChakra
		}
		b = b[n:]
		var v uint64
		var text []byte
		switch typ { //nolint:exhaustive // all others are skipped
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			if text, n = protowire.ConsumeBytes(b); text == nil {
				text = []byte{}
			}
		default:
			if n = protowire.ConsumeFieldValue(num, typ, b); n >= 0 {
				b = b[n:]
				continue
			}
		}
		if n < 0 {
			return errChakra
		}
		b = b[n:]
		if err := f(num, v, text); err != nil {
			return err
		}
	}
	return nil
}

// node parses a Node and appends its dependencies.
func (c *chakra) node(b []byte) (chakraNode, error) {
	node := chakraNode{stream: notQueued, thread: notQueued}
	var name []byte
	err := fields(b, func(num protowire.Number, v uint64, text []byte) error {
		switch num {
		case nodeID:
			node.id = v
		case nodeName:
			name = text
		case nodeType:
			node.kind = v
		case nodeDataDeps:
			return c.addDeps(v, text)
		case nodeStart:
			node.start = v
		case nodeMicros:
			node.micros = v
		case nodeAttr:
			return c.attribute(&node, text)
		}
		return nil
	})
	node.name, node.op = c.b.Name(name), node.opKind(string(name[:min(len(name), 64)]))
	return node, err
}

// addDeps appends one dependency, or many that are packed.
func (c *chakra) addDeps(v uint64, packed []byte) error {
	if packed == nil {
		c.deps = append(c.deps, v)
		return nil
	}
	for len(packed) > 0 {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return errChakra
		}
		packed = packed[n:]
		c.deps = append(c.deps, v)
	}
	return nil
}

// attribute reads an attribute of a node.
func (c *chakra) attribute(node *chakraNode, b []byte) error {
	var name string
	var value uint64
	var str []byte
	err := fields(b, func(num protowire.Number, v uint64, text []byte) error {
		switch num {
		case attrName:
			name = string(text[:min(len(text), 32)])
		case attrInt32, attrInt64, attrUint32, attrUint64, attrBool:
			value = v
		case attrString:
			str = text
		}
		return nil
	})
	switch name {
	case "is_cpu_op":
		node.host = value != 0
	case "stream":
		node.stream = max(int64(value), notQueued)
	case "tid":
		node.thread = max(int64(value), notQueued)
	case "tensor_size", "comm_size":
		node.bytes = max(int64(value), 0)
	case "pg_name":
		node.group = c.b.Name(str)
	}
	return err
}

// opKind returns what a node of the GPU does.
func (n *chakraNode) opKind(name string) workload.OpKind {
	switch {
	case n.kind == typeMemLoad:
		return workload.CopyHtoD
	case n.kind == typeMemStore:
		return workload.CopyDtoH
	case strings.HasPrefix(name, "Memcpy"), strings.HasPrefix(name, "CopyHostToDevice"), strings.HasPrefix(name, "CopyDeviceTo"):
		return workload.ClassifyCopy(name)
	case strings.HasPrefix(name, "Memset"):
		return workload.Memset
	}
	return workload.Kernel
}

// queue returns the stream of a node of the GPU, or the thread of one of the host. A node
// without either has a stream of its kind.
func (n *chakraNode) queue() uint64 {
	switch {
	case n.host:
		return uint64(max(n.thread, 0))
	case n.stream != notQueued:
		return uint64(n.stream)
	case n.thread != notQueued:
		return uint64(n.thread)
	case n.kind >= typeSend && n.kind <= typeColl:
		return 1
	case n.kind == typeMemLoad || n.kind == typeMemStore:
		return 2
	}
	return 0
}
