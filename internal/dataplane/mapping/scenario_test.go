package mapping_test

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// gpuBARs is 64 KiB of registers and 256 MiB of prefetchable 64-bit memory.
var gpuBARs = [pcie.MaxBARs]pcie.BAR{0: {Size: 64 << 10}, 2: {Size: 256 << 20, Wide: true, Prefetchable: true}}

// TestScenarios runs testdata/*.txt; -rewrite updates the expected output.
//
//	host slots=N                       the mapping table of a host, with free slots
//	box slots=N                        that of a box, with a GPU in each slot but the last
//	switch slots=N                     a router whose ports do not forward TLPs
//
//	bind slot=S [box=B at=T path=P]                 host: bind to slot T of box B, a GPU
//	bind slot=S node=N domain=D at=T epoch=E [incarnation=I]   box: bind to slot T of domain D of node N
//	insert slot=S                                   box: another GPU
//	unbind slot=S
//	disable slot=S                                  host: function level reset
//	program slot=S id=ID bar0=ADDR bar2=ADDR        the writes of firmware to a GPU
//	snoop slot=S id=ID reg=OFFSET value=V be=MASK   one configuration write
//	entry slot=S                                    print the row
//
//	port slot=S|up [windows=(BASE-LIMIT,...)] [buses=(FIRST,LAST)] [down] [noMaster] [acs=(request,completion,forward)]
//
//	route                              route the TLPs of the input, one a line: FROM TYPE ADDR|ID|ROUTING [flag]
//	                                   FROM is host or a slot; a box prints the peer, if there is one
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s scenario
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if err := s.run(t, d); err != nil {
				return "error: " + err.Error() + "\n"
			}
			return s.take()
		})
	})
}

type scenario struct {
	out    strings.Builder
	host   *mapping.HostTable
	box    *mapping.BoxTable
	router *mapping.Router
}

func (s *scenario) take() string {
	defer s.out.Reset()
	return s.out.String()
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) error {
	var slots int
	d.MaybeScanArgs(t, "slots", &slots)
	switch d.Cmd {
	case "host":
		*s = scenario{host: mapping.NewHostTable(slots)}
	case "box":
		*s = scenario{box: mapping.NewBoxTable(slots)}
		for slot := range slots - 1 {
			if err := s.box.Insert(slot, gpuBARs); err != nil {
				return err
			}
		}
	case "switch":
		*s = scenario{router: mapping.NewRouter(slots)}
	case "bind":
		return s.bind(t, d)
	case "insert":
		return s.box.Insert(slotOf(t, d), gpuBARs)
	case "unbind":
		if s.host != nil {
			s.host.Unbind(slotOf(t, d))
		} else {
			s.box.Unbind(slotOf(t, d))
		}
	case "disable":
		s.host.Disable(slotOf(t, d))
	case "program", "snoop":
		s.write(t, d)
	case "entry":
		s.entry(slotOf(t, d))
	case "port":
		s.port(t, d)
	case "route":
		for line := range strings.Lines(d.Input) {
			s.route(t, strings.Fields(line))
		}
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	return nil
}

func (s *scenario) bind(t *testing.T, d *datadriven.TestData) error {
	slot := slotOf(t, d)
	if s.box != nil {
		return s.box.Bind(slot, mapping.Owner{
			Node: uint32(number(t, d, "node")), Domain: text(t, d, "domain"), Slot: uint16(number(t, d, "at")),
			Epoch: number(t, d, "epoch"), Incarnation: number(t, d, "incarnation"),
		})
	}
	err := s.host.Bind(slot, mapping.Target{
		Box: uint32(number(t, d, "box")), Slot: uint16(number(t, d, "at")), Path: uint8(number(t, d, "path")),
	})
	if err == nil {
		s.host.SetBARs(slot, gpuBARs)
	}
	return err
}

func (s *scenario) write(t *testing.T, d *datadriven.TestData) {
	slot, id := slotOf(t, d), bdf(t, text(t, d, "id"))
	snoop := func(register uint16, value uint32, be uint8) {
		p := configWrite(id, register, value, be)
		if s.host != nil {
			s.host.Snoop(slot, p)
		} else {
			s.box.Snoop(slot, p)
		}
	}
	if d.Cmd == "snoop" {
		snoop(uint16(number(t, d, "reg")), uint32(number(t, d, "value")), uint8(number(t, d, "be")))
		return
	}
	bar2 := number(t, d, "bar2")
	snoop(cfgspace.OffBAR0, 0xffffffff, 0xf) // sizing
	snoop(cfgspace.OffBAR0, uint32(number(t, d, "bar0")), 0xf)
	snoop(cfgspace.OffBAR0+8, uint32(bar2), 0xf)
	snoop(cfgspace.OffBAR0+12, uint32(bar2>>32), 0xf)
	snoop(cfgspace.OffCommand, cfgspace.CmdMemory|cfgspace.CmdBusMaster, 0x3)
}

func configWrite(id pcie.BDF, register uint16, value uint32, be uint8) *tlp.Packet {
	return &tlp.Packet{
		Type: tlp.CfgWr0, Target: id, Register: register, FirstBE: be, Length: 1,
		Data: binary.LittleEndian.AppendUint32(nil, value),
	}
}

func (s *scenario) entry(slot int) {
	var fn mapping.Function
	if s.host != nil {
		e, _ := s.host.Entry(slot)
		fn = e.Function
		fmt.Fprintf(&s.out, "used=%v id=%v box=%d slot=%d path=%d\n", e.Used, e.ID, e.Box, e.Target.Slot, e.Path)
	} else {
		e, _ := s.box.Entry(slot)
		fn = e.Function
		fmt.Fprintf(&s.out, "used=%v id=%v node=%d domain=%q slot=%d epoch=%d\n", e.Used, e.ID, e.Node, e.Domain, e.Owner.Slot, e.Epoch)
	}
	fmt.Fprintf(&s.out, "memory=%v master=%v\n", fn.MemoryEnabled(), fn.BusMaster())
	for i, bar := range fn.BARs {
		if bar.Size == 0 {
			continue
		}
		fmt.Fprintf(&s.out, "BAR %d at %#x", i, fn.BARAddress(i))
		if w, ok := fn.Window(i); ok {
			fmt.Fprintf(&s.out, ", decodes %#x to %#x", w.Base, w.Limit)
		}
		fmt.Fprintln(&s.out)
	}
}

func (s *scenario) port(t *testing.T, d *datadriven.TestData) {
	p := mapping.Port{Active: !d.HasArg("down"), Master: !d.HasArg("noMaster")}
	if a, ok := d.Arg("windows"); ok {
		for _, v := range a.Vals {
			base, limit, _ := strings.Cut(v, "-")
			p.Windows = append(p.Windows, cfgspace.Window{Base: parse(t, base), Limit: parse(t, limit)})
		}
	}
	if a, ok := d.Arg("buses"); ok {
		first, last := a.TwoVals(t)
		p.FirstID = pcie.NewBDF(uint8(parse(t, first)), 0, 0)
		p.LastID = pcie.NewBDF(uint8(parse(t, last)), 31, 7)
	}
	if a, ok := d.Arg("acs"); ok {
		for _, v := range a.Vals {
			p.RedirectRequests = p.RedirectRequests || v == "request"
			p.RedirectCompletions = p.RedirectCompletions || v == "completion"
			p.ForwardUpstream = p.ForwardUpstream || v == "forward"
		}
	}
	if text(t, d, "slot") == "up" {
		s.router.SetUpstream(p)
	} else {
		s.router.Set(slotOf(t, d), p)
	}
}

var messageRouting = map[string]tlp.Routing{
	"root": tlp.RouteToRootComplex, "broadcast": tlp.RouteBroadcast, "local": tlp.RouteLocal, "gather": tlp.RouteGatherToRoot,
}

// route routes the TLP that a line describes.
func (s *scenario) route(t *testing.T, f []string) {
	t.Helper()
	if len(f) < 3 {
		t.Fatalf("%q: want FROM TYPE ADDR|ID|ROUTING [flag]", f)
	}
	typ, err := tlp.ParseType(f[1])
	if err != nil {
		t.Fatal(err)
	}
	p := tlp.Packet{Type: typ, Length: 1}
	to := f[2]
	routing, implicit := messageRouting[to]
	switch {
	case implicit:
		p.Routing = routing
	case strings.Contains(to, ":"):
		p.Routing = tlp.RouteByID
		p.Target, p.Requester = bdf(t, to), bdf(t, to) // requests name a target, completions a requester
	default:
		p.Routing = tlp.RouteByAddress
		p.SetAddr(parse(t, to))
	}
	for _, flag := range f[3:] {
		switch flag {
		case "relaxed":
			p.Attr |= tlp.RelaxedOrdering
		case "translated":
			p.AT = tlp.ATTranslated
		default:
			n, ok := strings.CutSuffix(flag, "B")
			if !ok {
				t.Fatalf("%q: unknown flag %q", f, flag)
			}
			p.Length = uint16(parse(t, n) / pcie.DW)
		}
	}
	fmt.Fprintf(&s.out, "%s: %s\n", strings.Join(f, " "), s.routed(t, f[0], &p))
}

func (s *scenario) routed(t *testing.T, from string, p *tlp.Packet) string {
	if from == "host" {
		return s.router.FromHost(p).String()
	}
	slot := int(parse(t, from))
	switch {
	case s.host != nil:
		return s.host.FromSlot(slot, p).String()
	case s.router != nil:
		return s.router.FromSlot(slot, p).String()
	}
	if peer, ok := s.box.Peer(slot, p); ok {
		return fmt.Sprintf("slot %d", peer)
	}
	return "no peer"
}

func slotOf(t *testing.T, d *datadriven.TestData) int { return int(number(t, d, "slot")) }

// number returns a numeric argument, 0 without it.
func number(t *testing.T, d *datadriven.TestData, key string) uint64 {
	if s := text(t, d, key); s != "" {
		return parse(t, s)
	}
	return 0
}

func text(t *testing.T, d *datadriven.TestData, key string) (s string) {
	d.MaybeScanArgs(t, key, &s)
	return s
}

func parse(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func bdf(t *testing.T, s string) pcie.BDF {
	t.Helper()
	id, err := pcie.ParseBDF(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
