package placement

import "cmp"

// traits are the properties of a box that the rules may look at. The index keeps
// boxes of equal traits together, so a rule over traits needs no index of its own.
type traits struct {
	kind  Kind
	paths Paths
}

func traitsOf(b *Box) traits { return traits{kind: b.Kind, paths: b.Paths} }

// admits reports whether a request may use the GPUs of boxes with these traits.
func admits(t traits, req *Request) bool {
	if req.Kind != AnyKind && t.kind != req.Kind {
		return false
	}
	if req.site != nil && !req.site.reaches(t.paths) {
		return false
	}
	return req.NVLink != Required || t.kind == NVLink
}

// admitsBox reports whether a request may use the GPUs of a box.
func admitsBox(b *Box, req *Request) bool {
	return admits(traitsOf(b), req) && hasLabels(b.Labels, req.Labels)
}

// hasLabels reports whether a node has all labels that a request asks for.
func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// A criterion ranks a group from which the request would take n GPUs: the lowest
// value goes first. It may look at what the group's class holds, at besideLease and,
// by nearest alone, at the rack; it must not look at names.
type criterion func(g *group, n int, req *Request) int

// order is a list of criteria; each decides between groups that the ones before
// it rank equal. Box ID and domain come last, so no two groups are equal.
type order []criterion

// The orders in which groups are taken.
var (
	// bestFit ranks groups that are large enough for the rest of the request.
	bestFit = order{joinsLease, kindMatches, proxyHasRoom, nearest, fewestFree, tightestProxy}
	// largestFirst ranks groups that are taken whole.
	largestFirst = order{mostFree, joinsLease, kindMatches, nearest, mostProxyRoom}
	// emptiestFirst ranks groups that give one GPU each.
	emptiestFirst = order{avoidsLease, proxyHasRoom, nearest, mostFree, kindMatches, mostProxyRoom}
)

func joinsLease(g *group, _ int, _ *Request) int  { return rank(g.besideLease) }
func avoidsLease(g *group, _ int, _ *Request) int { return rank(!g.besideLease) }

// kindMatches puts NVLink boxes first for requests that prefer NVLink and last
// for all others, which keeps them whole.
func kindMatches(g *group, _ int, req *Request) int {
	return rank((g.kind == NVLink) == (req.NVLink == Preferred))
}

// proxyHasRoom puts boxes first whose proxy serves n more GPUs at full bandwidth.
func proxyHasRoom(g *group, n int, _ *Request) int { return rank(g.proxyRoom >= n) }

// nearest puts the boxes first that are nearest to the host.
func nearest(g *group, _ int, req *Request) int {
	if req.site == nil {
		return 0
	}
	return int(req.site.distance(g.location()))
}

func fewestFree(g *group, _ int, _ *Request) int { return len(g.slots) }
func mostFree(g *group, _ int, _ *Request) int   { return -len(g.slots) }

func mostProxyRoom(g *group, _ int, _ *Request) int { return -g.proxyRoom }

// tightestProxy prefers the proxy with least bandwidth left, or least overload.
func tightestProxy(g *group, n int, _ *Request) int {
	if g.proxyRoom < n {
		return -g.proxyRoom
	}
	return g.proxyRoom
}

// rank returns 0 for true, which goes first, and 1 for false.
func rank(b bool) int {
	if b {
		return 0
	}
	return 1
}

// compare orders two groups of which the request would take n GPUs.
func (o order) compare(a, b *group, n int, req *Request) int {
	if d := o.compareRanks(a, b, n, req); d != 0 {
		return d
	}
	return compareNames(a, b)
}

// compareRanks is compare without the names.
func (o order) compareRanks(a, b *group, n int, req *Request) int {
	for _, c := range o {
		if d := cmp.Compare(c(a, n, req), c(b, n, req)); d != 0 {
			return d
		}
	}
	return 0
}

func compareNames(a, b *group) int {
	if a.rack == b.rack && a.box == b.box {
		return cmp.Compare(a.domain, b.domain)
	}
	return cmp.Or(cmp.Compare(a.rack, b.rack), cmp.Compare(a.box, b.box))
}
