package capture_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
	"github.com/dxpu-project/dxpu/tlp"
)

// vector is a golden packet of frame or tlp.
type vector struct {
	name string
	data []byte
}

// golden reads the vectors that the tests of a format package use.
func golden(t testing.TB, pkg string) (out []vector) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../..", pkg, "testdata", "golden.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || line[0] == '#' {
			continue
		}
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, vector{name, b})
	}
	return out
}

// packet is a packet of a capture.
type packet struct {
	Time   uint64 // nanoseconds since 1970
	Length int    // before it was cut
	Data   []byte
}

// tshark dissects packets of one link type and returns the values of fields,
// one map for each packet. The values of a repeated field are joined by commas;
// the map has no entry for a missing field.
func tshark(t *testing.T, link layers.LinkType, packets []packet, fields []string) []map[string]string {
	t.Helper()
	tool, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian: apt install tshark): the dissector is not tested")
	}
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, link)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		info := gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(p.Time)), CaptureLength: len(p.Data), Length: p.Length}
		if err := w.WritePacket(info, p.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "test.pcapng")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-2", "-n", "-r", file, "-X", "lua_script:dxpu.lua", "-T", "fields", "-E", "separator=|", "-E", "occurrence=a"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.CommandContext(t.Context(), tool, args...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "WIRESHARK_CONFIG_DIR="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || strings.Contains(stderr.String(), "Lua") || strings.Contains(string(out), "Lua Error") {
		t.Fatalf("tshark: %v\n%s\n%s", err, stderr.String(), out)
	}
	var rows []map[string]string
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		row := map[string]string{}
		for i, v := range strings.Split(s.Text(), "|") {
			if v != "" {
				row[fields[i]] = v
			}
		}
		rows = append(rows, row)
	}
	if len(rows) != len(packets) {
		t.Fatalf("tshark shows %d packets, want %d\n%s", len(rows), len(packets), stderr.String())
	}
	return rows
}

var tlpFields = []string{
	"dxpu.tlp.type", "dxpu.tlp.tc", "dxpu.tlp.attr", "dxpu.tlp.ln", "dxpu.tlp.th", "dxpu.tlp.td", "dxpu.tlp.ep", "dxpu.tlp.at",
	"dxpu.tlp.length", "dxpu.tlp.requester", "dxpu.tlp.tag", "dxpu.tlp.first_be", "dxpu.tlp.last_be", "dxpu.tlp.addr", "dxpu.tlp.ph",
	"dxpu.tlp.st", "dxpu.tlp.target", "dxpu.tlp.register", "dxpu.tlp.completer", "dxpu.tlp.status", "dxpu.tlp.bcm",
	"dxpu.tlp.byte_count", "dxpu.tlp.lower_addr", "dxpu.tlp.code", "dxpu.tlp.routing", "dxpu.tlp.msg_header", "dxpu.tlp.prefix",
	"dxpu.tlp.data", "dxpu.tlp.digest", "dxpu.tlp.digest.status",
}

// wantTLP returns the fields that tshark should show for a TLP, as package tlp
// reads it.
func wantTLP(p *tlp.Packet) map[string]string {
	w := map[string]string{}
	dec := func(name string, v uint64) { w["dxpu.tlp."+name] = strconv.FormatUint(v, 10) }
	hexa := func(name string, v uint64, digits int) { w["dxpu.tlp."+name] = fmt.Sprintf("0x%0*x", digits, v) }
	flag := func(name string, v bool) { w["dxpu.tlp."+name] = map[bool]string{false: "0", true: "1"}[v] }
	octets := func(name string, b []byte) { w["dxpu.tlp."+name] = hex.EncodeToString(b) }

	w["dxpu.tlp.type"] = p.Type.String()
	dec("tc", uint64(p.TC))
	hexa("attr", uint64(p.Attr), 2)
	flag("ln", p.LN)
	flag("th", p.TH)
	flag("td", p.HasDigest)
	flag("ep", p.EP)
	dec("at", uint64(p.AT))
	dec("length", uint64(p.Length))
	hexa("requester", uint64(p.Requester), 4)
	dec("tag", uint64(p.Tag))
	if len(p.Prefix) > 0 {
		var list []string
		for rest := p.Prefix; len(rest) > 0; rest = rest[tlp.PrefixSize:] {
			list = append(list, hex.EncodeToString(rest[:tlp.PrefixSize]))
		}
		w["dxpu.tlp.prefix"] = strings.Join(list, ",")
	}
	if len(p.Data) > 0 {
		octets("data", p.Data)
	}
	if p.HasDigest {
		hexa("digest", uint64(p.Digest), 8)
		flag("digest.status", p.CheckECRC())
	}
	steered := p.TH && p.Type.Memory()
	byAddr := p.Type.Memory() || p.Type.IO() || p.Type.Message() && p.Routing == tlp.RouteByAddress
	switch {
	case p.Type.Completion():
		hexa("completer", uint64(p.Completer), 4)
		dec("status", uint64(p.Status))
		flag("bcm", p.BCM)
		dec("byte_count", uint64(p.ByteCount))
		hexa("lower_addr", uint64(p.LowerAddr), 2)
	case p.Type.Message():
		hexa("code", uint64(p.Code), 2)
		dec("routing", uint64(p.Routing))
		switch p.Routing {
		case tlp.RouteByAddress:
		case tlp.RouteByID:
			hexa("target", uint64(p.Target), 4)
			octets("msg_header", p.MsgHeader[2:])
		default:
			octets("msg_header", p.MsgHeader[:])
		}
	case !steered || p.Type == tlp.MWr:
		hexa("first_be", uint64(p.FirstBE), 2)
		hexa("last_be", uint64(p.LastBE), 2)
	}
	if p.Type.Config() {
		hexa("target", uint64(p.Target), 4)
		hexa("register", uint64(p.Register), 4)
	}
	if byAddr {
		hexa("addr", p.Addr, 16)
		dec("ph", uint64(p.PH))
	}
	if steered {
		hexa("st", uint64(p.ST), 2)
	}
	return w
}

// Wireshark shows every golden TLP as package tlp reads it.
func TestDissectorTLPs(t *testing.T) {
	vectors := golden(t, "tlp")
	var packets []packet
	for _, v := range vectors {
		data := append(header.Append(nil), v.data...)
		packets = append(packets, packet{Data: data, Length: len(data)})
	}
	rows := tshark(t, capture.LinkType, packets, append(tlpFields[:len(tlpFields):len(tlpFields)], "_ws.malformed", "dxpu.malformed"))
	for i, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			p, _, err := tlp.Parse(v.data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wantTLP(&p), rows[i]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// expectRows compares the rows that tshark shows with the wanted ones.
func expectRows(t *testing.T, names []string, want, got []map[string]string) {
	t.Helper()
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(want[i], got[i]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

type row = map[string]string

// The dissector joins completions to their requests and marks errors.
func TestDissectorRecords(t *testing.T) {
	request := header
	request.Received, request.Source, request.Destination = false, header.Destination, header.Source
	record := func(h capture.Header, digits string, at uint64, cut int) packet {
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		data := append(h.Append(nil), b...)
		return packet{Time: at, Data: data[:len(data)-cut], Length: len(data)}
	}
	const mrd, wrongDigest = "000000100100070f00001000", "40008002010000fffebf000001264b7095badf0442cdc9d3"
	packets := []packet{
		record(request, mrd, 1000, 0),
		record(header, "4a00000800fb00400100070001020304"+strings.Repeat("00", 28), 3000, 0),
		record(header, "4a00000800fb00200100072001020304"+strings.Repeat("00", 28), 5500, 0),
		record(header, "0a00000000fb200401000800", 6000, 0),
		record(request, wrongDigest, 7000, 0),
		record(request, wrongDigest, 7000, 6),
		record(request, "40004001010000fffebf0000deadbeef", 8000, 0),
		record(request, "ff", 9000, 0),
	}
	fields := []string{
		"_ws.col.Protocol", "_ws.col.Info", "dxpu_rec.received", "dxpu.binding", "dxpu.src.node", "dxpu.dst.slot",
		"dxpu.tlp.request_in", "dxpu.tlp.completion_in", "dxpu.tlp.time", "dxpu.tlp.no_request", "dxpu.tlp.failed", "dxpu.tlp.poisoned",
		"dxpu.crc.bad", "dxpu.short", "dxpu.malformed",
	}
	common := func(received string, more row) row {
		out := row{"_ws.col.Protocol": "TLP", "dxpu_rec.received": received, "dxpu.binding": "0xa0b0c0d0", "dxpu.src.node": "16909060", "dxpu.dst.slot": "2828"}
		if received == "0" {
			out["dxpu.src.node"], out["dxpu.dst.slot"] = "117967114", "1286"
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	expectRows(t,
		[]string{"request", "first completion", "last completion", "of no request", "digest", "cut", "poisoned", "no TLP"},
		[]row{
			common("0", row{"_ws.col.Info": "MRd 0x1000 tag 7, 64 bytes", "dxpu.tlp.completion_in": "3"}),
			common("1", row{"_ws.col.Info": "CplD tag 7 SC, 32 bytes follow, 32 bytes", "dxpu.tlp.request_in": "1", "dxpu.tlp.time": "0.000002000"}),
			common("1", row{"_ws.col.Info": "CplD tag 7 SC, 32 bytes", "dxpu.tlp.request_in": "1", "dxpu.tlp.time": "0.000004500"}),
			common("1", row{"_ws.col.Info": "Cpl tag 8 UR", "dxpu.tlp.no_request": "1", "dxpu.tlp.failed": "1"}),
			common("0", row{"_ws.col.Info": "MWr 0xfebf0000, 8 bytes", "dxpu.crc.bad": "1"}),
			common("0", row{"_ws.col.Info": "MWr 0xfebf0000, 8 bytes", "dxpu.short": "1"}),
			common("0", row{"_ws.col.Info": "MWr 0xfebf0000, 4 bytes", "dxpu.tlp.poisoned": "1"}),
			common("0", row{"dxpu.malformed": "1"}),
		},
		tshark(t, capture.LinkType, packets, fields))
}

// udp wraps a datagram into UDP and IPv4.
func udp(datagram []byte) packet {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(datagram)))
	for _, a := range []string{"192.0.2.1", "192.0.2.2"} {
		b = append(b, netip.MustParseAddr(a).AsSlice()...)
	}
	b = binary.BigEndian.AppendUint16(b, 7471)
	b = binary.BigEndian.AppendUint16(b, 7472)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(datagram)))
	b = append(append(b, 0, 0), datagram...)
	return packet{Data: b, Length: len(b)}
}

var datagramFields = []string{
	"dxpu.type", "dxpu.key_phase", "dxpu.path", "dxpu.binding", "dxpu.epoch", "dxpu.number", "dxpu.initiator", "dxpu.responder", "dxpu.cookie", "dxpu.version",
	"dxpu.kind", "dxpu.seq", "dxpu.payload_len", "dxpu.src.node", "dxpu.src.slot", "dxpu.dst.slot", "dxpu.dst.node", "dxpu.header.path",
	"dxpu.header.digest", "dxpu.tlp_crc", "dxpu.crc", "dxpu.crc.status", "dxpu.tlp_crc.status", "dxpu.chunk_len", "dxpu.offset", "dxpu.chunk",
	"dxpu.run.count", "dxpu.run.payload", "dxpu.run.crc.status",
	"dxpu.ack.path", "dxpu.ack.delay", "dxpu.ack.largest", "dxpu.ack.limit", "dxpu.ack.range", "dxpu.close.reason", "dxpu.hello.cipher",
	"dxpu.hello.limit", "dxpu.hello.echo", "dxpu.check", "dxpu.sealed", "dxpu.tag", "dxpu.tlp.type", "dxpu.tlp.addr", "dxpu.tlp.digest",
	"dxpu.seen_in", "dxpu.crc.bad", "dxpu.malformed",
}

// wantDatagram returns the fields that tshark should show for a datagram, as
// package frame reads it.
func wantDatagram(t *testing.T, h *frame.Header, rest row) row {
	t.Helper()
	w := row{
		"dxpu.type": strconv.Itoa(int(h.Type)), "dxpu.key_phase": strconv.Itoa(int(h.KeyPhase)), "dxpu.path": strconv.Itoa(int(h.Path)),
		"dxpu.binding": fmt.Sprintf("0x%08x", h.Binding), "dxpu.epoch": strconv.FormatUint(uint64(h.Epoch), 10),
		"dxpu.number": strconv.FormatUint(h.Number, 10), "dxpu.version": strconv.Itoa(int(h.Version)),
	}
	if h.Type.Handshake() {
		w["dxpu.initiator"], w["dxpu.responder"] = fmt.Sprintf("0x%016x", h.Initiator), fmt.Sprintf("0x%016x", h.Responder)
		if h.Version > frame.Version1 {
			w["dxpu.cookie"] = hex.EncodeToString(h.Cookie[:])
		}
	}
	for k, v := range rest {
		w[k] = v
	}
	return w
}

// wantPacket returns the fields that tshark should show for one packet.
func wantPacket(t *testing.T, b []byte) row {
	t.Helper()
	num := func(v uint64) string { return strconv.FormatUint(v, 10) }
	w := row{"dxpu.kind": fmt.Sprintf("0x%02x", b[0]), "dxpu.crc.status": "1", "dxpu.crc": fmt.Sprintf("0x%x", b[len(b)-4:])}
	var err error
	switch frame.Kind(b[0]) {
	case frame.KindHeader:
		var p frame.HeaderPacket
		_, err = p.Parse(b, frame.Checked)
		w["dxpu.seq"], w["dxpu.payload_len"], w["dxpu.header.path"] = num(p.Seq), num(uint64(p.PayloadLen)), num(uint64(p.Path))
		w["dxpu.src.node"], w["dxpu.src.slot"] = num(uint64(p.Source.Node)), num(uint64(p.Source.Slot))
		w["dxpu.dst.node"], w["dxpu.dst.slot"] = num(uint64(p.Destination.Node)), num(uint64(p.Destination.Slot))
		w["dxpu.header.digest"] = map[bool]string{false: "0", true: "1"}[p.Digest]
		w["dxpu.tlp_crc"], w["dxpu.tlp_crc.status"] = fmt.Sprintf("0x%08x", p.TLPCRC), "2"
		if p.PayloadLen == 0 {
			w["dxpu.tlp_crc.status"] = "1"
		}
		header := bytes.Clone(p.TLP)
		header[7] &= 0x0f // one of the golden headers enables bytes that it does not have
		q, n, perr := tlp.ParseHeader(header)
		if perr != nil {
			t.Fatal(perr)
		}
		w["dxpu.tlp.type"], w["dxpu.tlp.addr"] = q.Type.String(), fmt.Sprintf("0x%016x", q.Addr)
		if p.Digest {
			w["dxpu.tlp.digest"] = fmt.Sprintf("0x%x", p.TLP[n:])
		}
	case frame.KindData:
		var p frame.DataPacket
		_, err = p.Parse(b, frame.Checked)
		w["dxpu.crc"] = fmt.Sprintf("0x%x", b[16:20])
		w["dxpu.seq"], w["dxpu.payload_len"] = num(p.Seq), num(uint64(p.PayloadLen))
		w["dxpu.offset"], w["dxpu.chunk_len"], w["dxpu.chunk"] = num(uint64(p.Offset)), num(uint64(len(p.Chunk))), hex.EncodeToString(p.Chunk)
	case frame.KindRun:
		var p frame.RunPacket
		_, err = p.Parse(b, frame.Checked)
		end := len(b) - len(p.Payload)
		w["dxpu.crc"] = fmt.Sprintf("0x%x", b[end-4:end])
		w["dxpu.seq"], w["dxpu.payload_len"], w["dxpu.header.path"] = num(p.Seq), num(uint64(p.PayloadLen)), num(uint64(p.Path))
		w["dxpu.src.node"], w["dxpu.src.slot"] = num(uint64(p.Source.Node)), num(uint64(p.Source.Slot))
		w["dxpu.dst.node"], w["dxpu.dst.slot"] = num(uint64(p.Destination.Node)), num(uint64(p.Destination.Slot))
		if w["dxpu.run.count"] = num(uint64(p.Count)); p.PayloadLen > 0 {
			w["dxpu.run.payload"] = hex.EncodeToString(p.Payload)
			w["dxpu.run.crc.status"] = strings.TrimSuffix(strings.Repeat("1,", p.Count), ",")
		}
		q, _, perr := tlp.ParseHeader(p.TLP)
		if perr != nil {
			t.Fatal(perr)
		}
		w["dxpu.tlp.type"], w["dxpu.tlp.addr"] = q.Type.String(), fmt.Sprintf("0x%016x", q.Addr)
	case frame.KindAck:
		var a frame.Ack
		_, err = a.Parse(b, frame.Checked)
		var ranges []string
		for _, r := range a.Ranges[:a.Count] {
			ranges = append(ranges, fmt.Sprintf("%d-%d", r.First, r.Last))
		}
		w["dxpu.ack.path"], w["dxpu.ack.delay"], w["dxpu.ack.limit"] = num(uint64(a.Path)), num(uint64(a.Delay)), num(a.Limit)
		w["dxpu.ack.largest"], w["dxpu.ack.range"] = num(a.Ranges[0].Last), strings.Join(ranges, ",")
	case frame.KindPing:
		_, err = frame.ParsePing(b, frame.Checked)
	case frame.KindClose:
		var reason uint16
		reason, _, err = frame.ParseClose(b, frame.Checked)
		w["dxpu.close.reason"] = num(uint64(reason))
	case frame.KindHello:
		var h frame.Hello
		h, _, err = frame.ParseHello(b, frame.Version1)
		w["dxpu.hello.cipher"], w["dxpu.hello.limit"], w["dxpu.hello.echo"] = num(uint64(h.Cipher)), num(h.Limit), num(h.Echo)
		w["dxpu.src.node"], w["dxpu.src.slot"] = num(uint64(h.Source.Node)), num(uint64(h.Source.Slot))
		w["dxpu.dst.node"], w["dxpu.dst.slot"] = num(uint64(h.Destination.Node)), num(uint64(h.Destination.Slot))
	default:
		t.Fatalf("kind %#x", b[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Wireshark shows every golden packet of frame as frame reads it, in clear and in
// sealed datagrams.
func TestDissectorDatagrams(t *testing.T) {
	var names []string
	var packets []packet
	var want []row
	heads := map[string]frame.Header{}
	for _, v := range golden(t, "frame") {
		if v.name == "hello, version 2" || strings.HasSuffix(v.name, ", sealed body of version 2") {
			continue // never in clear
		}
		if name, ok := strings.CutPrefix(v.name, "datagram "); ok {
			h, _, err := frame.ParseHeader(v.data)
			if err != nil {
				t.Fatal(err)
			}
			heads[name] = h
			continue
		}
		h := heads["traffic"]
		h.Number += uint64(len(packets))
		datagram := append(append(h.Append(nil), v.data...), 0xca, 0xfe, 0xf0, 0x0d)
		names, packets = append(names, v.name), append(packets, udp(datagram))
		rest := wantPacket(t, v.data)
		rest["dxpu.check"] = "0xcafef00d"
		if v.name == "header packet, write with digest" { // the same number as the read before it
			rest["dxpu.seen_in"] = "1"
		}
		want = append(want, wantDatagram(t, &h, rest))
	}
	for name, h := range heads {
		sealed := bytes.Repeat([]byte{0x9c, 1, 2, 0x77}, frame.HelloSize(h.Version)/4)
		tag := bytes.Repeat([]byte{0x55}, frame.TagSize)
		if h.Type == frame.TypeCookie { // the header is all
			names, packets = append(names, name), append(packets, udp(h.Append(nil)))
			want = append(want, wantDatagram(t, &h, nil))
			continue
		}
		datagram := append(append(h.Append(nil), sealed...), tag...)
		names, packets = append(names, "sealed "+name), append(packets, udp(datagram))
		want = append(want, wantDatagram(t, &h, row{"dxpu.sealed": hex.EncodeToString(sealed), "dxpu.tag": hex.EncodeToString(tag)}))
	}
	expectRows(t, names, want, tshark(t, layers.LinkTypeRaw, packets, datagramFields))
}

// The dissector checks the CRC of a whole TLP when its payload follows in one
// chunk. It finds every flipped bit of the packets.
func TestDissectorChecksCRCs(t *testing.T) {
	h := frame.Header{Version: frame.Version1, Type: frame.TypeTraffic, Binding: 1, Epoch: 1}
	payload := bytes.Repeat([]byte{1, 2, 3, 4}, 16)
	write := &tlp.Packet{Type: tlp.MWr, Length: 16, FirstBE: 15, LastBE: 15, Addr: 0x1000, Data: payload}
	hp := frame.HeaderPacket{TLP: write.AppendHeader(nil), PayloadLen: len(payload)}
	hp.HeaderCRC = frame.CRC(0, hp.TLP)
	dp := frame.DataPacket{PayloadLen: len(payload), Chunk: payload, ChunkCRC: frame.CRC(0, payload)}
	hp.TLPCRC = frame.TLPCRC(hp.HeaderCRC, dp.ChunkCRC, len(payload))
	good := dp.Append(hp.Append(h.Append(nil), frame.Checked), frame.Checked)
	good = append(good, 0, 0, 0, 0)
	flip := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 1
		return b
	}
	cut := udp(good)
	cut.Data = cut.Data[:len(cut.Data)-10]
	packets := []packet{
		udp(good), udp(flip(frame.HeaderSize + 24)), udp(flip(frame.HeaderSize + 40)), udp(flip(len(good) - 5)), cut, udp([]byte("neither one nor the other, but long enough")),
	}
	fields := []string{"_ws.col.Protocol", "dxpu.kind", "dxpu.crc.status", "dxpu.tlp_crc.status", "dxpu.short"}
	both := func(crc, tlpCRC string) row {
		return row{"_ws.col.Protocol": "DxPU", "dxpu.kind": "0x01,0x02", "dxpu.crc.status": crc, "dxpu.tlp_crc.status": tlpCRC}
	}
	expectRows(t,
		[]string{"good", "header packet", "TLP header", "payload", "cut", "not ours"},
		[]row{
			both("1,1", "1"), both("0,1", "1"), both("0,1", "0"), both("1,0", "0"),
			{"_ws.col.Protocol": "DxPU", "dxpu.kind": "0x01", "dxpu.crc.status": "1", "dxpu.tlp_crc.status": "2", "dxpu.short": "1"},
			{"_ws.col.Protocol": "UDP"},
		},
		tshark(t, layers.LinkTypeRaw, packets, fields))
}
