package test

import (
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
