package cli

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

func TestParseInterference(t *testing.T) {
	got, err := parseInterference(strings.NewReader("# measured\nbert,resnet,12.5%\nresnet, bert, 30%\n"))
	want := placement.Interference{{"bert", "resnet"}: 125, {"resnet", "bert"}: 300}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for text, want := range map[string]string{
		"a,b\n":          "wrong number of fields",
		"a,b,30\n":       "line 1",
		"a,b,1%\na,b,2%": "line 2: a beside b is there twice",
		"a,b,101%\n":     "line 1",
	} {
		if _, err := parseInterference(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A file that is too long is refused. Its end is not left out: the figures would be others.
func TestLongInterferenceIsRefused(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pairs.csv")
	text := "bert,resnet,30%\n" + strings.Repeat("# measured\n", maxFlagFile/10) + "resnet,bert,20%\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readInterference(name); err == nil || !strings.Contains(err.Error(), "has more than") {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestParseCompute(t *testing.T) {
	for text, want := range map[string]uint32{"30%": 300, "0.1%": 1, "100%": 1000, "12.5%": 125, "0%": 0, "0.05%": 0, "30": 0, "NaN%": 0, "100.1%": 0} {
		if got, err := parseCompute(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%s: %d, %v, want %d", text, got, err, want)
		}
	}
}
