package plugin

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// localClaim returns a claim with GPUs of the node's own machine, each of a request, by leases.
func localClaim(t *testing.T, leases ...string) *resourceapi.ResourceClaim {
	t.Helper()
	c := claim(condition(inventory.Attached, "True"))
	result, status := c.Status.Allocation.Devices.Results[0], c.Status.Devices[0]
	c.Status.Allocation.Devices.Results, c.Status.Devices = nil, nil
	for i, lease := range leases {
		raw, err := json.Marshal(devicedata.Data{Lease: lease, GPU: fmt.Sprintf("h1-gpus/%d", i), Host: "h1", Local: true, Serial: fmt.Sprintf("GPU-%df", i+1)})
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			result.Request, result.Device = fmt.Sprint("more-", i), fmt.Sprint("b1-", i)
			status.Device = result.Device
		}
		status.Data = &runtime.RawExtension{Raw: raw}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, result)
		c.Status.Devices = append(c.Status.Devices, status)
	}
	return c
}

// TestPrepareSeveralShared: all GPUs of the node's own machine are one share. A container with one
// request has of NVIDIA's devices the one of this request.
func TestPrepareSeveralShared(t *testing.T) {
	p, dir := socketPlugin(t)
	p.Shares = &Shares{Dir: dir, Library: "/usr/lib/dxpu"}
	listenShare(t, dir, "l-7")
	r := prepare(t, p, localClaim(t, "l-7", "l-7"))
	if r.Err != nil || len(r.Devices) != 2 {
		t.Fatalf("prepared %+v", r)
	}
	for i, want := range []string{"nvidia.com/gpu=GPU-1f", "nvidia.com/gpu=GPU-2f"} {
		if got := r.Devices[i].CDIDeviceIDs; !slices.Equal(got, []string{"dxpu.dev/gpu=u1-b1-0", want}) {
			t.Errorf("request %v has %v", r.Devices[i].Requests, got)
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cdi", "gpu.dxpu.dev-u1.json"))
	if err != nil || strings.Count(string(raw), "DXPU_SHARE=") != 1 {
		t.Errorf("the CDI specification, %v:\n%s", err, raw)
	}
}

// listenShare makes the socket of a lease's share.
func listenShare(t *testing.T, dir, lease string) (share string) {
	t.Helper()
	share = filepath.Join(dir, lease, "client")
	if err := os.MkdirAll(share, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(share, "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return share
}

// TestPrepareShare: a container with a GPU of the node's own machine has the share of its lease,
// the driver library, and NVIDIA's device.
func TestPrepareShare(t *testing.T) {
	p, dir := socketPlugin(t)
	p.Shares = &Shares{Dir: dir, Library: "/usr/lib/dxpu"}
	share := listenShare(t, dir, "l-7")
	r := prepare(t, p, localClaim(t, "l-7"))
	if r.Err != nil || len(r.Devices) != 1 || !slices.Equal(r.Devices[0].CDIDeviceIDs, []string{"dxpu.dev/gpu=u1-b1-0", "nvidia.com/gpu=GPU-1f"}) {
		t.Fatalf("prepared %+v", r)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cdi", "gpu.dxpu.dev-u1.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"DXPU_SHARE=/run/dxpu-share/agent.sock"`, `"hostPath": "` + share + `"`, `"containerPath": "/run/dxpu-share"`,
		`"hostPath": "/usr/lib/dxpu"`, `"containerPath": "/usr/lib/dxpu-share"`, `"hostPath": "/usr/lib/dxpu/ld.so.preload"`, `"containerPath": "/etc/ld.so.preload"`,
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the CDI specification lacks %s:\n%s", want, raw)
		}
	}
	if strings.Contains(string(raw), "DXPU_SOCKETS") {
		t.Errorf("the container has sockets, too:\n%s", raw)
	}
}

func TestPrepareShareRefuses(t *testing.T) {
	p, dir := socketPlugin(t)
	if r := prepare(t, p, localClaim(t, "l-7")); r.Err == nil || !strings.Contains(r.Err.Error(), "the plugin runs without --share-dir") {
		t.Errorf("without the flag: %v", r.Err)
	}
	p.Shares = &Shares{Dir: dir, Library: "/usr/lib/dxpu"}
	if err := os.MkdirAll(filepath.Join(dir, "l-8", "client", "agent.sock"), 0o755); err != nil {
		t.Fatal(err)
	}
	two := localClaim(t, "l-7", "l-8")
	unnamed := localClaim(t, "l-7")
	unnamed.Status.Devices[0].Data.Raw = []byte(`{"lease":"l-7","gpu":"h1-gpus/0","host":"h1","local":true}`)
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"no agent":       {localClaim(t, "l-7"), "does dxpu share serve run on this node with --dir " + dir},
		"no socket":      {localClaim(t, "l-8"), "the share of lease l-8 has no socket"},
		"no UUID":        {unnamed, "GPU h1-gpus/0 has no UUID in the pool"},
		"another folder": {localClaim(t, "../l-8"), `"../l-8" is not the name of a lease`},
		"the parent":     {localClaim(t, ".."), `".." is not the name of a lease`},
		"two leases":     {two, "GPU h1-gpus/0 is that of lease l-7, and GPU h1-gpus/1 that of lease l-8"},
	} {
		t.Run(name, func(t *testing.T) {
			if r := prepare(t, p, tc.claim); r.Err == nil || !strings.Contains(r.Err.Error(), tc.want) {
				t.Errorf("error %v, want %q", r.Err, tc.want)
			}
		})
	}
	p.Access = nil
	if r := prepare(t, p, claim(condition(inventory.Attached, "True"))); r.Err == nil || !strings.Contains(r.Err.Error(), "want --socket-dir or --vfio") {
		t.Errorf("a GPU of a box: %v", r.Err)
	}
}
