package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func newLeaseCommand(conn *connection) *cobra.Command {
	return conn.register(group("lease", "Create, resize, migrate and delete leases of GPUs",
		"A lease holds GPUs for a host from its creation to its end.",
		`  dxpu lease create --count 2 --host h1 --wait
  dxpu lease explain --count 8 --nvlink required
  dxpu lease resize l-17 --count 4
  dxpu lease migrate l-17 --wait
  dxpu lease delete l-17 --wait`,
		newLeaseCreateCommand(conn), newLeaseResizeCommand(conn), newLeaseMigrateCommand(conn), newLeaseRenewCommand(conn), newLeaseDeleteCommand(conn), newLeaseExplainCommand(conn)))
}

// leaseFlags are the flags that describe a lease.
type leaseFlags struct {
	spec              dxpuv1.LeaseSpec
	gang              dxpuv1.Gang
	part              partFlags
	expires, queueFor time.Duration
	ttl, lasts        time.Duration
	count             string // name of the flag for the number of GPUs
}

// register adds the flags. count is the name of the one for the number of GPUs.
func (o *leaseFlags) register(f *pflag.FlagSet, count string) {
	o.count = count
	f.Uint32Var(&o.spec.Count, count, 1, "`number` of GPUs, all of one model")
	f.StringVar(&o.spec.Model, "model", "", "exact model (default: the least contested model)")
	memoryVar(f, &o.spec.MinMemoryBytes, "memory", "minimum memory of each GPU, such as 16GiB")
	enumVar(f, &o.spec.BoxKind, "kind", "kind of box: nvlink or pcie-switch")
	enumVar(f, &o.spec.Nvlink, "nvlink", "GPUs joined by NVLink: preferred or required")
	enumVar(f, &o.spec.SameBox, "same-box", "GPUs in one box: preferred, required, or avoid to spread them")
	f.StringVar(&o.spec.HostId, "host", "", "host that gets the GPUs (default: one near the GPUs with enough free slots)")
	labelsVar(f, &o.spec.HostLabels, "host-label", "label that the host must have, `KEY=VALUE`")
	labelsVar(f, &o.spec.BoxLabels, "box-label", "label that the boxes of the GPUs must have, `KEY=VALUE`")
	f.Var(tolerationList{&o.spec.Tolerations}, "toleration", "use GPUs and hosts that have this taint: `KEY`, KEY=VALUE or \"*\", with :NoSchedule or :NoExecute for one effect (repeat for more)")
	f.StringSliceVar(&o.spec.GpuIds, "gpu", nil, "exactly these GPUs, `BOX/SLOT`; --"+count+" is their number (default: the manager chooses)")
	o.part.register(f)
	f.StringVar(&o.spec.HostDomain, "host-domain", "", "VM or virtual switch of the host")
	f.StringVar(&o.spec.Tenant, "tenant", "", "tenant that the lease belongs to")
	f.Int32Var(&o.spec.Priority, "priority", 0, "priority in the queue, a `number` from -100 to 100, higher first; above 0 where the tenant or the caller's role may")
	labelsVar(f, &o.spec.Labels, "label", "free label of the lease, `KEY=VALUE`")
	f.StringVar(&o.gang.Name, "gang", "", "`name` of a gang: leases that get their GPUs all at once or not at all, and end together (implies --queue)")
	f.Uint32Var(&o.gang.Size, "gang-size", 0, "`number` of leases of the gang, this one included")
	f.BoolVar(&o.spec.Preemptible, "preemptible", false, "allow a lease with a higher priority to take the GPUs")
	positiveDurationVar(f, &o.expires, "expires", 0, "end the lease after this time")
	startVar(f, &o.spec, "start", "reserve the GPUs: begin at this `time`, as in 2027-03-01T08:00:00Z or \"2027-03-01 08:00\" in the local zone, or +2h from now")
	boundedDurationVar(f, &o.lasts, "duration", 0, "with --start, end the lease this long after the start", func(d time.Duration) error {
		switch {
		case d <= 0:
			return errors.New("is not positive")
		case d > tenYears: // the manager has one limit for this and --expires
			return errors.New("is more than ten years")
		}
		return nil
	})
	durationVar(f, &o.ttl, "ttl", o.ttl, "end the lease if it is not renewed for this time, 10s to a day (\"dxpu lease renew\")")
}

// countGPUs makes the count the number of the GPUs that the user names, unless there is one.
func (o *leaseFlags) countGPUs(f *pflag.FlagSet) {
	if n := len(o.spec.GpuIds); n > 0 && !f.Changed(o.count) {
		o.spec.Count = uint32(n)
	}
}

// message returns the spec.
func (o *leaseFlags) message() *dxpuv1.LeaseSpec {
	if o.expires != 0 {
		o.spec.ExpiresAfter = durationpb.New(o.expires)
	}
	if o.lasts != 0 {
		o.spec.ExpiresAfter = durationpb.New(o.lasts)
	}
	if o.ttl != 0 {
		o.spec.Ttl = durationpb.New(o.ttl)
	}
	if o.queueFor != 0 {
		o.spec.Wait, o.spec.WaitTimeout = true, durationpb.New(o.queueFor)
	}
	if o.gang.Name != "" || o.gang.Size != 0 {
		o.spec.Gang, o.spec.Wait = &o.gang, true
	}
	o.part.apply(&o.spec)
	return &o.spec
}

// leaseCommand completes a command that changes a lease, waits until done accepts the
// lease if the flags ask for it, and prints the lease.
func leaseCommand[Req, Res any](conn *connection, cmd *cobra.Command, m method[Req, Res], request func(args []string) *Req,
	lease func(*Res) *dxpuv1.Lease, until string, done func(*dxpuv1.Lease) bool,
) *cobra.Command {
	var wait bool
	var timeout time.Duration
	waitFlags(cmd, &wait, &timeout, until)
	return valueCommand(cmd, func(cmd *cobra.Command, args []string) (*dxpuv1.Lease, error) {
		if err := checkWait(cmd, wait); err != nil {
			return nil, err
		}
		api, err := conn.pool()
		if err != nil {
			return nil, err
		}
		if f := cmd.Flags().Lookup("tenant"); f != nil {
			if err := checkTenant(cmd.Context(), api, f.Value.String()); err != nil {
				return nil, err
			}
		}
		res, err := callOn(cmd.Context(), api, m, request(args))
		if err != nil || !wait {
			return lease(res), err
		}
		w := &leaseWait{api: api, says: conn.says, out: cmd.ErrOrStderr(), limit: timeout, done: done}
		return w.run(cmd.Context(), lease(res))
	}, printLeaseLine)
}

// waitFlags adds the flags with which a command waits.
func waitFlags(cmd *cobra.Command, wait *bool, timeout *time.Duration, until string) {
	cmd.Flags().BoolVar(wait, "wait", false, "return when "+until)
	positiveDurationVar(cmd.Flags(), timeout, "timeout", time.Minute, "longest --wait; afterwards the manager continues without the command")
}

// hasState returns a condition for leaseCommand.
func hasState(want ...dxpuv1.LeaseState) func(*dxpuv1.Lease) bool {
	return func(l *dxpuv1.Lease) bool { return slices.Contains(want, l.State) }
}

func newLeaseCreateCommand(conn *connection) *cobra.Command {
	var o leaseFlags
	req := &dxpuv1.CreateLeaseRequest{}
	var cmd *cobra.Command
	cmd = leaseCommand(conn, &cobra.Command{
		Use: "create", Short: "Allocate GPUs and attach them to a host", Args: cobra.NoArgs,
		Long: `Allocate GPUs and attach them to a host.

The command returns when the manager has chosen the GPUs; with --wait, when every
GPU is attached and the guest can use it. Meanwhile the command prints the ID of the
lease and what it waits for, on standard error; interrupting the command does not end
the lease. Without capacity the command fails. With --queue the lease waits for
capacity instead.

The leases of a gang (--gang) are for a job on several hosts: one command for each of
them. They wait until all exist and all fit at once. When one of them loses its GPUs all
return to the queue, and when one ends all end.

With --gpu-memory and --compute the lease has a part of each GPU, which other leases
share: never more than its memory, and its share of the compute. With --count the parts
are on different GPUs, of one box if one has the room. --affinity and --anti-affinity
keep the parts of a tenant together or apart, --exclusion keeps a GPU for parts with the
same label.

With --start and --duration the lease begins at that time and ends that long after it. GPUs
and slots of a host are promised to it at once, or the command fails; until then only
leases that end before (--expires) get them.

With --request-id the command can be repeated: the same ID returns the same lease.`,
		Example: `  dxpu lease create --count 2 --model DX100 --host h1 --wait
  dxpu lease create --count 8 --nvlink required --queue --queue-timeout 10m
  dxpu lease create --gpu-memory 16GiB --compute 30% --class online --share space --wait
  dxpu lease create --count 2 --gpu-memory 8GiB --compute 30% --same-box required --wait
  dxpu lease create --count 4 --start "2027-03-01 08:00" --duration 4h
  for h in h1 h2 h3 h4; do dxpu lease create --count 8 --host $h --gang train --gang-size 4; done`,
	}, poolAPI.CreateLease, func([]string) *dxpuv1.CreateLeaseRequest {
		o.countGPUs(cmd.Flags())
		req.Spec = o.message()
		return req
	}, (*dxpuv1.CreateLeaseResponse).GetLease, "every GPU is attached", hasState(dxpuv1.LeaseState_LEASE_STATE_ACTIVE))
	o.register(cmd.Flags(), "count")
	f := cmd.Flags()
	f.StringVar(&req.RequestId, "request-id", "", "name of the request, which makes the command safe to repeat")
	f.BoolVar(&o.spec.Wait, "queue", false, "wait in the queue while there is no capacity")
	positiveDurationVar(f, &o.queueFor, "queue-timeout", 0, "leave the queue after this time (implies --queue)")
	cmd.MarkFlagsRequiredTogether("start", "duration")
	cmd.MarkFlagsRequiredTogether("gang", "gang-size")
	cmd.MarkFlagsRequiredTogether("gpu-memory", "compute")
	cmd.MarkFlagsMutuallyExclusive("start", "expires")
	cmd.MarkFlagsMutuallyExclusive("start", "queue-timeout")
	return cmd
}

// printLeaseLine prints the state and the GPUs of a lease on one line.
func printLeaseLine(w io.Writer, l *dxpuv1.Lease) {
	where := ""
	if reserved(l) {
		fmt.Fprintf(w, "%s is reserved from %s to %s: %s to %s\n", l.Id, date(l.Spec.StartTime), date(l.ExpireTime), strings.Join(l.Reservation.GpuIds, ", "), l.Reservation.HostId)
		return
	}
	if g := gpusOf(l); len(g) > 0 {
		where = fmt.Sprintf(": %s to %s", strings.Join(g, ", "), l.HostId)
	}
	took := ""
	if l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
		took = " after " + duration(l.ActiveTime.AsTime().Sub(l.CreateTime.AsTime()))
	}
	if p := l.Spec.GetPart(); p != nil && where != "" {
		took += fmt.Sprintf(" with %s and %s of the compute", size(p.MemoryBytes), percentWord(p.Compute))
	}
	fmt.Fprintf(w, "%s is %s%s%s\n", l.Id, enumWord(l.State), took, where)
}

func newLeaseDeleteCommand(conn *connection) *cobra.Command {
	var force, leave, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "delete LEASE...", Short: "Detach the GPUs of leases and end them", Args: cobra.MinimumNArgs(1),
		Long: `Detach the GPUs of leases and end them. The guest is asked to release each GPU;
then the GPU is reset and its memory is scrubbed. --force does not ask the guest.`,
		Example: `  dxpu lease delete l-17 --wait
  dxpu lease delete $(dxpu get leases --tenant team-a -o name)`,
	}
	out := &output{}
	out.register(cmd, true)
	waitFlags(cmd, &wait, &timeout, "all GPUs are free again")
	cmd.Flags().BoolVar(&force, "force", false, "remove the GPUs without asking the guest")
	cmd.Flags().BoolVar(&leave, "leave-gang", false, "leave the other leases of its gang as they are")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkWait(cmd, wait); err != nil {
			return err
		}
		api, err := conn.pool()
		if err != nil {
			return err
		}
		var leases []*dxpuv1.Lease
		err = each(args, func(id string) error {
			res, err := callOn(cmd.Context(), api, poolAPI.DeleteLease, &dxpuv1.DeleteLeaseRequest{LeaseId: id, Force: force, LeaveGang: leave})
			if err == nil {
				leases = append(leases, res.Lease)
			}
			return err
		})
		// All are deleted before the first is waited for.
		for _, l := range leases {
			var failed error
			if wait {
				w := &leaseWait{api: api, says: conn.says, out: cmd.ErrOrStderr(), limit: timeout, done: hasState(dxpuv1.LeaseState_LEASE_STATE_RELEASED, dxpuv1.LeaseState_LEASE_STATE_FAILED)}
				l, failed = w.run(cmd.Context(), l)
			}
			if failed == nil {
				failed = printValue(cmd, out, l, printLeaseLine)
			}
			if failed != nil {
				return severalErrors([]error{err, failed})
			}
		}
		return err
	}
	return cmd
}

func newLeaseResizeCommand(conn *connection) *cobra.Command {
	req := &dxpuv1.ResizeLeaseRequest{}
	var part dxpuv1.Part
	var deadline time.Duration
	cmd := leaseCommand(conn, &cobra.Command{
		Use: "resize LEASE", Short: "Add GPUs to a lease, or remove some", Args: cobra.ExactArgs(1),
		Long: `Add GPUs to an active lease, or remove some.

Additional GPUs meet the constraints of the lease and go to its host. The guest is
asked to release GPUs that are removed; the manager removes those whose loss leaves
the best placement.

Parts of GPUs get new limits while they run, all parts of the lease the same. They grow
if each GPU has the room. A part shrinks when its guest does not use the memory any
more; after --deadline the part is taken away and attached again with its new size.`,
		Example: `  dxpu lease resize l-17 --count 4 --wait
  dxpu lease resize l-18 --gpu-memory 24GiB --compute 50%
  dxpu lease resize l-18 --gpu-memory 8GiB --deadline 10m`,
	}, poolAPI.ResizeLease, func(args []string) *dxpuv1.ResizeLeaseRequest {
		req.LeaseId = args[0]
		if deadline != 0 {
			req.Deadline = durationpb.New(deadline)
		}
		if part.MemoryBytes != 0 || part.Compute != 0 {
			req.Part = &part
		}
		return req
	}, (*dxpuv1.ResizeLeaseResponse).GetLease, "the new GPUs are attached and the removed ones are free again", resized)
	cmd.Flags().Uint32Var(&req.Count, "count", 0, "new `number` of GPUs, or of parts")
	memoryVar(cmd.Flags(), &part.MemoryBytes, "gpu-memory", "new memory of each part, such as 16GiB")
	computeVar(cmd.Flags(), &part.Compute, "compute", "new share of the compute of each part, such as 30%")
	durationVar(cmd.Flags(), &deadline, "deadline", 0, "take the part away if its guest does not give the memory back until then")
	cmd.MarkFlagsOneRequired("count", "gpu-memory", "compute")
	cmd.MarkFlagsMutuallyExclusive("count", "gpu-memory")
	cmd.MarkFlagsMutuallyExclusive("count", "compute")
	return cmd
}

// resized reports whether a lease has all of its GPUs and releases none.
func resized(l *dxpuv1.Lease) bool {
	attached := uint32(0)
	for _, b := range l.Bindings {
		switch b.State {
		case dxpuv1.BindingState_BINDING_STATE_ATTACHED:
			attached++
		case dxpuv1.BindingState_BINDING_STATE_RELEASED:
		default:
			return false
		}
	}
	return attached == l.Spec.Count && !slices.ContainsFunc(l.Bindings, func(b *dxpuv1.Binding) bool { return b.HeldMemoryBytes > 0 })
}

func newLeaseRenewCommand(conn *connection) *cobra.Command {
	return &cobra.Command{
		Use: "renew LEASE...", Short: "Keep leases with a time to live", Args: cobra.MinimumNArgs(1),
		Long: `Keep leases that have a time to live ("dxpu lease create --ttl") for that time from
now. A program renews its lease about three times in each ttl, as "dxpu run" does by
itself, so that the lease ends soon after a program that was killed.`,
		Example: `  while dxpu lease renew l-17; do sleep 10; done`,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			return each(args, func(id string) error {
				res, err := callOn(cmd.Context(), api, poolAPI.RenewLease, &dxpuv1.RenewLeaseRequest{LeaseId: id})
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is kept until %s\n", id, date(res.Lease.RenewBefore))
				return err
			})
		},
	}
}

func newLeaseExplainCommand(conn *connection) *cobra.Command {
	var o leaseFlags
	cmd := valueCommand(&cobra.Command{
		Use: "explain [LEASE]", Short: "Explain the placement of a lease, or why it waits", Args: cobra.MaximumNArgs(1),
		Long: `Explain the placement of a lease, or why it waits. Without a lease, explain what
the manager would do with the request that the flags describe. Nothing is allocated.`,
		Example: `  dxpu lease explain l-17
  dxpu lease explain --count 4 --same-box required`,
	}, func(cmd *cobra.Command, args []string) (*dxpuv1.ExplainLeaseResponse, error) {
		if len(args) > 0 {
			if err := noSpec(cmd, args[0]); err != nil {
				return nil, err
			}
		}
		o.countGPUs(cmd.Flags())
		req := &dxpuv1.ExplainLeaseRequest{What: &dxpuv1.ExplainLeaseRequest_Spec{Spec: o.message()}}
		if len(args) == 1 {
			req.What = &dxpuv1.ExplainLeaseRequest_LeaseId{LeaseId: args[0]}
		}
		return call(cmd.Context(), conn, poolAPI.ExplainLease, req)
	}, printExplanation)
	o.register(cmd.Flags(), "count")
	return cmd
}

// noSpec returns an error if a flag describes a request beside a lease that exists.
func noSpec(cmd *cobra.Command, lease string) (err error) {
	spec := pflag.NewFlagSet("", pflag.ContinueOnError)
	(&leaseFlags{}).register(spec, "count")
	spec.VisitAll(func(f *pflag.Flag) {
		if cmd.Flags().Changed(f.Name) {
			err = usage(withHint(fmt.Errorf("--%s and %s exclude each other", f.Name, lease), "name a lease, or describe one with flags"))
		}
	})
	return err
}

func printExplanation(w io.Writer, r *dxpuv1.ExplainLeaseResponse) {
	for _, s := range r.Explanation {
		fmt.Fprintln(w, s)
	}
	result := "not now"
	if r.Satisfied {
		result = strings.Join(r.GpuIds, ", ") + " to " + r.HostId
	}
	fmt.Fprintf(w, "=> %s\n", result)
}
