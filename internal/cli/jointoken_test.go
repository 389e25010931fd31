//go:build linux

package cli

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
		strings.Repeat(" ", maxJoinTokenFile) + "a-long-token\n": "has more than 65536 bytes",
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
	// A file of the same size and time takes the place of the old one.
	other := path + ".new"
	if err := os.WriteFile(other, []byte("token-of-later\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(other, at, at); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if got := tokens(); !slices.Equal(got, []string{"token-of-later"}) {
		t.Errorf("after another file of the same size and time: %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := tokens(); !slices.Equal(got, []string{"token-of-later"}) {
		t.Errorf("without the file: %q", got)
	}
	// A pipe would make the reader wait for a writer, a directory has no tokens.
	for name, replace := range map[string]func() error{
		"a pipe":      func() error { return unix.Mkfifo(path, 0o600) },
		"a directory": func() error { return os.Mkdir(path, 0o700) },
	} {
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		if got := tokens(); !slices.Equal(got, []string{"token-of-later"}) {
			t.Errorf("with %s: %q", name, got)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A manager whose file has another join token than the environment says which one is valid.
func TestIgnoredJoinTokenIsSaid(t *testing.T) {
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	o := &managerOptions{}
	o.dataDir = t.TempDir()
	t.Setenv("DXPU_JOIN_TOKEN", "token-of-the-environment")
	token, _, err := o.joinToken(log)
	if err != nil || token == "token-of-the-environment" || strings.Count(out.String(), "$DXPU_JOIN_TOKEN is not valid") != 1 {
		t.Errorf("%q, %v, and it says %q", token, err, out.String())
	}
	out.Reset()
	t.Setenv("DXPU_JOIN_TOKEN", token)
	if _, _, err := o.joinToken(log); err != nil || out.Len() > 0 {
		t.Errorf("%v, and it says %q", err, out.String())
	}
}
