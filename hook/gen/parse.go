package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// call is a function of the driver, by its plain name.
type call struct {
	name  string
	class string
	forms []form
}

// form is a symbol under which the driver exports a call.
type form struct {
	symbol  string
	version int  // 1000 x major + 10 x minor; 0 if unknown
	thread  bool // uses the per-thread default stream
	wrapped bool // to inject latency
	shared  bool // in sharing mode
}

var (
	nameRE = regexp.MustCompile(`^cu[A-Za-z0-9]+$`)
	formRE = regexp.MustCompile(`^(\.|(?:_v[2-9])?(?:_pt[ds][sz])?)(?:@([0-9]{4,5}))?(\*)?(\+)?$`)

	// classes are the classes of calls, which symbols.txt describes.
	classes = []string{"allocate", "free", "info", "launch", "memset", "copy", "wait", "context", "follow", "import", "host", "code", "overhead", "other"}
)

// parse reads symbols.txt, whose lines are a name, a class and forms.
func parse(r io.Reader) ([]call, error) {
	var calls []call
	seen := map[string]bool{}
	in := bufio.NewScanner(r)
	for line := 1; in.Scan(); line++ {
		text := strings.TrimSpace(in.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		c, err := parseCall(strings.Fields(text))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		for _, f := range c.forms {
			if seen[f.symbol] {
				return nil, fmt.Errorf("line %d: %s appears twice", line, f.symbol)
			}
			seen[f.symbol] = true
		}
		calls = append(calls, c)
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	// The library finds a name by binary search.
	slices.SortFunc(calls, func(a, b call) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(calls); i++ {
		if calls[i].name == calls[i-1].name {
			return nil, fmt.Errorf("%s has two lines", calls[i].name)
		}
	}
	return calls, nil
}

func parseCall(fields []string) (call, error) {
	c := call{name: fields[0]}
	if !nameRE.MatchString(c.name) {
		return call{}, fmt.Errorf("%q is not the name of a driver call", c.name)
	}
	if len(fields) < 3 {
		return call{}, fmt.Errorf("%s has no class or no forms", c.name)
	}
	c.class = fields[1]
	if !slices.Contains(classes, c.class) {
		return call{}, fmt.Errorf("%s: class %q: want one of %s", c.name, c.class, strings.Join(classes, ", "))
	}
	for _, text := range fields[2:] {
		m := formRE.FindStringSubmatch(text)
		if m == nil || m[1] == "" {
			return call{}, fmt.Errorf("%s: form %q: want a suffix such as . or _v2_ptsz, then @version, then *, then +", c.name, text)
		}
		f := form{symbol: c.name + strings.TrimPrefix(m[1], "."), wrapped: m[3] != "", shared: m[4] != ""}
		f.thread = strings.HasSuffix(f.symbol, "_ptds") || strings.HasSuffix(f.symbol, "_ptsz")
		if m[2] != "" {
			f.version, _ = strconv.Atoi(m[2]) // at most five digits
		}
		c.forms = append(c.forms, f)
	}
	return c, nil
}
