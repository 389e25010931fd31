package placement

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/internal/plural"
)

// A refusal says what keeps the GPUs of the pool from the request. Each GPU counts once, with
// all that keeps it: a GPU that lacks a label and the memory is told with both, because
// neither alone would help. A sentence about all of the pool names only what keeps the GPUs
// that lack least.

// lack is a set of reasons why a request may not have a GPU, or slots of a host.
type lack uint64

const (
	notUsable lack = 1 << iota
	otherModel
	lessMemory
	otherKind
	noNVLink
	unreached
	intolerable
	undivided
	overRoom
	kept
	lessCompute
	lessFree // memory that other parts leave
	noSlot
	otherMode
	otherExclusion
	sameAverse
	changing
	notNamed
	ofOtherHost
	noSlots     // of a host
	notTogether // its slots are not in one domain, or not in that of the request
	keptSlots
	firstLabel // the labels of the request, in order
)

// maxLackedLabels is how many labels have a bit of their own; the last one is for all others.
var maxLackedLabels = bits.LeadingZeros64(uint64(firstLabel)) + 1

// lacksLabels returns the labels that a node lacks. keys has those that are asked for, in order.
func lacksLabels(have, want map[string]string, keys []string) (l lack) {
	for i, k := range keys {
		if v, ok := have[k]; !ok || v != want[k] {
			l |= firstLabel << min(i, maxLackedLabels-1)
		}
	}
	return l
}

// maxToldLabels bounds the labels that a sentence names.
const maxToldLabels = 4

// labels returns the words for the labels of a set.
func (l lack) labels(want map[string]string) string {
	var words []string
	for i, k := range slices.Sorted(maps.Keys(want)) {
		if l&(firstLabel<<min(i, maxLackedLabels-1)) != 0 {
			words = append(words, k+"="+want[k])
		}
	}
	text := byNumber(len(words), "label ", "labels ")
	if more := len(words) - maxToldLabels; more > 0 {
		return text + strings.Join(words[:maxToldLabels], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return text + strings.Join(words, ", ")
}

// hasLabel reports whether the set has labels.
func (l lack) hasLabel() bool { return l >= firstLabel }

// lacksBox returns what keeps all GPUs of a box from the request, whose labels have some keys.
func (r *Request) lacksBox(b *Box, keys []string) (l lack) {
	if r.Kind != AnyKind && b.Kind != r.Kind {
		l |= otherKind
	}
	if r.NVLink == Required && b.Kind != NVLink {
		l |= noNVLink
	}
	if r.site != nil && !r.site.reaches(b.Paths) {
		l |= unreached
	}
	return l | lacksLabels(b.Labels, r.Labels, keys)
}

// lacks returns what keeps a GPU from the request beside its box, whether it is free or not.
func (r *Request) lacks(b *Box, g *GPU) (l lack) {
	if !g.Usable {
		l |= notUsable
	}
	if r.Model != "" && r.Model != g.Model {
		l |= otherModel
	} else if !r.mayHave(g.Model) {
		l |= overRoom
	}
	if g.Memory < r.MinMemory {
		l |= lessMemory
	}
	if !r.tolerates(g.Restriction) {
		l |= intolerable
	}
	if g.Usable && !r.divides(g) { // the slots for parts of other GPUs are out of service, too
		l |= undivided
	}
	if r.excludes(Ref{b.ID, g.Slot}) {
		l |= kept
	}
	return l
}

// lacking counts GPUs, or hosts, by what keeps them from a request. There are few different sets.
type lacking struct {
	sets []lackingSet
	kept []Ref // the GPUs that lack nothing else
}

type lackingSet struct {
	lack
	n       int
	refused refused // the taints, if they are part of the set
}

func (c *lacking) add(l lack, r Restriction, n int) {
	at := slices.IndexFunc(c.sets, func(s lackingSet) bool { return s.lack == l })
	if at < 0 {
		at = len(c.sets)
		c.sets = append(c.sets, lackingSet{lack: l})
	}
	s := &c.sets[at]
	s.n += n
	if l&intolerable != 0 {
		s.refused = s.refused.add(r, n)
	}
}

// least returns what the GPUs or hosts lack that lack least: all of the sets of which no other
// one is a part. Without one of these a GPU would do.
func (c *lacking) least() (all lack, taints refused) {
	for _, s := range c.sets {
		if slices.ContainsFunc(c.sets, func(o lackingSet) bool { return o.lack != s.lack && o.lack&^s.lack == 0 }) {
			continue
		}
		all |= s.lack
		for r, n := range s.refused {
			taints = taints.add(r, n)
		}
	}
	return all, taints
}

// maxLacks bounds the sets that a sentence names.
const maxLacks = 5

// text returns the end of a sentence about GPUs: "2 lack the memory, 1 has taints".
func (c *lacking) text(req *Request) string {
	slices.SortFunc(c.sets, func(a, b lackingSet) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.lack, b.lack))
	})
	var out []string
	others := 0
	for i := range c.sets {
		if s := &c.sets[i]; i < maxLacks {
			out = append(out, fmt.Sprintf("%d %s", s.n, s.words(req)))
		} else {
			others += s.n
		}
	}
	if others > 0 {
		out = append(out, fmt.Sprintf("%d %s", others, byNumber(others, "lacks other things", "lack other things")))
	}
	return strings.Join(out, ", ")
}

// gpuWords has the words for what keeps one GPU, and several, from a request.
var gpuWords = []struct {
	of           lack
	one, several string
}{
	{otherModel, "is of another model", "are of another model"},
	{lessMemory, "has too little memory", "have too little memory"},
	{otherKind, "is in a box of another kind", "are in boxes of another kind"},
	{noNVLink, "is in a box without NVLink", "are in boxes without NVLink"},
	{undivided, "cannot be divided as asked", "cannot be divided as asked"},
	{overRoom, "is of a model of which the request may not have as many", "are of a model of which the request may not have as many"},
	{kept, "is of this lease already, kept for another one, or could not be attached before", "are of this lease already, kept for others, or could not be attached before"},
	{lessFree, "lacks the memory", "lack the memory"},
	{lessCompute, "lacks the compute", "lack the compute"},
	{noSlot, "has no slot for another part", "have no slot for another part"},
	{otherMode, "is shared in another mode", "are shared in another mode"},
	{otherExclusion, "has parts of another exclusion", "have parts of another exclusion"},
	{sameAverse, "has a part with the same anti-affinity", "have a part with the same anti-affinity"},
	{changing, "waits for parts of another kind to leave", "wait for parts of another kind to leave"},
	{notNamed, "is not among those that the request names", "are not among those that the request names"},
	{ofOtherHost, "is not one of the host's own", "are not the host's own"},
	{notUsable, "is cordoned, has failed or does not report", "are cordoned, have failed or do not report"},
}

// words returns the words for what the GPUs of the set lack.
func (s *lackingSet) words(r *Request) string {
	var out []string
	l, n := s.lack, s.n
	for _, w := range gpuWords {
		if l&w.of != 0 {
			out = append(out, byNumber(n, w.one, w.several))
		}
	}
	if l&unreached != 0 {
		out = append(out, byNumber(n, "has", "have")+" no network in common with "+r.hostText())
	}
	if l.hasLabel() {
		out = append(out, byNumber(n, "is in a box without the ", "are in boxes without the ")+l.labels(r.Labels))
	}
	if l&intolerable != 0 {
		out = append(out, byNumber(n, "has ", "have ")+obstacles(maps.Keys(s.refused), r.Tolerations))
	}
	return strings.Join(out, " and ")
}

// sayLacks says what keeps the free GPUs of a model from the request, and how many would be free
// if they were in service.
func (d *Decision) sayLacks(gpus iter.Seq[counted], model string, req *Request) {
	if d.silent || req.Brief {
		return
	}
	free := req.lacking(gpus, func(g *GPU) bool { return g.Free && g.Model == model })
	out := 0
	free.sets = slices.DeleteFunc(free.sets, func(s lackingSet) bool {
		if s.lack == notUsable {
			out = s.n
		}
		return s.lack&notUsable != 0
	})
	d.Kept = append(d.Kept, free.kept...)
	if len(free.sets) > 0 {
		d.say("Of the free ones, %s.", free.text(req))
	}
	if out > 0 {
		d.say("%s cordoned, failed or silent.", plural.Count(out, "more is", "more are"))
	}
}

// sayOthers says what keeps the free GPUs of the models from the request of which it can have no
// GPU, free or not.
func (d *Decision) sayOthers(in *inventory, req *Request) {
	others := map[string]bool{}
	if !req.Brief {
		others = in.others(in.models)
	}
	if len(others) == 0 {
		return
	}
	free := req.lacking(in.gpus("", true, req.Exclude), func(g *GPU) bool { return g.Free && g.Usable && others[g.Model] })
	d.Kept = append(d.Kept, free.kept...)
	if len(free.sets) > 0 {
		d.say("Of the free ones of other models, %s.", free.text(req))
	}
}

// lacking counts some GPUs by what keeps them from the request; those that nothing keeps from it
// do not count.
func (r *Request) lacking(gpus iter.Seq[counted], among func(*GPU) bool) *lacking {
	out := &lacking{}
	all := *r
	r = &all
	r.excluded = setOf(r.Exclude)
	keys := slices.Sorted(maps.Keys(r.Labels))
	var at *Box
	var ofBox lack
	for of := range gpus {
		b, g := of.box, of.gpu
		if !among(g) {
			continue
		}
		if b != at {
			at, ofBox = b, r.lacksBox(b, keys)
		}
		l := ofBox | r.lacks(b, g)
		if l != 0 {
			out.add(l, g.Restriction, of.n)
		}
		if l == kept {
			out.kept = append(out.kept, Ref{b.ID, g.Slot})
		}
	}
	slices.SortFunc(out.kept, func(a, b Ref) int { return cmp.Or(cmp.Compare(a.Box, b.Box), cmp.Compare(a.Slot, b.Slot)) })
	return out
}

// setOf returns the set of a list.
func setOf[T comparable](list []T) map[T]bool {
	out := make(map[T]bool, len(list))
	for _, x := range list {
		out[x] = true
	}
	return out
}

// noMatch returns the sentence for a request that no GPU meets, free or not.
func noMatch(gpus iter.Seq[counted], req *Request) string {
	why := "The pool has no usable GPU"
	if req.Brief {
		return why + "."
	}
	all := req.lacking(gpus, func(*GPU) bool { return true })
	for i := range all.sets {
		all.sets[i].lack &^= kept
	}
	least, taints := all.least()
	var want []string
	for _, w := range []struct {
		of   lack
		text string
	}{
		{otherModel, fmt.Sprintf("model %q", req.Model)},
		{overRoom, "a model of which the request may have as many"},
		{lessMemory, "at least " + bytesText(req.MinMemory) + " of memory"},
		{otherKind, fmt.Sprintf("a box of kind %s", req.Kind)},
		{noNVLink, "NVLink"},
		{undivided, "slots for " + req.Part.kind()},
		{unreached, "an address on a path of " + req.siteText()},
	} {
		if least&w.of != 0 {
			want = append(want, w.text)
		}
	}
	if least.hasLabel() {
		want = append(want, "the box's "+least.labels(req.Labels))
	}
	if len(want) > 0 {
		why += " with " + strings.Join(want, " and ")
	}
	if len(taints) > 0 {
		if req.Model != "" && least&otherModel == 0 {
			why += fmt.Sprintf(" of model %q", req.Model)
		}
		why += " that is without " + obstacles(maps.Keys(taints), req.Tolerations)
	}
	return why + "."
}

// siteText returns the words for the host of a request.
func (r *Request) siteText() string {
	if f, ok := r.site.(fixedSite); ok {
		return fmt.Sprintf("the host (%s)", f.host.Paths)
	}
	return r.hostText()
}

// hostText is siteText without the paths.
func (r *Request) hostText() string {
	if _, ok := r.site.(fixedSite); ok {
		return "the host"
	}
	return "a host that has the slots"
}

// kind returns the words for parts of that kind; p may be nil.
func (p *Part) kind() string {
	if p == nil || p.Share == AnyShare {
		return "parts"
	}
	return "parts shared in " + p.Share.String()
}
