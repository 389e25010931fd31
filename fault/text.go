package fault

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxTime bounds every time of a plan, so that sums cannot overflow.
const maxTime = 24 * time.Hour

// Parse parses the form that Plan.String returns: comma-separated settings, each
// at most once except partition, restart and jump. "" and "none" are the perfect
// network. A probability is "1%" or "0.01". mtu may have a start, "1400@2s". rate
// is in B/s, kB/s, MB/s or GB/s, queue in bytes, KiB or MiB. jump is "2s+300ms":
// at 2 s, by 300 ms.
func Parse(text string) (Plan, error) {
	var p Plan
	if text == "" || text == "none" {
		return p, nil
	}
	seen := map[string]bool{}
	for item := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		if seen[key] && key != "partition" && key != "restart" && key != "jump" {
			return Plan{}, fmt.Errorf("fault: %s is set twice", key)
		}
		seen[key] = true
		if err := p.set(key, value); err != nil {
			return Plan{}, fmt.Errorf("fault: %s=%s: %w", key, value, err)
		}
	}
	return p, nil
}

func (p *Plan) set(key, value string) (err error) {
	shares := map[string]*float64{"loss": &p.Loss, "dup": &p.Dup, "reorder": &p.Reorder, "corrupt": &p.Corrupt}
	if share := shares[key]; share != nil {
		*share, err = parseShare(value)
		return err
	}
	switch key {
	case "delay":
		p.Delay, err = parseTime(value)
	case "jitter":
		p.Jitter, err = parseTime(value)
	case "mtu":
		size, at, later := strings.Cut(value, "@")
		if p.MTU, err = strconv.Atoi(size); err == nil && (p.MTU < 1 || p.MTU > math.MaxUint16) {
			err = fmt.Errorf("want 1 to %d", math.MaxUint16)
		}
		if err == nil && later {
			p.MTUAt, err = parseTime(at)
		}
	case "partition":
		from, to, ok := strings.Cut(value, "-")
		var w Window
		if w.From, err = parseTime(from); err == nil {
			w.To, err = parseTime(to)
		}
		if err == nil && (!ok || w.To <= w.From) {
			err = fmt.Errorf("want FROM-TO with TO after FROM")
		}
		p.Partitions = append(p.Partitions, w)
	case "rate":
		p.Rate, err = parseQuantity(value, rateUnits, "12.5MB/s", maxRate)
	case "queue":
		var v float64
		v, err = parseQuantity(value, sizeUnits, "256KiB", maxQueue)
		p.Queue = int(v)
	case "restart":
		var at time.Duration
		at, err = parseTime(value)
		p.Restarts = append(p.Restarts, at)
	case "jump":
		at, by, ok := strings.Cut(value, "+")
		var j Jump
		if j.At, err = parseTime(at); err == nil {
			j.By, err = parseTime(by)
		}
		if err == nil && (!ok || j.By <= 0) {
			err = fmt.Errorf("want AT+BY with BY above 0")
		}
		p.Jumps = append(p.Jumps, j)
	default:
		err = fmt.Errorf("unknown setting: want loss, dup, reorder, corrupt, delay, jitter, mtu, partition, rate, queue, restart, jump")
	}
	return err
}

func parseShare(s string) (float64, error) {
	number, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, fmt.Errorf("want a share like 1%% or 0.01")
	}
	if percent {
		v /= 100
	}
	if !(v >= 0 && v <= 1) {
		return 0, fmt.Errorf("want a share from 0 to 100%%")
	}
	return v, nil
}

func parseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("want a time like 10us or 2s")
	}
	if d < 0 || d > maxTime {
		return 0, fmt.Errorf("want a time from 0 to %v", maxTime)
	}
	return d, nil
}

// unit is a suffix and its factor.
type unit struct {
	name   string
	factor float64
}

// Longer suffixes come first. maxRate exceeds the rate of any network, maxQueue
// the buffer of any switch.
var (
	rateUnits = []unit{{"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}, {"B/s", 1}}
	sizeUnits = []unit{{"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}
)

const (
	maxRate  = 1e13
	maxQueue = 1 << 40
)

func parseQuantity(s string, units []unit, example string, most float64) (float64, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(number, 64)
		if v *= u.factor; err != nil || !(v >= 1 && v <= most) {
			break
		}
		return v, nil
	}
	return 0, fmt.Errorf("want a value like %s, at most %g", example, most)
}

// String returns the plan in the form that Parse reads, "none" for the zero plan.
func (p *Plan) String() string {
	var items []string
	add := func(set bool, key, value string) {
		if set {
			items = append(items, key+"="+value)
		}
	}
	share := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	add(p.Loss > 0, "loss", share(p.Loss))
	add(p.Dup > 0, "dup", share(p.Dup))
	add(p.Reorder > 0, "reorder", share(p.Reorder))
	add(p.Corrupt > 0, "corrupt", share(p.Corrupt))
	add(p.Delay > 0, "delay", p.Delay.String())
	add(p.Jitter > 0, "jitter", p.Jitter.String())
	mtu := strconv.Itoa(p.MTU)
	if p.MTUAt > 0 {
		mtu += "@" + p.MTUAt.String()
	}
	add(p.MTU > 0, "mtu", mtu)
	for _, w := range p.Partitions {
		add(true, "partition", w.From.String()+"-"+w.To.String())
	}
	add(p.Rate > 0, "rate", share(p.Rate)+"B/s")
	add(p.Queue > 0, "queue", strconv.Itoa(p.Queue))
	for _, at := range p.Restarts {
		add(true, "restart", at.String())
	}
	for _, j := range p.Jumps {
		add(true, "jump", j.At.String()+"+"+j.By.String())
	}
	if len(items) == 0 {
		return "none"
	}
	return strings.Join(items, ",")
}
