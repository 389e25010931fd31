package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// gpuHealth is how a GPU is, in a word or two.
func gpuHealth(g *dxpuv1.GPU) string {
	switch {
	case g.Health == dxpuv1.Health_HEALTH_DEGRADED && g.QuarantinedUntil != nil:
		return "out of service until " + g.QuarantinedUntil.AsTime().Local().Format("15:04")
	case g.Health == dxpuv1.Health_HEALTH_DEGRADED && strings.HasPrefix(g.HealthDetail, "to be reset"):
		return "to be reset"
	}
	return enumWord(g.Health, "HEALTH_")
}

// gpuState is what a GPU is used for, and what is done with it.
func gpuState(g *dxpuv1.GPU) string {
	state := enumWord(g.State, "GPU_STATE_")
	switch {
	case g.Draining:
		state += ",draining"
	case g.Cordoned:
		state += ",cordoned"
	}
	return state
}

// useWord says whether a guest uses a device.
func useWord(u dxpuv1.Use, ejected bool) string {
	if ejected {
		return "removed by guest"
	}
	return enumWord(u, "USE_")
}

// errorsWord lists errors, gravest first, each with how often it was there.
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

// describeErrors lists the errors of a GPU and what each calls for.
func describeErrors(w io.Writer, errs []*dxpuv1.DeviceError) error {
	if len(errs) == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(w)
	t := newTable(w, "ERROR", "COUNT", "LAST", "CALLS FOR", "WHAT")
	for _, e := range errs {
		t.row(fmt.Sprintf("XID %d", e.Code), e.Count, e.LastTime.AsTime().Local().Format(time.DateTime),
			strings.ReplaceAll(enumWord(e.Action, "ERROR_ACTION_"), "-", " "), e.Detail)
	}
	return t.flush()
}

// pathsWord says how the paths of a binding are.
func pathsWord(paths []*dxpuv1.PathStatus) string {
	var out []string
	for _, p := range paths {
		word := enumWord(p.Health, "HEALTH_")
		if word == "" {
			word = "unused"
		}
		out = append(out, word)
	}
	return strings.Join(out, ",")
}
