package claims

import (
	"strings"
	"testing"
	"unicode/utf8"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// FuzzParameters: each user who may make a claim writes its parameters. Errors about them are short, and
// parameters that are refused change nothing.
func FuzzParameters(f *testing.F) {
	long := strings.Repeat("é", 4000)
	for _, seed := range []string{
		`{` + header + `,"class":"offline","priority":-5}`,
		`{` + header + `,"class":"` + long + `"}`,
		`{` + header + `,"` + long + `":1}`,
		`{` + header + `,"gang":"` + long + `","gangSize":2}`,
		`{` + header + `,"priority":1` + strings.Repeat("0", 9000) + `}`,
		`{"apiVersion":"` + long + `","kind":"LeaseParameters"}`,
		strings.Repeat(`[`, 10000), `{`, ``, `null`, `"x"`, "\xff", strings.Repeat(" ", maxParameters+1),
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, class bool) {
		before := Parameters{Class: "online", Gang: "g", GangSize: 2}
		p := before
		err := p.Add(raw, class)
		if err != nil && (len(err.Error()) > maxWords+4 || !utf8.ValidString(err.Error()) || p != before) {
			t.Errorf("%q, parameters %+v", err, p)
		}
		spec := &dxpuv1.LeaseSpec{Part: &dxpuv1.Part{}}
		if p.apply(spec); err == nil && !class && spec.Priority > 0 {
			t.Errorf("a claim has priority %d", spec.Priority)
		}
		if name := GangName("c", "ns", p.Gang); len(name) > 63 {
			t.Errorf("the gang has the name %q", name)
		}
	})
}
