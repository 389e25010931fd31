package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubevirt"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/plugin"
)

// hookName is the name by which KubeVirt's sidecar-shim runs the program.
const hookName = "onDefineDomain"

// arguments returns those of a command line. As a hook of KubeVirt the program has no command.
func arguments(line []string) []string {
	if filepath.Base(line[0]) == hookName {
		return append([]string{"kubevirt-hook"}, line[1:]...)
	}
	return line[1:]
}

func newKubeVirtCommand() *cobra.Command {
	var vmi, domain, dir string
	cmd := &cobra.Command{
		Use: "kubevirt-hook", Short: "Add the GPUs of a VM of KubeVirt to its domain", Args: noArgs,
		Long: `Add the GPUs of a VM of KubeVirt to the domain that it defines in libvirt, and print the
domain: a hook for KubeVirt's sidecar-shim, which runs it by the name ` + hookName + `.

The VM has as many GPUs as its resources name (limits: {` + extendedResource + `: 1}). Each is a
vfio-user device below a root port of its own. The memory of the VM becomes shared.`,
		Example: `  dxpu-dra kubevirt-hook --vmi "$(kubectl get vmi train -o json)" --domain "$(cat domain.xml)"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if domain == "" {
				return usagef("--domain is missing: the domain as XML")
			}
			n, err := gpusOf(vmi)
			if err != nil {
				return err
			}
			var sockets []string
			for i := range n {
				sockets = append(sockets, plugin.SocketOf(dir, i))
			}
			out, err := kubevirt.AddDevices(domain, sockets)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), out)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&vmi, "vmi", "", "the VirtualMachineInstance as `JSON`")
	f.StringVar(&domain, "domain", "", "the domain of libvirt as `XML`")
	f.StringVar(&dir, "socket-dir", envOr("DXPU_SOCKETS", plugin.ContainerSockets), "`directory` of the sockets in the container of the VM")
	return cmd
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
