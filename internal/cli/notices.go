package cli

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"
)

// notices tells the user that a command waits for the manager, and that it goes on: on
// standard error, or in a line of the screen. It says each once. A nil notices says nothing.
type notices struct {
	out  io.Writer
	line func(string) // sets the line of the screen, "" when the wait is over; nil: out
	of   string       // the other end; "": the manager

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
	wait, waited := reason != "", n.reason != ""
	text := "waiting: " + oneLine(reason)
	switch {
	case wait == waited:
	case n.line != nil && wait:
		n.line(text)
	case n.line != nil:
		n.line("")
	case wait:
		fmt.Fprintln(n.out, text)
	default:
		fmt.Fprintln(n.out, n.peer()+" answers")
	}
	n.reason = reason
}

// peer names the other end.
func (n *notices) peer() string { return cmp.Or(n.of, "the manager") }

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
