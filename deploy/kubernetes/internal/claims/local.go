package claims

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The GPUs of the host's own machine reach a container by a share of its sharing agent, which is
// that of one lease, and a container has one share. So a claim has one lease for all of them.

// deviceTogether is the label LabelDevice of a lease for several devices. No device has this name:
// that of each has the slot of its GPU at the end.
const deviceTogether = "local"

// together returns the devices that have one lease with a device, which is one of them.
func (c *Claim) together(d Device) []Device {
	if !d.Local || d.Admin {
		return []Device{d}
	}
	return c.local()
}

// local returns the devices with GPUs of the host's own machine.
func (c *Claim) local() (out []Device) {
	for _, d := range c.Devices {
		if d.Local && !d.Admin {
			out = append(out, d)
		}
	}
	return out
}

func (d Device) same(o Device) bool { return d.Name == o.Name && d.Share == o.Share }

// labelsOf returns the device and the share in the labels of a lease.
func labelsOf(together []Device) (device, share string) {
	if len(together) > 1 {
		return deviceTogether, ""
	}
	return together[0].Name, together[0].Share
}

func gpusOf(together []Device) (out []string) {
	for _, d := range together {
		out = append(out, d.GPU)
	}
	return out
}

// notOneShare returns why the pool cannot make one lease of the GPUs of the host's own machine,
// "" if it can.
func (c *Claim) notOneShare() string {
	if c.LocalErr != "" {
		return c.LocalErr
	}
	all := c.local()
	for i, d := range all {
		first := all[0]
		switch {
		case d.GPU == "":
			return "another GPU of the claim has left the pool"
		case d.ParametersErr != "":
			return d.ParametersErr
		case slices.ContainsFunc(all[:i], func(o Device) bool { return o.GPU == d.GPU }):
			return fmt.Sprintf("the claim has two parts of GPU %s, and a container has one part of each GPU of its own machine: "+
				"add constraints: [{distinctAttribute: gpu.dxpu.dev/gpu}] to the claim, or give each container a claim of its own", d.GPU)
		case !proto.Equal(d.Part, first.Part):
			return fmt.Sprintf("GPUs of the node's own machine in one claim have parts of one size, but the claim has %s of GPU %s and %s of GPU %s: "+
				"ask for one size, or give each container a claim of its own", size(first.Part), first.GPU, size(d.Part), d.GPU)
		case !d.Parameters.same(&first.Parameters) || !sameTolerations(d, first):
			return "GPUs of the node's own machine in one claim have one lease, but the parameters or tolerations of its requests differ"
		case len(all) > 1 && d.Parameters.Gang != "":
			return "a claim of a gang has one GPU of the node's own machine, and this one has several"
		}
	}
	return ""
}

func size(p *dxpuv1.Part) string {
	if p == nil {
		return "all"
	}
	return fmt.Sprintf("%d MiB and %d %%", p.MemoryBytes>>20, p.Compute/10)
}

func sameTolerations(a, b Device) bool {
	return slices.EqualFunc(a.Tolerations, b.Tolerations, func(x, y *dxpuv1.Toleration) bool { return proto.Equal(x, y) })
}

// same reports whether two requests want the same of their leases.
func (p *Parameters) same(o *Parameters) bool {
	a, b := *p, *o
	alike := value(a.Priority) == value(b.Priority) && value(a.Preemptible) == value(b.Preemptible)
	a.Priority, a.Preemptible, b.Priority, b.Preemptible = nil, nil, nil, nil
	return alike && a == b
}

// value returns what a field says, or what it says if it is not set.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
