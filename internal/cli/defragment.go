package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/defrag"
)

// A lease with this label agrees that its GPUs move when other leases need their place.
const (
	migrationLabel = "migration"
	migrationAllow = "allow"
)

func newDefragmentCommand(conn *connection) *cobra.Command {
	o := &defragmentOptions{}
	cmd := &cobra.Command{
		Use: "defragment", Short: "Move leased GPUs so that a box has room for several", Args: cobra.NoArgs,
		Long: `Move leased GPUs to other boxes, so that one box has room for a request of several
GPUs of one model. The moves are live migrations, one after the other: the guests go on
("dxpu lease migrate"). The command chooses the box that needs the fewest, and fills the
fullest of the other boxes first.

Only GPUs of leases that agree move: those with the label ` + migrationLabel + `=` + migrationAllow + `. --all-leases moves those of
other leases, too. Parts of GPUs and GPUs whose state cannot move ("dxpu describe gpu")
stay. If the manager refuses a move, or a migration fails, that GPU stays where it is, and
the command looks for another way. Spares that the manager holds back count as free.

--dry-run prints the moves and makes none.`,
		Example: `  dxpu lease create --label ` + migrationLabel + `=` + migrationAllow + ` --wait
  dxpu defragment --gpus 8 --model A100-80GB --dry-run
  dxpu defragment --gpus 8 --timeout 30m`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, conn) },
	}
	o.out = jsonFlag(cmd)
	f := cmd.Flags()
	f.IntVar(&o.gpus, "gpus", 0, "number of GPUs for which one box is to have room, 1 to 64")
	f.StringVar(&o.model, "model", "", "their model (default: any)")
	f.IntVar(&o.most, "max-moves", maxMoves, "make no more moves than this")
	f.BoolVar(&o.allLeases, "all-leases", false, "move GPUs of leases that have not agreed, too")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the moves and make none")
	positiveDurationVar(f, &o.timeout, "timeout", time.Hour, "longest time of all moves together; the one under way then continues")
	_ = cmd.MarkFlagRequired("gpus") // it exists
	return conn.register(cmd)
}

const (
	maxMoves   = 64 // in one box
	maxRoom    = 64 // GPUs of a lease
	roomPause  = 200 * time.Millisecond
	agreesHint = "leases agree by the label " + migrationLabel + "=" + migrationAllow + "; --all-leases asks none"
)

// defragmentOptions are the flags of "dxpu defragment".
type defragmentOptions struct {
	gpus, most        int
	model             string
	allLeases, dryRun bool
	timeout           time.Duration
	out               *output
}

// defragmentResult is what the command prints.
type defragmentResult struct {
	defrag.Plan
	Moved  []defrag.Move   `json:"moved"`
	Stayed []defragRefusal `json:"stayed"`
	dry    bool
}

// defragRefusal is a GPU that did not move.
type defragRefusal struct {
	Lease  string `json:"lease"`
	GPU    string `json:"gpu"`
	Reason string `json:"reason"`
}

func (o *defragmentOptions) check() error {
	switch {
	case o.gpus < 1 || o.gpus > maxRoom:
		return usagef("--gpus %d: want 1 to %d", o.gpus, maxRoom)
	case o.most < 0 || o.most > maxMoves:
		return usagef("--max-moves %d: want 0 to %d", o.most, maxMoves)
	}
	return nil
}

func (o *defragmentOptions) run(cmd *cobra.Command, conn *connection) error {
	if err := o.check(); err != nil {
		return err
	}
	api, err := conn.pool()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), o.timeout, errTimeout)
	defer cancel()
	d := &defragmenter{o: o, api: api, says: conn.says, cmd: cmd, stays: map[string]bool{}}
	r := defragmentResult{Moved: []defrag.Move{}, Stayed: []defragRefusal{}, dry: o.dryRun}
	if r.Plan, err = d.plan(ctx, 0); err != nil {
		return err
	}
	if !o.dryRun {
		if err := d.carryOut(ctx, &r); err != nil {
			return err
		}
	}
	return printValue(cmd, o.out, r, printDefragment)
}

// defragmenter carries a plan out.
type defragmenter struct {
	o     *defragmentOptions
	api   poolAPI
	says  *notices
	cmd   *cobra.Command
	stays map[string]bool // GPUs that did not move
}

// plan looks at the pool and finds the moves, after a number of them have been made.
func (d *defragmenter) plan(ctx context.Context, made int) (defrag.Plan, error) {
	gpus, err := callAll(ctx, d.api, poolAPI.ListGPUs, &dxpuv1.ListGPUsRequest{})
	if err != nil {
		return defrag.Plan{}, err
	}
	leases, err := callAll(ctx, d.api, poolAPI.ListLeases, &dxpuv1.ListLeasesRequest{})
	if err != nil {
		return defrag.Plan{}, err
	}
	agrees := map[string]bool{}
	for _, l := range leases.Leases {
		agrees[l.Id] = l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE && (d.o.allLeases || l.Spec.GetLabels()[migrationLabel] == migrationAllow)
	}
	all := make([]defrag.GPU, len(gpus.Gpus))
	for i, g := range gpus.Gpus {
		all[i] = defrag.GPU{ID: g.Id, Box: g.BoxId, Model: g.Device.GetModel(), State: d.state(g, agrees[g.LeaseId]), Lease: g.LeaseId}
	}
	p, ok := defrag.Find(all, d.o.model, d.o.gpus)
	switch {
	case !ok && p.Box == "" && d.o.model == "":
		return p, &refusedError{errors.New("the pool has no GPU")}
	case !ok && p.Box == "":
		return p, withHint(&refusedError{fmt.Errorf("the pool has no GPU of model %q", d.o.model)}, `"dxpu get gpus" shows the models`)
	case !ok:
		return p, withHint(&refusedError{fmt.Errorf("no box can get room for %d GPUs of one model: %s comes nearest, with %d of %s", d.o.gpus, p.Box, p.Free, p.Model)}, agreesHint)
	case made+len(p.Moves) > d.o.most:
		return p, withHint(&refusedError{fmt.Errorf("%s would have room for %s after %s, more than --max-moves %d", p.Box, plural.Count(d.o.gpus, "GPU", "GPUs"), plural.Count(made+len(p.Moves), "move", "moves"), d.o.most)}, agreesHint)
	}
	return p, nil
}

// state says what a plan may do with a GPU.
func (d *defragmenter) state(g *dxpuv1.GPU, agrees bool) defrag.State {
	switch {
	case g.State == dxpuv1.GPUState_GPU_STATE_FREE:
		return defrag.Free
	case g.Cordoned || g.Draining || g.Health != dxpuv1.Health_HEALTH_OK:
		return defrag.Fixed
	case g.State == dxpuv1.GPUState_GPU_STATE_RELEASING:
		return defrag.Leaving
	case g.State == dxpuv1.GPUState_GPU_STATE_BOUND && g.Movable && agrees && !d.stays[g.Id]:
		return defrag.Movable
	}
	return defrag.Fixed
}

// carryOut makes the moves of a plan, and those of others where one fails.
func (d *defragmenter) carryOut(ctx context.Context, r *defragmentResult) error {
	todo := r.Moves
	for len(todo) > 0 {
		m := todo[0]
		fmt.Fprintf(d.cmd.ErrOrStderr(), "%s moves from %s to %s\n", m.Lease, m.From, m.To)
		one := migrateOptions{wait: true, timeout: d.o.timeout, req: dxpuv1.MigrateLeaseRequest{GpuId: m.From, ToGpuId: m.To}}
		_, err := one.move(ctx, d.cmd, d.api, d.says, m.Lease)
		switch {
		case err == nil:
			r.Moved, todo = append(r.Moved, m), todo[1:]
			continue
		case ctx.Err() != nil || errors.Is(err, errTimeout):
			return err
		}
		fmt.Fprintf(d.cmd.ErrOrStderr(), "%s stays: %v\n", m.From, err)
		d.stays[m.From] = true
		r.Stayed = append(r.Stayed, defragRefusal{Lease: m.Lease, GPU: m.From, Reason: oneLine(err.Error())})
		again, err := d.plan(ctx, len(r.Moved))
		if err != nil {
			return err
		}
		r.Plan, todo = again, again.Moves
	}
	return d.settle(ctx, r)
}

// settle waits until the box has the room: the GPUs that were left are reset and erased.
func (d *defragmenter) settle(ctx context.Context, r *defragmentResult) error {
	tick := time.NewTicker(roomPause)
	defer tick.Stop()
	for {
		gpus, err := callAll(ctx, d.api, poolAPI.ListGPUs, &dxpuv1.ListGPUsRequest{BoxId: r.Box})
		if err != nil {
			return err
		}
		leaving := false
		r.Free = 0
		for _, g := range gpus.Gpus {
			switch {
			case g.Device.GetModel() != r.Model:
			case g.State == dxpuv1.GPUState_GPU_STATE_FREE:
				r.Free++
			case d.state(g, false) == defrag.Leaving:
				leaving = true
			}
		}
		if r.Free >= d.o.gpus || !leaving {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func printDefragment(w io.Writer, r defragmentResult) {
	if r.dry && len(r.Moves) > 0 {
		t := newTable(w, "LEASE", "GPU", "MOVES TO")
		for _, m := range r.Moves {
			t.row(m.Lease, m.From, m.To)
		}
		t.flush()
	}
	switch {
	case len(r.Moves)+len(r.Moved) == 0:
		fmt.Fprintf(w, "%s has %s of %s, and nothing needs to move\n", r.Box, plural.Count(r.Free, "free GPU", "free GPUs"), r.Model)
	case r.dry:
		fmt.Fprintf(w, "%s has %s of %s, and %d after %s\n", r.Box, plural.Count(r.Free, "free GPU", "free GPUs"), r.Model, r.Free+len(r.Moves), plural.Count(len(r.Moves), "move", "moves"))
	default:
		fmt.Fprintf(w, "%s has %s of %s after %s\n", r.Box, plural.Count(r.Free, "free GPU", "free GPUs"), r.Model, plural.Count(len(r.Moved), "move", "moves"))
	}
}
