package cli

import "testing"

func TestInFlags(t *testing.T) {
	tests := []struct{ name, message, want string }{
		{"field of a spec", "spec.host_id: host h9 does not exist", "--host: host h9 does not exist"},
		{"nested field", "tenant.quota.max_priority: 101 is not -100 to 100", "--max-priority: 101 is not -100 to 100"},
		{"field that is an argument", "gpu_id: b1/0 is not leased", "b1/0 is not leased"},
		{"role", "role: must be ROLE_ADMIN or ROLE_TENANT", "--role: must be admin or tenant"},
		{"GPU to move to", "to_gpu_id: GPU b1/0 is in the same box", "--to: GPU b1/0 is in the same box"},
		{"version", "resource_version: target b1 has version 4, not 3; read it again", "target b1 has version 4, not 3; read it again"},
		{"field in the text", "not carried out; repeat it with the same request_id", "not carried out; repeat it with the same --request-id"},
		{"sentence about the queue", "no capacity now: Host h1 has no free slots. Set spec.wait to queue", "no capacity now: Host h1 has no free slots."},
		{"field inside", "tenant.quota.guaranteed_gpus: 5 is above max_gpus, which is 4", "--guaranteed-gpus: 5 is above --max-gpus, which is 4"},
		{"force", "box b1 has 4 bindings: drain it first, or set force to remove them", "box b1 has 4 bindings: drain it first, or use --force to remove them"},
		{"denied call with a vowel", `the role "tenant" may not call /dxpu.v1.PoolService/GetAuthority`, `the role "tenant" may not see the pool's authority`},
		{"denied call of one word", `the role "tenant" may not call /dxpu.v1.PoolService/Backup`, `the role "tenant" may not back up the pool`},
		{"denied call", `the role "tenant" may not call /dxpu.v1.PoolService/CreateToken`, `the role "tenant" may not create a token`},
		{"unknown field", "flavour: sweet", "flavour: sweet"},
		{"no field", `lease "l-1" does not exist`, `lease "l-1" does not exist`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := inFlags(tt.message); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
