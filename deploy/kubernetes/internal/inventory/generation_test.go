package inventory

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/performance"
)

// TestGeneration: the generation is that of the PCI device ID, or what an operator calls it.
func TestGeneration(t *testing.T) {
	for name, test := range map[string]struct {
		vendor, device uint32
		label, want    string
	}{
		"V100": {0x10de, 0x1db6, "", "Volta"}, "T4": {0x10de, 0x1eb8, "", "Turing"}, "A100": {0x10de, 0x20b2, "", "Ampere"},
		"A10": {0x10de, 0x2236, "", "Ampere"}, "H100": {0x10de, 0x2330, "", "Hopper"}, "L40": {0x10de, 0x26b5, "", "Ada Lovelace"},
		"B200": {0x10de, 0x2901, "", "Blackwell"}, "MI250X": {0x1002, 0x7408, "", "CDNA 2"}, "MI300X": {0x1002, 0x74a1, "", "CDNA 3"},
		"unknown": {0x1234, 0x2330, "", ""}, "unknown with a label": {0x1234, 1, "DX2", "DX2"}, "another name": {0x10de, 0x2330, "9.0", "9.0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := generation(&dxpuv1.Device{VendorId: test.vendor, DeviceId: test.device}, test.label); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
	for i, g := range generations {
		if g.first > g.last || i > 0 && generations[i-1].vendor == g.vendor && generations[i-1].last >= g.first {
			t.Errorf("the range of %#x is not after the one before", g.first)
		}
	}
}

// TestPredicted: a claim gets only a GPU on which its workload is fast enough, as the scheduler's
// own allocator reads the selector of docs/kubernetes.md.
func TestPredicted(t *testing.T) {
	table, err := performance.Read(strings.NewReader(`{"file":"resnet50.json","native_rtt_ns":1200,
		"prediction":{"rtt_ns":6800,"relative":0.91},"sweep":[{"rtt_ns":3200,"relative":0.97}]}`))
	if err != nil {
		t.Fatal(err)
	}
	state := State{
		Performance: table,
		GPUs:        []*dxpuv1.GPU{gpu("far/0", nil), gpu("near/0", nil), gpu("plain/0", nil), gpu("remote/0", nil), gpu("wrong/0", nil)},
		Hosts:       map[string]*dxpuv1.Host{},
		BoxLabels: map[string]map[string]string{
			"far": {LabelRTT: "4.2us"}, "near": {LabelRTT: "2us"}, "remote": {LabelRTT: "1ms"}, "wrong": {LabelRTT: "near"},
		},
	}
	for minimum, want := range map[string]string{"98": "near-0", "95": "far-0 near-0", "91": "far-0 near-0 plain-0", "0": "far-0 near-0 plain-0 remote-0 wrong-0"} {
		inv := New(state)
		s, got := newScheduler(inv), []string{}
		selector := "device.attributes['performance.dxpu.dev'].?resnet50.orValue(0) >= " + minimum
		for {
			r, err := s.allocate(t.Context(), "h1", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("gpu", selector, "")}})
			if err != nil {
				t.Fatal(err)
			}
			if r == nil {
				break
			}
			got = append(got, r[0].Device)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("at least %s %%: %s, want %s", minimum, s, want)
		}
	}
}

// TestManyAttributes: a device with all attributes is one that the API server takes.
func TestManyAttributes(t *testing.T) {
	var all []string
	for i := range performance.MaxWorkloads {
		all = append(all, `{"file":"`+strings.Repeat("w", i+1)+`","native_rtt_ns":1200,"prediction":{"rtt_ns":6800,"relative":0.91}}`)
	}
	table, err := performance.Read(strings.NewReader("[" + strings.Join(all, ",") + "]"))
	if err != nil {
		t.Fatal(err)
	}
	g := gpu("b1/0", func(g *dxpuv1.GPU) {
		g.BoxKind, g.Device.Serial, g.Device.PcieSwitch, g.Device.VendorId, g.Device.DeviceId = dxpuv1.BoxKind_BOX_KIND_NVLINK, "1", "s", 0x10de, 0x2330
		g.Device.ShareModes = []dxpuv1.ShareMode{dxpuv1.ShareMode_SHARE_MODE_SPACE}
	})
	inv := New(State{GPUs: []*dxpuv1.GPU{g}, Performance: table})
	inv.SetRacks(map[string]string{"b1": "r1"})
	d := inv.Devices[0]
	if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		t.Errorf("%d attributes and capacities", n)
	}
	for _, name := range []resourceapi.QualifiedName{"gpu", "box", "slot", "rack", "model", "generation", "serial", "boxKind", "nvlinkDomain", "pcieSwitch", "performance.dxpu.dev/w"} {
		if _, has := d.Attributes[name]; !has {
			t.Errorf("no attribute %s", name)
		}
	}
}
