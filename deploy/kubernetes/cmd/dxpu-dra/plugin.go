package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/plugin"
)

type pluginOptions struct {
	common
	node, socketDir, driver, cdiDir string
	shareDir, hookDir               string
	pluginsDir, registryDir         string
	vfio, metadata                  bool
}

func newPluginCommand() *cobra.Command {
	o := &pluginOptions{}
	cmd := &cobra.Command{
		Use: "plugin", Short: "Give attached devices to the containers of a node", Args: noArgs,
		Long: `Give attached devices to the containers of a node, through the Container Device
Interface of its runtime.

On a node that is a VM (--vfio) the host proxy hot-plugs the GPU, and a container gets the
VFIO group of the function. On any other node (--socket-dir) "dxpu host" offers it as a
vfio-user socket, and a container gets the socket. With --opencl-driver it gets the OpenCL
driver, too.

On a node that offers its own GPUs ("dxpu share serve --manager") a container gets the share
of its lease (--share-dir), the driver library (--hook-dir), and the device of NVIDIA's own
specification, whose devices have UUIDs as names.`,
		Example: `  dxpu-dra plugin --node-name n1 --socket-dir /run/dxpu
  dxpu-dra plugin --node-name n1 --vfio
  dxpu-dra plugin --node-name n1 --share-dir /run/dxpu/share --hook-dir /usr/lib/dxpu`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	o.register(f)
	f.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "`name` of this node (default $NODE_NAME)")
	f.StringVar(&o.socketDir, "socket-dir", "", "`directory` of \"dxpu host --socket-dir\"")
	f.StringVar(&o.driver, "opencl-driver", "", "`file` libdxpu-opencl.so to put into containers (default: none)")
	f.BoolVar(&o.vfio, "vfio", false, "the node is a VM: use the functions that the host proxy plugs")
	f.StringVar(&o.shareDir, "share-dir", "", "`folder` of \"dxpu share serve --dir\", on nodes that offer their own GPUs")
	f.StringVar(&o.hookDir, "hook-dir", "", "`folder` of dxpu's libcuda.so.1 for --share-dir")
	f.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "`directory` of the runtime for CDI specifications")
	f.StringVar(&o.pluginsDir, "plugins-dir", kubeletplugin.KubeletPluginsDir, "`directory` of the kubelet for the sockets of plugins")
	f.StringVar(&o.registryDir, "registry-dir", kubeletplugin.KubeletRegistryDir, "`directory` in which the kubelet finds plugins")
	f.BoolVar(&o.metadata, "metadata", false, "put the attributes of the devices into containers as files, such as the PCI address (Kubernetes 1.36)")
	return cmd
}

func (o *pluginOptions) access(data string) (plugin.Access, error) {
	switch {
	case o.vfio && o.socketDir != "":
		return nil, usagef("want either --vfio, on a VM, or --socket-dir")
	case !o.vfio && o.socketDir == "" && o.shareDir == "":
		return nil, usagef("want --vfio, on a VM, --socket-dir, or --share-dir for the GPUs of this machine")
	case o.driver != "" && !filepath.IsAbs(o.driver):
		return nil, usagef("--opencl-driver: %s is no absolute path", o.driver) // CDI has no others
	case o.socketDir != "" && !filepath.IsAbs(o.socketDir):
		return nil, usagef("--socket-dir: %s is no absolute path", o.socketDir)
	}
	if o.driver != "" {
		if _, err := os.Stat(o.driver); err != nil {
			return nil, usagef("--opencl-driver: %v", err)
		}
	}
	driver := plugin.Driver{Library: o.driver, Dir: data}
	switch {
	case o.vfio:
		return &plugin.VFIO{Sysfs: "/sys", Dev: "/dev", Driver: driver}, nil
	case o.socketDir != "":
		return &plugin.Sockets{Dir: o.socketDir, Driver: driver}, nil
	}
	return nil, nil
}

// shares returns the access to the GPUs of this machine, nil for none.
func (o *pluginOptions) shares() (plugin.Access, error) {
	switch {
	case o.shareDir == "" && o.hookDir == "":
		return nil, nil
	case !filepath.IsAbs(o.shareDir) || !filepath.IsAbs(o.hookDir):
		return nil, usagef("--share-dir and --hook-dir: want both, as absolute paths") // CDI has no others
	}
	if err := plugin.CheckLibrary(o.hookDir); err != nil {
		return nil, usagef("--hook-dir: %v; \"make hook\" writes the library and the file", err)
	}
	return &plugin.Shares{Dir: o.shareDir, Library: o.hookDir}, nil
}

func (o *pluginOptions) run(ctx context.Context) error {
	if o.node == "" {
		return usagef("--node-name is missing: the name of this node in the cluster")
	}
	data := filepath.Join(o.pluginsDir, inventory.Driver)
	access, err := o.access(data)
	if err != nil {
		return err
	}
	shares, err := o.shares()
	if err != nil {
		return err
	}
	ctx, err = o.context(ctx)
	if err != nil {
		return err
	}
	kube, err := o.kube()
	if err != nil {
		return err
	}
	for _, dir := range []string{data, o.registryDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("directory of the plugin: %w", err)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop, err := o.serve(ctx, prometheus.NewRegistry(), cancel)
	if err != nil {
		return err
	}
	defer stop()
	p := &plugin.Plugin{
		Access: access, Shares: shares, CDI: cdi.Dir(o.cdiDir), Host: plugin.HostOf(kube, o.node), Fatal: cancel,
		Claim: func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
			return kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
	}
	helper, err := kubeletplugin.Start(ctx, p,
		kubeletplugin.DriverName(inventory.Driver), kubeletplugin.NodeName(o.node), kubeletplugin.KubeClient(kube),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(o.registryDir),
		kubeletplugin.EnableDeviceMetadata(o.metadata), kubeletplugin.MetadataVersions(v1alpha1.SchemeGroupVersion), kubeletplugin.CDIDirectory(o.cdiDir))
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	<-ctx.Done()
	helper.Stop()
	return context.Cause(ctx)
}
