package plugin

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// node is a kubelet that calls a plugin again and out of order, and what its runtime must find.
type node struct {
	*testing.T
	plugin *Plugin
	dir    string
	random *rand.Rand
	uids   int
	claims map[string]*resourceapi.ResourceClaim // by name: a claim may have that of one that was deleted
	has    map[types.UID]uint32                  // the slots of the claims that are prepared
}

// TestModel compares the plugin with a model: a claim is prepared unless another one has its slot, and what
// a killed plugin leaves, or another boot, keeps no claim from its device, and goes with its own.
func TestModel(t *testing.T) {
	for seed := range uint64(20) {
		p, dir := socketPlugin(t)
		n := &node{
			T: t, plugin: p, dir: filepath.Join(dir, "cdi"), random: rand.New(rand.NewPCG(seed, 0)),
			claims: map[string]*resourceapi.ResourceClaim{}, has: map[types.UID]uint32{},
		}
		if err := os.Mkdir(n.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			n.step(fmt.Sprint("c", n.random.IntN(4)))
		}
		for i := range n.uids {
			n.unprepare(types.UID(fmt.Sprint("u", i+1)))
		}
		if left, err := os.ReadDir(n.dir); err != nil || len(left) > 0 {
			t.Errorf("seed %d: %v are left, %v", seed, left, err)
		}
	}
}

func (n *node) step(name string) {
	c := n.claims[name]
	switch n.random.IntN(8) {
	case 0, 1:
		if c == nil || n.random.IntN(3) == 0 { // deleted, and made again; its pod may not have ended here
			n.claims[name] = n.claim(name)
		}
	case 2, 3, 4:
		if c != nil {
			n.prepare(c)
		}
	case 5:
		n.unprepare(types.UID(fmt.Sprint("u", 1+n.random.IntN(max(n.uids, 1)))))
	case 6:
		if c != nil { // killed, as it wrote
			n.write("."+n.file(c.UID)+".tmp", "{")
		}
	case 7:
		if c == nil {
			return
		}
		if n.unprepare(c.UID); n.random.IntN(2) == 0 { // the machine has lost its power
			n.write(n.file(c.UID)+".json", "")
			return
		}
		slot := filepath.Join(filepath.Dir(n.dir), fmt.Sprintf("slot%d.sock", n.random.IntN(2)))
		n.write(n.file(c.UID)+".json", `{"annotations":{"dxpu.dev/boot-id":"before"},"devices":[{"name":"d","containerEdits":{"mounts":[{"hostPath":"`+slot+`"}]}}]}`)
	}
}

func (n *node) file(uid types.UID) string { return "gpu.dxpu.dev-" + string(uid) }

func (n *node) write(name, text string) {
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
}

// claim returns a claim with one of two slots.
func (n *node) claim(name string) *resourceapi.ResourceClaim {
	n.uids++
	c := claim(condition(inventory.Attached, "True"))
	c.UID, c.Name = types.UID(fmt.Sprint("u", n.uids)), name
	c.Status.Allocation.Devices.Results, c.Status.Devices = c.Status.Allocation.Devices.Results[:1], c.Status.Devices[:1]
	c.Status.Devices[0].Data.Raw, _ = json.Marshal(devicedata.Data{Lease: "l-1", GPU: "b1/0", Host: "h1", Slot: uint32(n.random.IntN(2))})
	return c
}

func (n *node) prepare(c *resourceapi.ResourceClaim) {
	var d devicedata.Data
	if err := json.Unmarshal(c.Status.Devices[0].Data.Raw, &d); err != nil {
		n.Fatal(err)
	}
	taken := slices.ContainsFunc(slices.Collect(maps.Keys(n.has)), func(uid types.UID) bool { return uid != c.UID && n.has[uid] == d.Slot })
	r := prepare(n.T, n.plugin, c)
	switch {
	case taken && (r.Err == nil || !strings.Contains(r.Err.Error(), "is still that of claim lab/")):
		n.Errorf("slot %d is that of two claims: %v", d.Slot, r.Err)
	case !taken && r.Err != nil:
		n.Errorf("claim %s: %v", c.UID, r.Err)
	case !taken:
		n.has[c.UID] = d.Slot
		if raw, err := os.ReadFile(filepath.Join(n.dir, n.file(c.UID)+".json")); err != nil || !json.Valid(raw) {
			n.Errorf("claim %s: %q, %v", c.UID, raw, err)
		}
	}
}

func (n *node) unprepare(uid types.UID) {
	out, err := n.plugin.UnprepareResourceClaims(n.Context(), []kubeletplugin.NamespacedObject{{UID: uid}})
	if err != nil || out[uid] != nil {
		n.Errorf("unprepare %s: %v, %v", uid, out, err)
	}
	delete(n.has, uid)
	if left, _ := filepath.Glob(filepath.Join(n.dir, "*"+n.file(uid)+".*")); len(left) > 0 {
		n.Errorf("%v are left", left)
	}
}
