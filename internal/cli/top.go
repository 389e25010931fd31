package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/plural"
)

// topOptions are the flags of "dxpu top".
type topOptions struct {
	conn     *connection
	admin    string
	rows     int
	interval time.Duration
	once     bool
	form     *output
	all      bool
}

func newTopCommand(conn *connection) *cobra.Command {
	o := &topOptions{conn: conn}
	cmd := &cobra.Command{
		Use: "top", Short: "Watch the leases of the pool, or the bindings of a proxy", Args: cobra.NoArgs,
		Long: `Watch the pool: its leases with the round trips and the traffic of their links,
unhealthy leases first, and the queue with the reason why each lease waits. On a
terminal the table is refreshed in place; elsewhere each table follows the last. q (on
a terminal) or Ctrl-C ends the command.

A manager or a proxy that does not answer the first request ends the command with an
error. After an answer the command goes on: it says once that it waits, above the last
table on a terminal and elsewhere on standard error, and asks again after --interval.

With --admin, watch the bindings of a proxy that runs with --admin-listen, one line
per bound slot.

  PEER       node/slot of the other end
  LEAST      least round trip of the network, on the best path
  NETWORK    its smoothed round trip, including queues of bulk traffic
  REQUEST    time that requests of this side waited for their completion
  FAR        REQUEST minus LEAST: the time of the other end, and queues
  HERE       time that this side took to answer requests of the other
  TLP/S      TLPs sent and received per second; MB/S is their payload
  RESENT/S   fragments of TLPs retransmitted per second
  TAGS       outstanding requests of this side, and their limit
  IRQ/S      interrupts of the device per second (on a host)
  NOTES      problems since the binding began: dropped datagrams by reason, refused
             DMA, Completion Timeouts, broken paths

On a host, requests are the VM's reads of the device, and HERE is guest memory. In a
box, requests are the device's DMA reads, and HERE is the device. The times are those
of sampled requests, at most 1000 per second.

With --once the command prints one table, measured over --interval, and every error ends
it. With --json it prints an object per table.`,
		Example: `  dxpu top
  dxpu top --admin http://127.0.0.1:9100
  dxpu top --once --interval 5s
  dxpu top --json | jq -c '.leases[] | [.id, .state, .round_trip_ns]'
  dxpu top --admin http://127.0.0.1:9100 --json | jq -c '.slots[] | [.slot, .network_ns, .rates.mb_out]'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	adminFlag(cmd, &o.admin)
	f := cmd.Flags()
	positiveDurationVar(f, &o.interval, "interval", time.Second, "time between two tables")
	f.BoolVar(&o.once, "once", false, "print one table")
	f.BoolVar(&o.all, "all", false, "show free slots, too (with --admin)")
	f.IntVar(&o.rows, "rows", 40, "limit of leases to show, 0: all (without --admin)")
	conn.register(cmd)
	o.form = jsonFlag(cmd)
	return cmd
}

func (o *topOptions) run(cmd *cobra.Command) error {
	if o.rows < 0 {
		return usagef("--rows %d: want 0 or more", o.rows)
	}
	says := &notices{out: cmd.ErrOrStderr()}
	next, err := o.source(says)
	if err != nil {
		return err
	}
	screen := newScreen(cmd.InOrStdin(), cmd.OutOrStdout(), o.once || o.form.structured())
	defer screen.close()
	if screen.tty {
		says.line = screen.notice
	}
	ctx, stop := screen.untilQuit(cmd.Context())
	defer stop()
	return o.watch(ctx, screen, says, next)
}

// watch shows one table after the other until the context ends, or one with --once. After
// the first answer it goes on while the manager or the proxy does not answer.
func (o *topOptions) watch(ctx context.Context, screen *screen, says *notices, next source) error {
	for answered := false; ; {
		t, err := next(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil && (o.once || !answered || !passing(err)):
			return err
		case err != nil:
			says.told(passingText(says, err))
		default:
			answered = true
			says.told("")
			if t != nil {
				if err := o.show(screen, t); err != nil || o.once {
					return err
				}
			}
		}
		if !pause(ctx, o.interval) {
			return nil
		}
	}
}

// passing reports whether an error is that of a manager, or a proxy, that restarts, hangs,
// or cannot be reached, and so may answer later.
func passing(err error) bool {
	var request *url.Error
	code := connect.CodeOf(err)
	return code == connect.CodeUnavailable || code == connect.CodeDeadlineExceeded || isNetwork(err) || errors.As(err, &request)
}

// passingText describes a passing error.
func passingText(says *notices, err error) string {
	if connect.CodeOf(err) == connect.CodeDeadlineExceeded || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("%s has not answered for %s", says.peer(), fetchLimit)
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		return errorText(err, ce)
	}
	return says.peer() + " is unavailable: " + closedText(plainText(err, err.Error()))
}

// pause waits for d. It returns false when ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// view is a table of "dxpu top".
type view interface{ write(io.Writer) }

// source fetches the next table. It returns nil without an error when it has an answer but
// no table yet.
type source func(context.Context) (view, error)

// fetchLimit bounds the wait for the data of a table.
const fetchLimit = 10 * time.Second

// source returns the source of the tables: of the pool, or of a proxy. The first report of
// a proxy gives no table, because a table compares two reports.
func (o *topOptions) source(says *notices) (source, error) {
	if o.admin == "" && os.Getenv("DXPU_ADMIN") == "" {
		o.conn.says = says
		api, err := o.conn.pool()
		return func(ctx context.Context) (view, error) { return fetchPoolTop(ctx, api, o.rows) }, err
	}
	says.of = "the proxy"
	target, err := adminURL(o.admin, "/slots", nil)
	var prev *agent.Report
	return func(ctx context.Context) (view, error) {
		cur, err := fetchReport(ctx, target)
		if err != nil {
			return nil, err
		}
		last := prev
		if prev = cur; last == nil {
			return nil, nil
		}
		return newTop(last, cur, o.all), nil
	}, usage(err)
}

// show prints a table.
func (o *topOptions) show(w *screen, t view) error {
	if o.form.structured() {
		return json.NewEncoder(w.out).Encode(t)
	}
	var buf bytes.Buffer
	p := newPage(w.out, o.form.form == formWide)
	p.Writer, p.colour = bufio.NewWriter(&buf), false
	t.write(p)
	_ = p.Flush() // into memory
	return w.show(buf.Bytes())
}

// maxReport bounds the answer of a proxy, in bytes: 256 slots take a tenth of it.
const maxReport = 4 << 20

func fetchReport(ctx context.Context, target string) (*agent.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	body, err := adminRequest(ctx, http.MethodGet, target)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // its contents have been read
	raw, err := io.ReadAll(io.LimitReader(body, maxReport))
	if err != nil { // of the network, as one of the request
		return nil, &url.Error{Op: "Get", URL: target, Err: err}
	}
	r := &agent.Report{}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, withHint(fmt.Errorf("%s: the answer is not the report of a proxy", target), "is this the --admin-listen address of a proxy?")
	}
	return r, nil
}

// top is one table of "dxpu top" for a proxy.
type top struct {
	Role    string        `json:"role"`
	Time    time.Time     `json:"time"`
	Elapsed time.Duration `json:"elapsed_ns"` // the time that the rates cover
	Slots   []topSlot     `json:"slots"`
}

// topSlot is a slot with values computed from two reports.
type topSlot struct {
	agent.SlotReport
	// Least to Here are columns of the table; 0: unknown.
	Least   time.Duration `json:"network_least_ns"`
	Network time.Duration `json:"network_ns"`
	Request time.Duration `json:"request_ns"`
	Far     time.Duration `json:"far_ns"`
	Here    time.Duration `json:"here_ns"`
	Rates   topRates      `json:"rates"`
}

// topRates are per second.
type topRates struct {
	TLPsOut         float64 `json:"tlps_out"`
	TLPsIn          float64 `json:"tlps_in"`
	MBOut           float64 `json:"mb_out"` // 10^6 bytes of payload
	MBIn            float64 `json:"mb_in"`
	Retransmissions float64 `json:"retransmissions"`
	Duplicates      float64 `json:"duplicates"`
	Lost            float64 `json:"lost_datagrams"`
	Interrupts      float64 `json:"interrupts"`
}

// newTop compares two reports of a proxy, with or without the free slots. The times are
// those of the proxy's clock.
func newTop(prev, cur *agent.Report, free bool) *top {
	t := &top{Role: cur.Role, Time: cur.Time, Elapsed: cur.Time.Sub(prev.Time), Slots: []topSlot{}}
	before := map[int]*agent.SlotReport{}
	for i := range prev.Slots {
		before[prev.Slots[i].Slot] = &prev.Slots[i]
	}
	for i := range cur.Slots {
		if s := &cur.Slots[i]; free || s.Binding != nil {
			t.Slots = append(t.Slots, newTopSlot(before[s.Slot], s, t.Elapsed))
		}
	}
	return t
}

func newTopSlot(prev, cur *agent.SlotReport, elapsed time.Duration) topSlot {
	s := topSlot{SlotReport: *cur}
	l := linkOf(cur)
	if l == nil {
		return s
	}
	for _, p := range l.Paths {
		if p.Usable && (s.Network == 0 || p.MinRTT < s.Least) {
			s.Least, s.Network = p.MinRTT, p.SRTT
		}
	}
	s.Request, s.Here = l.Sent.Smoothed, l.Served.Smoothed
	if s.Request > 0 && s.Least > 0 {
		s.Far = max(s.Request-s.Least, 0)
	}
	old := &agent.LinkReport{}
	irqs := cur.Counters.Interrupts
	if prev != nil {
		irqs = prev.Counters.Interrupts
		if o := linkOf(prev); o != nil && cur.Binding.ID == prev.Binding.ID && cur.Binding.Epoch == prev.Binding.Epoch {
			old = o // otherwise the link is new and has counted from zero
		}
	}
	rate := func(now, then uint64) float64 {
		if elapsed <= 0 || now < then {
			return 0
		}
		return float64(now-then) / elapsed.Seconds()
	}
	const mb = 1e6
	s.Rates = topRates{
		TLPsOut: rate(l.TLPsOut, old.TLPsOut), TLPsIn: rate(l.TLPsIn, old.TLPsIn),
		MBOut: rate(l.BytesOut, old.BytesOut) / mb, MBIn: rate(l.BytesIn, old.BytesIn) / mb,
		Retransmissions: rate(l.Retransmissions, old.Retransmissions), Duplicates: rate(l.Duplicates, old.Duplicates),
		Lost: rate(l.Lost, old.Lost), Interrupts: rate(cur.Counters.Interrupts, irqs),
	}
	return s
}

func linkOf(s *agent.SlotReport) *agent.LinkReport {
	if s.Binding == nil {
		return nil
	}
	return s.Binding.Link
}

// write prints the table.
func (t *top) write(w io.Writer) {
	var out, in float64
	for i := range t.Slots {
		out, in = out+t.Slots[i].Rates.MBOut, in+t.Slots[i].Rates.MBIn
	}
	fmt.Fprintf(w, "%s at %s, %s, %.1f MB/s out, %.1f MB/s in\n\n", t.Role, t.Time.Format(time.TimeOnly), plural.Count(len(t.Slots), "slot", "slots"), out, in)
	tw := newTable(w, "SLOT", "BINDING", "EPOCH", "PEER", "STATE", "LEAST", "NETWORK", "REQUEST", "FAR", "HERE",
		"TLP/S OUT", "IN", "MB/S OUT", "IN", "RESENT/S", "TAGS", "IRQ/S", "NOTES")
	for i := range t.Slots {
		t.Slots[i].row(tw)
	}
	tw.flush()
}

func (s *topSlot) row(tw *table) {
	b := s.Binding
	if b == nil {
		tw.row(s.Slot, "", "", "", "free", "", "", "", "", "", "", "", "", "", "", "", "", s.Device)
		return
	}
	r := &s.Rates
	tags := ""
	if s.Tags != nil {
		tags = fmt.Sprintf("%d/%d", s.Tags.InFlight, s.Tags.Total)
	}
	tw.row(s.Slot, b.ID, b.Epoch, fmt.Sprintf("%d/%d", b.Peer.Node, b.Peer.Slot), b.State,
		micros(s.Least), micros(s.Network), micros(s.Request), micros(s.Far), micros(s.Here),
		perSecond(r.TLPsOut), perSecond(r.TLPsIn), fmt.Sprintf("%.1f", r.MBOut), fmt.Sprintf("%.1f", r.MBIn),
		perSecond(r.Retransmissions), tags, perSecond(r.Interrupts), strings.Join(s.notes(), ", "))
}

// notes lists problems.
func (s *topSlot) notes() (out []string) {
	if d := s.Binding.Detail; d != "" {
		out = append(out, d)
	}
	l := linkOf(&s.SlotReport)
	if l == nil {
		return out
	}
	if l.State != "up" {
		out = append(out, "link "+l.State)
	}
	for i, p := range l.Paths {
		if !p.Usable && l.State == "up" {
			out = append(out, fmt.Sprintf("path %d is broken", i))
		}
	}
	c := &s.Counters
	for _, n := range []struct {
		what string
		n    uint64
	}{
		{"DMA refused", c.DMARefused},
		{"unsupported", c.Unsupported},
		{"translated requests", c.Translated},
		{"poisoned TLPs", c.Poisoned},
		{"ECRC errors", c.Digests},
		{"timeouts", c.Timeouts},
		{"errors", c.Errors},
		{"dropped TLPs", c.Dropped},
		{"duplicates", l.Duplicates},
	} {
		if n.n > 0 {
			out = append(out, fmt.Sprintf("%s %d", n.what, n.n))
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(l.Drops)) {
		out = append(out, fmt.Sprintf("dropped %s %d", reason, l.Drops[reason]))
	}
	return out
}

// micros prints a time in microseconds, "" for 0.
func micros(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond))
}

func perSecond(v float64) string { return fmt.Sprintf("%.0f", v) }
