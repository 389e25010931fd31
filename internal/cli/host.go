package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
)

// hostOptions are the flags of "dxpu host".
type hostOptions struct {
	proxyOptions
	slots  int
	domain string
	vm     hostproxy.VM
	host   hostproxy.Config
}

func newHostCommand(conn *connection) *cobra.Command {
	o := &hostOptions{proxyOptions: proxyOptions{conn: conn}}
	cmd := &cobra.Command{
		Use:   "host",
		Short: "Run the proxy of a host",
		Long: `Run the proxy of a host: a PCIe virtual switch with slots in which the GPUs that
the manager attaches appear.

Each slot that holds a device has a vfio-user socket, slotN.sock in --socket-dir,
for the VMM. With --qmp the proxy also plugs the device into that QEMU and
unplugs it: the VM needs a root port for each slot, named as --root-port says,
and memory that is shared (memory-backend-memfd,share=on). Without --qmp,
whoever runs the VMM does that, once "dxpu describe host" shows the device.

The proxy goes on without the manager: what is attached stays.` + tracingHelp,
		Example: `  qemu-system-x86_64 -M q35 -m 2G -qmp unix:/run/vm1/qmp.sock,server=on,wait=off \
    -object memory-backend-memfd,id=mem,size=2G,share=on -machine memory-backend=mem \
    -device pcie-root-port,id=rp0,chassis=1,slot=1 -device pcie-root-port,id=rp1,chassis=2,slot=2 ...
  dxpu host --name h1 --slots 2 --socket-dir /run/vm1 --qmp /run/vm1/qmp.sock \
    --join-token-file /etc/dxpu/join-token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.register(cmd)
	f := cmd.Flags()
	f.IntVar(&o.slots, "slots", 4, "slots of the virtual switch, 1 to 32")
	f.StringVar(&o.domain, "domain", "vm0", "name of the virtual switch; its devices may reach each other")
	f.StringVar(&o.vm.SocketDir, "socket-dir", "", "directory of the vfio-user sockets (required)")
	f.StringVar(&o.vm.QMP, "qmp", "", "QMP socket of the VM, for hot-plug")
	f.StringVar(&o.vm.RootPort, "root-port", "rp%d", "ID of a slot's root port in the VM; %d is the slot")
	f.DurationVar(&o.vm.AccessTimeout, "access-timeout", 0, "answer a VM's access with ones after so long (default 4s, below QEMU's x-msg-timeout)")
	f.DurationVar(&o.host.CompletionTimeout, "completion-timeout", 0, "give up a request that a device does not answer (default 1s)")
	return cmd
}

func (o *hostOptions) run(cmd *cobra.Command) error {
	if o.vm.SocketDir == "" {
		return withHint(fmt.Errorf("--socket-dir is missing"), "the VMM connects to sockets in it, for example /run/dxpu")
	}
	if err := os.MkdirAll(o.vm.SocketDir, 0o700); err != nil {
		return fmt.Errorf("--socket-dir: %w", err)
	}
	log, err := o.logger(cmd)
	if err != nil {
		return err
	}
	f, err := o.fabric(log)
	if err != nil {
		return err
	}
	o.vm.Logger, o.vm.Polling = log, o.polling
	cfg := o.host
	cfg.Slots, cfg.Front, cfg.Fabric, cfg.Domain = o.slots, &o.vm, f, o.domain
	cfg.Rack, cfg.Labels, cfg.Logger = o.rack, o.labels, log
	h, err := hostproxy.New(cfg)
	if err != nil {
		return err
	}
	return o.proxyOptions.run(cmd.Context(), dxpuv1.NodeKind_NODE_KIND_HOST, h, f, nil, log)
}
