package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// taintEffects are the words for effects, as in Kubernetes.
var taintEffects = map[string]dxpuv1.TaintEffect{
	"NoSchedule": dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE, "NoExecute": dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE,
}

// effectWord returns the word for an effect.
func effectWord(e dxpuv1.TaintEffect) string {
	for word, of := range taintEffects {
		if of == e {
			return word
		}
	}
	return enumWord(e)
}

func newTaintCommand(conn *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use: "taint KIND ID TAINT...", Short: "Keep leases away from a gpu, box or host, except those that tolerate it",
		Long: `Keep leases away from a gpu, box or host, except those that tolerate it
("dxpu lease create --toleration"). A taint is KEY=VALUE:EFFECT or KEY:EFFECT, and
replaces the one of the same key and effect. The taints of a box are those of its GPUs.

NoSchedule keeps new leases away. NoExecute also moves the leases that are there to
other GPUs at once; a lease loses a GPU for which no other fits, and the GPUs of a host
that has the taint.

A "-" at the end removes a taint: KEY:EFFECT-, or KEY- for all effects.`,
		Example: `  dxpu taint box b1 team=ml:NoSchedule
  dxpu taint gpu b1/0 burn-in:NoExecute
  dxpu taint box b1 team-`,
		Args: cobra.MinimumNArgs(3),
	}
	out := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		target, err := parseTarget(args[0], args[1])
		if err != nil {
			return err
		}
		req := &dxpuv1.SetTaintsRequest{Target: target}
		for _, text := range args[2:] {
			t, remove, err := parseTaint(text)
			switch {
			case err != nil:
				return err
			case remove:
				req.Remove = append(req.Remove, t)
			case slices.ContainsFunc(req.Set, func(o *dxpuv1.Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }):
				return usagef("the taint %s:%s is given twice", t.Key, effectWord(t.Effect))
			default:
				req.Set = append(req.Set, t)
			}
		}
		res, err := call(cmd.Context(), conn, poolAPI.SetTaints, req)
		if err != nil {
			return err
		}
		return printValue(cmd, out, res, func(w io.Writer, res *dxpuv1.SetTaintsResponse) {
			if len(res.Taints) == 0 {
				fmt.Fprintf(w, "%s has no taints\n", targetName(target))
				return
			}
			fmt.Fprintf(w, "%s has the taints %s\n", targetName(target), taintsWord(res.Taints))
		})
	}
	return conn.register(cmd)
}

// parseTaint reads KEY=VALUE:EFFECT, KEY:EFFECT, KEY:EFFECT- or KEY-.
func parseTaint(text string) (t *dxpuv1.Taint, remove bool, err error) {
	rest, remove := strings.CutSuffix(text, "-")
	rest, effect, hasEffect := strings.Cut(rest, ":")
	key, value, _ := strings.Cut(rest, "=")
	t = &dxpuv1.Taint{Key: key, Value: value, Effect: taintEffects[effect]}
	switch {
	case key == "":
		return nil, false, usage(withHint(fmt.Errorf("the taint %q has no key", text), "a taint is KEY=VALUE:EFFECT or KEY:EFFECT"))
	case hasEffect && t.Effect == 0:
		return nil, false, usage(unknownEffect(text, effect))
	case !hasEffect && !remove:
		return nil, false, usage(withHint(fmt.Errorf("the taint %q has no effect", text), "write %s:NoSchedule or %s:NoExecute", rest, rest))
	}
	return t, remove, nil
}

func unknownEffect(text, effect string) error {
	hint := "an effect is NoSchedule or NoExecute"
	if near := nearest(effect, []string{"NoSchedule", "NoExecute"}); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return withHint(fmt.Errorf("the effect %q of %q is unknown", effect, text), "%s", hint)
}

// parseToleration reads KEY, KEY=VALUE, both with :EFFECT, or "*" for every taint.
func parseToleration(text string) (*dxpuv1.Toleration, error) {
	rest, effect, hasEffect := strings.Cut(text, ":")
	key, value, hasValue := strings.Cut(rest, "=")
	o := &dxpuv1.Toleration{Key: key, Value: value, AnyValue: !hasValue, Effect: taintEffects[effect]}
	if hasEffect && o.Effect == 0 {
		return nil, unknownEffect(text, effect)
	}
	switch key {
	case "":
		return nil, withHint(fmt.Errorf("the toleration %q has no key", text), `a toleration is KEY, KEY=VALUE or "*", with :EFFECT for one effect only`)
	case "*":
		if hasValue {
			return nil, fmt.Errorf("the toleration %q is for every key and cannot have a value", text)
		}
		o.Key = ""
	}
	return o, nil
}

// tolerationList is the value of the flag --toleration.
type tolerationList struct{ of *[]*dxpuv1.Toleration }

func (l tolerationList) Set(text string) error {
	o, err := parseToleration(text)
	if err == nil {
		*l.of = append(*l.of, o)
	}
	return err
}

func (l tolerationList) String() string { return "" }
func (l tolerationList) Type() string   { return "TAINT" }

// taintsWord lists taints.
func taintsWord(taints []*dxpuv1.Taint) string {
	var out []string
	for _, t := range taints {
		value := ""
		if t.Value != "" {
			value = "=" + t.Value
		}
		out = append(out, t.Key+value+":"+effectWord(t.Effect))
	}
	return strings.Join(out, ", ")
}
