package cli

import (
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// gpuHealth describes the health of a GPU in a few words.
func gpuHealth(g *dxpuv1.GPU) string {
	switch {
	case g.Health == dxpuv1.Health_HEALTH_DEGRADED && g.QuarantinedUntil != nil:
		until := g.QuarantinedUntil.AsTime()
		if until.Before(time.Now()) { // its box has not reset it, or its lease has no other GPU yet
			return "out of service until reset"
		}
		return "out of service until " + until.Local().Format("15:04")
	case g.Health == dxpuv1.Health_HEALTH_DEGRADED && strings.HasPrefix(g.HealthDetail, "to be reset"):
		return "to be reset"
	}
	return enumWord(g.Health)
}

// gpuState returns the state of a GPU, and what keeps leases from it.
func gpuState(g *dxpuv1.GPU) string { return enumWord(g.State) + withheld(g) }

// withheld returns whether an operator keeps leases from a GPU or a node, as words after commas.
func withheld(of interface {
	GetCordoned() bool
	GetDraining() bool
	GetDrained() bool
	GetTaints() []*dxpuv1.Taint
},
) (words string) {
	switch {
	case of.GetDraining():
		words = ",draining"
	case of.GetDrained():
		words = ",drained"
	case of.GetCordoned():
		words = ",cordoned"
	}
	if len(of.GetTaints()) > 0 {
		words += ",tainted"
	}
	return words
}
