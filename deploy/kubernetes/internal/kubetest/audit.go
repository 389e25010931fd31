package kubetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// auditPolicy has the API server log the requests of the driver's service accounts.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ["system:serviceaccounts:dxpu-system"]}
- {level: None}
`

// Requests returns the requests of a service account of the driver, as a role names them: "get pods",
// "update resource.k8s.io/resourceclaims/status". Those that were forbidden are not among them.
func (c *Cluster) Requests(account string) (map[string]bool, error) {
	f, err := os.Open(c.path("audit.log"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb string `json:"verb"`
			User struct {
				Username string `json:"username"`
			} `json:"user"`
			ObjectRef *struct {
				Resource    string `json:"resource"`
				Subresource string `json:"subresource"`
				APIGroup    string `json:"apiGroup"`
			} `json:"objectRef"`
			Annotations map[string]string `json:"annotations"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("the log of requests: %w", err)
		}
		if e.User.Username != "system:serviceaccount:dxpu-system:"+account || e.ObjectRef == nil || e.Annotations["authorization.k8s.io/decision"] != "allow" {
			continue
		}
		resource := strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
		out[Right(e.Verb, e.ObjectRef.APIGroup, resource)] = true
	}
	return out, lines.Err()
}

// Right names a verb of a resource, which may be "RESOURCE/SUBRESOURCE".
func Right(verb, group, resource string) string {
	return verb + " " + strings.TrimPrefix(group+"/"+resource, "/")
}
