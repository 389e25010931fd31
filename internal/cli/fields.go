package cli

import (
	"regexp"
	"strings"
)

// fieldFlags are the flags that set the fields of requests, "" for fields that are
// arguments. The manager's errors name the fields.
var fieldFlags = map[string]string{
	"spec.count": "--count", "spec.model": "--model", "spec.min_memory_bytes": "--memory", "spec.box_kind": "--kind",
	"spec.nvlink": "--nvlink", "spec.same_box": "--same-box", "spec.host_id": "--host", "spec.host_domain": "--host-domain",
	"spec.host_labels": "--host-label", "spec.tenant": "--tenant", "spec.priority": "--priority",
	"spec.expires_after": "--expires", "spec.wait": "--queue", "spec.wait_timeout": "--queue-timeout",
	"request_id": "--request-id", "count": "--count", "reason": "--reason", "deadline": "--deadline",
	"role": "--role", "tenant": "--tenant", "description": "--description", "expires_after": "--expires",
	"tenant.id": "", "tenant.description": "--description", "tenant.quota.max_gpus": "--max-gpus",
	"tenant.quota.max_gpus_by_model": "--max-gpus-of", "tenant.quota.max_leases": "--max-leases",
	"tenant.quota.max_priority": "--max-priority",
	"join_token":                "join token", "name": "--name",
	"gpu_id": "", "lease_id": "", "token_id": "", "tenant_id": "", "node_id": "", "host_id": "", "box_id": "", "target": "",
}

var (
	leadingField = regexp.MustCompile(`^([a-z_]+(?:\.[a-z_]+)*): `)
	innerField   = regexp.MustCompile(`\b(?:spec\.[a-z_]+|request_id)\b`)
	waitSentence = regexp.MustCompile(`\s+[A-Z][^.]*\bspec\.wait\b.*$`) // our hint says it
	roleName     = regexp.MustCompile(`\bROLE_[A-Z]+\b`)
)

// inFlags replaces the names of API fields in an error of the manager by those of
// the flags.
func inFlags(message string) string {
	message = waitSentence.ReplaceAllString(message, "")
	if m := leadingField.FindStringSubmatch(message); m != nil {
		if flag, ok := fieldFlags[m[1]]; ok {
			message = message[len(m[0]):]
			if flag != "" {
				message = flag + ": " + message
			}
		}
	}
	message = innerField.ReplaceAllStringFunc(message, func(f string) string {
		if flag := fieldFlags[f]; flag != "" {
			return flag
		}
		return f
	})
	return roleName.ReplaceAllStringFunc(message, func(r string) string { return strings.ToLower(r[len("ROLE_"):]) })
}
