//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/localpool"
	"github.com/dxpu-project/dxpu/internal/plural"
)

// devOptions are the flags of "dxpu dev".
type devOptions struct {
	spec    localpool.Spec
	urlFile string
}

// defaultListen is the default of --listen of a manager.
const defaultListen = "127.0.0.1:7470"

func newDevCommand() *cobra.Command {
	o := &devOptions{}
	cmd := &cobra.Command{
		Use: "dev", Short: "Run a pool on this machine, to try or to develop against", Args: cobra.NoArgs,
		Long: `Run a pool on this machine: a manager, GPU boxes with software GPUs, and a host, each
a process of its own. The pool stays until Ctrl-C. The command prints the address of
the pool's page, the environment for other commands, and commands to try.

A daemon that ends, because you killed it, starts again after two seconds, as it would
under systemd. The state and the logs are in a temporary directory; --dir keeps them,
and another "dxpu dev" with the same directory continues the pool.

With --simulate the boxes and hosts have no data plane and report every attach as done
at once. Leases, failures of nodes, the page and the API work at any size, but no GPU
can be used.`,
		Example: `  dxpu dev
  dxpu dev --boxes 4 --gpus 8 --hosts 2
  dxpu dev --boxes 1 --gpus 1 --slices 2 --hosts 2 --spares 0
  dxpu dev --simulate --boxes 156 --gpus 8 --hosts 128`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.spec.Listen, "listen", defaultListen, "address of the manager; another free port is used if the default is taken")
	f.IntVar(&o.spec.Boxes, "boxes", 2, "number of GPU boxes, 1 to 32; with --simulate up to 20000")
	f.IntVar(&o.spec.GPUs, "gpus", 4, "number of software GPUs in each box, 1 to 64")
	f.IntVar(&o.spec.Slices, "slices", 0, "divide each GPU into `number` slices, 1 to 16, that are leased one by one")
	f.IntVar(&o.spec.Hosts, "hosts", 1, "number of hosts, 1 to 32; with --simulate up to 20000")
	f.IntVar(&o.spec.Slots, "slots", 4, "number of slots of each host, 1 to 32")
	f.IntVar(&o.spec.Spares, "spares", 1, "GPUs of each model held back to replace failed ones")
	f.BoolVar(&o.spec.Simulate, "simulate", false, "simulate the boxes and hosts, for large pools")
	f.StringVar(&o.spec.Dir, "dir", "", "directory for state, logs and sockets, which is kept (default: a temporary directory)")
	f.StringVar(&o.urlFile, "url-file", "", "file to which the command writes the manager's URL when the pool is ready (for scripts)")
	return cmd
}

func (o *devOptions) check() error {
	most := 32
	if o.spec.Simulate {
		most = 20_000
	}
	if !isLoopback(o.spec.Listen) {
		return usage(withHint(fmt.Errorf("--listen: %s is not a loopback address with a port", o.spec.Listen), "the pool has no tokens: it serves this machine only, for example at "+defaultListen))
	}
	if o.spec.Slices != 0 && o.spec.Simulate {
		return usagef("--slices and --simulate exclude each other: the GPUs of simulated boxes are not divided")
	}
	return cmp.Or(
		inRange("--slices", 0, gpu.MaxSlices, o.spec.Slices),
		inRange("--boxes", 1, most, o.spec.Boxes), inRange("--gpus", 1, 64, o.spec.GPUs),
		inRange("--hosts", 1, most, o.spec.Hosts), inRange("--slots", 1, 32, o.spec.Slots),
		inRange("--spares", 0, o.spec.Boxes*o.spec.GPUs*max(o.spec.Slices, 1), o.spec.Spares),
	)
}

func (o *devOptions) run(cmd *cobra.Command) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	ctx := cmd.Context()
	if o.spec.Program, err = os.Executable(); err != nil {
		return err
	}
	if o.spec.Dir == "" {
		// A short name, because the path of a socket has at most 107 bytes.
		if o.spec.Dir, err = os.MkdirTemp("", "dxpu-dev-"); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				err = os.RemoveAll(o.spec.Dir)
			} else {
				err = withHint(err, "the logs are in %s", o.spec.Dir)
			}
		}()
	} else if o.spec.Dir, err = filepath.Abs(o.spec.Dir); err != nil {
		return err
	} else if err := os.MkdirAll(o.spec.Dir, 0o700); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	if !cmd.Flags().Changed("listen") && taken(ctx, o.spec.Listen) {
		o.spec.Listen = "127.0.0.1:0"
	}
	o.spec.Version = version()
	o.spec.Say = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
	o.spec.Say("starting a manager, %s and %s", plural.Count(o.spec.Boxes, "box", "boxes"), plural.Count(o.spec.Hosts, "host", "hosts"))
	pool, err := localpool.Start(ctx, o.spec)
	if err == nil {
		err = o.ready(cmd.OutOrStdout(), pool)
	}
	if err == nil {
		err = pool.Run(ctx)
	}
	err = errors.Join(err, pool.Stop())
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // an interrupt is the normal end
	}
	return err
}

// taken reports whether another process listens at an address.
func taken(ctx context.Context, addr string) bool {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return true
	}
	return l.Close() != nil
}

// ready prints what a user needs, and writes the file for scripts.
func (o *devOptions) ready(out io.Writer, p *localpool.Pool) error {
	kind := "software"
	if o.spec.Slices > 0 {
		kind = "slices of software"
	}
	if o.spec.Simulate {
		kind = "simulated"
	}
	host := localpool.HostName(0)
	if o.spec.Simulate {
		host = "host-00000"
	}
	text := &strings.Builder{}
	fmt.Fprintf(text, `The pool is ready: %d %s GPUs in %s, and %s of %d slots.

  page  %s/
  logs  %s/*.log

In another shell:

  export DXPU_MANAGER=%s
  dxpu get gpus
  dxpu lease create --host %s --wait
`, o.spec.Boxes*o.spec.GPUs*max(o.spec.Slices, 1), kind, plural.Count(o.spec.Boxes, "box", "boxes"), plural.Count(o.spec.Hosts, "host", "hosts"), o.spec.Slots,
		p.URL, o.spec.Dir, p.URL, host)
	if !o.spec.Simulate {
		fmt.Fprintf(text, `  dxpu gpu test --socket %s/slot0.sock --quick
  dxpu box fail --admin %s --slot 0 --fault kill
`, p.SocketDir(0), p.Admin(0))
	}
	fmt.Fprint(text, "  dxpu events\n  dxpu lease delete l-1\n\nCtrl-C ends the pool.\n")
	if _, err := io.WriteString(out, text.String()); err != nil {
		return err
	}
	if o.urlFile == "" {
		return nil
	}
	if err := atomicfile.Output(o.urlFile, []byte(p.URL+"\n"), 0o644); err != nil {
		return fmt.Errorf("--url-file: %w", err)
	}
	return nil
}
