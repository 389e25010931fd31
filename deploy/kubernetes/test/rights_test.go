package test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// rights: the two service accounts may do what the driver does, which the other tests show. A stolen
// token of theirs opens neither the cluster nor the devices of another driver.
func (e *env) rights() {
	controller, plugin := "dxpu-dra-controller", "dxpu-dra-plugin"
	for _, tc := range []struct {
		user, verb, resource string // resource/subresource
		name                 string
		allowed              bool
	}{
		{controller, "update", "resource.k8s.io/resourceclaims/status", "", true},
		{plugin, "get", "resource.k8s.io/resourceclaims", "", true},
		{plugin, "get", "/nodes", "", true},

		{controller, "get", "/secrets", "", false},
		{controller, "list", "/secrets", "", false},
		{controller, "list", "/pods", "", false},
		{controller, "create", "/pods", "", false},
		{controller, "delete", "/pods", "", false},
		{controller, "create", "/pods/binding", "", false},
		{controller, "create", "/pods/exec", "", false},
		{controller, "patch", "/nodes", "", false},
		{controller, "update", "/nodes/status", "", false},
		{controller, "get", "/namespaces", "default", false},
		{controller, "create", "/serviceaccounts/token", "", false},
		{controller, "update", "resource.k8s.io/resourceclaims", "", false},
		{controller, "delete", "resource.k8s.io/resourceclaims", "", false},
		{controller, "update", "resource.k8s.io/resourceclaims/binding", "", false},
		{controller, "arbitrary-node:update", "resource.k8s.io/resourceclaims/driver", "gpu.example.com", false},
		{controller, "update", "resource.k8s.io/deviceclasses", "", false},
		{controller, "get", "resource.k8s.io/resourceslices", "", false},
		{controller, "update", "coordination.k8s.io/leases", "another", false},
		{controller, "create", "rbac.authorization.k8s.io/clusterrolebindings", "", false},

		{plugin, "get", "/secrets", "", false},
		{plugin, "get", "/pods", "", false},
		{plugin, "list", "/nodes", "", false},
		{plugin, "patch", "/nodes", "", false},
		{plugin, "list", "resource.k8s.io/resourceclaims", "", false},
		{plugin, "update", "resource.k8s.io/resourceclaims/status", "", false},
		{plugin, "create", "resource.k8s.io/resourceslices", "", false},
		{plugin, "create", "/events", "", false},
	} {
		group, resource, _ := strings.Cut(tc.resource, "/")
		resource, subresource, _ := strings.Cut(resource, "/")
		namespace := "default"
		if strings.HasPrefix(tc.resource, "coordination") {
			namespace = "dxpu-system"
		}
		review, err := e.Kube.AuthorizationV1().SubjectAccessReviews().Create(e.t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:dxpu-system:" + tc.user, Groups: []string{"system:serviceaccounts", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: tc.verb, Group: group, Resource: resource, Subresource: subresource, Name: tc.name,
			},
		}}, metav1.CreateOptions{})
		if err != nil {
			e.t.Fatal(err)
		}
		if review.Status.Allowed != tc.allowed {
			e.t.Errorf("%s may %s %s %s: %v; want %v (%s)", tc.user, tc.verb, tc.resource, tc.name, review.Status.Allowed, tc.allowed, review.Status.Reason)
		}
	}
}

// unseen are the rights of which the log of the API server shows no use, and why they are needed.
var unseen = map[string]string{
	"arbitrary-node:update resource.k8s.io/resourceclaims/driver": "asked for within an update of resourceclaims/status",
	"list resource.k8s.io/resourceclaims":                         "API servers before 1.34, and busy ones, refuse a watch that has not listed before",
	"list resource.k8s.io/resourceslices":                         "as for claims",
	"list nodes":                                                  "as for claims",
	"patch events":                                                "a pod hears the same again after something else",
}

// rightsUsed: the manifests grant what the driver has used in the tests before, and nothing else.
func (e *env) rightsUsed() {
	ctx := e.t.Context()
	e.preparesAlone()
	ghost := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "ghost"}}
	all := true
	ghost.Spec = resourceapi.ResourceSliceSpec{Driver: class, Pool: resourceapi.ResourcePool{Name: "ghost", ResourceSliceCount: 1}, AllNodes: &all}
	if _, err := e.Kube.ResourceV1().ResourceSlices().Create(ctx, ghost, metav1.CreateOptions{}); err != nil {
		e.t.Fatal(err)
	}
	e.wait("each right to be used", func(ctx context.Context) (bool, error) {
		var missing []string
		for _, account := range []string{"dxpu-dra-controller", "dxpu-dra-plugin"} {
			granted, err := e.granted(ctx, account)
			if err != nil {
				return false, err
			}
			used, err := e.Requests(account)
			if err != nil {
				return false, err
			}
			for _, right := range granted {
				if !used[right] && unseen[right] == "" {
					missing = append(missing, account+": "+right)
				}
			}
		}
		if len(missing) > 0 {
			return false, fmt.Errorf("not used, so far: %q", missing)
		}
		return true, nil
	})
	e.deletePod("prepared")
	e.waitNoLease()
}

// granted returns the rights of a service account.
func (e *env) granted(ctx context.Context, account string) ([]string, error) {
	cluster, err := e.Kube.RbacV1().ClusterRoles().Get(ctx, account, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	rules := cluster.Rules
	roles, err := e.Kube.RbacV1().Roles("dxpu-system").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, r := range roles.Items {
		if r.Name == account {
			rules = append(rules, r.Rules...)
		}
	}
	out := map[string]bool{}
	for _, r := range rules {
		addRights(out, r)
	}
	return slices.Sorted(maps.Keys(out)), nil
}

func addRights(out map[string]bool, r rbacv1.PolicyRule) {
	for _, group := range r.APIGroups {
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				out[kubetest.Right(verb, group, resource)] = true
			}
		}
	}
}

// preparesAlone: a plugin reads a claim and its node, although it has no GPU of this one.
func (e *env) preparesAlone() {
	e.t.Helper()
	ctx, dir := e.t.Context(), e.Dir
	access, err := e.ServiceAccount(ctx, "dxpu-system", "dxpu-dra-plugin")
	if err != nil {
		e.t.Fatal(err)
	}
	plugin, err := kubetest.StartProcess(dir, "plugin", programs.driver, "plugin", "--kubeconfig", access, "--node-name", nodeName(0),
		"--socket-dir", dir, "--cdi-dir", dir, "--plugins-dir", filepath.Join(dir, "plugins"), "--registry-dir", filepath.Join(dir, "registry"))
	if err != nil {
		e.t.Fatal(err)
	}
	defer plugin.Stop()
	e.createPod(podSpec{name: "prepared"})
	pod := e.waitRunning("prepared")
	claim, err := e.claimOf(ctx, pod)
	if err != nil {
		e.t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "plugins", class, "dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close()
	_, err = drapb.NewDRAPluginClient(conn).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{
		Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}},
	}, grpc.WaitForReady(true))
	if err != nil {
		e.t.Fatal(err)
	}
}
