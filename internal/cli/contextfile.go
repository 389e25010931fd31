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
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

const (
	contextsVersion = 1
	// maxContexts bounds the file of the contexts, in bytes: some hundred contexts.
	maxContexts = 64 << 10
	// maxComplaint bounds what is said of what is wrong in it, in bytes.
	maxComplaint = 500
)

// contexts is the file that says which pools there are and as whom to call them.
type contexts struct {
	Version int `yaml:"version"`
	// Current is used when no other is asked for; empty: none.
	Current  string        `yaml:"current,omitempty"`
	Contexts []poolContext `yaml:"contexts"`
}

// poolContext is one pool and who one is there. Files may be given relative to
// that of the contexts.
type poolContext struct {
	Name    string `yaml:"name"`
	Manager string `yaml:"manager"`
	// CAFile or CAHash say how the manager is known; both empty: by the
	// authorities that the system trusts.
	CAFile string `yaml:"ca-file,omitempty"`
	CAHash string `yaml:"ca-hash,omitempty"`
	// TokenFile or Token say who one is; both empty: nobody, or $DXPU_TOKEN.
	TokenFile string `yaml:"token-file,omitempty"`
	Token     string `yaml:"token,omitempty"`
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)

// contextsPath is where the file is, whether it exists or not.
func contextsPath() (string, error) {
	if p := os.Getenv("DXPU_CONFIG"); p != "" {
		return p, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", withHint(fmt.Errorf("contexts: %w", err), "set HOME, or DXPU_CONFIG to the path of the file")
	}
	return filepath.Join(dir, "dxpu", "config.yaml"), nil
}

// parseContexts reads the file of the contexts. Its errors name the field and
// never quote a token.
func parseContexts(raw []byte) (*contexts, error) {
	if len(raw) > maxContexts {
		return nil, fmt.Errorf("longer than %d bytes", maxContexts)
	}
	all := &contexts{}
	l, err := yaml.NewLoader(bytes.NewReader(raw), yaml.WithKnownFields(true), yaml.WithUniqueKeys(true))
	if err != nil {
		return nil, err
	}
	switch err := l.Load(all); {
	case errors.Is(err, io.EOF):
		return nil, withHint(errors.New("it is empty"), "remove it, or begin it with: version: %d", contextsVersion)
	case err != nil:
		text := goType.ReplaceAllString(withoutTokens(err.Error()), "")
		if len(text) > maxComplaint {
			text = strings.ToValidUTF8(text[:maxComplaint], "") + " ..."
		}
		return nil, errors.New(text)
	}
	var more any
	if err := l.Load(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has more than one document")
	}
	return all, all.check()
}

// goType is what people need not know of a value that does not fit.
var goType = regexp.MustCompile(` into \S*cli\.\w+`)

var someToken = regexp.MustCompile(regexp.QuoteMeta(auth.TokenPrefix) + `\S*`)

func withoutTokens(s string) string { return someToken.ReplaceAllString(s, auth.TokenPrefix+"...") }

func (all *contexts) check() error {
	if all.Version != contextsVersion {
		return withHint(fmt.Errorf("version: %d is not %d", all.Version, contextsVersion), "a file of another version needs a dxpu of that version")
	}
	for i := range all.Contexts {
		c := &all.Contexts[i]
		if err := c.check(); err != nil {
			return fmt.Errorf("contexts[%d].%w", i, err)
		}
		if slices.IndexFunc(all.Contexts, func(o poolContext) bool { return o.Name == c.Name }) != i {
			return fmt.Errorf("contexts[%d].name: %q is there twice", i, c.Name)
		}
	}
	if all.Current != "" && all.find(all.Current) == nil {
		return withHint(fmt.Errorf("current: there is no context %q", all.Current), `"dxpu context list" shows what there is`)
	}
	return nil
}

func (c *poolContext) check() error {
	switch {
	case !contextName.MatchString(c.Name):
		return withHint(fmt.Errorf("name: %.80q is no name", c.Name), "1 to 63 letters, digits, '.', '_', '@' and '-'")
	case c.Manager == "":
		return withHint(errors.New("manager: is missing"), "write it like %s", defaultManager)
	case c.CAFile != "" && c.CAHash != "":
		return errors.New("ca-hash: ca-file is there too; one of them says how the manager is known")
	case c.TokenFile != "" && c.Token != "":
		return errors.New("token: token-file is there too; one of them says who you are")
	case c.Token != "" && !validToken(c.Token):
		return withHint(errors.New("token: is no token"), `it is what "dxpu token create" prints`)
	}
	if _, err := client.ParseManagers(c.Manager); err != nil {
		return withHint(fmt.Errorf("manager: %w", err), "write it like %s, several as URL,URL,URL", defaultManager)
	}
	if (c.CAFile != "" || c.CAHash != "") && strings.HasPrefix(c.Manager, "http:") {
		return withHint(errors.New("ca-file, ca-hash: the manager's URL has no TLS"), "write it with https")
	}
	if c.CAHash != "" {
		if err := auth.CheckHash(c.CAHash); err != nil {
			return fmt.Errorf("ca-hash: %w", err)
		}
	}
	return nil
}

// validToken reports whether a text can be a token: other kinds may come.
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

// loadContexts reads the file; one that does not exist has no contexts.
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
		return nil, path, withHint(fmt.Errorf("%s: others may read the tokens in it", path), "chmod 600 %s", path)
	}
	return all, path, nil
}

// save writes the file so that nobody else can read it, as a whole or not at all.
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
	if err := writeSecret(path, string(raw)); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	return nil
}

// file is a path in the file of the contexts.
func (c *poolContext) file(contextsPath, name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(contextsPath), name)
}
