package manager

import (
	"slices"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// decisionWhy explains a decision. Without a host it does not praise the GPUs that would
// fit best: the sentences would contradict each other.
func decisionWhy(d placement.Decision, h placement.HostDecision) []string {
	if !h.OK() && d.OK() {
		return slices.Clone(h.Why)
	}
	return slices.Concat(h.Why, d.Why)
}

// explanation reduces an explanation to the sentences that a scope may see: a tenant
// learns the names of its own GPUs, and not those of other boxes.
func (s scope) explanation(t *tx, why []string) []string {
	if s.tenant == "" {
		return why
	}
	return slices.DeleteFunc(slices.Clone(why), func(sentence string) bool {
		return slices.ContainsFunc(strings.Fields(sentence), func(word string) bool {
			n := t.nodes.get(strings.Trim(word, ".,;:()"))
			return n != nil && n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX
		})
	})
}
