package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func newApplyCommand(conn *connection) *cobra.Command {
	var files []string
	a := &apply{}
	cmd := &cobra.Command{
		Use: "apply", Short: "Make the tenants and leases that a file describes", Args: cobra.NoArgs,
		Long: `Make the tenants, with their quotas, and the leases that a YAML file describes. The
keys of the file are the flags of "dxpu tenant set" and "dxpu lease create"; those that
can be repeated take a list:

  tenants:
    - name: team-a
      description: speech recognition
      max-gpus: 16
      guaranteed-gpus: 8
      max-gpus-of: {DX100: 8}
      max-priority: 10
      weight: 2
  leases:
    - name: training
      tenant: team-a
      count: 4
      host: h1
      memory: 16GiB
      nvlink: preferred
      queue: true
      expires: 30d

The command can be repeated: it creates what is missing, and changes what differs. A
tenant gets the description and the quota of the file, and where the file has none no
limit, no guarantee and the weight 1. A lease is known by its name in its tenant, which the manager keeps as the label
"name"; its count can change, by a resize, and everything else needs a new lease. The
command deletes nothing. A lease that has ended is made again.

With --dry-run the manager checks everything as if the command were carried out, says
which GPUs each lease would get now, and changes nothing.`,
		Example: `  dxpu apply -f pool.yaml --dry-run
  dxpu apply -f pool.yaml
  generate-leases | dxpu apply -f -`,
	}
	valueCommand(cmd, func(cmd *cobra.Command, _ []string) (_ applied, err error) {
		if len(files) > 1 {
			return nil, usage(withHint(fmt.Errorf("--file: %d files: want one", len(files)), "run the command once for each file"))
		}
		file := files[0]
		raw, err := readSpecs(cmd.InOrStdin(), file)
		if err != nil {
			return nil, err
		}
		a.specs, err = parseSpecs(raw)
		if err != nil {
			if file == "-" {
				return nil, usage(fmt.Errorf("standard input: %w", err))
			}
			return nil, usage(fmt.Errorf("--file: %s: %w", file, err))
		}
		if a.api, err = conn.pool(); err != nil {
			return nil, err
		}
		err = a.run(cmd.Context())
		if err != nil && len(a.done) > 0 { // the actions before and after the error
			err = errors.Join(printText(cmd.ErrOrStderr(), false, a.done.print), err)
		}
		return a.done, err
	}, func(w io.Writer, done applied) { done.print(w) })
	f := cmd.Flags()
	f.StringArrayVarP(&files, "file", "f", nil, "`file` with the tenants and leases, - for standard input (required)")
	f.BoolVar(&a.dryRun, "dry-run", false, "print what the command would do, and change nothing")
	_ = cmd.MarkFlagRequired("file")
	return conn.register(cmd)
}

func readSpecs(stdin io.Reader, file string) ([]byte, error) {
	if file == "" { // of a variable that is not set
		return nil, usagef("--file: the name of the file is missing")
	}
	if file == "-" {
		return io.ReadAll(io.LimitReader(stdin, maxSpecs+1))
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxSpecs+1))
	if err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	return raw, nil
}

// nameLabel is the label of a lease that has its name in a file.
const nameLabel = "name"

// action is what was done with an object of the file.
type action struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	ID     string `json:"id,omitempty"` // of a lease
	Action string `json:"action"`
}

// applied are the actions, in the order of the file.
type applied []action

func (a applied) print(w io.Writer) {
	t := newTable(w, "KIND", "NAME", "ID", "ACTION")
	for _, x := range a {
		t.row(x.Kind, x.Name, x.ID, x.Action)
	}
	t.flush()
}

// apply makes the objects of a file.
type apply struct {
	specs  specs
	dryRun bool
	api    poolAPI
	done   applied
	wanted []wanted // of a dry run
}

// run makes all objects, also after an error with one of them: the tenants first.
func (a *apply) run(ctx context.Context) error {
	var errs []error
	for i := range a.specs.Tenants {
		errs = append(errs, a.tenant(ctx, &a.specs.Tenants[i]))
	}
	existing := map[string]*dxpuv1.ListLeasesResponse{} // by tenant
	for i := range a.specs.Leases {
		l := &a.specs.Leases[i]
		tenant := l.spec.Tenant
		if existing[tenant] == nil {
			all, err := callAll(ctx, a.api, poolAPI.ListLeases, &dxpuv1.ListLeasesRequest{Tenant: tenant, IncludeEnded: true, PageSize: 1000})
			if err != nil {
				return severalErrors(append(errs, err))
			}
			existing[tenant] = all
		}
		if err := a.lease(ctx, l, existing[tenant].Leases); err != nil {
			errs = append(errs, &aboutError{"lease " + l.Name, err})
		}
	}
	if a.dryRun {
		errs = append(errs, a.preview(ctx)...)
	}
	return severalErrors(errs)
}

// note records an action.
func (a *apply) note(kind, name, id, what string) {
	a.done = append(a.done, action{kind, name, id, what})
}

func (a *apply) tenant(ctx context.Context, t *tenantSpec) error {
	old, err := callOn(ctx, a.api, poolAPI.GetTenant, &dxpuv1.GetTenantRequest{TenantId: t.Name})
	missing := connect.CodeOf(err) == connect.CodeNotFound
	if err != nil && !missing {
		return &aboutError{"tenant " + t.Name, err}
	}
	want := t.message()
	has := &dxpuv1.Tenant{Id: t.Name, Description: old.GetTenant().GetDescription(), Quota: old.GetTenant().GetQuota()}
	if has.Quota == nil {
		has.Quota = &dxpuv1.Quota{}
	}
	has.Quota.Weight = max(1, has.Quota.Weight) // 0 is the default, 1
	if !missing && proto.Equal(has, want) {
		a.note("tenant", t.Name, "", "unchanged")
		return nil
	}
	want.ResourceVersion = old.GetTenant().GetResourceVersion()
	req := &dxpuv1.PutTenantRequest{Tenant: want, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"description", "quota"}}}
	what := "changed"
	if missing {
		what = "created"
	}
	if a.dryRun {
		a.would("tenant", t.Name, "", what, &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_PutTenant{PutTenant: req}})
		return nil
	}
	if _, err := callOn(ctx, a.api, poolAPI.PutTenant, req); err != nil {
		return &aboutError{"tenant " + t.Name, err}
	}
	a.note("tenant", t.Name, "", what)
	return nil
}

func (a *apply) lease(ctx context.Context, l *leaseSpec, existing []*dxpuv1.Lease) error {
	var current *dxpuv1.Lease
	last := "" // the newest lease of this name that has ended
	for _, e := range existing {
		switch {
		case e.Spec.Labels[nameLabel] != l.Name:
		case hasState(dxpuv1.LeaseState_LEASE_STATE_FAILED, dxpuv1.LeaseState_LEASE_STATE_RELEASED, dxpuv1.LeaseState_LEASE_STATE_RELEASING)(e):
			if last == "" || compareNatural(e.Id, last) > 0 {
				last = e.Id
			}
		default:
			current = e
		}
	}
	if current != nil {
		return a.resize(ctx, l, current)
	}
	// The same command at the same time elsewhere makes the same request.
	sum := sha256.Sum256([]byte(l.spec.Tenant + "/" + l.Name))
	req := &dxpuv1.CreateLeaseRequest{Spec: l.spec, RequestId: fmt.Sprintf("apply-%x-%s", sum[:8], last)}
	if !a.dryRun || !a.makes(l.spec.Tenant) {
		if err := checkTenant(ctx, a.api, l.spec.Tenant); err != nil {
			return err
		}
	}
	if a.dryRun {
		a.would("lease", l.Name, "", "created", &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_CreateLease{CreateLease: req}})
		return nil
	}
	res, err := callOn(ctx, a.api, poolAPI.CreateLease, req)
	if err != nil {
		return err
	}
	a.note("lease", l.Name, res.Lease.Id, "created")
	return nil
}

// makes reports whether the file describes a tenant.
func (a *apply) makes(tenant string) bool {
	return slices.ContainsFunc(a.specs.Tenants, func(t tenantSpec) bool { return t.Name == tenant })
}

// resize changes the count of a lease, if it differs. No other difference is possible.
func (a *apply) resize(ctx context.Context, l *leaseSpec, current *dxpuv1.Lease) error {
	if d := differences(l.spec, current.Spec); len(d) > 0 {
		return withHint(fmt.Errorf("%s differs in %s, which cannot change", current.Id, strings.Join(d, ", ")),
			`"dxpu lease delete %s" ends it, and the next "dxpu apply" makes it again; or write another name`, current.Id)
	}
	if l.spec.Count == current.Spec.Count {
		a.note("lease", l.Name, current.Id, "unchanged")
		return nil
	}
	req := &dxpuv1.ResizeLeaseRequest{LeaseId: current.Id, Count: l.spec.Count, ResourceVersion: current.ResourceVersion}
	what := fmt.Sprintf("resized from %d to %d GPUs", current.Spec.Count, l.spec.Count)
	if a.dryRun {
		a.would("lease", l.Name, current.Id, what, &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_ResizeLease{ResizeLease: req}})
		return nil
	}
	if _, err := callOn(ctx, a.api, poolAPI.ResizeLease, req); err != nil {
		return err
	}
	a.note("lease", l.Name, current.Id, what)
	return nil
}

// differences returns the flags in which two specs differ, apart from the count, from
// the queue, which a lease has left, and from the time that the manager has set.
func differences(want, has *dxpuv1.LeaseSpec) []string {
	a, b := proto.CloneOf(want), proto.CloneOf(has)
	if b.StartAfter != nil {
		b.StartTime = nil
	}
	var out []string
	fields := a.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if slices.Contains([]string{"count", "wait", "wait_timeout"}, string(f.Name())) {
			continue
		}
		if x, y := a.ProtoReflect().Get(f), b.ProtoReflect().Get(f); !x.Equal(y) {
			name := "--label"
			if flag := fieldFlags["spec."+string(f.Name())]; flag != "" {
				name = flag
			}
			out = append(out, strings.TrimPrefix(name, "--"))
		}
	}
	return slices.Compact(out)
}
