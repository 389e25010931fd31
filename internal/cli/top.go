package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

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
		Short: "Watch the pool, or the bindings of a proxy: round trips, bandwidth, losses",
		Long: `Watch the pool: its leases with the round trips and the traffic of their links,
those that are not well first, and the queue with why each waits. Refreshed in
place on a terminal and printed anew elsewhere. q or Ctrl-C ends it.

With --admin, watch the bindings of a proxy that runs with --admin-listen: a line
for each slot that is bound.

  PEER       node/slot of the other end
  LEAST      least round trip of the network, by the best path
  NETWORK    its smoothed round trip, with the queues of the bulk traffic
  REQUEST    how long requests that this side sent waited for their completion
  FAR        what of REQUEST is not LEAST: the time of the other end, and queues
  HERE       how long this side took to answer requests of the other
  TLP/S      TLPs sent and received in a second, MB/S their payload
  RESENT/S   fragments of TLPs that were sent again
  TAGS       requests of this side that wait, of how many there may be
  IRQ/S      interrupts of the device (host)
  NOTES      what has gone wrong since the binding was made: datagrams dropped by
             reason, DMA refused, Completion Timeouts, paths that do not work

On a host, requests are the VM's reads of the device, and HERE is guest memory;
in a box, requests are the device's DMA reads, and HERE is the device. The times
are those of sampled requests, at most a thousand in a second.

With --once there is one table, of --interval; with --json an object for each.`,
		Example: `  dxpu top
  dxpu top --admin http://127.0.0.1:9100
  dxpu top --once --interval 5s
  dxpu top --json | jq -c '.slots[] | [.slot, .network_ns, .rates.mb_out]'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	adminFlag(cmd, &o.admin)
	f := cmd.Flags()
	f.DurationVar(&o.interval, "interval", time.Second, "time between two looks")
	f.BoolVar(&o.once, "once", false, "print one table and end")
	f.BoolVar(&o.all, "all", false, "free slots too (with --admin)")
	f.IntVar(&o.rows, "rows", 40, "leases to show at most, 0: all (without --admin)")
	conn.register(cmd)
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func (o *topOptions) run(cmd *cobra.Command) error {
	if o.interval <= 0 {
		return &usageError{fmt.Errorf("--interval: %v is not positive", o.interval)}
	}
	if o.admin == "" && os.Getenv("DXPU_ADMIN") == "" {
		return o.runPool(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
	}
	target, err := adminURL(o.admin, "/slots", nil)
	if err != nil {
		return &usageError{err}
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
		if err := o.show(screen, newTop(prev, cur)); err != nil || o.once {
			return err
		}
		prev = cur
	}
	return nil
}

func (o *topOptions) show(w *screen, t *top) error {
	if !o.all {
		t.dropFree()
	}
	if o.asJSON {
		return json.NewEncoder(w.out).Encode(t)
	}
	var buf bytes.Buffer
	if err := t.write(&buf); err != nil {
		return err
	}
	return w.show(buf.Bytes())
}

// maxReport bounds what a proxy may answer: 256 slots take a tenth of it.
const maxReport = 4 << 20

func fetchReport(ctx context.Context, target string) (*agent.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	body, err := adminGet(ctx, target)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // it has been read
	r := &agent.Report{}
	if err := json.NewDecoder(io.LimitReader(body, maxReport)).Decode(r); err != nil {
		return nil, withHint(fmt.Errorf("%s: %w", target, err), "is that the admin listener of a proxy?")
	}
	return r, nil
}

// screen is where tables go: a terminal, which is drawn over, or anything else.
type screen struct {
	out io.Writer
	in  *os.File // a terminal whose keys are read; nil: none
	tty bool
	old *terminalState
}

// newScreen takes a terminal into use, unless plain is set.
func newScreen(in io.Reader, out io.Writer, plain bool) *screen {
	s := &screen{out: out}
	f, ok := out.(*os.File)
	if plain || !ok || !isTTY(f) {
		return s
	}
	s.tty = true
	_, _ = io.WriteString(out, "\x1b[?25l\x1b[2J") // hide the cursor, clear
	if f, ok := in.(*os.File); ok && isTTY(f) {
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
		s.old.restore(s.in)
	}
}

// show prints a table, over the one before where that can be done.
func (s *screen) show(text []byte) error {
	if s.tty {
		// Home; clear the rest of each line, and what is below.
		text = append([]byte("\x1b[H"), bytes.ReplaceAll(text, []byte("\n"), []byte("\x1b[K\n"))...)
		text = append(text, "\x1b[J"...)
	}
	_, err := s.out.Write(text)
	return err
}

// wait waits for d. It returns false when ctx has ended or q was pressed.
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
