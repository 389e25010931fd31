package inventory

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// nodeName is what the manager takes as the name of a box or host.
var nodeName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// FuzzInventory: the API server takes the slices for any texts of operators and devices of the pool.
func FuzzInventory(f *testing.F) {
	long := strings.Repeat("é", 200)
	for _, s := range []string{"b1", "b.", "b1-x0123456789abcdef", long, "a.b/c", "\x00", "0" + strings.Repeat("-", 62)} {
		f.Add("b1", s, s, s, s, uint64(80<<30))
		f.Add(s, "h1", "", s, s, uint64(0))
	}
	f.Fuzz(func(t *testing.T, box, host, key, value, text string, memory uint64) {
		for _, s := range []string{box, host, key, value, text} {
			if !utf8.ValidString(s) {
				return // not of a message of the manager
			}
		}
		if !nodeName.MatchString(box) || !nodeName.MatchString(host) {
			return
		}
		d := &dxpuv1.Device{Model: text, Serial: text, PcieSwitch: text, NvlinkDomain: text, MemoryBytes: memory, ShareModes: []dxpuv1.ShareMode{dxpuv1.ShareMode_SHARE_MODE_TIME}}
		taints := []*dxpuv1.Taint{{Key: key, Value: value, Effect: dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE}, {Key: value, Value: key, Effect: dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE}}
		inv := New(State{
			GPUs: []*dxpuv1.GPU{
				{Id: box + "/0", BoxId: box, Device: d, Taints: taints, LocalHost: host},
				{Id: box + "x/0", BoxId: box + "x", Device: d, FreeMemoryBytes: memory, FreeCompute: 1000, FreeParts: 8},
			},
			Hosts: map[string]*dxpuv1.Host{host: {Node: &dxpuv1.NodeInfo{Id: host}}}, Nodes: map[string]string{"w1": host, "w2": ""},
			BoxTaints: map[string][]*dxpuv1.Taint{box: taints}, BoxLabels: map[string]map[string]string{box: {LabelGeneration: text, LabelRTT: value}},
		})
		inv.SetRacks(map[string]string{box: text})
		if len(inv.Devices) != 2 || inv.Devices[0].Name == inv.Devices[1].Name {
			t.Errorf("devices %+v", inv.Devices)
		}
		for name, p := range inv.Resources().Pools {
			for part := range strings.SplitSeq(name, "/") {
				wantNone(t, "pool "+name, validation.IsDNS1123Subdomain(part))
			}
			checkSelector(t, p.NodeSelector)
			for _, s := range p.Slices {
				for i := range s.Devices {
					checkDevice(t, &s.Devices[i])
				}
			}
		}
	})
}

func wantNone(t *testing.T, what string, wrong []string) {
	t.Helper()
	if len(wrong) > 0 {
		t.Errorf("%s: %q", what, wrong)
	}
}

// checkDevice reports what the API server would refuse of a device.
func checkDevice(t *testing.T, d *resourceapi.Device) {
	t.Helper()
	wantNone(t, "device", validation.IsDNS1123Label(d.Name))
	if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		t.Errorf("%d attributes and capacities", n)
	}
	for name, a := range d.Attributes {
		if v := a.StringValue; v != nil && (len(*v) > resourceapi.DeviceAttributeMaxValueLength || !utf8.ValidString(*v)) {
			t.Errorf("attribute %s: %q", name, *v)
		}
	}
	for name, c := range d.Capacity {
		if c.Value.Sign() < 0 {
			t.Errorf("capacity %s: %s", name, c.Value.String())
		}
		if p := c.RequestPolicy; p != nil && p.ValidRange != nil && p.ValidRange.Min.Cmp(*p.Default) > 0 {
			t.Errorf("capacity %s: at least %s, by default %s", name, p.ValidRange.Min, p.Default)
		}
	}
	if len(d.Taints) > resourceapi.DeviceTaintsMaxLength {
		t.Errorf("%d taints", len(d.Taints))
	}
	for _, taint := range d.Taints {
		wantNone(t, "taint", append(validation.IsQualifiedName(taint.Key), validation.IsValidLabelValue(taint.Value)...))
	}
}

func checkSelector(t *testing.T, s *corev1.NodeSelector) {
	t.Helper()
	if s == nil {
		return
	}
	for _, term := range s.NodeSelectorTerms {
		for _, r := range term.MatchExpressions {
			for _, v := range r.Values {
				wantNone(t, "selector "+r.Key, validation.IsValidLabelValue(v))
			}
		}
		for _, r := range term.MatchFields {
			for _, v := range r.Values {
				wantNone(t, "selector "+r.Key, validation.IsDNS1123Subdomain(v))
			}
		}
	}
}
