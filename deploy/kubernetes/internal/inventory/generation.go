package inventory

import (
	"cmp"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The labels of a box that become attributes of its devices.
const (
	// LabelGeneration is the generation of its GPUs, where the driver does not know it, or another name.
	LabelGeneration = "generation"
	// LabelRTT is the round trip of a read over its network, such as "6.8us".
	LabelRTT = "rtt"
)

// PerformanceDomain is that of the attributes with predicted performance, one for each workload.
const PerformanceDomain = "performance.dxpu.dev"

// generations are the names that vendors give the architectures of their GPUs, by ranges of PCI
// device IDs.
var generations = []struct {
	vendor, first, last uint32
	name                string
}{
	{0x10de, 0x15f0, 0x15ff, "Pascal"},
	{0x10de, 0x1b00, 0x1d7f, "Pascal"},
	{0x10de, 0x1d80, 0x1dff, "Volta"},
	{0x10de, 0x1e00, 0x1fff, "Turing"},
	{0x10de, 0x2080, 0x20ff, "Ampere"},
	{0x10de, 0x2180, 0x21ff, "Turing"},
	{0x10de, 0x2200, 0x227f, "Ampere"},
	{0x10de, 0x2300, 0x23ff, "Hopper"},
	{0x10de, 0x2400, 0x25ff, "Ampere"},
	{0x10de, 0x2680, 0x28ff, "Ada Lovelace"},
	{0x10de, 0x2900, 0x2fff, "Blackwell"},
	{0x10de, 0x3180, 0x31ff, "Blackwell"},
	{0x1002, 0x738c, 0x738e, "CDNA"},
	{0x1002, 0x7408, 0x740f, "CDNA 2"},
	{0x1002, 0x74a0, 0x74bf, "CDNA 3"},
	{0x1002, 0x75a0, 0x75bf, "CDNA 4"},
}

func generation(d *dxpuv1.Device, label string) string {
	for _, g := range generations {
		if d.VendorId == g.vendor && d.DeviceId >= g.first && d.DeviceId <= g.last {
			return cmp.Or(label, g.name)
		}
	}
	return label
}

// predicted adds the performance of workloads at the round trip of a device's box. A label that is
// no round trip predicts nothing: that of the table may be much shorter.
func (s *State) predicted(d *resourceapi.Device, label string) {
	rtt, err := time.ParseDuration(cmp.Or(label, "0s"))
	if err != nil || rtt < 0 || label != "" && rtt == 0 {
		return
	}
	for workload, percent := range s.Performance.At(rtt) {
		d.Attributes[resourceapi.QualifiedName(PerformanceDomain+"/"+workload)] = resourceapi.DeviceAttribute{IntValue: &percent}
	}
}
