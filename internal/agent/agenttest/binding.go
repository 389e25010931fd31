// Package agenttest makes the desired states of nodes, for tests and benchmarks
// that have no manager.
package agenttest

import (
	"bytes"
	"cmp"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// End is one end of a binding.
type End struct {
	Node, Slot uint32
	Addresses  []*dxpuv1.PathAddress
}

// Binding joins a slot of a host and a slot of a box. The zero value of a field
// means its default.
type Binding struct {
	ID        string
	Epoch     uint64
	Domain    string
	Cipher    dxpuv1.Cipher // AES-256-GCM
	Secret    []byte        // 32 bytes with the value of the epoch
	MTU       uint32        // of the host's first path
	Replugs   uint32
	Part      *dxpuv1.Part
	Host, Box End
	// Next is the successor in a live migration; nil: none. With Switch the host may switch.
	Next   *Binding
	Switch bool
}

// Desired returns the state that a manager wants of a node: the node's ends of
// the bindings.
func Desired(node uint32, revision uint64, bindings ...Binding) *dxpuv1.DesiredState {
	d := &dxpuv1.DesiredState{NodeNumber: node, Revision: revision}
	for _, b := range bindings {
		switch node {
		case b.Host.Node:
			d.Bindings = append(d.Bindings, b.atHost())
		case b.Box.Node:
			out := b.from(b.Box, b.Host)
			if b.Next != nil {
				out.Transfer = &dxpuv1.Transfer{Link: b.Next.transfer(b.Box, b.Next.Box)}
			}
			d.Bindings = append(d.Bindings, out)
		}
		if b.Next != nil && node == b.Next.Box.Node {
			out := b.Next.from(b.Next.Box, b.Next.Host)
			out.Transfer = &dxpuv1.Transfer{Link: b.Next.transfer(b.Next.Box, b.Box), Receive: true}
			d.Bindings = append(d.Bindings, out)
		}
	}
	return d
}

func (b *Binding) atHost() *dxpuv1.DesiredBinding {
	out := b.from(b.Host, b.Box)
	if b.Next != nil {
		out.Successor, out.Switch = b.Next.from(b.Host, b.Next.Box), b.Switch
	}
	return out
}

// transfer returns one side of the link between the boxes.
func (b *Binding) transfer(self, peer End) *dxpuv1.DesiredBinding {
	out := b.from(self, peer)
	out.Secret = bytes.Repeat([]byte{^byte(b.Epoch)}, 32)
	return out
}

func (b *Binding) from(self, peer End) *dxpuv1.DesiredBinding {
	out := &dxpuv1.DesiredBinding{
		BindingId: b.ID, Epoch: b.Epoch, Slot: self.Slot, Domain: b.Domain, Replugs: b.Replugs, Part: b.Part,
		Cipher: cmp.Or(b.Cipher, dxpuv1.Cipher_CIPHER_AES_256_GCM), Secret: b.Secret, Mtu: b.MTU,
		Peer: &dxpuv1.Peer{NodeNumber: peer.Node, Slot: peer.Slot, Addresses: peer.Addresses},
	}
	if out.Secret == nil {
		out.Secret = bytes.Repeat([]byte{byte(b.Epoch)}, 32)
	}
	if out.Mtu == 0 {
		out.Mtu = b.Host.Addresses[0].Mtu
	}
	return out
}
