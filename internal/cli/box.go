//go:build linux

package cli

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/opencl"
	"github.com/dxpu-project/dxpu/device/vfioserver"
	"github.com/dxpu-project/dxpu/device/vhostuser"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/share"
)

// boxOptions are the flags of "dxpu box".
type boxOptions struct {
	proxyOptions
	config string
	kind   dxpuv1.BoxKind
	gpus   int
	spec   gpu.Spec
	opencl bool
	virtio []string // TYPE=SOCKET
	slices int      // of each GPU; 0: it is not divided
	parts  int      // that leases may make of each GPU; 0: none
	policy string   // of the slices
	logger *slog.Logger

	allowFaults bool
}

func newBoxCommand(conn *connection) *cobra.Command {
	o := &boxOptions{proxyOptions: proxyOptions{conn: conn}, kind: dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH}
	cmd := &cobra.Command{
		Use: "box", Short: "Run the proxy of a GPU box", Args: cobra.NoArgs,
		Long: `Run the proxy of a GPU box. It holds the devices in the slots of the box and carries
their PCI Express packets to the hosts that the manager binds them to.

Without --config the box holds --gpus software GPUs of one kind. With it, a YAML
file lists the slots, each with the model of its device and the parameters:

  slots:
    - gpu: {model: "V100", vram: 268435456, tags: 140, max_read_request: 128}
    - opencl: {device: "0", memory: 8589934592}    # an OpenCL device of this machine
    - vfio_user: /run/nvme.sock    # a vfio-user device server
    - virtio: /run/disk.sock       # a disk of qemu-storage-daemon
    - virtio: {type: fs, socket: /run/fs.sock, tag: shared}
    - virtio: {type: vsock, socket: /run/vsock.sock, cid: 42}
    - {}                           # an empty slot

A slot may also name its NVLink domain (nvlink) and its PCIe switch (switch).

With --slices, each GPU, software or OpenCL, is divided into slices of equal memory and compute.
Each slice is a slot with a GPU of its own, which the manager binds to any host. A
policy shares the GPU's processor between them. In the file, slices is a number or a
list, with percent of the GPU:

    - gpu: {vram: 1073741824}
      policy: mps
      slices: [{memory: 805306368, compute: 70}, {compute: 30, class: offline}]

The models are:

` + modelHelp(deviceModels(slog.New(slog.DiscardHandler))) + `
With --opencl, each OpenCL device of this machine ("dxpu box devices") is a GPU of the
pool, in the slots before the software GPUs. --gpus is then 0 by default. The program dxpu-opencl must be beside dxpu or in PATH. It runs once for each
binding, and executes the programs of the tenant; a program that faults, or that a
command keeps busy beyond time_limit, ends its own binding's context only.

A device server must reach memory by messages (DMA_READ, DMA_WRITE), because the
memory is on another machine. A server that needs memory shared by file
descriptor, such as QEMU's, is refused; message_dma: true beside vfio_user skips
the test for that. While a server is absent or refused, its slot is unhealthy with
the reason, and the box tries again.

With --virtio blk=/run/disk.sock the box offers a virtio device whose back end is a
vhost-user server: blk is a disk (qemu-storage-daemon), fs a shared directory
(virtiofsd), net a network card (passt), vsock sockets of the family AF_VSOCK
(vhost-device-vsock). The flag can be repeated; --gpus is then 0 by default. Its model for
leases is virtio- and the type, such as virtio-blk. The requests of a device other than fs
wait up to 30 seconds (grace) for a back end that starts again.

With --admin-listen and --allow-faults, "dxpu box fail" on this machine can inject a
fault into a software GPU, for tests.` + tracingHelp,
		Example: `  dxpu box --name box-a --gpus 8 --kind nvlink --join-token-file /etc/dxpu/join-token
  dxpu box --name box-b --config box-b.yaml --listen 10.0.0.2:7471 --listen 10.1.0.2:7471
  dxpu box --name box-c --opencl
  dxpu box --name box-d --virtio blk=/run/disk.sock --virtio fs=/run/fs.sock
  dxpu box --name box-e --gpus 1 --slices 4 --policy gemini
  dxpu box fail --admin http://127.0.0.1:9100 --slot 0 --xid 48`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (o.opencl || len(o.virtio) > 0) && !cmd.Flags().Changed("gpus") {
				o.gpus = 0
			}
			return o.run(cmd)
		},
	}
	o.register(cmd)
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "YAML file with the slots")
	enumVar(f, &o.kind, "kind", "connection between the GPUs: pcie-switch or nvlink")
	f.IntVar(&o.gpus, "gpus", 4, "number of software GPUs, 1 to 256")
	f.StringVar(&o.spec.Model, "model", "", "model name of the software GPUs")
	sizeVar(f, &o.spec.VRAM, "vram", "memory of each software GPU, such as 1GiB, allocated when it is written (default 256MiB)")
	f.IntVar(&o.spec.Tags, "tags", 0, "outstanding DMA reads of each software GPU (default 140)")
	f.IntVar(&o.slices, "slices", 0, "divide each GPU into `number` slices, 1 to 16, that are leased one by one")
	f.IntVar(&o.parts, "parts", 0, "let leases divide each GPU into up to `number` parts, 1 to 16")
	f.StringVar(&o.policy, "policy", "", `policy that shares a GPU between its slices, see "dxpu share policies" (default "`+defaultPolicy+`")`)
	f.BoolVar(&o.allowFaults, "allow-faults", false, `allow "dxpu box fail" on this machine to make software GPUs fail, for tests`)
	f.BoolVar(&o.opencl, "opencl", false, "offer the OpenCL devices of this machine")
	f.StringArrayVar(&o.virtio, "virtio", nil, "offer a virtio device of the vhost-user back end at a socket, as `TYPE=SOCKET`: blk, fs, net or vsock")
	cmd.MarkFlagsMutuallyExclusive("config", "opencl")
	cmd.MarkFlagsMutuallyExclusive("slices", "parts")
	cmd.MarkFlagsMutuallyExclusive("config", "virtio")
	cmd.AddCommand(newBoxFailCommand(), newBoxDevicesCommand())
	return cmd
}

func (o *boxOptions) run(cmd *cobra.Command) error {
	log := newProxyLogger(cmd, &o.log)
	o.logger = log
	if err := o.checkGPUs(cmd); err != nil {
		return err
	}
	slots, err := o.slots(cmd.Context(), deviceModels(log))
	if err != nil {
		return err
	}
	f, err := o.fabric(log)
	if err != nil {
		return err
	}
	b, err := boxproxy.New(boxproxy.Config{Slots: slots, Fabric: f, Kind: o.kind, Rack: o.rack, Labels: o.labels, Logger: log})
	if err != nil {
		return err
	}
	extra := map[string]http.Handler{"POST /faults": faultHandler(b, o.allowFaults)}
	return o.proxyOptions.run(cmd.Context(), dxpuv1.NodeKind_NODE_KIND_BOX, b, f, extra, log)
}

// checkGPUs checks the flags of the software GPUs.
func (o *boxOptions) checkGPUs(cmd *cobra.Command) error {
	if cmd.Flags().Changed("vram") && (o.spec.VRAM < 64<<10 || o.spec.VRAM%(64<<10) != 0) {
		return usagef("--vram %d: want a multiple of 64KiB", o.spec.VRAM)
	}
	if cmd.Flags().Changed("slices") && (o.slices < 1 || o.slices > gpu.MaxSlices) {
		return usagef("--slices %d: want 1 to %d", o.slices, gpu.MaxSlices)
	}
	if cmd.Flags().Changed("parts") && (o.parts < 1 || o.parts > gpu.MaxSlices) {
		return usagef("--parts %d: want 1 to %d", o.parts, gpu.MaxSlices)
	}
	if o.policy != "" {
		if _, err := share.Find(o.policy); err != nil {
			return usagef("--policy %s: \"dxpu share policies\" lists the policies", o.policy)
		}
		if o.slices == 0 && o.parts == 0 {
			return usagef("--policy needs --slices or --parts")
		}
	}
	if cmd.Flags().Changed("tags") && o.spec.Tags < 1 {
		return usagef("--tags %d: want 1 or more", o.spec.Tags)
	}
	return o.check()
}

// slots builds the devices of the box. It makes them side by side, because one of
// another process may take a second.
func (o *boxOptions) slots(ctx context.Context, models []device.Model) ([]boxproxy.Slot, error) {
	file, err := o.file(ctx, models)
	if err != nil {
		return nil, err
	}
	made, errs := make([][]boxproxy.Slot, len(file.Slots)), make([]error, len(file.Slots))
	var making sync.WaitGroup
	next := 0
	for i := range made {
		from := &file.Slots[i]
		list, err := from.list()
		if err != nil {
			return nil, fmt.Errorf("slot %d: %w", next, err)
		}
		at := device.Place{Box: o.name, Slot: next}
		making.Go(func() {
			if made[i], errs[i] = o.slot(ctx, models, from, list, at); errs[i] != nil {
				errs[i] = fmt.Errorf("slot %d: %w", at.Slot, errs[i])
			}
		})
		next += from.count(list)
	}
	making.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return slices.Concat(made...), nil
}

// slot builds the device of a slot, or its slices, which have a slot each.
func (o *boxOptions) slot(ctx context.Context, models []device.Model, from *boxSlot, list []sliceSpec, at device.Place) ([]boxproxy.Slot, error) {
	m, params, err := from.device(models)
	if err != nil {
		return nil, err
	}
	out := make([]boxproxy.Slot, 1)
	switch {
	case len(list) > 0 || from.Parts > 0:
		out, err = from.divide(ctx, m, params, at, list, o.logger)
	case m != nil:
		out[0].Device, err = m.New(ctx, at, params)
	}
	for i := range out {
		out[i].NVLink, out[i].PCISwitch = from.NVLink, from.Switch
		if from.NVLink == "" && o.kind == dxpuv1.BoxKind_BOX_KIND_NVLINK {
			out[i].NVLink = "nvlink0"
		}
	}
	return out, err
}

// file returns the slots of --config, or else of --opencl and --gpus.
func (o *boxOptions) file(ctx context.Context, models []device.Model) (file boxFile, err error) {
	if o.config == "" {
		return o.plainFile(ctx)
	}
	raw, err := readFlag("--config", o.config)
	if err != nil {
		return file, err
	}
	if file, err = parseBoxFile(raw, models); err != nil {
		return file, usagef("--config: %s: %w", o.config, err)
	}
	return file, nil
}

// plainFile returns a slot for each device that the flags name.
func (o *boxOptions) plainFile(ctx context.Context) (file boxFile, err error) {
	if o.opencl {
		if file.Slots, err = openclSlots(ctx); err != nil {
			return file, err
		}
	}
	gpus := len(file.Slots) // of other processes
	virtio, err := virtioSlots(o.virtio)
	if err != nil {
		return file, err
	}
	file.Slots = append(file.Slots, virtio...)
	each := max(o.slices, o.parts+1)
	if n := len(virtio) + (gpus+o.gpus)*each; o.gpus < 0 || n < 1 || n > boxproxy.MaxSlots {
		return file, usagef("--gpus: %d is not 1 to %d", o.gpus, (boxproxy.MaxSlots-len(virtio))/each-gpus)
	}
	var spec yaml.Node
	if err := spec.Encode(o.spec); err != nil {
		return file, err
	}
	divided := slicing{Policy: o.policy, Parts: o.parts}
	if o.slices != 0 {
		if err := divided.Slices.Encode(o.slices); err != nil {
			return file, err
		}
	}
	for i := range gpus {
		file.Slots[i].slicing = divided
	}
	for range o.gpus {
		file.Slots = append(file.Slots, boxSlot{slicing: divided, Params: map[string]yaml.Node{gpu.Model().Name: spec}})
	}
	return file, nil
}

// deviceModels returns the models of devices that a box can hold. A new model needs
// only an entry here.
func deviceModels(log *slog.Logger) []device.Model {
	return []device.Model{gpu.Model(), opencl.Model(log), vfioserver.Model(log), vhostuser.Model(log)}
}

// modelHelp lists models and their parameters for the help of a command.
func modelHelp(models []device.Model) string {
	var b strings.Builder
	for _, m := range models {
		fmt.Fprintf(&b, "  %s: %s\n", m.Name, m.Help)
		for names := range slices.Chunk(m.Params, 5) {
			fmt.Fprintf(&b, "      %s\n", strings.Join(names, ", "))
		}
	}
	return b.String()
}

// boxFile is the file that --config of a box names.
type boxFile struct {
	Slots []boxSlot `yaml:"slots"`
}

// boxSlot is a slot of a boxFile. An empty slot has no parameters.
type boxSlot struct {
	NVLink  string `yaml:"nvlink,omitempty"` // domain
	Switch  string `yaml:"switch,omitempty"` // PCIe switch of the box
	slicing `yaml:",inline"`
	// Params holds the parameters of the device under the name of its model. A
	// parameter may also stand beside the model.
	Params map[string]yaml.Node `yaml:",inline"`
}

// maxBoxFile bounds the file of a box, in bytes: some hundred for each slot.
const maxBoxFile = 64 << 10

// parseBoxFile reads a boxFile with devices of the given models.
func parseBoxFile(raw []byte, models []device.Model) (file boxFile, err error) {
	if len(raw) > maxBoxFile {
		return file, fmt.Errorf("%d bytes: want at most %d", len(raw), maxBoxFile)
	}
	if err := yaml.Load(raw, &file, yaml.WithKnownFields(true)); err != nil {
		return boxFile{}, yamlError(err)
	}
	if n := len(file.Slots); n < 1 || n > boxproxy.MaxSlots {
		return boxFile{}, fmt.Errorf("%d slots: want 1 to %d", n, boxproxy.MaxSlots)
	}
	n := 0
	for i := range file.Slots {
		list, err := file.Slots[i].list()
		if err == nil {
			_, _, err = file.Slots[i].device(models)
		}
		if err != nil {
			return boxFile{}, fmt.Errorf("slot %d: %w", n, err)
		}
		n += file.Slots[i].count(list)
	}
	if n > boxproxy.MaxSlots {
		return boxFile{}, fmt.Errorf("%d slots with the slices: want at most %d", n, boxproxy.MaxSlots)
	}
	return file, nil
}

// device returns the model of the slot's device and a decoder of its
// parameters. The model of an empty slot is nil.
func (s *boxSlot) device(models []device.Model) (model *device.Model, decode func(any) error, err error) {
	var names []string
	for i, m := range models {
		names = append(names, m.Name)
		if _, ok := s.Params[m.Name]; !ok {
			continue
		}
		if model != nil {
			return nil, nil, fmt.Errorf("both %s and %s: a slot holds one device", model.Name, m.Name)
		}
		model = &models[i]
	}
	switch {
	case len(s.Params) == 0:
		return nil, nil, nil
	case model == nil:
		got := fmt.Sprintf("%.*s", maxYAMLError/2, strings.Join(slices.Sorted(maps.Keys(s.Params)), ", "))
		return nil, nil, fmt.Errorf("%s: want the model of the device, one of %s", got, strings.Join(names, ", "))
	}
	params := yaml.Node{Kind: yaml.MappingNode}
	set := func(name string, value yaml.Node) {
		params.Content = append(params.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, &value)
	}
	for name, value := range s.Params {
		if value.Kind == yaml.AliasNode {
			value = *value.Alias
		}
		switch {
		case name != model.Name:
			set(name, value)
		case value.Kind == yaml.MappingNode:
			params.Content = append(params.Content, value.Content...)
		case value.ShortTag() == "!!null":
		case model.Main == "":
			return nil, nil, fmt.Errorf("%s: want a mapping of parameters", name)
		default:
			set(model.Main, value)
		}
	}
	return model, func(v any) error {
		if err := params.Load(v, yaml.WithKnownFields(true)); err != nil {
			return yamlError(err)
		}
		return nil
	}, nil
}
