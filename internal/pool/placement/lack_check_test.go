package placement

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
)

// A thing is what a request asks for, without which more GPUs or hosts would do.
type thing struct {
	word string // in a sentence about one GPU or host
	met  func(b *Box, g *GPU) bool
}

// things returns what the request asks of each GPU. reach reports whether it has a network to
// the host.
func (w *refusing) things(reach func(*Box) bool) []thing {
	r := &w.req
	host := "a host that has the slots"
	if w.host.Host != "" {
		host = "the host"
	}
	out := []thing{
		{"cordoned", func(_ *Box, g *GPU) bool { return g.Usable }},
		{"of another model", func(_ *Box, g *GPU) bool { return r.Model == "" || r.Model == g.Model }},
		{"too little memory", func(_ *Box, g *GPU) bool { return g.Memory >= r.leastMemory() }},
		{"of another kind", func(b *Box, _ *GPU) bool { return r.Kind == AnyKind || r.Kind == b.Kind }},
		{"without NVLink", func(b *Box, _ *GPU) bool { return r.NVLink != Required || b.Kind == NVLink }},
		{"no network in common with " + host, func(b *Box, _ *GPU) bool { return reach(b) }},
		{"does not tolerate", func(_ *Box, g *GPU) bool { return g.Restriction.toleratedBy(r.Tolerations) }},
		{"cannot be divided", func(_ *Box, g *GPU) bool { return r.Part == nil || !g.Usable || g.Modes.has(r.Part.Share) }},
	}
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		out = append(out, thing{k + "=" + r.Labels[k], func(b *Box, _ *GPU) bool { v, ok := b.Labels[k]; return ok && v == r.Labels[k] }})
	}
	return out
}

func (r *Request) leastMemory() uint64 {
	if r.Part != nil {
		return max(r.MinMemory, r.Part.Memory)
	}
	return r.MinMemory
}

// reach returns which boxes have a network in common with the host, or with one that fits.
func (w *refusing) reach(hostOK bool) func(*Box) bool {
	return func(b *Box) bool {
		if w.host.Host == "" && !hostOK {
			return true
		}
		known := false
		for i := range w.hosts {
			h := &w.hosts[i]
			if w.host.Host == h.ID {
				return h.Paths.reaches(b.Paths)
			}
			if w.host.Host == "" && w.slotsOf(h, true) >= w.host.Count && w.mayHost(h) && h.Paths.reaches(b.Paths) {
				return true
			}
			known = known || w.host.Host == h.ID
		}
		return w.host.Host != "" && !known
	}
}

func (w *refusing) mayHost(h *Host) bool {
	for k, v := range w.host.Labels {
		if has, ok := h.Labels[k]; !ok || has != v {
			return false
		}
	}
	return h.Usable && h.Restriction.toleratedBy(w.host.Tolerations) && (w.host.Host == "" || w.host.Host == h.ID)
}

// slotsOf returns the most free slots that a domain of a host has, those of others included.
func (w *refusing) slotsOf(h *Host, others bool) (most int) {
	n := map[string]int{}
	for _, s := range h.Slots {
		if s.Free && (w.host.Domain == "" || w.host.Domain == s.Domain) && !(others && slices.Contains(w.host.Exclude, HostSlotRef{h.ID, s.Slot})) {
			n[s.Domain]++
			most = max(most, n[s.Domain])
		}
	}
	return most
}

func (w *refusing) hostFits() bool {
	return slices.ContainsFunc(w.hosts, func(h Host) bool { return w.mayHost(&h) && w.slotsOf(&h, true) >= w.host.Count })
}

// minimal returns the things of the smallest sets without which something would do. lacks has
// the things that each GPU or host lacks.
func minimal(lacks [][]string) (out []string) {
	within := func(a, b []string) bool {
		return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
	}
	for _, l := range lacks {
		if !slices.ContainsFunc(lacks, func(o []string) bool { return len(o) < len(l) && within(o, l) }) {
			for _, s := range l {
				if !slices.Contains(out, s) {
					out = append(out, s)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// checkHost checks the sentence on a host.
func (w *refusing) checkHost(t *testing.T, why string) {
	var lacks [][]string
	total := func(h *Host) (n int) {
		for _, s := range h.Slots {
			if s.Free {
				n++
			}
		}
		return n
	}
	for i := range w.hosts {
		h := &w.hosts[i]
		if w.host.Host != "" && w.host.Host != h.ID {
			continue
		}
		l := []string{}
		if !h.Usable {
			l = append(l, "cordoned")
		}
		if !h.Restriction.toleratedBy(w.host.Tolerations) {
			l = append(l, "taints or plans")
		}
		for k, v := range w.host.Labels {
			if has, ok := h.Labels[k]; !ok || has != v {
				l = append(l, k+"="+v)
			}
		}
		switch {
		case total(h) < w.host.Count:
			l = append(l, "free slot")
		case w.slotsOf(h, false) < w.host.Count:
			l = append(l, "domain")
		case w.slotsOf(h, true) < w.host.Count:
			l = append(l, "kept for other leases")
		}
		lacks = append(lacks, l)
	}
	want := minimal(lacks)
	if len(lacks) == 0 && w.host.Host == "" {
		want = []string{"cordoned"}
	}
	if slices.Contains(want, "domain") || slices.Contains(want, "kept for other leases") {
		want = append(slices.DeleteFunc(want, func(s string) bool { return s == "free slot" }), "free slot")
		slices.Sort(want)
	}
	var got []string
	for _, s := range []string{"cordoned", "zone=a", "zone=b", "disk=a", "disk=b", "free slot", "domain", "kept for other leases"} {
		if strings.Contains(why, s) {
			got = append(got, s)
		}
	}
	if strings.Contains(why, "does not tolerate") || strings.Contains(why, "planned maintenance") {
		got = append(got, "taints or plans")
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the host: %q, and it names %q, want %q", why, got, want)
	}
}

var (
	ofModel  = regexp.MustCompile(`^Model (\w): (\d+) of (\d+) usable GPUs are free(?:, (\d+) of them held back as spares|; spares may be used)\.$`)
	leaves   = regexp.MustCompile(`^That leaves (\d+) for this request, which needs (\d+)\.$`)
	more     = regexp.MustCompile(`^(\d+) more (?:is|are) cordoned, failed or silent\.$`)
	together = regexp.MustCompile(`^No (single box|NVLink domain) has (\d+) of them free together\.$`)
	few      = regexp.MustCompile(`^Fewer than (\d+) of them (?:are in an NVLink domain)?(?: and )?(?:have a network in common with one host that has the slots)?\.$`)
	shares   = regexp.MustCompile(`^Of (\d+) GPUs? that parts share, `)
	joins    = regexp.MustCompile(`^Parts with affinity "x" are on (\d+) GPUs?, and the part must join them:$`)
)

// checkGPUs checks the sentences on GPUs.
func (w *refusing) checkGPUs(t *testing.T, why []string, hostOK bool, said map[string]int) {
	things := w.things(w.reach(hostOK))
	model, last := "", 0
	told := map[string]bool{}
	for _, s := range why {
		num := func(m []string, i int) (n int) { _, _ = fmt.Sscan(m[i], &n); return n }
		switch m := []string(nil); {
		case strings.HasPrefix(s, "The pool has no usable GPU"):
			said["no match"]++
			w.checkNoMatch(t, s, things)
		case match(ofModel, s, &m):
			said["model"]++
			model = m[1]
			told[model] = true
			usable, free, held := w.counts(model)
			if num(m, 2) != free || num(m, 3) != usable || m[4] != "" && num(m, 4) != held {
				t.Errorf("%q, want %d of %d, %d held back", s, free, usable, held)
			}
		case strings.HasPrefix(s, "Of the free ones of other models, "):
			said["of other models"]++
			w.checkPieces(t, strings.TrimPrefix(s, "Of the free ones of other models, "), w.pieces(things, func(g *GPU) bool { return !told[g.Model] && g.Free && g.Usable }))
		case strings.HasPrefix(s, "Of the free ones, "):
			said["of the free"]++
			w.checkPieces(t, strings.TrimPrefix(s, "Of the free ones, "), w.pieces(things, func(g *GPU) bool { return g.Model == model && g.Free && g.Usable }))
		case match(more, s, &m):
			said["more"]++
			last = num(m, 1)
			if n := len(w.lacking(things, func(g *GPU) bool { return g.Model == model && g.Free }, []string{"cordoned"})); n != last || n == 0 {
				t.Errorf("%q, want %d", s, n)
			}
		case match(leaves, s, &m):
			said["leaves"]++
			_, free, held := w.counts(model)
			fit := len(w.lacking(things, func(g *GPU) bool { return g.Model == model && g.Free }, nil))
			if w.req.UseSpares {
				held = 0
			}
			if n := min(free-held, fit); num(m, 1) != n || num(m, 2) != w.req.Count || n >= w.req.Count {
				t.Errorf("%q, want %d", s, n)
			}
		case match(together, s, &m):
			said[m[1]]++
			w.checkTogether(t, s, w.lacking(things, func(g *GPU) bool { return g.Model == model && g.Free }, nil), m[1] == "NVLink domain")
		case match(few, s, &m):
			said["few"]++
			w.checkFew(t, s, model)
		case match(shares, s, &m):
			said["shared"]++
			w.checkShared(t, s, shares.ReplaceAllString(s, ""), num(m, 1), things, w.mustJoin())
		case match(joins, s, &m):
			said["joins"]++
			if n := len(w.sharing(true)); n != num(m, 1) {
				t.Errorf("%q, want %d", s, n)
			}
		case strings.HasPrefix(s, "The part needs "):
		default:
			t.Errorf("the test does not know %q", s)
		}
	}
	w.checkComplete(t, strings.Join(why, " "), hostOK)
}

func match(re *regexp.Regexp, s string, m *[]string) bool {
	*m = re.FindStringSubmatch(s)
	return *m != nil
}

func (w *refusing) counts(model string) (usable, free, held int) {
	for b := range w.boxes {
		for _, g := range w.boxes[b].GPUs {
			if g.Model == model && g.Usable {
				usable++
				if g.Free {
					free++
				}
			}
		}
	}
	return usable, free, min(free, usable, w.reserve.Count)
}

// lacksOf returns what a GPU lacks, in order; not only if it is excluded.
func (w *refusing) lacksOf(b *Box, g *GPU, things []thing) (out []string) {
	for _, th := range things {
		if !th.met(b, g) {
			out = append(out, th.word)
		}
	}
	return out
}

func (w *refusing) kept(b *Box, g *GPU) bool {
	return slices.Contains(w.req.Exclude, Ref{b.ID, g.Slot})
}

// lacking returns the GPUs that lack just some things.
func (w *refusing) lacking(things []thing, among func(*GPU) bool, just []string) (out []Ref) {
	for i := range w.boxes {
		for j := range w.boxes[i].GPUs {
			b, g := &w.boxes[i], &w.boxes[i].GPUs[j]
			if among(g) && !w.kept(b, g) && slices.Equal(w.lacksOf(b, g, things), just) {
				out = append(out, Ref{b.ID, g.Slot})
			}
		}
	}
	return out
}

// pieces counts GPUs by what they lack.
func (w *refusing) pieces(things []thing, among func(*GPU) bool) map[string]int {
	out := map[string]int{}
	for i := range w.boxes {
		for j := range w.boxes[i].GPUs {
			b, g := &w.boxes[i], &w.boxes[i].GPUs[j]
			if !among(g) {
				continue
			}
			l := w.lacksOf(b, g, things)
			if w.kept(b, g) {
				l = append(l, "kept for")
			}
			if len(l) > 0 {
				sort.Strings(l)
				out[strings.Join(l, "|")]++
			}
		}
	}
	return out
}

var piece = regexp.MustCompile(`(?:^|, )(\d+) ((?:is|are|has|have|lacks?|cannot|waits?) )`)

// checkPieces checks a list of numbers of GPUs with what they lack.
func (w *refusing) checkPieces(t *testing.T, s string, want map[string]int) {
	got := map[string]int{}
	starts := piece.FindAllStringSubmatchIndex(s, -1)
	for i, at := range starts {
		end := len(s)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		text, n := s[at[4]:end], 0
		_, _ = fmt.Sscan(s[at[2]:at[3]], &n)
		if strings.HasPrefix(text, "lack other things") || strings.HasPrefix(text, "lacks other things") {
			got["others"] += n
			continue
		}
		got[w.namedIn(text)] += n
	}
	for k, n := range want {
		if got[k] == 0 && got["others"] >= n {
			got["others"] -= n
			got[k] = n
		}
	}
	if delete(got, "others"); !maps.Equal(got, want) {
		t.Errorf("%q is %v, want %v", s, got, want)
	}
}

// namedIn returns the things that a text names, in order.
func (w *refusing) namedIn(s string) string {
	words := []string{
		"cordoned", "of another model", "too little memory", "of another kind", "without NVLink", "no network in common with a host that has the slots",
		"no network in common with the host", "cannot be divided", "kept for", "zone=a", "zone=b", "disk=a", "disk=b",
		"the compute", "the memory", "no slot", "in another mode", "another exclusion", "same anti-affinity",
	}
	var out []string
	for _, x := range words {
		if strings.Contains(s, x) {
			out = append(out, x)
		}
	}
	if strings.Contains(s, "does not tolerate") || strings.Contains(s, "planned maintenance") {
		out = append(out, "does not tolerate")
	}
	sort.Strings(out)
	return strings.Join(out, "|")
}

// checkNoMatch checks that the sentence names the things of the smallest sets.
func (w *refusing) checkNoMatch(t *testing.T, s string, things []thing) {
	var lacks [][]string
	for i := range w.boxes {
		for j := range w.boxes[i].GPUs {
			l := w.lacksOf(&w.boxes[i], &w.boxes[i].GPUs[j], things)
			if len(l) == 0 {
				t.Errorf("%q, and GPU %s/%d does", s, w.boxes[i].ID, w.boxes[i].GPUs[j].Slot)
			}
			lacks = append(lacks, l)
		}
	}
	want := slices.DeleteFunc(minimal(lacks), func(s string) bool { return s == "cordoned" })
	var got []string
	for _, x := range []struct{ text, word string }{
		{"with model", "of another model"},
		{"of memory", "too little memory"},
		{"box of kind", "of another kind"},
		{" NVLink", "without NVLink"},
		{"a path of the host", "no network in common with the host"},
		{"a path of a host that has", "no network in common with a host that has the slots"},
		{"slots for parts", "cannot be divided"},
		{"zone=a", "zone=a"},
		{"zone=b", "zone=b"},
		{"disk=a", "disk=a"},
		{"disk=b", "disk=b"},
		{"that is without", "does not tolerate"},
	} {
		if strings.Contains(strings.ReplaceAll(s, "kind NVLink", "kind nvlink"), x.text) {
			got = append(got, x.word)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q names %q, want %q", s, got, want)
	}
}

// checkTogether checks that no box, or domain, has enough of some GPUs.
func (w *refusing) checkTogether(t *testing.T, s string, of []Ref, domains bool) {
	n := map[string]int{}
	for _, r := range of {
		g := w.gpu(r)
		if domains && (g.Domain == "") {
			continue
		}
		key := r.Box
		if domains {
			key += g.Domain
		}
		n[key]++
	}
	for k, has := range n {
		if has >= w.req.Count {
			t.Errorf("%q, and %s has %d", s, k, has)
		}
	}
	if len(of) < w.req.Count {
		t.Errorf("%q, and there are only %d", s, len(of))
	}
}

func (w *refusing) gpu(r Ref) *GPU {
	for i := range w.boxes {
		for j := range w.boxes[i].GPUs {
			if (Ref{w.boxes[i].ID, w.boxes[i].GPUs[j].Slot}) == r {
				return &w.boxes[i].GPUs[j]
			}
		}
	}
	return nil
}

// checkFew checks that no host reaches enough GPUs, in NVLink domains if the sentence says so.
func (w *refusing) checkFew(t *testing.T, s, model string) {
	domains := strings.Contains(s, "NVLink domain")
	network := strings.Contains(s, "network")
	count := func(h *Host) (n int) {
		things := w.things(func(b *Box) bool { return h == nil || h.Paths.reaches(b.Paths) })
		for _, r := range w.lacking(things, func(g *GPU) bool { return g.Model == model && g.Free }, nil) {
			if !domains || w.gpu(r).Domain != "" {
				n++
			}
		}
		return n
	}
	for i := range w.hosts {
		if h := &w.hosts[i]; w.mayHost(h) && w.slotsOf(h, true) >= w.host.Count {
			if n := count(h); n >= w.req.Count {
				t.Errorf("%q, and host %s reaches %d", s, h.ID, n)
			}
		}
	}
	if n := count(nil); !network && n >= w.req.Count {
		t.Errorf("%q, and there are %d", s, n)
	}
	if !domains && !network {
		t.Errorf("%q says nothing", s)
	}
}

// checkComplete checks that the refusal names what alone would have to change.
func (w *refusing) checkComplete(t *testing.T, why string, hostOK bool) {
	if w.host.Host == "" && !hostOK {
		return // where the host is decides on the networks
	}
	for _, c := range []struct {
		word string
		lift func(r *Request)
	}{
		{"memory", func(r *Request) { r.MinMemory = 0 }},
		{"kind", func(r *Request) { r.Kind = AnyKind }},
		{"label", func(r *Request) { r.Labels = nil }},
		{"model", func(r *Request) { r.Model = "" }},
		{"kept for", func(r *Request) { r.Exclude = nil }},
		{"held back", func(r *Request) { r.UseSpares = true }},
		{"tolerate", func(r *Request) { r.Tolerations = []Toleration{{AnyValue: true}} }},
	} {
		r := w.req
		c.lift(&r)
		p, hosts := NewPool(), NewHosts()
		for _, b := range w.boxes {
			p.SetBox(b)
		}
		for _, h := range w.hosts {
			hosts.SetHost(h)
		}
		// The index decides here; TestPoolDecidesAsPlace compares it with a scan.
		if d, _ := p.PlaceLease(hosts, w.reserve, r, w.host); d.OK() && !strings.Contains(strings.ToLower(why), c.word) {
			t.Errorf("%q names no %s, without which the request fits", why, c.word)
		}
	}
}
