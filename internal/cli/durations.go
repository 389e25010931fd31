package cli

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const day = 24 * time.Hour

// daysFirst matches the weeks and days at the beginning of a duration.
var daysFirst = regexp.MustCompile(`^(?:([0-9]+(?:\.[0-9]+)?)w)?(?:([0-9]+(?:\.[0-9]+)?)d)?(.*)$`)

// parseDuration parses a duration such as 500ms, 2h, 30d or 1w2d12h. A day has 24 hours.
func parseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not a duration such as 500ms, 30s, 2h or 30d", s)
	m := daysFirst.FindStringSubmatch(s)
	if m == nil || s == "" {
		return 0, bad
	}
	sum := 0.0
	for i, unit := range []time.Duration{7 * day, day} {
		if m[i+1] == "" {
			continue
		}
		n, err := strconv.ParseFloat(m[i+1], 64)
		if err != nil {
			return 0, bad
		}
		sum += n * float64(unit)
	}
	var rest time.Duration
	if m[3] != "" {
		var err error
		if rest, err = time.ParseDuration(m[3]); err != nil || sum > 0 && strings.ContainsAny(m[3][:1], "+-") {
			return 0, bad
		}
	}
	if sum+float64(rest) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is out of range", s)
	}
	return time.Duration(sum) + rest, nil
}

// durationText prints a duration as parseDuration reads it, "0" for none.
func durationText(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d%day == 0 && d > day:
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// durationVar adds a flag for a duration with units up to weeks, of 0 or more.
func durationVar(f *pflag.FlagSet, v *time.Duration, name string, value time.Duration, help string) {
	boundedDurationVar(f, v, name, value, help, func(d time.Duration) error {
		if d < 0 {
			return errors.New("is negative")
		}
		return nil
	})
}

// positiveDurationVar adds a flag for a duration that cannot be 0, such as a time limit.
func positiveDurationVar(f *pflag.FlagSet, v *time.Duration, name string, value time.Duration, help string) {
	boundedDurationVar(f, v, name, value, help, func(d time.Duration) error {
		if d <= 0 {
			return errors.New("is not positive")
		}
		return nil
	})
}

// timeVar adds a flag for a time.
func timeVar(f *pflag.FlagSet, v *time.Time, name, help string) {
	f.Var(flagValue{typ: "time", set: func(s string) (err error) {
		*v, err = parseTime(s)
		return err
	}, text: func() string {
		if v.IsZero() {
			return ""
		}
		return v.Format(time.RFC3339)
	}}, name, help)
}

// startVar adds a flag for the time at which a lease begins. The manager resolves one from now
// on, so that the same command is the same request.
func startVar(f *pflag.FlagSet, s *dxpuv1.LeaseSpec, name, help string) {
	f.Var(flagValue{typ: "time", set: func(text string) error {
		s.StartTime, s.StartAfter = nil, nil
		if after, ok := parseAfter(text); ok {
			if after == 0 {
				return withHint(fmt.Errorf("%q is not later", text), "leave --start out for a lease that begins at once")
			}
			s.StartAfter = durationpb.New(after)
			return nil
		}
		at, err := parseTime(text)
		if err == nil {
			s.StartTime = timestamppb.New(at)
		}
		return err
	}, text: func() string { return "" }}, name, help)
}

// parseAfter reads a plus sign with a duration.
func parseAfter(text string) (time.Duration, bool) {
	after, ok := strings.CutPrefix(text, "+")
	if !ok {
		return 0, false
	}
	d, err := parseDuration(after)
	return d, err == nil && d >= 0
}

// parseTime reads a time in RFC 3339, a date with a time of day in the local zone, or a plus
// sign with a duration from now.
func parseTime(text string) (time.Time, error) { return parseTimeIn(text, time.Local) }

// parseTimeIn is [parseTime] with another zone as the local one.
func parseTimeIn(text string, local *time.Location) (time.Time, error) {
	if after, ok := parseAfter(text); ok {
		return time.Now().Add(after), nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	for _, layout := range []string{"2006-01-02 15:04", time.DateTime} {
		if at, err := time.ParseInLocation(layout, text, local); err == nil {
			return at, onlyTime(at, layout, text)
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time such as 2027-03-01T08:00:00Z, \"2027-03-01 08:00\" or +2h", text)
}

// onlyTime returns an error unless a text in the local zone stands for exactly one time. The
// local clock jumps over an hour and repeats one each year in many zones, and the Go library
// chooses a time then.
func onlyTime(at time.Time, layout, text string) error {
	wrote, err := time.Parse(layout, text)
	if err != nil {
		return err
	}
	const step, longest = 15 * time.Minute, 3 * time.Hour // of the shifts that zones make
	what := ""
	if at.Format(time.DateTime) != wrote.Format(time.DateTime) {
		what = "does not exist in the local zone, whose clock jumps over it"
	}
	for d := -longest; d <= longest; d += step {
		if d != 0 && what == "" && at.Add(d).Format(time.DateTime) == wrote.Format(time.DateTime) {
			what = "is twice in the local zone, whose clock goes back"
		}
	}
	if what == "" {
		return nil
	}
	return withHint(fmt.Errorf("%q %s", text, what), "write it with its zone, as in %s", at.Format(time.RFC3339))
}

// tenYears is the limit of the manager for the lifetime of a lease.
const tenYears = 10 * 365 * day

func boundedDurationVar(f *pflag.FlagSet, v *time.Duration, name string, value time.Duration, help string, check func(time.Duration) error) {
	*v = value
	f.Var(flagValue{typ: "duration", set: func(s string) error {
		d, err := parseDuration(s)
		if err != nil {
			return err
		}
		if err := check(d); err != nil {
			return fmt.Errorf("%q %w", s, err)
		}
		*v = d
		return nil
	}, text: func() string { return durationText(*v) }}, name, help)
}
