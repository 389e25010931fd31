package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dxpu-project/dxpu/internal/agent"
)

// topOptions are the flags of "dxpu top".
type topOptions struct {
	conn     *connection
	admin    string
	rows     int
	interval time.Duration
	once     bool
	asJSON   bool
	all      bool
}

func newTopCommand(conn *connection) *cobra.Command {
	o := &topOptions{conn: conn}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the leases of the pool, or the bindings of a proxy",
		Long: `Watch the pool: its leases with the round trips and the traffic of their links,
unhealthy leases first, and the queue with the reason why each lease waits. On a
terminal the table is refreshed in place; elsewhere each table follows the last. q or
Ctrl-C ends the command.

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

With --once the command prints one table, measured over --interval. With --json it
prints an object per table.`,
		Example: `  dxpu top
  dxpu top --admin http://127.0.0.1:9100
  dxpu top --once --interval 5s
  dxpu top --json | jq -c '.slots[] | [.slot, .network_ns, .rates.mb_out]'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	adminFlag(cmd, &o.admin)
	f := cmd.Flags()
	f.DurationVar(&o.interval, "interval", time.Second, "time between two tables")
	f.BoolVar(&o.once, "once", false, "print one table")
	f.BoolVar(&o.all, "all", false, "show free slots, too (with --admin)")
	f.IntVar(&o.rows, "rows", 40, "limit of leases to show, 0: all (without --admin)")
	conn.register(cmd)
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func (o *topOptions) run(cmd *cobra.Command) error {
	if o.interval <= 0 {
		return usagef("--interval: %v is not positive", o.interval)
	}
	if o.admin == "" && os.Getenv("DXPU_ADMIN") == "" {
		return o.runPool(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
	}
	target, err := adminURL(o.admin, "/slots", nil)
	if err != nil {
		return usage(err)
	}
	out := cmd.OutOrStdout()
	screen := newScreen(cmd.InOrStdin(), out, o.once || o.asJSON)
	defer screen.close()
	ctx := cmd.Context()
	prev, err := fetchReport(ctx, target)
	if err != nil {
		return err
	}
	for screen.wait(ctx, o.interval) {
		cur, err := fetchReport(ctx, target)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := o.show(screen, newTop(prev, cur, o.all)); err != nil || o.once {
			return err
		}
		prev = cur
	}
	return nil
}

// show prints a table.
func (o *topOptions) show(w *screen, t interface{ write(io.Writer) }) error {
	if o.asJSON {
		return json.NewEncoder(w.out).Encode(t)
	}
	var buf bytes.Buffer
	t.write(&buf)
	return w.show(buf.Bytes())
}

// maxReport bounds the answer of a proxy, in bytes: 256 slots take a tenth of it.
const maxReport = 4 << 20

func fetchReport(ctx context.Context, target string) (*agent.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	body, err := adminRequest(ctx, http.MethodGet, target)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // its contents have been read
	r := &agent.Report{}
	if err := json.NewDecoder(io.LimitReader(body, maxReport)).Decode(r); err != nil {
		return nil, withHint(fmt.Errorf("%s: the answer is not the report of a proxy", target), "is this the --admin-listen address of a proxy?")
	}
	return r, nil
}

// screen shows tables: in place on a terminal, one after the other elsewhere.
type screen struct {
	out io.Writer
	in  *os.File // a terminal whose keys are read; nil: none
	tty bool
	old *term.State
}

// newScreen prepares the terminal, unless plain is set.
func newScreen(in io.Reader, out io.Writer, plain bool) *screen {
	s := &screen{out: out}
	if plain || !isTerminal(out) {
		return s
	}
	s.tty = true
	_, _ = io.WriteString(out, "\x1b[?25l\x1b[2J") // hide the cursor, clear
	if f, ok := in.(*os.File); ok && isTerminal(in) {
		if old, err := readKeys(f); err == nil {
			s.in, s.old = f, old
		}
	}
	return s
}

func (s *screen) close() {
	if s.tty {
		_, _ = io.WriteString(s.out, "\x1b[?25h")
	}
	if s.in != nil {
		_ = term.Restore(int(s.in.Fd()), s.old) // fails only if the terminal is gone
	}
}

// show prints a table, on a terminal in the place of the previous one.
func (s *screen) show(text []byte) error {
	if s.tty {
		// Move home, clear the rest of each line and the lines below.
		text = append([]byte("\x1b[H"), bytes.ReplaceAll(text, []byte("\n"), []byte("\x1b[K\n"))...)
		text = append(text, "\x1b[J"...)
	}
	_, err := s.out.Write(text)
	return err
}

// wait waits for d. It returns false when ctx ends or q is pressed.
func (s *screen) wait(ctx context.Context, d time.Duration) bool {
	if s.in != nil {
		return waitForQuit(ctx, s.in, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
