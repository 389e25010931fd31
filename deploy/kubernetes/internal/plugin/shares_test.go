package plugin

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// localClaim returns a claim with a GPU of the node's own machine.
func localClaim(t *testing.T, lease string) *resourceapi.ResourceClaim {
	t.Helper()
	c := claim(condition(inventory.Attached, "True"))
	c.Status.Allocation.Devices.Results, c.Status.Devices = c.Status.Allocation.Devices.Results[:1], c.Status.Devices[:1]
	raw, err := json.Marshal(devicedata.Data{Lease: lease, GPU: "h1-gpus/0", Host: "h1", Local: true, Serial: "GPU-1f"})
	if err != nil {
		t.Fatal(err)
	}
	c.Status.Devices[0].Data.Raw = raw
	return c
}

// TestPrepareShare: a container with a GPU of the node's own machine has the share of its lease,
// the driver library, and NVIDIA's device.
func TestPrepareShare(t *testing.T) {
	p, dir := socketPlugin(t)
	p.Shares = &Shares{Dir: dir, Library: "/usr/lib/dxpu"}
	share := filepath.Join(dir, "l-7", "client")
	if err := os.MkdirAll(share, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(share, "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
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
	two := localClaim(t, "l-7")
	two.Status.Allocation.Devices.Results = append(two.Status.Allocation.Devices.Results, two.Status.Allocation.Devices.Results[0])
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"no agent":        {localClaim(t, "l-7"), "does dxpu share serve run on this node with --dir " + dir},
		"no socket":       {localClaim(t, "l-8"), "the share of lease l-8 has no socket"},
		"another folder":  {localClaim(t, "../l-8"), `"../l-8" is not the name of a lease`},
		"the parent":      {localClaim(t, ".."), `".." is not the name of a lease`},
		"two in one list": {two, "a container can have one GPU of its own machine, and the request has 2"},
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
