package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
)

// plainText returns the text of an error without the words of Go's libraries: the names
// of system calls and packages, and its contexts. Hints go with some errors:
// connectionHint.
func plainText(err error, text string) string {
	for _, part := range plainParts(err) {
		if part.from != "" {
			text = strings.Replace(text, part.from, part.to, 1)
		}
	}
	for longer := ""; longer != text; {
		longer, text = text, packagePrefix.ReplaceAllString(text, "$1")
	}
	for from, to := range plainPhrases {
		text = strings.ReplaceAll(text, from, to)
	}
	return earlyEnd.ReplaceAllString(text, "it ended early")
}

// plainPart is a part of an error's text, and what takes its place.
type plainPart struct{ from, to string }

// plainParts returns the parts of an error that have types, from the outer to the inner.
func plainParts(err error) (out []plainPart) {
	var request *url.Error
	if errors.As(err, &request) {
		out = append(out, plainPart{request.Error(), request.Err.Error()})
	}
	var op *net.OpError
	var name *net.DNSError
	switch isOp := errors.As(err, &op); {
	case errors.As(err, &name):
		whole := name.Error()
		if isOp {
			whole = op.Error()
		}
		out = append(out, plainPart{whole, resolverText(name)})
	case isOp:
		out = append(out, plainPart{op.Error(), networkText(op)})
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		out = append(out, plainPart{path.Error(), path.Path + ": " + path.Err.Error()})
	}
	var link *os.LinkError
	if errors.As(err, &link) {
		out = append(out, plainPart{link.Error(), link.New + ": " + link.Err.Error()})
	}
	var program *exec.Error
	if errors.As(err, &program) {
		cause := program.Err
		if path != nil {
			cause = path.Err
		}
		out = append([]plainPart{{program.Error(), program.Name + ": " + cause.Error()}}, out...)
	}
	return append(out, certificatePart(err)...)
}

func resolverText(err *net.DNSError) string {
	if err.IsNotFound {
		return fmt.Sprintf("there is no host %q", err.Name)
	}
	return fmt.Sprintf("the name %q could not be looked up", err.Name)
}

// networkText describes a failed dial, bind, read or write: the address and the cause.
func networkText(op *net.OpError) string {
	cause := op.Err.Error()
	var errno syscall.Errno
	switch {
	case errors.As(op.Err, &errno):
		cause = errno.Error()
	case op.Timeout():
		cause = "no answer in time"
	}
	if op.Addr == nil {
		return cause
	}
	return op.Addr.String() + ": " + cause
}

// certificatePart describes a certificate that does not hold.
func certificatePart(err error) []plainPart {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var p plainPart
	switch {
	case errors.As(err, &authority):
		p = plainPart{authority.Error(), "the manager's certificate is not signed by an authority that this machine knows"}
	case errors.As(err, &host):
		p = plainPart{host.Error(), fmt.Sprintf("the manager's certificate is not for %q", host.Host)}
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		p = plainPart{invalid.Error(), "the manager's certificate has expired, or the clock of this machine is wrong"}
	default:
		return nil
	}
	var verify *tls.CertificateVerificationError
	if errors.As(err, &verify) {
		p.from = verify.Error()
	}
	return []plainPart{p}
}

// packagePrefix matches the name of a package at the beginning of an error or after the
// name of a flag.
var packagePrefix = regexp.MustCompile(`^((?:--[a-z-]+(?:, --[a-z-]+)*: )?)(?:netio: path \d+|udp|listen|agent|manager|boxproxy|hostproxy|backup|perf|tlp|hook|trace|vfiouser|vfio|client|contexts|placement|fault|driver|model run|model calls|tls|etcdstore): `)

// earlyEnd matches the end of a stream or a file in the middle.
var earlyEnd = regexp.MustCompile(`\b(?:unexpected )?EOF$`)

// plainPhrases are texts of Go's libraries that have no types.
var plainPhrases = map[string]string{
	context.DeadlineExceeded.Error():                       "no answer in time",
	"etcdserver: request timed out":                        "the store did not answer in time",
	"http: server gave HTTP response to HTTPS client":      "the server answers without TLS",
	"tls: first record does not look like a TLS handshake": "the server answers without TLS",
}
