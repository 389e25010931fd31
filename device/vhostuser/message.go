package vhostuser

import (
	"encoding/binary"
	"fmt"
)

// request is a message of the front end (the vhost-user protocol, "Front-end message types").
type request uint32

// Requests in use.
const (
	getFeatures         request = 1
	setFeatures         request = 2
	setOwner            request = 3
	setMemTable         request = 5
	setVringNum         request = 8
	setVringAddr        request = 9
	setVringBase        request = 10
	getVringBase        request = 11
	setVringKick        request = 12
	setVringCall        request = 13
	getProtocolFeatures request = 15
	setProtocolFeatures request = 16
	getQueueNum         request = 17
	setVringEnable      request = 18
	getConfig           request = 24
)

var requestNames = map[request]string{
	getFeatures: "GET_FEATURES", setFeatures: "SET_FEATURES", setOwner: "SET_OWNER", setMemTable: "SET_MEM_TABLE",
	setVringNum: "SET_VRING_NUM", setVringAddr: "SET_VRING_ADDR", setVringBase: "SET_VRING_BASE", getVringBase: "GET_VRING_BASE",
	setVringKick: "SET_VRING_KICK", setVringCall: "SET_VRING_CALL", getProtocolFeatures: "GET_PROTOCOL_FEATURES",
	setProtocolFeatures: "SET_PROTOCOL_FEATURES", getQueueNum: "GET_QUEUE_NUM", setVringEnable: "SET_VRING_ENABLE", getConfig: "GET_CONFIG",
}

// String returns the name of the request in the protocol.
func (r request) String() string {
	if name, ok := requestNames[r]; ok {
		return name
	}
	return fmt.Sprintf("request %d", uint32(r))
}

// header is that of a message, in the byte order of the machine:
//
//	 0       4       8      12
//	+-------+-------+-------+---------
//	|request| flags | size  | payload
//	+-------+-------+-------+---------
//
// flags has the version in bits 0 and 1, the reply flag in bit 2 and need_reply in bit 3.
type header struct {
	request request
	flags   uint32
	size    int // of the payload in bytes
}

const (
	headerSize  = 12
	flagVersion = 1
	flagReply   = 1 << 2
	flagAck     = 1 << 3 // need_reply

	// maxPayload bounds what a back end sends: the longest answer is that to GET_CONFIG.
	maxPayload = 4096
)

func (h header) append(b []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(h.request))
	b = binary.NativeEndian.AppendUint32(b, h.flags)
	return binary.NativeEndian.AppendUint32(b, uint32(h.size))
}

// parseReply parses the header of an answer of the back end.
func parseReply(b []byte) (header, error) {
	if len(b) < headerSize {
		return header{}, fmt.Errorf("a header of %d bytes, want %d", len(b), headerSize)
	}
	e := binary.NativeEndian
	size := e.Uint32(b[8:])
	h := header{request: request(e.Uint32(b)), flags: e.Uint32(b[4:])}
	switch {
	case h.flags&3 != flagVersion:
		return header{}, fmt.Errorf("%v of version %d, want %d", h.request, h.flags&3, flagVersion)
	case h.flags&flagReply == 0:
		return header{}, fmt.Errorf("%v is not an answer", h.request)
	case size > maxPayload:
		return header{}, fmt.Errorf("%v of %d bytes, want at most %d", h.request, size, maxPayload)
	}
	h.size = int(size)
	return h, nil
}

// Features of the protocol (GET_PROTOCOL_FEATURES) in use.
const (
	protocolMultiQueue = 1 << 0
	protocolReplyAck   = 1 << 3
	protocolConfig     = 1 << 9

	protocolUsed = protocolMultiQueue | protocolReplyAck | protocolConfig

	// featureProtocol is the feature bit that says that there are any.
	featureProtocol = 1 << 30
)

func u64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// vringState is the payload of several messages: a number for a virtqueue.
func vringState(queue int, n uint32) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(queue))
	return binary.NativeEndian.AppendUint32(b, n)
}

// memTable is the payload of SET_MEM_TABLE with one region, which is all of the descriptor.
// The addresses of the driver and of the front end are the same here.
func memTable(addr, size uint64) []byte {
	e := binary.NativeEndian
	b := e.AppendUint32(nil, 1)
	b = e.AppendUint32(b, 0)
	b = e.AppendUint64(b, addr)
	b = e.AppendUint64(b, size)
	b = e.AppendUint64(b, addr)
	return e.AppendUint64(b, 0)
}

// vringAddr is the payload of SET_VRING_ADDR, without a log.
func vringAddr(queue int, desc, used, avail uint64) []byte {
	b := vringState(queue, 0)
	for _, v := range [...]uint64{desc, used, avail, 0} {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return b
}

// configHeader is the length of the fields before the content in GET_CONFIG: offset, size,
// flags.
const configHeader = 12

// configRequest is the payload of GET_CONFIG for the first bytes.
func configRequest(size int) []byte {
	b := make([]byte, configHeader+size)
	binary.NativeEndian.PutUint32(b[4:], uint32(size))
	return b
}

// parseConfig returns the content of an answer to GET_CONFIG, size bytes.
func parseConfig(b []byte, size int) ([]byte, error) {
	if len(b) != configHeader+size {
		return nil, fmt.Errorf("GET_CONFIG: %d bytes, want %d", len(b), configHeader+size)
	}
	return b[configHeader:], nil
}
