package kubetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Cluster is a running cluster: etcd, API server, scheduler, controller manager.
type Cluster struct {
	Programs Programs
	Dir      string
	// Kube has all rights.
	Kube kubernetes.Interface

	url     string
	tokens  map[string]string // user -> token
	etcd    *Process
	parts   map[string]*Process // API server, scheduler, controller manager, kubelets
	args    map[string][]string
	nodes   *fakeNodes
	mapper  meta.RESTMapper // made by Apply
	stopped bool
}

// features are those that the driver uses. From 1.36 on they are on by default.
const features = "DRADeviceBindingConditions=true,DRADeviceTaints=true,DRAResourceClaimDeviceStatus=true,DRAConsumableCapacity=true"

// startTimeout bounds the start of each part: a busy machine is slow.
const startTimeout = 6 * time.Minute

// Start starts a cluster in a directory. Stop ends it, also after an error.
func Start(ctx context.Context, programs Programs, dir string) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := &Cluster{Programs: programs, Dir: dir, tokens: map[string]string{}, parts: map[string]*Process{}, args: map[string][]string{}}
	client, err := freePort()
	if err != nil {
		return c, err
	}
	for _, start := range []func(port int) error{
		func(peer int) error { return c.startEtcd(client, peer) },
		func(port int) error { return c.startAPIServer(ctx, client, port) },
		c.startControllers,
		c.startScheduler,
	} {
		port, err := freePort()
		if err != nil {
			return c, err
		}
		if err := start(port); err != nil {
			return c, err
		}
	}
	c.nodes = newFakeNodes(c.Kube)
	return c, c.await(ctx, "the service account of the namespace default", func(ctx context.Context) bool {
		_, err := c.Kube.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

func (c *Cluster) startEtcd(client, peer int) (err error) {
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	c.etcd, err = StartProcess(c.Dir, "etcd", c.Programs.node("etcd"), "--data-dir", c.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", url(client), "--advertise-client-urls", url(client),
		"--listen-peer-urls", url(peer), "--initial-advertise-peer-urls", url(peer), "--initial-cluster", "default="+url(peer), "--log-level", "warn")
	return err
}

// user returns the token of a user, which it makes.
func (c *Cluster) user(name string) string {
	if c.tokens[name] == "" {
		c.tokens[name] = rand.Text()
	}
	return c.tokens[name]
}

func (c *Cluster) startAPIServer(ctx context.Context, etcd, port int) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	keyFile := c.path("service-account.key")
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	var tokens strings.Builder
	fmt.Fprintf(&tokens, "%s,admin,admin,system:masters\n", c.user("admin"))
	for _, user := range []string{"system:kube-scheduler", "system:kube-controller-manager"} {
		fmt.Fprintf(&tokens, "%s,%s,%s\n", c.user(user), user, user)
	}
	for _, node := range kubeletNames {
		user := "system:node:" + node
		fmt.Fprintf(&tokens, "%s,%s,%s,system:nodes\n", c.user(user), user, user)
	}
	if err := os.WriteFile(c.path("tokens.csv"), []byte(tokens.String()), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("audit.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	c.url = fmt.Sprintf("https://127.0.0.1:%d", port)
	if err := c.startPart("kube-apiserver", "--etcd-servers", fmt.Sprintf("http://127.0.0.1:%d", etcd),
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port), "--cert-dir", c.path("certificates"),
		"--token-auth-file", c.path("tokens.csv"), "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
		"--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile,
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-cluster-ip-range", "10.0.0.0/24",
		"--audit-policy-file", c.path("audit.yaml"), "--audit-log-path", c.path("audit.log"),
		"--feature-gates", features, "--allow-privileged", "--endpoint-reconciler-type", "none", "--max-requests-inflight", "1000", "--max-mutating-requests-inflight", "500"); err != nil {
		return err
	}
	if c.Kube, err = kubernetes.NewForConfig(c.Config("admin")); err != nil {
		return err
	}
	return c.awaitAPIServer(ctx)
}

func (c *Cluster) awaitAPIServer(ctx context.Context) error {
	return c.await(ctx, "the API server", func(ctx context.Context) bool {
		_, err := c.Kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil
	})
}

// Config returns the access of a user to the cluster.
func (c *Cluster) Config(user string) *rest.Config {
	return &rest.Config{Host: c.url, BearerToken: c.user(user), TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 1000, Burst: 2000}
}

// Kubeconfig writes a file with the access of a user and returns its path.
func (c *Cluster) Kubeconfig(user string) (string, error) {
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: c.url, InsecureSkipTLSVerify: true}
	cfg.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: c.user(user)}
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	cfg.CurrentContext = "x"
	file := c.path("kubeconfig-" + strings.ReplaceAll(user, ":", "-"))
	return file, clientcmd.WriteToFile(*cfg, file)
}

func (c *Cluster) startControllers(port int) error {
	file, err := c.Kubeconfig("system:kube-controller-manager")
	if err != nil {
		return err
	}
	return c.startPart("kube-controller-manager", "--kubeconfig", file, "--authentication-kubeconfig", file, "--authorization-kubeconfig", file,
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port), "--cert-dir", c.path("certificates"), "--leader-elect=false",
		"--root-ca-file", c.path("certificates/apiserver.crt"), // which pods get, to know the API server
		"--service-account-private-key-file", c.path("service-account.key"), "--use-service-account-credentials",
		"--feature-gates", features, "--kube-api-qps", "500", "--kube-api-burst", "1000")
}

// schedulerConfig makes the pauses of the scheduler short.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q, qps: 500, burst: 1000}
leaderElection: {leaderElect: false}
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2
`

// bindingTimeout is added to schedulerConfig by SetBindingTimeout.
const bindingTimeout = `profiles:
- pluginConfig:
  - {name: DynamicResources, args: {bindingTimeout: %s}}
`

// SetBindingTimeout starts the scheduler again, with a time for which a pod waits for the
// binding conditions of its devices. The default is ten minutes.
func (c *Cluster) SetBindingTimeout(ctx context.Context, d time.Duration) error {
	if err := c.configureScheduler(c.path("kubeconfig-system-kube-scheduler"), fmt.Sprintf(bindingTimeout, d)); err != nil {
		return err
	}
	return c.Restart(ctx, "kube-scheduler")
}

func (c *Cluster) configureScheduler(kubeconfig, more string) error {
	return os.WriteFile(c.path("scheduler.yaml"), fmt.Appendf(nil, schedulerConfig+"%s", kubeconfig, more), 0o600)
}

func (c *Cluster) startScheduler(port int) error {
	file, err := c.Kubeconfig("system:kube-scheduler")
	if err != nil {
		return err
	}
	if err := c.configureScheduler(file, ""); err != nil {
		return err
	}
	return c.startPart("kube-scheduler", "--config", c.path("scheduler.yaml"), "--authentication-kubeconfig", file, "--authorization-kubeconfig", file,
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(port), "--cert-dir", c.path("certificates"), "--feature-gates", features)
}

func (c *Cluster) startPart(name string, args ...string) error {
	p, err := StartProcess(c.Dir, name, c.Programs.kubernetes(name), args...)
	if err != nil {
		return err
	}
	c.parts[name], c.args[name] = p, args
	return nil
}

// Restart kills a part of the control plane, such as "kube-scheduler", and starts it again.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	c.parts[name].Kill()
	if err := c.startPart(name, c.args[name]...); err != nil {
		return err
	}
	return c.awaitAPIServer(ctx)
}

// await waits until a condition holds.
func (c *Cluster) await(ctx context.Context, what string, holds func(context.Context) bool) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if holds(ctx) {
			return nil
		}
		for _, p := range append([]*Process{c.etcd}, c.processes()...) {
			if err := p.ended(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func (c *Cluster) processes() (out []*Process) {
	for _, p := range c.parts {
		out = append(out, p)
	}
	return out
}

// Stop ends the cluster: the parts first, the API server and etcd last.
func (c *Cluster) Stop() {
	if c.stopped {
		return
	}
	c.stopped = true
	if c.nodes != nil {
		c.nodes.stop()
	}
	last := []string{"kube-apiserver"}
	for name, p := range c.parts {
		if !slices.Contains(last, name) {
			p.Stop()
		}
	}
	for _, name := range last {
		c.parts[name].Stop()
	}
	c.etcd.Stop()
}
