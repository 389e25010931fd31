package web

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// word returns the name of an enumeration's value without its prefix, in lower case:
// GPU_STATE_FREE is "free", the zero value is "".
func word(v fmt.Stringer) string {
	s := v.String()
	for _, prefix := range []string{
		"GPU_STATE_", "BINDING_STATE_", "LEASE_STATE_", "HEALTH_", "BOX_KIND_", "REASON_", "ROLE_", "EVENT_TYPE_", "PREFERENCE_",
		"ERROR_ACTION_", "MAINTENANCE_STATE_",
	} {
		if rest, ok := strings.CutPrefix(s, prefix); ok {
			s = rest
			break
		}
	}
	if s == "UNSPECIFIED" {
		return ""
	}
	s = strings.ToLower(strings.ReplaceAll(s, "_", " "))
	return strings.NewReplacer("gpu", "GPU", "nvlink", "NVLink", "pcie", "PCIe").Replace(s)
}

// sentence returns a text with a capital first letter and a full stop.
func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return ""
	}
	first, n := utf8.DecodeRuneInString(s)
	s = string(unicode.ToUpper(first)) + s[n:]
	if !strings.ContainsAny(s[len(s)-1:], ".!?") {
		s += "."
	}
	return s
}

// message returns the text of an error of the API without its code.
func message(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce.Message()
	}
	return err.Error()
}

// number returns a number with its digits in groups of three, separated by thin spaces.
func number(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// formatDuration returns a duration with at most three significant digits.
func formatDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "–"
	case d < time.Microsecond:
		return strconv.FormatInt(int64(d), 10) + " ns"
	case d < time.Millisecond:
		return significant(float64(d)/float64(time.Microsecond)) + " µs"
	case d < time.Second:
		return significant(float64(d)/float64(time.Millisecond)) + " ms"
	case d < time.Minute:
		return significant(d.Seconds()) + " s"
	}
	return formatAge(d)
}

func significant(v float64) string {
	switch {
	case v < 9.995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 99.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// formatAge returns a duration in whole units, such as "90 s" or "5 h".
func formatAge(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0 s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d d", d/(24*time.Hour))
}

func formatStep(d *durationpb.Duration) string {
	if d.AsDuration() == 0 {
		return "–"
	}
	return formatDuration(d.AsDuration())
}

// rate returns a number of bytes per second with a decimal unit.
func rate(n uint64) string {
	v, unit := float64(n), "B/s"
	for _, u := range []string{"kB/s", "MB/s", "GB/s", "TB/s"} {
		if v < 999.5 {
			break
		}
		v, unit = v/1000, u
	}
	if unit == "B/s" {
		return strconv.FormatUint(n, 10) + " B/s"
	}
	return significant(v) + " " + unit
}

// memory returns a number of bytes with a binary unit.
func memory(n uint64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return strconv.FormatUint(n, 10) + " B"
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + units[i:i+1] + "iB"
}

func rtt(ns uint64) string {
	if ns == 0 {
		return "–"
	}
	return formatDuration(time.Duration(min(ns, 1<<62)))
}

// formatTime returns a time of day, with the date if it is 20 hours or more from now.
func formatTime(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil {
		return "–"
	}
	at := t.AsTime()
	if at.Sub(now).Abs() < 20*time.Hour {
		return at.UTC().Format("15:04:05")
	}
	return at.UTC().Format("2006-01-02 15:04")
}

// ago returns the time since t.
func ago(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil {
		return "–"
	}
	return formatAge(max(0, now.Sub(t.AsTime())))
}

func formatRFC3339(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339Nano)
}

// partWords returns the size of a part as in "16 GiB and 30 % of the compute".
func partWords(p *dxpuv1.Part) string {
	return fmt.Sprintf("%s and %s %% of the compute", memory(p.GetMemoryBytes()), strconv.FormatFloat(float64(p.GetCompute())/10, 'f', -1, 64))
}

// describeRequest describes the request of a lease in words.
func describeRequest(s *dxpuv1.LeaseSpec) string {
	if s == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d × %s", s.Count, cmp.Or(s.Model, "any model"))
	if p := s.Part; p != nil {
		fmt.Fprintf(&b, ", a part of %s", partWords(p))
	}
	if s.MinMemoryBytes > 0 {
		fmt.Fprintf(&b, ", at least %s", memory(s.MinMemoryBytes))
	}
	if s.BoxKind != 0 {
		fmt.Fprintf(&b, ", %s box", word(s.BoxKind))
	}
	if s.Nvlink != 0 {
		fmt.Fprintf(&b, ", NVLink %s", wanted(s.Nvlink))
	}
	if s.SameBox == dxpuv1.Preference_PREFERENCE_AVOID {
		b.WriteString(", spread over boxes")
	} else if s.SameBox != 0 {
		fmt.Fprintf(&b, ", one box %s", wanted(s.SameBox))
	}
	if s.HostId != "" {
		fmt.Fprintf(&b, ", on host %s", s.HostId)
	}
	return b.String()
}

func wanted(p dxpuv1.Preference) string {
	if p == dxpuv1.Preference_PREFERENCE_AVOID {
		return "avoided"
	}
	return word(p)
}

// plural returns "1 GPU" or "2 GPUs". many is the plural if it is not one with "s".
func plural(n any, one string, many ...string) string {
	s := fmt.Sprint(n)
	switch {
	case s == "1":
		return "1 " + one
	case len(many) > 0:
		return number(n) + " " + many[0]
	}
	return number(n) + " " + one + "s"
}

// useWord says how the guest uses a GPU in a lease.
func useWord(g *dxpuv1.GPU) string {
	switch {
	case g.GetLeaseId() == "":
		return "–"
	case g.GetEjected():
		return "removed by the guest"
	}
	switch g.GetUse() {
	case dxpuv1.Use_USE_IDLE:
		return "idle"
	case dxpuv1.Use_USE_HELD:
		return "held"
	case dxpuv1.Use_USE_BUSY:
		return "busy"
	case dxpuv1.Use_USE_UNSPECIFIED:
	}
	return "unknown"
}

// taintText returns a taint as the command line has it, as in "team=ml:NoSchedule".
func taintText(t *dxpuv1.Taint) string {
	effect := map[dxpuv1.TaintEffect]string{
		dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE: "NoSchedule", dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE: "NoExecute",
	}[t.Effect]
	if t.Value == "" {
		return t.Key + ":" + effect
	}
	return t.Key + "=" + t.Value + ":" + effect
}
