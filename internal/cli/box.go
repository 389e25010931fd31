package cli

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/http"
	"os"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
)

// boxOptions are the flags of "dxpu box".
type boxOptions struct {
	proxyOptions
	config string
	kind   string
	gpus   int
	spec   gpu.Spec
}

// boxFile is the file that --config names.
type boxFile struct {
	Slots []boxSlotFile `yaml:"slots"`
}

// boxSlotFile is one slot: one of its fields is set, or none for an empty slot.
type boxSlotFile struct {
	GPU      *gpu.Spec `yaml:"gpu,omitempty"`
	VFIOUser string    `yaml:"vfio_user,omitempty"` // socket of a device server
	// MessageDMA says that the device server is known to do its DMA by messages.
	MessageDMA bool   `yaml:"message_dma,omitempty"`
	NVLink     string `yaml:"nvlink,omitempty"` // domain
	Switch     string `yaml:"switch,omitempty"` // PCIe switch of the box
}

func newBoxCommand(conn *connection) *cobra.Command {
	o := &boxOptions{proxyOptions: proxyOptions{conn: conn}}
	cmd := &cobra.Command{
		Use:   "box",
		Short: "Run the proxy of a GPU box",
		Long: `Run the proxy of a GPU box: it holds the devices of the box's slots and carries
their PCI Express packets to the hosts that the manager bound them to.

Without --config the box holds --gpus software GPUs of one kind. With it, a YAML
file says what is in each slot:

  slots:
    - gpu: {model: "V100", vram: 268435456, tags: 140, max_read_request: 128}
    - vfio_user: /run/nvme.sock    # a vfio-user device server of somebody else
    - {}                           # an empty slot

A device server must reach memory by messages (DMA_READ, DMA_WRITE), because the
memory is on another machine: one that answers only with memory shared by file
descriptor, as QEMU's does, is refused. message_dma: true beside vfio_user skips
the test for that.

With --admin-listen, "dxpu box fail" makes a software GPU fail, to see what
happens then.` + tracingHelp,
		Example: `  dxpu box --name box-a --gpus 8 --kind nvlink --join-token-file /etc/dxpu/join-token
  dxpu box --name box-b --config box-b.yaml --listen 10.0.0.2:7471 --listen 10.1.0.2:7471
  dxpu box fail --admin http://127.0.0.1:9100 --slot 0 --xid 48`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.register(cmd)
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "YAML file of the slots")
	f.StringVar(&o.kind, "kind", "pcie-switch", "how the GPUs are joined: pcie-switch or nvlink")
	f.IntVar(&o.gpus, "gpus", 4, "number of software GPUs, 1 to 256")
	f.StringVar(&o.spec.Model, "model", "", "model name of the software GPUs")
	f.Int64Var(&o.spec.VRAM, "vram", 0, "bytes of memory of each, taken as it is written (default 256 MiB)")
	f.IntVar(&o.spec.Tags, "tags", 0, "outstanding DMA reads of each (default 140)")
	cmd.AddCommand(newBoxFailCommand())
	return cmd
}

func (o *boxOptions) run(cmd *cobra.Command) (err error) {
	log, err := o.logger(cmd)
	if err != nil {
		return err
	}
	kind, err := parseBoxKind(o.kind)
	if err != nil {
		return err
	}
	slots, closeSlots, err := o.slots(cmd.Context(), log)
	defer func() { err = errors.Join(err, closeSlots()) }() // after the box has stopped
	if err != nil {
		return err
	}
	f, err := o.fabric(log)
	if err != nil {
		return err
	}
	b, err := boxproxy.New(boxproxy.Config{
		Slots: slots, Fabric: f, Kind: kind, Rack: o.rack, Labels: o.labels, Logger: log,
	})
	if err != nil {
		return err
	}
	extra := map[string]http.Handler{"POST /faults": faultHandler(b)}
	return o.proxyOptions.run(cmd.Context(), dxpuv1.NodeKind_NODE_KIND_BOX, b, f, extra, log)
}

func parseBoxKind(s string) (dxpuv1.BoxKind, error) {
	switch s {
	case "pcie-switch":
		return dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH, nil
	case "nvlink":
		return dxpuv1.BoxKind_BOX_KIND_NVLINK, nil
	}
	return 0, withHint(fmt.Errorf("--kind: %q is no kind of box", s), "pcie-switch or nvlink")
}

// slots builds the devices. What it returns to close is there after an error, too.
func (o *boxOptions) slots(ctx context.Context, log *slog.Logger) (slots []boxproxy.Slot, closeAll func() error, err error) {
	var closers []func() error
	closeAll = func() error {
		var errs []error
		for _, c := range closers {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	file, err := o.slotFile()
	if err != nil {
		return nil, closeAll, err
	}
	for i, sf := range file.Slots {
		s, c, err := o.slot(ctx, i, sf, log)
		if err != nil {
			return nil, closeAll, fmt.Errorf("slot %d: %w", i, err)
		}
		slots = append(slots, s)
		closers = append(closers, c)
	}
	return slots, closeAll, nil
}

// slotFile is what --config says, or else --gpus.
func (o *boxOptions) slotFile() (file boxFile, err error) {
	if o.config == "" {
		if o.gpus < 1 || o.gpus > boxproxy.MaxSlots {
			return file, withHint(fmt.Errorf("--gpus: %d", o.gpus), "1 to %d", boxproxy.MaxSlots)
		}
		for range o.gpus {
			spec := o.spec
			file.Slots = append(file.Slots, boxSlotFile{GPU: &spec})
		}
		return file, nil
	}
	raw, err := os.ReadFile(o.config)
	if err != nil {
		return file, fmt.Errorf("--config: %w", err)
	}
	if file, err = parseBoxFile(raw); err != nil {
		return file, fmt.Errorf("--config: %s: %w", o.config, err)
	}
	return file, nil
}

// maxBoxFile bounds the file of a box, in bytes: some hundred for each slot.
const maxBoxFile = 64 << 10

func parseBoxFile(raw []byte) (file boxFile, err error) {
	if len(raw) > maxBoxFile {
		return file, fmt.Errorf("%d bytes: %d at most", len(raw), maxBoxFile)
	}
	if err := yaml.Load(raw, &file, yaml.WithKnownFields(true)); err != nil {
		return boxFile{}, fmt.Errorf("%.*s", maxComplaint, err)
	}
	if n := len(file.Slots); n < 1 || n > boxproxy.MaxSlots {
		return boxFile{}, fmt.Errorf("slots: %d of them: 1 to %d", n, boxproxy.MaxSlots)
	}
	return file, nil
}

func (o *boxOptions) slot(ctx context.Context, i int, sf boxSlotFile, log *slog.Logger) (s boxproxy.Slot, closeSlot func() error, err error) {
	closeSlot = func() error { return nil }
	switch {
	case sf.GPU != nil && sf.VFIOUser != "":
		return s, closeSlot, errors.New("both gpu and vfio_user: a slot holds one device")
	case sf.VFIOUser != "":
		s, closeSlot, err = boxproxy.NewVFIOUserSlot(ctx, sf.VFIOUser, boxproxy.VFIOUserOptions{
			MessageDMA: sf.MessageDMA, Logger: log.With("slot", i),
		})
		if err != nil {
			return s, closeSlot, err
		}
	case sf.GPU != nil:
		spec := *sf.GPU
		if spec.Serial == 0 {
			spec.Serial = serial(o.name, i)
		}
		if s.Device, err = gpu.New(spec); err != nil {
			return s, closeSlot, err
		}
	default:
		return s, closeSlot, nil
	}
	s.NVLink, s.PCISwitch = sf.NVLink, sf.Switch
	if s.NVLink == "" && o.kind == "nvlink" {
		s.NVLink = "nvlink0"
	}
	return s, closeSlot, nil
}

// serial makes up the serial number of a software GPU: the same after a restart.
func serial(box string, slot int) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s/%d", box, slot)
	return h.Sum64()
}
