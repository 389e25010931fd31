package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// TestKubeVirtHook prints domains.
func TestKubeVirtHook(t *testing.T) {
	const domain = `<domain type="kvm"><os><type machine="q35">hvm</type></os></domain>`
	vmi := func(resources string) string { return `{"spec":{"domain":{"resources":` + resources + `}}}` }
	for name, tc := range map[string]struct {
		vmi, domain string
		devices     int
		err         string
	}{
		"two GPUs":        {vmi: vmi(`{"limits":{"dxpu.dev/gpu":"2","memory":"4Gi"}}`), domain: domain, devices: 2},
		"by its requests": {vmi: vmi(`{"requests":{"dxpu.dev/gpu":1}}`), domain: domain, devices: 1},
		"none":            {vmi: vmi(`{}`), domain: domain},
		"too many":        {vmi: vmi(`{"limits":{"dxpu.dev/gpu":"9"}}`), domain: domain, err: "asks for 9 of dxpu.dev/gpu: want 0 to 8"},
		"a part":          {vmi: vmi(`{"limits":{"dxpu.dev/gpu":"500m"}}`), domain: domain, err: "asks for 500m"},
		"below zero":      {vmi: vmi(`{"limits":{"dxpu.dev/gpu":"-1"}}`), domain: domain, err: "asks for -1"},
		"no VM":           {vmi: `[]`, domain: domain, err: "--vmi"},
		"no domain":       {vmi: vmi(`{}`), err: "--domain is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := run(t.Context(), []string{"kubevirt-hook", "--vmi", tc.vmi, "--domain", tc.domain}, &out, &errs)
			if (code == 0) != (tc.err == "") || !strings.Contains(errs.String(), tc.err) {
				t.Fatalf("exit code %d: %s", code, &errs)
			}
			if n := strings.Count(out.String(), "vfio-user-pci"); n != tc.devices || tc.err == "" && !strings.HasPrefix(out.String(), "<domain") || tc.err != "" && out.Len() > 0 {
				t.Errorf("%d devices:\n%s", n, &out)
			}
		})
	}
}

// TestKubeVirtSidecar calls the program as KubeVirt's launcher does, also after a container that was killed and
// has left its socket.
func TestKubeVirtSidecar(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	var errs bytes.Buffer
	ended := make(chan int, 1)
	serves, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		code := run(t.Context(), []string{"kubevirt-hook", "--listen", socket}, io.Discard, &errs)
		if code != 0 {
			cancel() // no call waits for a program that has failed
		}
		ended <- code
	}()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func(method string, request []byte) (string, error) {
		var in, out emptypb.Empty
		in.ProtoReflect().SetUnknown(request)
		err := conn.Invoke(serves, "/kubevirt.hooks."+method, &in, &out, grpc.WaitForReady(true))
		return string(out.ProtoReflect().GetUnknown()), err
	}
	// The messages by their encoding: field 1 is "dxpu", fields 3 the points, field 4 the version.
	if got, err := call("info.Info/Info", nil); err != nil || got != "\x0a\x04dxpu\x1a\x10\x0a\x0eOnDefineDomain\x1a\x0a\x0a\x08Shutdown\x22\x08v1alpha3" {
		t.Errorf("info %q, %v", got, err)
	}
	const domain = `<domain type="kvm"><os><type machine="q35">hvm</type></os></domain>`
	params := func(vmi string) []byte {
		return slices.Concat([]byte{0x0a, byte(len(domain))}, []byte(domain), []byte{0x12, byte(len(vmi))}, []byte(vmi), []byte{0x18, 1})
	}
	const define = "v1alpha3.Callbacks/OnDefineDomain"
	if got, err := call(define, params(`{"spec":{"domain":{"resources":{"limits":{"dxpu.dev/gpu":"1"}}}}}`)); err != nil || got[0] != 0x0a || !strings.Contains(got, "/run/dxpu/devices/0.sock") {
		t.Errorf("domain %q, %v", got, err)
	}
	if _, err := call(define, params(`[]`)); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--vmi") {
		t.Errorf("no VM: %v", err)
	}
	if _, err := call("v1alpha3.Callbacks/Shutdown", nil); err != nil {
		t.Error(err)
	}
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s", code, &errs)
	}
}
