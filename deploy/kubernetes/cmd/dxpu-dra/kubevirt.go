package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubevirt"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/plugin"
)

// maxSocket is the length of the longest path of a socket.
const maxSocket = 107

type hookOptions struct{ vmi, domain, dir, listen string }

func newKubeVirtCommand() *cobra.Command {
	o := &hookOptions{}
	cmd := &cobra.Command{
		Use: "kubevirt-hook", Short: "Add the GPUs of a VM of KubeVirt to its domain", Args: noArgs,
		Long: `Add the GPUs of a VM of KubeVirt to the domain that it defines in libvirt: a hook sidecar,
which KubeVirt's launcher calls through a socket (--listen). With --vmi and --domain the command prints
one domain instead.

The VM has as many GPUs as its resources name (limits: {` + extendedResource + `: 1}). Each is a
vfio-user device below a root port of its own. The memory of the VM becomes shared.`,
		Example: `  dxpu-dra kubevirt-hook --listen /var/run/kubevirt-hooks/dxpu.sock
  dxpu-dra kubevirt-hook --vmi "$(kubectl get vmi train -o json)" --domain "$(cat domain.xml)"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.listen != "" {
				return o.serve(cmd.Context())
			}
			out, err := o.define(o.vmi, o.domain)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), out)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.vmi, "vmi", "", "the VirtualMachineInstance as `JSON`")
	f.StringVar(&o.domain, "domain", "", "the domain of libvirt as `XML`")
	f.StringVar(&o.dir, "socket-dir", envOr("DXPU_SOCKETS", plugin.ContainerSockets), "`directory` of the sockets in the container of the VM")
	f.StringVar(&o.listen, "listen", "", "`socket` by which KubeVirt's launcher calls the hook")
	cmd.MarkFlagsMutuallyExclusive("listen", "vmi")
	cmd.MarkFlagsMutuallyExclusive("listen", "domain")
	return cmd
}

// define returns a domain with the GPUs of a VM.
func (o *hookOptions) define(vmi, domain string) (string, error) {
	if domain == "" {
		return "", usagef("--domain is missing: the domain as XML")
	}
	n, err := gpusOf(vmi)
	if err != nil {
		return "", err
	}
	var sockets []string
	for i := range n {
		sockets = append(sockets, plugin.SocketOf(o.dir, i))
	}
	return kubevirt.AddDevices(domain, sockets)
}

// serve serves the launcher. A container that starts again finds the socket of the one before.
func (o *hookOptions) serve(ctx context.Context) error {
	if len(o.listen) > maxSocket {
		return usagef("--listen: the path is longer than %d bytes", maxSocket)
	}
	if f, err := os.Lstat(o.listen); err == nil && f.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(o.listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	h := &kubevirt.Hook{Define: func(vmi, domain string) (string, error) {
		out, err := o.define(vmi, domain)
		if err != nil {
			klog.FromContext(ctx).Error(err, "The domain of a VM is refused")
		}
		return out, err
	}}
	return h.Serve(ctx, l)
}

// extendedResource is the resource of the device class.
const extendedResource = "dxpu.dev/gpu"

// gpusOf returns the number of GPUs that a VirtualMachineInstance asks for.
func gpusOf(vmi string) (int, error) {
	var v struct {
		Spec struct {
			Domain struct {
				Resources struct {
					Limits, Requests map[string]resource.Quantity
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(vmi), &v); err != nil {
		return 0, usagef("--vmi: %v", err)
	}
	r := v.Spec.Domain.Resources
	q, ok := r.Limits[extendedResource]
	if !ok {
		q = r.Requests[extendedResource]
	}
	if n, ok := q.AsInt64(); ok && n >= 0 && n <= kubevirt.MaxDevices {
		return int(n), nil
	}
	return 0, fmt.Errorf("the VM asks for %s of %s: want 0 to %d", q.String(), extendedResource, kubevirt.MaxDevices)
}
