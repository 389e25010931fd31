package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// leaks looks for secrets in texts:
//
//	[!] leaks TEXT... -- SECRETS...
//
// Each of the files SECRETS is a token, JSON with secrets in the fields secret,
// credential and key, or a node's desired state. leaks searches for the secrets as they
// are, in hexadecimal and in base 64; for a PEM key it searches for each line.
func leaks(ts *testscript.TestScript, neg bool, args []string) {
	dashes := slices.Index(args, "--")
	if dashes < 0 {
		ts.Fatalf("usage: leaks TEXT... -- SECRETS...")
	}
	secrets := map[string]string{} // secret to its file
	for _, file := range args[dashes+1:] {
		before := len(secrets)
		collectSecrets(ts.ReadFile(file), file, secrets)
		if len(secrets) == before {
			ts.Fatalf("%s contains no secrets", file)
		}
	}
	found := ""
	for _, file := range args[:dashes] {
		text := ts.ReadFile(file)
		if text == "" {
			ts.Fatalf("%s is empty", file)
		}
		for s, from := range secrets {
			if strings.Contains(text, s) {
				found = file + " contains a secret of " + from
			}
		}
	}
	switch {
	case neg && found != "":
		ts.Fatalf("%s", found)
	case !neg && found == "":
		ts.Fatalf("no secret was found")
	}
}

var secretName = regexp.MustCompile(`(?i)^(secret|credential|key)$`)

func collectSecrets(text, from string, into map[string]string) {
	if strings.HasSuffix(from, ".pb") {
		var d dxpuv1.DesiredState
		if proto.Unmarshal([]byte(text), &d) == nil {
			for _, b := range d.Bindings {
				addSecret(base64.StdEncoding.EncodeToString(b.Secret), from, into)
			}
		}
		return
	}
	var doc any
	if json.Unmarshal([]byte(text), &doc) != nil {
		addSecret(strings.TrimSpace(text), from, into)
		return
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				if s, ok := e.(string); ok && secretName.MatchString(k) {
					addSecret(s, from, into)
				}
				walk(e)
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(doc)
}

// addSecret adds a secret in all its possible encodings.
func addSecret(s, from string, into map[string]string) {
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(line)
		if len(line) < 8 || strings.HasPrefix(line, "-----") {
			continue
		}
		forms := []string{line, base64.StdEncoding.EncodeToString([]byte(line)), hex.EncodeToString([]byte(line))}
		if raw, err := base64.StdEncoding.DecodeString(line); err == nil {
			forms = append(forms, string(raw), hex.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw), base64.RawStdEncoding.EncodeToString(raw))
		}
		for _, f := range forms {
			into[f] = from
		}
	}
}

// gather concatenates all files of a directory:
//
//	gather DIR FILE
func gather(ts *testscript.TestScript, _ bool, args []string) {
	var all bytes.Buffer
	files, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "*"))
	ts.Check(err)
	for _, f := range files {
		raw, err := os.ReadFile(f)
		ts.Check(err)
		all.Write(raw)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), all.Bytes(), 0o600))
}
