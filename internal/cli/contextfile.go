package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

const (
	contextsVersion = 1
	// maxContexts bounds the size of the file, in bytes: some hundred contexts.
	maxContexts = 64 << 10
	// maxYAMLError bounds the text of a parser's error, in bytes.
	maxYAMLError = 500
)

// contexts is the file of the contexts.
type contexts struct {
	Version int `yaml:"version"`
	// Current is the default context; empty: none.
	Current  string        `yaml:"current,omitempty"`
	Contexts []poolContext `yaml:"contexts"`
}

// poolContext is a pool and the user's credentials for it. The paths of its files may
// be relative to the directory of the contexts' file.
type poolContext struct {
	Name    string `yaml:"name"`
	Manager string `yaml:"manager"`
	// CAFile or CAHash identify the authority of the manager. Both empty: an authority
	// that the system trusts.
	CAFile string `yaml:"ca-file,omitempty"`
	CAHash string `yaml:"ca-hash,omitempty"`
	// TokenFile or Token identify the caller. Both empty: $DXPU_TOKEN, or no token.
	TokenFile string `yaml:"token-file,omitempty"`
	Token     string `yaml:"token,omitempty"`
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)

// contextsPath returns the path of the file, which may not exist.
func contextsPath() (string, error) {
	if p := os.Getenv("DXPU_CONFIG"); p != "" {
		return p, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", withHint(fmt.Errorf("contexts: %w", err), "set HOME, or set DXPU_CONFIG to the path of the file")
	}
	return filepath.Join(dir, "dxpu", "config.yaml"), nil
}

// parseContexts parses the file of the contexts. Its errors name the field and never
// quote a token.
func parseContexts(raw []byte) (*contexts, error) {
	if len(raw) > maxContexts {
		return nil, fmt.Errorf("the file is longer than %d bytes", maxContexts)
	}
	all := &contexts{}
	l, err := yaml.NewLoader(bytes.NewReader(raw), yaml.WithKnownFields(true), yaml.WithUniqueKeys(true))
	if err != nil {
		return nil, err
	}
	switch err := l.Load(all); {
	case errors.Is(err, io.EOF):
		return nil, withHint(errors.New("the file is empty"), "remove it, or add the line: version: %d", contextsVersion)
	case err != nil:
		text := goType.ReplaceAllString(withoutTokens(err.Error()), "")
		if len(text) > maxYAMLError {
			text = strings.ToValidUTF8(text[:maxYAMLError], "") + " ..."
		}
		return nil, errors.New(text)
	}
	var more any
	if err := l.Load(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file has more than one document")
	}
	return all, all.check()
}

// goType matches the name of a Go type in an error of the YAML parser.
var goType = regexp.MustCompile(` into \S*cli\.\w+`)

var someToken = regexp.MustCompile(regexp.QuoteMeta(auth.TokenPrefix) + `\S*`)

func withoutTokens(s string) string { return someToken.ReplaceAllString(s, auth.TokenPrefix+"...") }

func (all *contexts) check() error {
	if all.Version != contextsVersion {
		return withHint(fmt.Errorf("version: %d is not %d", all.Version, contextsVersion), "another version of dxpu wrote this file")
	}
	for i := range all.Contexts {
		c := &all.Contexts[i]
		if err := c.check(); err != nil {
			return fmt.Errorf("contexts[%d].%w", i, err)
		}
		if slices.IndexFunc(all.Contexts, func(o poolContext) bool { return o.Name == c.Name }) != i {
			return fmt.Errorf("contexts[%d].name: %q appears twice", i, c.Name)
		}
	}
	if all.Current != "" && all.find(all.Current) == nil {
		return withHint(fmt.Errorf("current: there is no context %q", all.Current), `"dxpu context list" lists the contexts`)
	}
	return nil
}

func (c *poolContext) check() error {
	switch {
	case !contextName.MatchString(c.Name):
		return withHint(fmt.Errorf("name: %.80q is not a valid name", c.Name), "a name has 1 to 63 letters, digits, '.', '_', '@' and '-'")
	case c.Manager == "":
		return withHint(errors.New("manager: the URL is missing"), "write it like %s", defaultManager)
	case c.CAFile != "" && c.CAHash != "":
		return errors.New("ca-hash: excludes ca-file")
	case c.TokenFile != "" && c.Token != "":
		return errors.New("token: excludes token-file")
	case c.Token != "" && !validToken(c.Token):
		return withHint(errors.New("token: the text is not a token"), `"dxpu token create" prints a token`)
	}
	if _, err := client.ParseManagers(c.Manager); err != nil {
		return withHint(fmt.Errorf("manager: %w", err), "write it like %s, several as URL,URL,URL", defaultManager)
	}
	if (c.CAFile != "" || c.CAHash != "") && strings.HasPrefix(c.Manager, "http:") {
		return withHint(errors.New("ca-file, ca-hash: the URL of the manager is http"), "write it with https")
	}
	if c.CAHash != "" {
		if err := auth.CheckHash(c.CAHash); err != nil {
			return fmt.Errorf("ca-hash: %w", err)
		}
	}
	return nil
}

// validToken reports whether a text can be a token. It accepts kinds of tokens that
// this version does not know.
func validToken(s string) bool {
	return len(s) <= 4096 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func (all *contexts) find(name string) *poolContext {
	for i := range all.Contexts {
		if all.Contexts[i].Name == name {
			return &all.Contexts[i]
		}
	}
	return nil
}

// loadContexts reads the file. A file that does not exist has no contexts.
func loadContexts() (all *contexts, path string, err error) {
	if path, err = contextsPath(); err != nil {
		return nil, "", err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &contexts{Version: contextsVersion}, path, nil
	}
	if err != nil {
		return nil, path, fmt.Errorf("contexts: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxContexts+1))
	if err != nil {
		return nil, path, fmt.Errorf("contexts: %w", err)
	}
	if all, err = parseContexts(raw); err != nil {
		return nil, path, fmt.Errorf("%s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, path, fmt.Errorf("contexts: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 && slices.ContainsFunc(all.Contexts, func(c poolContext) bool { return c.Token != "" }) {
		return nil, path, withHint(fmt.Errorf("%s: other users can read the tokens in it", path), "chmod 600 %s", path)
	}
	return all, path, nil
}

// save replaces the file atomically. Only its owner can read it.
func (all *contexts) save(path string) error {
	if err := all.check(); err != nil {
		return err
	}
	raw, err := yaml.Dump(all)
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	if err := atomicfile.Write(path, raw); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	return nil
}

// file resolves a path in the file of the contexts.
func (c *poolContext) file(contextsPath, name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(contextsPath), name)
}
