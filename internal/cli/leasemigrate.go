package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func newLeaseMigrateCommand(conn *connection) *cobra.Command {
	o := &migrateOptions{}
	cmd := &cobra.Command{
		Use: "migrate LEASE", Short: "Move a GPU of a lease to another box while its guest uses it", Args: cobra.ExactArgs(1),
		Long: `Move a GPU of a lease to another box while its guest uses it. The device stays where
it is for the guest, with its memory and its queues; it stands still for some
milliseconds at the end.

The manager chooses the other GPU under the constraints of the lease, spares included;
--to names it. It must be of the same model. With --wait the command prints each step,
and returns when the lease goes on with the other GPU. A migration that fails changes
nothing for the guest. "dxpu describe gpu" says whether a GPU can move.

--cancel ends a migration that is under way: the guest keeps the GPU that it has. A drain
with --live begins another one; "dxpu uncordon" ends the drain.

With --request-id the command can be repeated: the same ID does not move the GPU again.`,
		Example: `  dxpu lease migrate l-17 --wait
  dxpu lease migrate l-17 --gpu b1/0 --to b2/3
  dxpu lease migrate l-17 --cancel`,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, conn, args[0]) },
	}
	o.out = jsonFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.req.GpuId, "gpu", "", "the GPU that moves, `BOX/SLOT` (default: the only one of the lease)")
	f.StringVar(&o.req.ToGpuId, "to", "", "the GPU to which it moves, `BOX/SLOT` (default: the manager chooses)")
	f.StringVar(&o.req.RequestId, "request-id", "", "name of the request, which makes the command safe to repeat")
	f.BoolVar(&o.cancel, "cancel", false, "end the migration that is under way")
	waitFlags(cmd, &o.wait, &o.timeout, "the lease goes on with the other GPU")
	for _, other := range []string{"to", "request-id", "wait"} {
		cmd.MarkFlagsMutuallyExclusive("cancel", other)
	}
	return cmd
}

// migrateOptions are the flags of "dxpu lease migrate".
type migrateOptions struct {
	req     dxpuv1.MigrateLeaseRequest
	cancel  bool
	wait    bool
	timeout time.Duration
	out     *output
}

func (o *migrateOptions) run(cmd *cobra.Command, conn *connection, lease string) error {
	if err := checkWait(cmd, o.wait); err != nil {
		return err
	}
	api, err := conn.pool()
	if err != nil {
		return err
	}
	if o.cancel {
		res, err := callOn(cmd.Context(), api, poolAPI.CancelMigration, &dxpuv1.CancelMigrationRequest{LeaseId: lease, GpuId: o.req.GpuId})
		if err != nil {
			return err
		}
		return printValue(cmd, o.out, res, func(w io.Writer, r *dxpuv1.CancelMigrationResponse) {
			fmt.Fprintf(w, "%s does not move to %s\n", r.Binding.LeaseId, r.Binding.GpuId)
		})
	}
	res, err := o.move(cmd.Context(), cmd, api, conn.says, lease)
	if err != nil {
		return err
	}
	return printValue(cmd, o.out, res, printMigration)
}

// move begins the migration and, with --wait, follows it to its end.
func (o *migrateOptions) move(parent context.Context, cmd *cobra.Command, api poolAPI, says *notices, lease string) (*dxpuv1.MigrateLeaseResponse, error) {
	ctx, cancel := context.WithTimeoutCause(parent, o.timeout, errTimeout)
	defer cancel()
	// The watch is open before the migration begins, so that its end is not missed.
	var events *eventWatch
	if o.wait {
		var err error
		if events, err = openWatch(ctx, api, says, &dxpuv1.WatchEventsRequest{Filter: &dxpuv1.EventFilter{LeaseId: lease}}); err != nil {
			return nil, err
		}
		defer events.close()
	}
	o.req.LeaseId = lease
	res, err := callOn(parent, api, poolAPI.MigrateLease, &o.req)
	if err != nil {
		return nil, err
	}
	if err := migrationError(res.Binding); err != nil {
		return nil, err
	}
	if o.wait && res.Binding.FollowsBindingId != "" { // a repeated call may find it at its end
		if res.Lease, err = o.follow(ctx, cmd, api, events, res); err != nil {
			return nil, err
		}
		for _, b := range res.Lease.GetBindings() {
			if b.Id == res.Binding.Id {
				res.Binding = b
			}
		}
	}
	return res, nil
}

// follow prints the steps of a migration until it is over, and returns the lease then.
func (o *migrateOptions) follow(ctx context.Context, cmd *cobra.Command, api poolAPI, events *eventWatch, res *dxpuv1.MigrateLeaseResponse) (*dxpuv1.Lease, error) {
	var mu sync.Mutex
	say := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(cmd.ErrOrStderr(), text)
	}
	copied, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { sayProgress(copied, api, res.Binding, say) })
	defer wg.Wait()
	defer stop()
	err := events.follow(ctx, func(e *dxpuv1.Event) error {
		if e.GetBindingId() != res.Binding.Id {
			return nil
		}
		switch e.Type {
		case dxpuv1.EventType_EVENT_TYPE_MIGRATION_FAILED:
			return withHint(errors.New(oneLine(e.Message)), migrationHint, res.Binding.LeaseId)
		case dxpuv1.EventType_EVENT_TYPE_GPU_MIGRATED:
			return errWatched
		}
		say(oneLine(e.Message))
		return nil
	})
	switch {
	case err == nil:
	case timedOut(ctx, err) && cmd.Context().Err() == nil:
		return nil, events.says.timeout(o.timeout, withHint(fmt.Errorf("%w: the migration is not over after %s, and continues", errTimeout, o.timeout),
			`"dxpu describe lease %s" shows it`, res.Lease.Id))
	default:
		return nil, err
	}
	got, err := callOn(ctx, api, poolAPI.GetLease, &dxpuv1.GetLeaseRequest{LeaseId: res.Lease.Id})
	return got.GetLease(), err
}

// progressPause is the time between two lines on the copy of the memory.
const progressPause = 2 * time.Second

// sayProgress says how far the copy of a migration is until the context ends.
func sayProgress(ctx context.Context, api poolAPI, next *dxpuv1.Binding, say func(string)) {
	ticker := time.NewTicker(progressPause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		res, err := callOn(ctx, api, poolAPI.GetLease, &dxpuv1.GetLeaseRequest{LeaseId: next.LeaseId})
		if err != nil {
			continue // the watch of the events says what is wrong
		}
		for _, b := range res.GetLease().GetBindings() {
			if b.Id == next.Id && b.Migration != nil {
				say("copy: " + migrationWord(b.Migration))
			}
		}
	}
}

// migrationWord says how far the copy of a GPU's memory is.
func migrationWord(m *dxpuv1.MigrationProgress) string {
	return fmt.Sprintf("%s sent, %s left, round %d", humanize.IBytes(m.BytesSent), humanize.IBytes(m.BytesLeft), m.Rounds+1)
}

const migrationHint = "the lease goes on with its GPU; \"dxpu describe lease %s\" shows it"

// migrationError returns why a migration has failed, which a repeated call may find.
func migrationError(b *dxpuv1.Binding) error {
	over := b.State == dxpuv1.BindingState_BINDING_STATE_FAILED || b.State == dxpuv1.BindingState_BINDING_STATE_RELEASED
	if b.FollowsBindingId == "" || !over {
		return nil
	}
	return withHint(fmt.Errorf("%s did not move to %s: %s", b.LeaseId, b.GpuId, oneLine(b.Detail)), migrationHint, b.LeaseId)
}

func printMigration(w io.Writer, r *dxpuv1.MigrateLeaseResponse) {
	b := r.Binding
	if b.FollowsBindingId != "" {
		fmt.Fprintf(w, "%s moves to %s: binding %s\n", b.LeaseId, b.GpuId, b.Id)
		return
	}
	for _, s := range b.Timeline {
		if s.Name == "standstill" {
			fmt.Fprintf(w, "%s has moved to %s; the device stood still for %s\n", b.LeaseId, b.GpuId, duration(s.Duration.AsDuration()))
			return
		}
	}
	fmt.Fprintf(w, "%s has moved to %s\n", b.LeaseId, b.GpuId)
}
