package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

const goodContexts = `version: 1
current: prod
contexts:
  - name: prod
    manager: https://m1:7470,https://m2:7470
    ca-file: ca.crt
    token-file: /etc/prod.token
  - name: lab
    manager: http://127.0.0.1:7470
    token: dxpu_aaaaaaaaaa_bbbbbbbbbbbbbbbbbbbbbbbbbb
`

func TestParseContexts(t *testing.T) {
	hash := auth.HashPrefix + strings.Repeat("ab", 32)
	one := func(lines string) string { return "version: 1\ncontexts:\n  - " + lines + "\n" }
	tests := []struct {
		name, text string
		want       string // in the error; empty: none
	}{
		{"good", goodContexts, ""},
		{"no contexts", "version: 1\ncontexts: []\n", ""},
		{"hash", one(`{name: a, manager: "https://m:1", ca-hash: "` + hash + `"}`), ""},
		{"empty", "", "the file is empty"},
		{"only a comment", "# nothing\n", "the file is empty"},
		{"no version", "contexts: []\n", "version: 0 is not 1"},
		{"later version", "version: 2\ncontexts: []\n", "version: 2 is not 1"},
		{"no YAML", "version: [\n", ""},
		{"unknown field", "version: 1\ncontext: []\n", "context"},
		{"key twice", "version: 1\nversion: 1\n", "version"},
		{"two documents", goodContexts + "---\n" + goodContexts, "more than one document"},
		{"wrong type", "version: 1\ncontexts: prod\n", "line 2: wrong value: `prod`"},
		{"no name", one(`{manager: "https://m:1"}`), `contexts[0].name: "" is not a valid name`},
		{"bad name", one(`{name: "-a", manager: "https://m:1"}`), "contexts[0].name"},
		{"no manager", one(`{name: a}`), "contexts[0].manager: the URL is missing"},
		{"bad manager", one(`{name: a, manager: m}`), `contexts[0].manager: "m" is not the URL`},
		{"bad hash", one(`{name: a, manager: "https://m:1", ca-hash: "sha256:00"}`), "contexts[0].ca-hash"},
		{"hash without TLS", one(`{name: a, manager: "http://m:1", ca-hash: "` + hash + `"}`), "is http"},
		{"hash and file", one(`{name: a, manager: "https://m:1", ca-hash: "` + hash + `", ca-file: c}`), "contexts[0].ca-hash: excludes ca-file"},
		{"token and file", one(`{name: a, manager: "https://m:1", token: t, token-file: f}`), "contexts[0].token: excludes token-file"},
		{"token of two words", one(`{name: a, manager: "https://m:1", token: "dxpu_a b"}`), "contexts[0].token: the text is not a token"},
		{"name twice", "version: 1\ncontexts: [{name: a, manager: 'https://m:1'}, {name: a, manager: 'https://m:1'}]\n", `contexts[1].name: "a" appears twice`},
		{"current is unknown", "version: 1\ncurrent: b\ncontexts: [{name: a, manager: 'https://m:1'}]\n", `current: there is no context "b"`},
		{"token in the wrong place", one(`{name: a, manager: "https://m:1", dxpu_aaaaaaaaaa_bbbb: 1}`), "dxpu_..."},
		{"too long", goodContexts + strings.Repeat("#\n", maxContexts/2), "longer than"},
		{"aliases of aliases", bomb(), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseContexts([]byte(tt.text))
			switch {
			case tt.name == "no YAML" || tt.name == "aliases of aliases":
				if err == nil {
					t.Error("the text is accepted")
				}
			case tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "aaaaaaaaaa") {
				t.Errorf("the error quotes a token: %v", err)
			}
		})
	}
}

// bomb is a text of a kilobyte whose aliases expand to a billion words.
func bomb() string {
	s := "version: 1\na: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'j'; c++ {
		s += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+", ", 9) + "*" + string(c-1) + "]\n"
	}
	return s
}

func TestContextsAreSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "config.yaml")
	t.Setenv("DXPU_CONFIG", path)
	want, err := parseContexts([]byte(goodContexts))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time the file exists
		if err := want.save(path); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	got, _, err := loadContexts()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	want.Contexts[0].Name = ""
	if want.save(path) == nil {
		t.Error("a context without a name is saved")
	}
}

func FuzzParseContexts(f *testing.F) {
	f.Add([]byte(goodContexts))
	f.Add([]byte(bomb()))
	f.Add([]byte(""))
	f.Add([]byte("version: 1\ncontexts: [{name: a, manager: 'https://m:1'}]\n"))
	f.Add([]byte("{version: !!int \"1\", contexts: &a [*a]}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := parseContexts(raw)
		if err != nil {
			if len(err.Error()) > 2*maxYAMLError {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		out, err := yaml.Dump(all)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseContexts(out)
		if err != nil || len(again.Contexts) != len(all.Contexts) || again.Current != all.Current {
			t.Errorf("%q is written as %q, which is read as %+v, %v", raw, out, again, err)
		}
	})
}

func TestYAMLWriter(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"object", `{"b": 1, "a": ["x", {"y": true}], "e": {}, "l": []}`, "b: 1\na:\n- x\n- y: true\ne: {}\nl: []\n"},
		{
			"strings that look like something else", `{"a": "1", "b": "true", "c": "", "d": "null", "e": "x: y", "f": "é"}`,
			"a: \"1\"\nb: \"true\"\nc: \"\"\nd: \"null\"\ne: 'x: y'\nf: é\n",
		},
		{"numbers", `[1, 1.5, 1e300, -0, 18446744073709551615]`, "- 1\n- 1.5\n- 1e300\n- -0\n- 18446744073709551615\n"},
		{"several", "{\"a\":1}\n{\"a\":2}\n", "a: 1\n---\na: 2\n"},
		{"no JSON", "l-1 is active\n", "l-1 is active\n"},
		{"JSON, then none", "{\"a\":1}\nstopped\n", "a: 1\nstopped\n"},
	}
	for _, tt := range tests {
		for _, step := range []int{1, 7, len(tt.in)} {
			var out bytes.Buffer
			w := &yamlWriter{w: &out}
			for i := 0; i < len(tt.in); i += step {
				part := tt.in[i:min(i+step, len(tt.in))]
				if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
					t.Fatal(n, err)
				}
			}
			if strings.ReplaceAll(out.String(), "'", `"`) != strings.ReplaceAll(tt.want, "'", `"`) {
				t.Errorf("%s, %d bytes at a time: got\n%s\nwant\n%s", tt.name, step, out.String(), tt.want)
			}
		}
	}
	if _, err := (&yamlWriter{w: badWriter{}}).Write([]byte("{}")); err == nil {
		t.Error("an error of the writer is lost")
	}
}

type badWriter struct{}

func (badWriter) Write([]byte) (int, error) { return 0, errors.New("full") }

// The YAML output has the same value as the JSON output.
func FuzzYAMLWriter(f *testing.F) {
	f.Add(`{"a": ["1", 2, null, true, {"b": "x\u0000\ud800"}], "": ""}`)
	f.Add(`"\u2028- :"`)
	f.Add(`[[[]],{}]`)
	f.Fuzz(func(t *testing.T, text string) {
		var want any
		if json.Unmarshal([]byte(text), &want) != nil {
			return
		}
		clean, err := json.Marshal(want) // as the commands write it: one value, no duplicate key
		if err != nil {
			return
		}
		var out bytes.Buffer
		if _, err := (&yamlWriter{w: &out}).Write(append(clean, '\n')); err != nil {
			t.Fatalf("%s: %v", clean, err)
		}
		var got any
		if err := yaml.Load(out.Bytes(), &got); err != nil {
			t.Fatalf("%s becomes %q: %v", clean, out.String(), err)
		}
		if !sameValue(want, got) {
			t.Errorf("%s becomes %q, which is %#v", clean, out.String(), got)
		}
	})
}

func sameValue(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k := range a {
			if !sameValue(a[k], b[k]) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !sameValue(a[i], b[i]) {
				return false
			}
		}
		return true
	case float64:
		v := reflect.ValueOf(b)
		return v.CanInt() && float64(v.Int()) == a || v.CanUint() && float64(v.Uint()) == a || v.CanFloat() && v.Float() == a
	}
	return a == b
}
