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
	"time"
)

// tokenInterval is the time between two looks for a join token that is not there yet.
const tokenInterval = 100 * time.Millisecond

// joinToken returns the node's join token, "" for none. It waits for a file that does not
// exist or is empty: the manager, which writes it, may have been started at the same
// time. A node with an identity needs no token.
func (o *proxyOptions) joinToken(ctx context.Context, enrolled bool, log *slog.Logger) (string, error) {
	if o.tokenFile == "" {
		return strings.TrimSpace(os.Getenv("DXPU_JOIN_TOKEN")), nil
	}
	tick := time.NewTicker(tokenInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		raw, err := os.ReadFile(o.tokenFile)
		switch token := strings.TrimSpace(string(raw)); {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("--join-token-file: %w", err)
		case token != "" || enrolled:
			return token, nil
		case first:
			log.Warn("waiting for the join token: a manager with the same --join-token-file writes it", "file", o.tokenFile)
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-tick.C:
		}
	}
}
