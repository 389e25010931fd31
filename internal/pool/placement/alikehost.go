package placement

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
)

// A refusal counts the hosts of the pool as it does the GPUs: those together of which every request
// lacks the same.

// alikeHostKey is what requests can lack of a host.
type alikeHostKey struct {
	usable      bool
	restriction Restriction
	labels      string // of labelsKey
	free        string // the number of free slots by domain
}

// alikeHost counts the hosts of one key. Its host has what the key has.
type alikeHost struct {
	host Host
	free []*freeSlots
	n    int
}

// countedHost is a host that stands for n hosts of which the request lacks the same.
type countedHost struct {
	host *Host
	free []*freeSlots
	n    int
}

// freeKey returns a text that differs for different numbers of free slots by domain.
func freeKey(free []*freeSlots) string {
	var out []byte
	for _, o := range slices.SortedFunc(slices.Values(free), func(a, b *freeSlots) int { return cmp.Compare(a.domain, b.domain) }) {
		out = append(binary.AppendUvarint(out, uint64(len(o.domain))), o.domain...)
		out = binary.AppendUvarint(out, uint64(len(o.slots)))
	}
	return string(out)
}

// enter counts a host with some free slots.
func (h *Hosts) enter(host *indexedHost, free []*freeSlots) {
	host.alike = alikeHostKey{host.Usable, host.Restriction, labelsKey(host.Labels), freeKey(free)}
	at := h.alike.index(host.alike, func() alikeHost {
		return alikeHost{host: Host{Usable: host.Usable, Restriction: host.Restriction, Labels: host.Labels}, free: free}
	})
	h.alike.of[at].n++
}

// leave no longer counts a host.
func (h *Hosts) leave(host *indexedHost) {
	r := &h.alike.of[h.alike.at[host.alike]]
	if r.n--; r.n == 0 {
		h.alike.remove(host.alike)
	}
}

// all returns all hosts. Those with excluded slots come one by one.
func (h *Hosts) all(req *HostRequest) iter.Seq[countedHost] {
	less := map[int]int{}
	var single []countedHost
	for _, id := range req.excludedHosts() {
		if row := h.hosts[id]; row != nil {
			single = append(single, countedHost{&row.Host, freeSlotsOf(&row.Host), 1})
			less[h.alike.at[row.alike]]++
		}
	}
	return func(yield func(countedHost) bool) {
		for i := range h.alike.of {
			r := &h.alike.of[i]
			if n := r.n - less[i]; n > 0 && !yield(countedHost{&r.host, r.free, n}) {
				return
			}
		}
		for _, c := range single {
			if !yield(c) {
				return
			}
		}
	}
}
