//go:build linux

package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A changed file of join tokens is read again; a file that is damaged or gone leaves the
// tokens that were valid.
func TestJoinTokensAreReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "join-token")
	at := time.Unix(1_700_000_000, 0)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		at = at.Add(time.Second)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := watchJoinTokens(path); !os.IsNotExist(err) {
		t.Errorf("without a file: %v", err)
	}
	for text, why := range map[string]string{
		"": "has 0 join tokens", "short\n": "join token 1 has 5 characters", strings.Repeat("a-long-token\n", 17): "want 1 to 16",
	} {
		write(text)
		if _, err := watchJoinTokens(path); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want %q", text, err, why)
		}
	}
	write("token-of-yesterday\n")
	tokens, err := watchJoinTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ text, want string }{
		{"token-of-today\ntoken-of-yesterday\n", "token-of-today token-of-yesterday"},
		{"short\n", "token-of-today token-of-yesterday"},
		{"token-of-today\n", "token-of-today"},
	} {
		write(step.text)
		if got := tokens(); !slices.Equal(got, strings.Fields(step.want)) {
			t.Errorf("after %q: %q, want %q", step.text, got, step.want)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := tokens(); !slices.Equal(got, []string{"token-of-today"}) {
		t.Errorf("without the file: %q", got)
	}
}
