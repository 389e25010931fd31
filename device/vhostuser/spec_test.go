package vhostuser_test

import (
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/device/vhostuser"
)

func TestCheck(t *testing.T) {
	const socket = "/run/disk.sock"
	for _, c := range []struct {
		spec vhostuser.Spec
		want string // part of the error; "": none
	}{
		{vhostuser.Spec{Socket: socket}, ""},
		{vhostuser.Spec{Socket: socket, Type: "fs", Tag: "shared", Queues: 4, Pool: 2 << 20}, ""},
		{vhostuser.Spec{Socket: socket, Type: "net", MAC: "02:00:00:00:00:01"}, ""},
		{vhostuser.Spec{}, "socket of the back end is missing"},
		{vhostuser.Spec{Socket: socket, Type: "gpu"}, "want one of blk, fs, net, vsock"},
		{vhostuser.Spec{Socket: socket, Pool: 64 << 10}, "from 2 MiB"}, // a request of Linux has no room
		{vhostuser.Spec{Socket: socket, Pool: 2<<30 - 4096}, "to 1 GiB"},
		{vhostuser.Spec{Socket: socket, Pool: 4<<20 + 512}, "multiple of 4096"},
		{vhostuser.Spec{Socket: socket, Type: "fs", Tag: strings.Repeat("x", 37)}, "at most 36 bytes"},
		{vhostuser.Spec{Socket: socket, Grace: -1}, "positive duration"},
		{vhostuser.Spec{Socket: socket, Type: "net", Queues: 3}, "a network card has 2"},
		{vhostuser.Spec{Socket: socket, Type: "vsock"}, ""},
		{vhostuser.Spec{Socket: socket, Type: "vsock", CID: 3}, ""},
		{vhostuser.Spec{Socket: socket, Type: "vsock", CID: 1<<32 - 2}, ""},
		{vhostuser.Spec{Socket: socket, Type: "vsock", CID: 2}, "want 3 to 4294967294"},
		{vhostuser.Spec{Socket: socket, Type: "vsock", CID: 1<<32 - 1}, "want 3 to 4294967294"},
		{vhostuser.Spec{Socket: socket, Type: "vsock", CID: 1 << 63}, "want 3 to 4294967294"},
		{vhostuser.Spec{Socket: socket, Type: "net", CID: 3}, "only a socket device"},
		{vhostuser.Spec{Socket: socket, Type: "vsock", Queues: 2}, "a socket device has 3"},
		{vhostuser.Spec{Socket: socket, Type: "net", MAC: "01:00:00:00:00:01"}, "address of one card"},
		{vhostuser.Spec{Socket: socket, Type: "net", MAC: "02:00:00:00:00:00:00:01"}, "address of one card"},
	} {
		err := c.spec.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.spec, err, c.want)
		}
	}
}
