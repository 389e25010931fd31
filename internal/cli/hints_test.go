package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

// A hint leads to the cause of an error, and not to a manager that runs.
func TestHints(t *testing.T) {
	for _, c := range []struct {
		name       string
		err        error
		text, hint string
	}{
		{
			"unknown authority", connect.NewError(connect.CodeUnavailable, fmt.Errorf("tls: %w", x509.UnknownAuthorityError{})),
			"not signed by an authority", "--ca-file names",
		},
		{
			"https to http", connect.NewError(connect.CodeUnavailable, errors.New("http: server gave HTTP response to HTTPS client")),
			"answers without TLS", "write the URL with http,",
		},
		{"http to https", connect.NewError(connect.CodeInternal, errors.New("400 Bad Request")), "400", "write the URL with https"},
		{
			"unknown token", connect.NewError(connect.CodeUnauthenticated, errors.New("unknown node or wrong credential: enrol again with a join token")),
			"the manager does not know this token", "--token-file",
		},
		{
			"a sign-in that is over", connect.NewWireError(connect.CodeUnauthenticated, errors.New("the token is not valid, or no longer valid: ask an admin for a new one")),
			"the token is not valid, or no longer valid\n", `"dxpu login" signs you in again`,
		},
		{"no manager", connect.NewError(connect.CodeUnavailable, errors.New("connection refused")), "the manager is unavailable", "is a manager running"},
		{"slow disk of a restore", errors.New("etcdserver: request timed out"), "dxpu: error: the store did not answer in time", ""},
		{"full disk", connect.NewWireError(connect.CodeUnavailable, errors.New("the disk is full: make room there")), "the manager is unavailable: the disk is full", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			printError(&out, c.err)
			text, hint, _ := strings.Cut(out.String(), "dxpu: hint: ")
			if !strings.Contains(text, c.text) || !strings.Contains(hint, c.hint) || c.hint == "" && hint != "" || strings.Contains(out.String(), "enrol") {
				t.Errorf("printed %q", out.String())
			}
		})
	}
}

// Flags that other commands and other tools have lead to those that mean the same here.
func TestFlagsOfOtherTools(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"lease create --gpus 2", "did you mean --count?"},
		{"lease create --gpu-type DX100", "did you mean --model?"},
		{"lease create --node h1", "did you mean --host?"},
		{"run --count 2 -- true", "did you mean --gpus?"},
		{"run --namespace a -- true", "did you mean --tenant?"},
		{"get leases --namespace a", "did you mean --tenant?"},
		{"lease create --hst h1", "did you mean --host?"},
	} {
		var out, errOut strings.Builder
		if code := Main(strings.Fields(c.args), strings.NewReader(""), &out, &errOut); code != 2 || !strings.Contains(errOut.String(), c.want) {
			t.Errorf("dxpu %s: exit code %d, %s", c.args, code, errOut.String())
		}
	}
}
