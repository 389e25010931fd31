package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Client calls an agent through its control socket.
type Client struct {
	path string
	http http.Client
}

// NewClient returns a client of the agent with a folder.
func NewClient(dir string) *Client {
	path := filepath.Join(dir, ControlName)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialControl(ctx, path) }
	return &Client{path: path, http: http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: callTimeout}}
}

// dialControl connects to the control socket. It waits for a place in a queue that is full: other
// users may connect as fast as they like.
func dialControl(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // package http may not end it with the call
	defer cancel()
	tick := time.NewTicker(dialPause)
	defer tick.Stop()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.EAGAIN) {
			return c, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, too many calls wait there", err)
		}
	}
}

// dialPause is the time between two attempts: the agent accepts thousands of connections a second.
const dialPause = 5 * time.Millisecond

const (
	callTimeout = 30 * time.Second
	maxAnswer   = 64 << 20
)

// Shares returns the shares.
func (c *Client) Shares(ctx context.Context) ([]Share, error) {
	var out []Share
	return out, c.call(ctx, http.MethodGet, "/v1/shares", nil, &out)
}

// GPUs returns the GPUs.
func (c *Client) GPUs(ctx context.Context) ([]GPU, error) {
	var out []GPU
	return out, c.call(ctx, http.MethodGet, "/v1/gpus", nil, &out)
}

// Repair returns a GPU to service that a person has repaired.
func (c *Client) Repair(ctx context.Context, gpu string) error {
	return c.call(ctx, http.MethodPost, "/v1/gpus/"+url.PathEscape(gpu)+"/repair", nil, nil)
}

// Create makes a share.
func (c *Client) Create(ctx context.Context, p Part) (Share, error) {
	var out Share
	return out, c.call(ctx, http.MethodPost, "/v1/shares", p, &out)
}

// Resize changes memory, compute and limit of a share, as far as the part has them.
func (c *Client) Resize(ctx context.Context, id string, p Part) (Share, error) {
	var out Share
	return out, c.call(ctx, http.MethodPatch, "/v1/shares/"+url.PathEscape(id), p, &out)
}

// Adopt lets a share end with another process, and those in the share.
func (c *Client) Adopt(ctx context.Context, id string, pid int) error {
	return c.call(ctx, http.MethodPost, "/v1/shares/"+url.PathEscape(id)+"/owner", Part{Owned: true, Owner: pid}, nil)
}

// Enter returns the share of a lease for a program of this user, as soon as it is there. The
// first user has it alone, beside root.
func (c *Client) Enter(ctx context.Context, lease string) (Share, error) {
	tick := time.NewTicker(enterPause)
	defer tick.Stop()
	for {
		var out Entered
		err := c.call(ctx, http.MethodPost, "/v1/leases/"+url.PathEscape(lease)+"/enter", nil, &out)
		if err != nil || out.Ready {
			return out.Share, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return out.Share, ctx.Err()
		}
	}
}

// enterPause is the time between two questions for the share of a lease.
const enterPause = 100 * time.Millisecond

// JoinMPS makes this process a client of MPS, and returns the environment for its program
// when it may start. The process owns the share.
func (c *Client) JoinMPS(ctx context.Context, id string) ([]string, error) {
	for {
		var out Joined
		err := c.call(ctx, http.MethodPost, "/v1/shares/"+url.PathEscape(id)+"/mps", nil, &out)
		if err != nil || out.Ready {
			return out.Env, err
		}
	}
}

// Hold stops the launches of a share, or resumes them.
func (c *Client) Hold(ctx context.Context, id string, held bool) error {
	action := "/resume"
	if held {
		action = "/hold"
	}
	return c.call(ctx, http.MethodPost, "/v1/shares/"+url.PathEscape(id)+action, nil, nil)
}

// End ends a share. Its processes have the grace to end.
func (c *Client) End(ctx context.Context, id string, grace time.Duration) error {
	return c.call(ctx, http.MethodDelete, "/v1/shares/"+url.PathEscape(id)+"?grace="+grace.String(), nil, nil)
}

// ErrNoAgent says that no agent answers.
var ErrNoAgent = errors.New("no sharing agent answers")

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var cause *os.SyscallError
		if errors.As(err, &cause) { // the rest is the URL, and the path again
			err = cause.Err
		}
		return fmt.Errorf("%w at %s: %w", ErrNoAgent, c.path, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case res.StatusCode >= 400:
		return errors.New(strings.TrimSpace(string(text)))
	case out == nil:
		return nil
	}
	return json.Unmarshal(text, out)
}
