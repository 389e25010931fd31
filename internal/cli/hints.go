package cli

import (
	"crypto/x509"
	"errors"
	"strings"

	"github.com/dxpu-project/dxpu/client"
)

// connectionHint returns advice for a connection that reached a server and failed, ""
// for other errors. Go's HTTP client has no types for two of them, only texts.
func connectionHint(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	switch text := err.Error(); {
	case errors.Is(err, client.ErrSilent):
		return "its process is stopped, or the network is cut; look at the pool before you repeat a change"
	case errors.As(err, &authority):
		return `--ca-file names the certificate of the manager's authority, ca.crt in its --data-dir; "dxpu context set" keeps it`
	case errors.As(err, &name):
		return "write the URL with a name or an address of the manager's certificate"
	case strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return "this server has no TLS: write the URL with http, or start the manager with --tls"
	case strings.Contains(text, "404 Not Found"), strings.Contains(text, "405 Method Not Allowed"):
		return "is this the URL of a manager? --manager or DXPU_MANAGER names it"
	case strings.Contains(text, "400 Bad Request"):
		return "this server may want TLS: write the URL with https"
	}
	return ""
}
