package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// gpuHealth describes the health of a GPU in a few words.
func gpuHealth(g *dxpuv1.GPU) string {
	switch {
	case g.Health == dxpuv1.Health_HEALTH_DEGRADED && g.QuarantinedUntil != nil:
		return "out of service until " + g.QuarantinedUntil.AsTime().Local().Format("15:04")
	case g.Health == dxpuv1.Health_HEALTH_DEGRADED && strings.HasPrefix(g.HealthDetail, "to be reset"):
		return "to be reset"
	}
	return enumWord(g.Health)
}

// gpuState returns the state of a GPU, and whether it is cordoned or drained.
func gpuState(g *dxpuv1.GPU) string {
	state := enumWord(g.State)
	switch {
	case g.Draining:
		state += ",draining"
	case g.Cordoned:
		state += ",cordoned"
	}
	return state
}

// useWord returns whether a guest uses a device.
func useWord(u dxpuv1.Use, ejected bool) string {
	if ejected {
		return "removed by guest"
	}
	return enumWord(u)
}

// errorsWord lists errors with their counts, in the order of the list, which starts
// with the gravest.
func errorsWord(errs []*dxpuv1.DeviceError) string {
	const shown = 3
	var out []string
	for _, e := range errs[:min(len(errs), shown)] {
		out = append(out, fmt.Sprintf("XID %d x%d", e.Code, e.Count))
	}
	if len(errs) > shown {
		out = append(out, "...")
	}
	return strings.Join(out, ", ")
}

// describeErrors lists the errors of a GPU and the action that each calls for.
func describeErrors(w io.Writer, errs []*dxpuv1.DeviceError) {
	if len(errs) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "ERROR", "COUNT", "LAST", "CALLS FOR", "DESCRIPTION")
	for _, e := range errs {
		t.row(fmt.Sprintf("XID %d", e.Code), e.Count, e.LastTime.AsTime().Local().Format(time.DateTime),
			strings.ReplaceAll(enumWord(e.Action), "-", " "), e.Detail)
	}
	t.flush()
}

// pathsWord lists the health of the paths of a binding.
func pathsWord(paths []*dxpuv1.PathStatus) string {
	var out []string
	for _, p := range paths {
		word := enumWord(p.Health)
		if word == "" {
			word = "unused"
		}
		out = append(out, word)
	}
	return strings.Join(out, ",")
}
