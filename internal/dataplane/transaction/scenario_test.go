package transaction_test

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// TestScenarios runs testdata/*.txt; -rewrite updates the expected output. A
// scenario has a requester, and a completer with 16 KiB of memory, where the
// byte at address A is A modulo 251.
//
//	requester tags=N [quarantine=TIME] [id=ID]
//	id new=ID                                change the Requester ID
//	begin type=TYPE addr=A n=BYTES [timeout=TIME]   begin a request; cookies count from 1
//	serve tag=T mps=N [rcb=N] [max=N]        the completer emits completions, at most max
//	complete tag=T addr=A n=BYTES [left=BYTES] [status=N] [id=ID] [type=TYPE] [poisoned] [modified]
//	at time=TIME                             advance the time; print the requests that end
//	cancel                                   cancel all requests
//	state                                    print tags, the next wake-up and the counters
//	write addr=A data=HEX first=BE [last=BE] print the runs of bytes of a memory write
//	atomic type=TYPE addr=A data=HEX         print the completion, and memory after it
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{memory: make([]byte, 16<<10)}
		for i := range s.memory {
			s.memory[i] = byte(i % 251)
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			s.run(t, d)
			return s.out.String()
		})
	})
}

type scenario struct {
	out     strings.Builder
	now     time.Duration
	memory  []byte
	r       *transaction.Requester
	cookies uint64
	open    map[int]tlp.Packet           // requests by tag
	jobs    map[int]*transaction.ReadJob // of the completer
}

func (s *scenario) printf(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func (s *scenario) run(t *testing.T, d *datadriven.TestData) {
	switch d.Cmd {
	case "requester":
		s.r = transaction.NewRequester(transaction.RequesterConfig{
			ID: id(t, d, "id", device), Tags: number(t, d, "tags", 1), Quarantine: duration(t, d, "quarantine", 0),
		})
		s.open, s.jobs = map[int]tlp.Packet{}, map[int]*transaction.ReadJob{}
	case "id":
		s.r.SetID(id(t, d, "new", 0))
	case "begin":
		s.begin(t, d)
	case "serve":
		s.serve(t, d)
	case "complete":
		s.complete(t, d)
	case "at":
		s.now = duration(t, d, "time", 0)
		s.r.Expire(s.now, nil, s.result)
	case "cancel":
		s.r.CancelAll(s.now, s.result)
	case "state":
		wake := "never"
		if w := s.r.Wake(); w != machine.Never {
			wake = w.String()
		}
		s.printf("%d in flight, %d free, wake %s", s.r.InFlight(), s.r.Free(s.now), wake)
		s.printf("%+v", s.r.Counters())
	case "write":
		p := s.request(t, d, tlp.MWr)
		p.FirstBE, p.LastBE = uint8(number(t, d, "first", 0)), uint8(number(t, d, "last", 0))
		status := transaction.WriteBytes(&p, func(addr uint64, src []byte) pcie.CplStatus {
			s.printf("%#x: %x", addr, src)
			return pcie.SuccessfulCompletion
		})
		s.printf("%v", status)
	case "atomic":
		s.atomic(t, d)
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
}

// request makes a request of the arguments addr, n and data.
func (s *scenario) request(t *testing.T, d *datadriven.TestData, typ tlp.Type) (p tlp.Packet) {
	p.Type = typ
	data, err := hex.DecodeString(text(t, d, "data"))
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	if len(data) > 0 {
		p.Data = data
	}
	addr := uint64(number(t, d, "addr", 0))
	if typ.Config() {
		p.Register, p.Length, p.FirstBE = uint16(addr), 1, 0xf
		return p
	}
	p.SetMemory(addr, number(t, d, "n", len(data)))
	if typ.Atomic() {
		p.FirstBE, p.LastBE = 0, 0
	}
	return p
}

func (s *scenario) begin(t *testing.T, d *datadriven.TestData) {
	p := s.request(t, d, kind(t, d, tlp.MRd))
	s.cookies++
	dst := make([]byte, number(t, d, "n", 0))
	if !s.r.Begin(s.now, s.now+duration(t, d, "timeout", time.Second), &p, dst, s.cookies) {
		s.printf("no tag is free")
		return
	}
	if !p.Type.NonPosted() {
		s.printf("posted by %v", p.Requester)
		return
	}
	s.open[int(p.Tag)] = p
	s.printf("request %d: tag %d of %v", s.cookies, p.Tag, p.Requester)
}

// result prints the state of a request.
func (s *scenario) result(r transaction.Result) {
	poisoned := ""
	if r.Poisoned {
		poisoned = ", poisoned"
	}
	switch {
	case !r.Done:
		s.printf("request %d: %d bytes so far%s", r.Cookie, r.N, poisoned)
	case r.Outcome != transaction.Completed:
		s.printf("request %d: %v, %d bytes%s", r.Cookie, r.Outcome, r.N, poisoned)
	case r.Status != pcie.SuccessfulCompletion:
		s.printf("request %d: completed with %v, %d bytes%s", r.Cookie, r.Status, r.N, poisoned)
	default:
		s.printf("request %d: completed, %d bytes%s: [%s]", r.Cookie, r.N, poisoned, abbreviate(r.Dst))
	}
}

// abbreviate prints bytes, of long ones the first and the last eight.
func abbreviate(b []byte) string {
	if len(b) <= 16 {
		return hex.EncodeToString(b)
	}
	return fmt.Sprintf("%x...%x", b[:8], b[len(b)-8:])
}

func (s *scenario) fetch(addr uint64, dst []byte) pcie.CplStatus {
	if addr+uint64(len(dst)) > uint64(len(s.memory)) {
		return pcie.UnsupportedRequest
	}
	copy(dst, s.memory[addr:])
	return pcie.SuccessfulCompletion
}

func (s *scenario) serve(t *testing.T, d *datadriven.TestData) {
	tag, mps, left := number(t, d, "tag", 0), number(t, d, "mps", pcie.MinPayload), number(t, d, "max", 1000)
	job := s.jobs[tag]
	if job == nil {
		job = &transaction.ReadJob{}
		request := s.open[tag]
		job.Start(&request, root, number(t, d, "rcb", pcie.DefaultRCB), mps)
		s.jobs[tag] = job
	}
	var out tlp.Packet
	if job.Emit(&out, make([]byte, mps), s.fetch, func(p *tlp.Packet) bool {
		if left == 0 {
			return false
		}
		left--
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", d.Pos, err)
		}
		s.printf("%v %v, %d bytes left, lower address %#x, payload %d", p.Type, p.Status, p.ByteCount, p.LowerAddr, len(p.Data))
		s.take(p)
		return true
	}) {
		delete(s.jobs, tag)
	}
}

// take gives the requester a completion.
func (s *scenario) take(p *tlp.Packet) {
	before := s.r.Counters()
	if r, ok := s.r.Complete(p); ok {
		s.result(r)
		return
	}
	if s.r.Counters().Late > before.Late {
		s.printf("dropped: late")
	} else {
		s.printf("dropped: unexpected")
	}
}

func (s *scenario) complete(t *testing.T, d *datadriven.TestData) {
	addr, n := uint64(number(t, d, "addr", 0)), number(t, d, "n", 0)
	p := complete(&tlp.Packet{Requester: id(t, d, "id", device), Tag: pcie.Tag(number(t, d, "tag", 0))},
		addr, number(t, d, "left", n), s.memory[addr:addr+uint64(n)])
	p.Type = kind(t, d, p.Type)
	p.Status = pcie.CplStatus(number(t, d, "status", 0))
	p.EP, p.BCM = d.HasArg("poisoned"), d.HasArg("modified")
	if !p.Type.HasData() {
		p.Length, p.Data = 0, nil
	}
	s.take(&p)
}

func (s *scenario) atomic(t *testing.T, d *datadriven.TestData) {
	p := s.request(t, d, kind(t, d, tlp.Invalid))
	var out tlp.Packet
	transaction.ExecuteAtomic(&out, &p, root, make([]byte, 2*transaction.MaxOperand), s.fetch,
		func(addr uint64, src []byte) pcie.CplStatus {
			copy(s.memory[addr:], src)
			return pcie.SuccessfulCompletion
		})
	s.printf("%v %v [%x]", out.Type, out.Status, out.Data)
	if size := transaction.OperandSize(&p); size > 0 && p.Addr+uint64(size) <= uint64(len(s.memory)) {
		s.printf("memory %x", s.memory[p.Addr:p.Addr+uint64(size)])
	}
}

func text(t *testing.T, d *datadriven.TestData, key string) (s string) {
	d.MaybeScanArgs(t, key, &s)
	return s
}

func number(t *testing.T, d *datadriven.TestData, key string, none int) int {
	s := text(t, d, key)
	if s == "" {
		return none
	}
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		t.Fatalf("%s: %s: %v", d.Pos, key, err)
	}
	return int(n)
}

func duration(t *testing.T, d *datadriven.TestData, key string, none time.Duration) time.Duration {
	s := text(t, d, key)
	if s == "" {
		return none
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("%s: %s: %v", d.Pos, key, err)
	}
	return v
}

func id(t *testing.T, d *datadriven.TestData, key string, none pcie.BDF) pcie.BDF {
	s := text(t, d, key)
	if s == "" {
		return none
	}
	v, err := pcie.ParseBDF(s)
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	return v
}

func kind(t *testing.T, d *datadriven.TestData, none tlp.Type) tlp.Type {
	s := text(t, d, "type")
	if s == "" {
		return none
	}
	v, err := tlp.ParseType(s)
	if err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	return v
}
