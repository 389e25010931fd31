package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// notices tells the user, on standard error, that a command waits for the manager, and
// that it goes on. It says each once. A nil notices says nothing.
type notices struct {
	out io.Writer

	mu     sync.Mutex
	reason string // "": the command does not wait
}

// told takes a reason to wait, "" for none.
func (n *notices) told(reason string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case reason != "" && n.reason == "":
		fmt.Fprintln(n.out, "waiting: "+oneLine(reason))
	case reason == "" && n.reason != "":
		fmt.Fprintln(n.out, "the manager answers")
	}
	n.reason = reason
}

// timeout returns the error of a command whose time of limit is over. While the manager does
// not answer the command knows nothing of the pool, and says so in the place of otherwise.
func (n *notices) timeout(limit time.Duration, otherwise error) error {
	if n == nil {
		return otherwise
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reason == "" {
		return otherwise
	}
	return withHint(fmt.Errorf("%w: after %s there is no answer: %s", errTimeout, limit, n.reason), "the manager may carry the call out later; look at the pool when it answers")
}
