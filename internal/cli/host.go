package cli

import (
	"errors"
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
		Use: "host", Short: "Run the proxy of a host", Args: cobra.NoArgs,
		Long: `Run the proxy of a host. It is a PCIe virtual switch; the GPUs that the manager
attaches appear in its slots.

Each slot with a device has a vfio-user socket for the VMM, slotN.sock in
--socket-dir. With --qmp the proxy also plugs the device into that QEMU and unplugs
it. The VM then needs a root port for each slot, with the ID of --root-port, and
shared memory (memory-backend-memfd,share=on). Without --qmp the operator of the VMM
plugs the device in when "dxpu describe host" shows it.

Attached GPUs work while the manager is away.` + tracingHelp,
		Example: `  qemu-system-x86_64 -M q35 -m 2G -qmp unix:/run/vm1/qmp.sock,server=on,wait=off \
    -object memory-backend-memfd,id=mem,size=2G,share=on -machine memory-backend=mem \
    -device pcie-root-port,id=rp0,chassis=1,slot=1 -device pcie-root-port,id=rp1,chassis=2,slot=2 ...
  dxpu host --name h1 --slots 2 --socket-dir /run/vm1 --qmp /run/vm1/qmp.sock \
    --join-token-file /etc/dxpu/join-token`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.register(cmd)
	f := cmd.Flags()
	f.IntVar(&o.slots, "slots", 4, "slots of the virtual switch, 1 to 32")
	f.StringVar(&o.domain, "domain", "vm0", "name of the virtual switch; its devices can reach each other")
	f.StringVar(&o.vm.SocketDir, "socket-dir", "", "directory for the vfio-user sockets (required)")
	f.StringVar(&o.vm.QMP, "qmp", "", "QMP socket of the VM, for hot-plug")
	f.StringVar(&o.vm.RootPort, "root-port", "rp%d", "ID of a slot's root port in the VM; %d stands for the slot")
	f.DurationVar(&o.vm.AccessTimeout, "access-timeout", 0, "answer an access of the VM with all ones after this time (default 4s, less than QEMU's x-msg-timeout)")
	f.DurationVar(&o.host.CompletionTimeout, "completion-timeout", 0, "longest time that a device may take to answer a request (default 1s)")
	return cmd
}

func (o *hostOptions) run(cmd *cobra.Command) error {
	if o.vm.SocketDir == "" {
		return usage(withHint(errors.New("--socket-dir is missing"), "name a directory such as /run/dxpu; the VMM connects to sockets in it"))
	}
	if err := os.MkdirAll(o.vm.SocketDir, 0o700); err != nil {
		return fmt.Errorf("--socket-dir: %w", err)
	}
	log := newLogger(cmd, o.logLevel)
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
