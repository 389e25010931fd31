//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/gpus"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidia"
	gpushare "github.com/dxpu-project/dxpu/share"
)

// shareServe are the flags of "dxpu share serve".
type shareServe struct {
	dir, state, root, group string
	policy, without         string
	kernelLog               string
	mpsUser                 string
	gpus                    []string
	overCommit              int
	pool                    sharePool
	admin                   adminOptions
	log                     logOptions
	smi                     smiCache
	drivers                 driverWatch
}

// shareDir is the folder of the agent that the commands of this machine use.
func shareDir() string { return cmp.Or(os.Getenv("DXPU_SHARE_DIR"), "/run/dxpu/share") }

// threadsPerSM is the number of threads that a multiprocessor has room for, on most
// GPUs since Kepler. Policies use it to predict how much of a GPU a launch fills.
const threadsPerSM = 2048

func newShareServeCommand() *cobra.Command {
	o := &shareServe{pool: sharePool{conn: &connection{}}}
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the agent that divides the NVIDIA GPUs of this machine", Args: cobra.NoArgs,
		Long: `Run the agent that divides the NVIDIA GPUs of this machine between programs. Programs
get a part of a GPU by "dxpu share run", or by a share that "dxpu share create" made.
The driver library of dxpu asks the agent for memory and for permits of launches.

The agent finds the GPUs by sysfs, and their memory by nvidia-smi. --gpu names those to
share, or describes one by hand, with the memory in bytes or with a unit:

  --gpu 0000:3b:00.0
  --gpu 0000:3b:00.0,memory=15GiB,sms=80
  --gpu test,memory=4GiB                    # for the fake driver: the first device

A GPU that cannot be read, or is not there, keeps the others from nothing. The agent says
which one is missing and why, and "dxpu share gpus" shows it. Its shares wait for it, those
with other GPUs go on with these, and the agent gives it back when it finds it, at its start
or later. It looks each five seconds, and believes three looks in a row. It knows a GPU by
its UUID, at whatever address it is.

The default policy is gemini: it keeps shares and limits of compute for programs with
contexts of their own, and so needs neither MPS nor MIG. "dxpu share policies" lists the
others. With mps, mig and streams the gates stay open: the hardware keeps the shares.
With mps the agent runs NVIDIA's Multi-Process Service of each GPU, for the programs of one
user (--mps-user) that "dxpu share run" starts. They end when the agent is told to end.

Only root, and with --group the members of a group, may ask for shares. The agent keeps
them in --state. A later agent takes them over, and the programs go on meanwhile:
with --without-agent closed, their launches wait for it.

The agent reads the errors of the GPUs (XID) in the kernel log. By NVIDIA's catalogue it
ignores an error, ends the program that made it, or takes the GPU out of service: its
programs are asked to end, nvidia-smi resets it, and it returns by itself, at once or after
a time that doubles. "dxpu share gpus" shows the state.

With --manager the agent offers the GPUs to a pool, and its manager divides them: the
machine is the host --host of the pool, and its GPUs those of the box --box. Only a lease
that names the host gets them, in parts or one of them whole; users of the machine run their
programs in a lease, and make no shares of their own. The programs go on while the
manager is away.`,
		Example: `  dxpu share serve --group video
  dxpu share serve --policy tgs --admin-listen 127.0.0.1:9105
  dxpu share serve --manager https://pool:7470 --ca-hash sha256:... --join-token-file /etc/dxpu/join-token
  dxpu share serve --gpu test,memory=4GiB --dir /tmp/share --state /tmp/share.json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", shareDir(), "`folder` of the sockets (default $DXPU_SHARE_DIR)")
	f.StringVar(&o.state, "state", "/var/lib/dxpu/share.json", "`file` with the shares")
	f.StringArrayVar(&o.gpus, "gpu", nil, "`GPU` to share, as ADDRESS or NAME[,memory=SIZE][,sms=NUMBER]; repeat it for more (default: all)")
	f.StringVar(&o.policy, "policy", "gemini", "`policy` that divides each GPU")
	f.StringVar(&o.without, "without-agent", "open", "launches while no agent runs: open (they go on) or closed (they wait)")
	f.StringVar(&o.group, "group", "", "`group` whose members may ask for shares, beside root")
	f.StringVar(&o.mpsUser, "mps-user", "", "with --policy mps: `user` whose programs use MPS (default: the agent's)")
	f.IntVar(&o.overCommit, "memory-percent", 100, "memory that shares may have together, in percent of the GPU's")
	f.StringVar(&o.kernelLog, "kernel-log", "/dev/kmsg", "`file` with the errors of the GPUs; none: they are not watched")
	f.StringVar(&o.root, "root", "/", "`folder` with sys and proc")
	o.pool.register(cmd)
	o.admin.register(f, "GET /metrics, /healthz and /readyz")
	o.log.register(f)
	return cmd
}

func (o *shareServe) run(cmd *cobra.Command) error {
	if err := o.admin.check(); err != nil {
		return err
	}
	if _, err := gpushare.Find(o.policy); err != nil {
		return usage(withHint(fmt.Errorf("--policy %s: no such policy", o.policy), `"dxpu share policies" lists them`))
	}
	if o.without != "open" && o.without != "closed" {
		return usagef("--without-agent %q: want open or closed", o.without)
	}
	if err := inRange("--memory-percent", 100, 1000, o.overCommit); err != nil {
		return err
	}
	if err := o.pool.check(cmd, o); err != nil {
		return err
	}
	log := o.log.logger(cmd)
	group, err := groupID(o.group)
	if err != nil {
		return err
	}
	list, missing, err := o.find(cmd.Context(), log)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.state), 0o700); err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	service, uid, err := o.mps(list, log)
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Config{
		Broker: broker.Config{GPUs: list, Policy: o.policy, Closed: o.without == "closed", OverCommit: o.overCommit},
		Dir:    o.dir, State: o.state, Group: group, Log: log,
		KernelLog: openKernelLog(o.kernelLog, log), Reset: resetBy(nvidia.Programs{}),
		MPS: service, MPSUser: uid, Pool: o.pool.conn.manager, Missing: missing, Look: o.look,
	})
	if err != nil {
		return err
	}
	nodes, err := o.pool.member(cmd.Context(), a, o.policy, log)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(a, buildInfo())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if nodes != nil && !nodes.Connected() {
			http.Error(w, "no connection to the manager", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	admin, err := o.admin.open(cmd.Context(), mux, log)
	if err != nil {
		return err
	}
	for _, g := range list {
		log.Info("GPU is shared", "gpu", g.Name, "model", g.Model, "memory", g.Device.Memory, "multiprocessors", g.Device.SMs)
	}
	work, ctx := errgroup.WithContext(cmd.Context())
	work.Go(func() error { return a.Run(ctx) })
	if nodes != nil {
		work.Go(func() error { return nodes.Run(ctx) })
	}
	work.Go(func() error { return admin(ctx) })
	notifyReady()
	return work.Wait()
}

// groupID returns the number of a group, -1 for none.
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, usagef("--group: %w", err)
	}
	return strconv.Atoi(g.Gid)
}

// find returns the GPUs to share, and why others that are there, or that --gpu names, are missing.
func (o *shareServe) find(ctx context.Context, log *slog.Logger) ([]broker.GPU, map[string]string, error) {
	found, failed, err := gpus.Find(o.root)
	if err != nil {
		return nil, nil, err
	}
	return o.choose(ctx, found, failed, log)
}

// choose returns those GPUs of the machine that are to be shared, and why others are missing.
func (o *shareServe) choose(ctx context.Context, found []gpus.GPU, failed []*gpus.UnreadableError, log *slog.Logger) ([]broker.GPU, map[string]string, error) {
	missing := map[string]string{}
	for _, g := range failed {
		missing[g.Address] = fmt.Sprintf("it cannot be read: %v; repair it%s", g.Err, o.then())
	}
	found = o.drivers.keep(found, func(address string) {
		missing[address] = "NVIDIA's driver has left it: bind the driver again" + o.then()
	})
	listed := o.smi.of(ctx, found, log)
	var all []broker.GPU
	for i := range found {
		all = append(all, foundGPU(&found[i], listed))
		if g := &all[i]; g.Device.Memory == 0 {
			missing[g.Name] = fmt.Sprintf("its memory is not known, because nvidia-smi does not list it: repair it%s, or describe it with --gpu %s,memory=16GiB", o.then(), g.Name)
		}
	}
	if len(o.gpus) > 0 {
		return o.named(all, missing, log)
	}
	if len(all)+len(missing) == 0 {
		return nil, nil, withHint(fmt.Errorf("no NVIDIA GPU below %s", filepath.Join(o.root, "sys/bus/pci/devices")), "describe one with --gpu, to try the agent with the fake driver")
	}
	warnOfModels(found, log)
	all = slices.DeleteFunc(all, func(g broker.GPU) bool { return g.Device.Memory == 0 })
	return all, missing, leftOut(all, missing, nil, log)
}

// named returns the GPUs that --gpu names.
func (o *shareServe) named(all []broker.GPU, missing map[string]string, log *slog.Logger) (out []broker.GPU, _ map[string]string, err error) {
	var names []string
	var first error
	for _, text := range o.gpus {
		text = fullAddress(text)
		name, _, _ := strings.Cut(text, ",")
		if slices.Contains(names, name) {
			return nil, nil, usagef("--gpu %s is there twice", name)
		}
		names = append(names, name)
		g, err := namedGPU(text, all)
		if at, wrong := gpus.ParseAddress(name); wrong == nil && at.Address == name && (errors.Is(err, errNoGPU) || errors.Is(err, errNoMemory) && missing[name] != "") {
			missing[name] = cmp.Or(missing[name], "there is no NVIDIA GPU at this address: bring it back"+o.then()+", or name another one")
			first = cmp.Or(first, err)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		delete(missing, name) // it is described
		out = append(out, g)
	}
	if len(out) == 0 {
		return nil, missing, first
	}
	return out, missing, leftOut(out, missing, names, log)
}

// fullAddress gives the address in a value of --gpu the form that the kernel has: lspci leaves the
// domain 0000 out.
func fullAddress(text string) string {
	name, rest, described := strings.Cut(text, ",")
	for _, address := range []string{name, "0000:" + name} {
		if g, err := gpus.ParseAddress(address); err == nil {
			name = g.Address
			break
		}
	}
	if described {
		name += "," + rest
	}
	return name
}

// look finds the GPUs again while the agent runs.
func (o *shareServe) look(ctx context.Context) ([]broker.GPU, map[string]string, error) {
	found, failed, err := gpus.Find(o.root)
	if err != nil {
		return nil, nil, err
	}
	list, missing, err := o.choose(ctx, found, failed, slog.New(slog.DiscardHandler))
	if err != nil { // none of them is there
		return nil, missing, nil
	}
	return list, missing, nil
}

// then says what follows the repair of a GPU.
func (o *shareServe) then() string {
	if o.policy == "mps" {
		return ", and restart the agent"
	}
	return ""
}

// leftOut tells of the GPUs that are missing, as errors where --gpu names them. It is an error if
// no GPU is left.
func leftOut(list []broker.GPU, missing map[string]string, names []string, log *slog.Logger) error {
	var failed []error
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		failed = append(failed, fmt.Errorf("GPU %s: %s", name, missing[name]))
		if slices.Contains(names, name) {
			log.Error("GPU that --gpu names is missing: the agent starts without it", "gpu", name, "why", missing[name])
		} else if len(names) == 0 {
			log.Warn("GPU is left out", "gpu", name, "why", missing[name])
		}
	}
	if len(list) == 0 {
		return errors.Join(failed...)
	}
	return nil
}

// warnOfModels tells of GPUs whose multiprocessors are not known.
func warnOfModels(found []gpus.GPU, log *slog.Logger) {
	for i := range found {
		if sms, known := gpus.Multiprocessors(found[i].Model); !known {
			log.Warn("number of multiprocessors of the GPU's model is not known: give it with --gpu ADDRESS,sms=NUMBER; policies predict by it how much of the GPU a launch fills",
				"gpu", found[i].Address, "model", found[i].Model, "taken", sms)
		}
	}
}

// listedGPUs returns what nvidia-smi knows of the GPUs, by PCI address.
func listedGPUs(ctx context.Context, log *slog.Logger) map[string]nvidia.Device {
	out := map[string]nvidia.Device{}
	devices, err := nvidia.Programs{}.Devices(ctx)
	if err != nil {
		log.Info("nvidia-smi gives no memory of GPUs", "error", err)
	}
	for _, d := range devices {
		if g, err := gpus.ParseAddress(strings.ToLower(strings.TrimPrefix(d.PCI, "0000"))); err == nil {
			out[g.Address] = d
		}
	}
	return out
}

// smiPause is the time between two runs of nvidia-smi for the same GPUs: it opens all of them.
const smiPause = 30 * time.Second

// smiCache keeps what nvidia-smi said of the GPUs, so that a look does not run it each time.
type smiCache struct {
	found  []gpus.GPU
	listed map[string]nvidia.Device
	at     time.Time
}

// of returns what nvidia-smi says of GPUs. It runs when they have changed, and later again while one
// is not in its list.
func (c *smiCache) of(ctx context.Context, found []gpus.GPU, log *slog.Logger) map[string]nvidia.Device {
	same := slices.Equal(found, c.found)
	lacks := slices.ContainsFunc(found, func(g gpus.GPU) bool { _, ok := c.listed[g.Address]; return !ok })
	if same && (!lacks || time.Since(c.at) < smiPause) {
		return c.listed
	}
	now := map[string]nvidia.Device{}
	if len(found) > 0 {
		now = listedGPUs(ctx, log)
	}
	for _, g := range found { // one that it could not list this time
		if d, ok := c.listed[g.Address]; ok && c.remains(&g, d) && now[g.Address] == (nvidia.Device{}) {
			now[g.Address] = d
		}
	}
	c.found, c.listed, c.at = found, now, time.Now()
	return now
}

// remains reports whether a GPU was there before, as nvidia-smi has described it. Meanwhile a
// program may have opened it first, so that the driver knows its UUID.
func (c *smiCache) remains(g *gpus.GPU, d nvidia.Device) bool {
	uuid, _ := gpus.ParseUUID(d.UUID)
	return slices.ContainsFunc(c.found, func(old gpus.GPU) bool {
		return old == *g || old.Address == g.Address && (old.UUID == [16]byte{} || g.UUID == [16]byte{}) && (uuid == g.UUID || uuid == old.UUID)
	})
}

// driverWatch knows the GPUs that NVIDIA's driver had. One that it has no more is not there for
// programs, though it is on the bus, and also where --gpu describes it: its driver was unbound.
type driverWatch map[string]bool // by PCI address

// keep returns the GPUs without those that the driver has left, and tells their addresses.
func (w *driverWatch) keep(found []gpus.GPU, left func(address string)) (out []gpus.GPU) {
	had := *w
	*w = driverWatch{}
	for _, g := range found {
		has := g.Model != "" || g.UUID != [16]byte{}
		if has || had[g.Address] {
			(*w)[g.Address] = true
		}
		if !has && had[g.Address] {
			left(g.Address)
			continue
		}
		out = append(out, g)
	}
	return out
}

// foundGPU returns a GPU as the broker has it. The files of the driver have no UUID before the
// first program has opened the GPU, which nvidia-smi does.
func foundGPU(g *gpus.GPU, listed map[string]nvidia.Device) broker.GPU {
	sms, _ := gpus.Multiprocessors(g.Model)
	uuid := g.UUID
	if uuid == [16]byte{} {
		uuid, _ = gpus.ParseUUID(listed[g.Address].UUID)
	}
	return broker.GPU{
		Name: g.Address, Model: g.Model, UUID: uuid, Domain: g.Domain, Address: g.Function,
		Device: gpushare.Device{SMs: sms, ThreadsPerSM: threadsPerSM, Memory: listed[g.Address].Memory},
	}
}

// What namedGPU says of a GPU that may come back, and not of a wrong flag.
var (
	errNoGPU    = errors.New("no NVIDIA GPU at this address")
	errNoMemory = errors.New("its memory is not known")
)

// namedGPU returns the GPU that a value of --gpu names or describes.
func namedGPU(text string, all []broker.GPU) (broker.GPU, error) {
	name, rest, _ := strings.Cut(text, ",")
	g := broker.GPU{Name: name, Device: gpushare.Device{SMs: 80, ThreadsPerSM: threadsPerSM}}
	i := slices.IndexFunc(all, func(x broker.GPU) bool { return x.Name == name })
	if i >= 0 {
		g = all[i]
	}
	for _, setting := range strings.Split(rest, ",") {
		key, value, _ := strings.Cut(setting, "=")
		switch key {
		case "":
		case "memory":
			n, err := parseSize(value)
			if err != nil {
				return g, usagef("--gpu %s: memory: %w", name, err)
			}
			g.Device.Memory = int64(n)
		case "sms":
			n, err := strconv.ParseUint(value, 10, 12)
			if err != nil || n == 0 {
				return g, usagef("--gpu %s: sms %q: want 1 to 4095", name, value)
			}
			g.Device.SMs = int32(n)
		default:
			return g, usagef("--gpu %s: unknown setting %q: want memory or sms", name, key)
		}
	}
	if i < 0 && strings.Contains(name, ":") {
		return g, usage(withHint(fmt.Errorf("--gpu %s: %w", name, errNoGPU), `"lspci -D -d 10de:" lists them`))
	}
	if name == "" || g.Device.Memory == 0 {
		return g, usage(withHint(fmt.Errorf("--gpu %q: %w", text, errNoMemory), "--gpu %s,memory=16GiB", cmp.Or(name, "NAME")))
	}
	return g, nil
}
