package vhostuser

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// Messages on the wire, on a little-endian machine.
func TestMessages(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"header", header{getVringBase, flagVersion | flagAck, 8}.append(nil), "0b000000 09000000 08000000"},
		{"vring state", vringState(1, 256), "01000000 00010000"},
		{"memory table", memTable(0x40000000, 0x2000), "01000000 00000000 0000004000000000 0020000000000000 0000004000000000 0000000000000000"},
		{"vring addresses", vringAddr(2, 1, 2, 3), "02000000 00000000 0100000000000000 0200000000000000 0300000000000000 0000000000000000"},
		{"configuration", configRequest(2), "00000000 02000000 00000000 0000"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(c.got, want) {
			t.Errorf("%s: %x, want %x", c.name, c.got, want)
		}
	}
}

func TestRepliesRefused(t *testing.T) {
	good := header{getFeatures, flagVersion | flagReply, 8}
	if h, err := parseReply(good.append(nil)); err != nil || h != good {
		t.Fatalf("%+v, %v", h, err)
	}
	for _, c := range []struct {
		why string
		h   header
	}{
		{"version 2", header{getFeatures, 2 | flagReply, 8}},
		{"not an answer", header{getFeatures, flagVersion, 8}},
		{"want at most", header{getFeatures, flagVersion | flagReply, maxPayload + 1}},
		{"want at most", header{getFeatures, flagVersion | flagReply, -1}},
	} {
		if _, err := parseReply(c.h.append(nil)); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%+v: %v, want %s", c.h, err, c.why)
		}
	}
	for n := range headerSize {
		if _, err := parseReply(good.append(nil)[:n]); err == nil {
			t.Errorf("%d bytes are a header", n)
		}
	}
	if _, err := parseConfig(make([]byte, configHeader+3), 4); err == nil {
		t.Error("a short configuration is accepted")
	}
}
