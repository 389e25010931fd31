//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// tokenInterval is the time between two looks for a join token that is not there yet.
const tokenInterval = 100 * time.Millisecond

// nodeToken returns the join token of a node in a file, or that of the environment; "" for none. It waits for a file that does not
// exist or is empty: the manager, which writes it, may have been started at the same
// time. A node with an identity needs no token.
func nodeToken(ctx context.Context, file string, enrolled bool, log *slog.Logger) (string, error) {
	if file == "" {
		return strings.TrimSpace(os.Getenv("DXPU_JOIN_TOKEN")), nil
	}
	tick := time.NewTicker(tokenInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		raw, err := readAtMost(file, maxJoinTokenFile)
		token, _, _ := strings.Cut(strings.TrimSpace(string(raw)), "\n") // the first one is the current one
		switch token = strings.TrimSpace(token); {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("--join-token-file: %w", err)
		case token != "" || enrolled:
			return token, nil
		case first:
			log.Warn("waiting for the join token: a manager with the same --join-token-file writes it", "file", file)
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-tick.C:
		}
	}
}

const (
	// maxJoinTokens bounds the tokens of a file: two during a rotation.
	maxJoinTokens = 16
	minJoinToken  = 8 // characters
	// maxJoinTokenFile bounds the file, in bytes: callers without a token make the
	// manager read a damaged one.
	maxJoinTokenFile = 64 << 10
)

// joinTokenFile is the manager's file of join tokens, one in a line, the current one
// first.
type joinTokenFile struct {
	path string

	mu     sync.Mutex // guards the fields below
	tokens []string
	seen   os.FileInfo // of the file that was read last, valid or not
}

// watchJoinTokens reads a file of join tokens. The result returns its tokens, and reads it
// again after it was changed. While it cannot be read, the tokens that were read last are
// valid. A pipe, or another file that is not a regular one, is read once.
func watchJoinTokens(path string) (func() []string, error) {
	f := &joinTokenFile{path: path}
	if err := f.read(); err != nil {
		return nil, err
	}
	return func() []string {
		f.mu.Lock()
		defer f.mu.Unlock()
		_ = f.read() // keeps the old ones after an error
		return f.tokens
	}, nil
}

func (f *joinTokenFile) read() error {
	st, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if f.seen != nil && (!st.Mode().IsRegular() || os.SameFile(st, f.seen) && st.ModTime().Equal(f.seen.ModTime()) && st.Size() == f.seen.Size()) {
		return nil
	}
	f.seen = st
	raw, err := readAtMost(f.path, maxJoinTokenFile)
	if err != nil {
		return err
	}
	tokens := strings.Fields(string(raw))
	if len(tokens) == 0 || len(tokens) > maxJoinTokens {
		return fmt.Errorf("%s has %d join tokens, want 1 to %d, one in a line", f.path, len(tokens), maxJoinTokens)
	}
	for i, t := range tokens {
		if len(t) < minJoinToken {
			return fmt.Errorf("%s: join token %d has %d characters, want at least %d", f.path, i+1, len(t), minJoinToken)
		}
	}
	f.tokens = tokens
	return nil
}
