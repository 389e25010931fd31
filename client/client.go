// Package client is the Go client of the manager's API.
//
//	c, err := client.New(client.Config{
//		Managers: []string{"https://m1:7470", "https://m2:7470", "https://m3:7470"},
//		CAHash:   "sha256:...",
//		Token:    token,
//	})
//	...
//	res, err := c.Pool.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
//
// Of several managers one leads. The client finds it and follows it: a manager
// that does not lead refuses a request before it does anything and names the
// leader in the header Dxpu-Leader, and the client repeats the request there. A
// request that could not be sent at all is repeated at another manager. Every
// other failure is returned to the caller, because the request may have been
// carried out: also that of a manager which freezes before it answers. A stream
// from a manager that freezes ends with UNAVAILABLE.
package client

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// defaultElectionTimeout is longer than an election, which takes seconds.
const defaultElectionTimeout = 10 * time.Second

// Config says where the managers are and how client and manager identify themselves.
type Config struct {
	// Managers are the URLs of the pool's managers, such as "https://m1:7470":
	// all http or all https. One is enough: it names the leader.
	Managers []string

	// Token is sent with every request: that of a person or program (see "dxpu
	// token create"), or the credential of a node. Empty: none is sent.
	Token string
	// AllowCleartext lets Token cross the network without TLS. Without it, New
	// refuses a token for an http URL whose host is not a loopback address.
	AllowCleartext bool

	// CA is the PEM of the authority that signed the managers' certificates,
	// CAHash its hash, as the manager prints it. With both, either identifies it. nil
	// and "": the authorities that the system trusts.
	CA     []byte
	CAHash string
	// Certificate returns the certificate that the client shows. nil: none.
	Certificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error)

	// ElectionTimeout is how long a request waits while no manager leads. 0: 10 s.
	ElectionTimeout time.Duration
	// Waiting is called with a reason when requests wait longer than a healthy pool needs,
	// and with "" when one is answered after that. nil: it is called for none.
	Waiting func(reason string)
	// Transport sends the requests. nil: one that follows CA, CAHash and
	// Certificate, which are ignored otherwise.
	Transport http.RoundTripper
}

// Client calls the leading manager. It is safe for use by many goroutines.
type Client struct {
	// Pool is the service for people and programs: leases, GPUs, nodes, tokens.
	Pool dxpuv1connect.PoolServiceClient
	// Node is the service that proxies use.
	Node dxpuv1connect.NodeServiceClient

	http *http.Client
}

// New checks the configuration and returns a client. It sends nothing.
func New(cfg Config) (*Client, error) {
	managers, err := parseURLs(cfg.Managers)
	if err != nil {
		return nil, err
	}
	if cfg.Token != "" && !cfg.AllowCleartext {
		for _, m := range managers {
			if m.Scheme == "http" && !isLoopback(m.Hostname()) {
				return nil, fmt.Errorf("%s: %w", m, ErrCleartext)
			}
		}
	}
	base := cfg.Transport
	if base == nil {
		if base, err = newTransport(&cfg, managers[0].Scheme); err != nil {
			return nil, err
		}
	}
	transport := newLeaderTransport(managers, base, cfg.Token, cmp.Or(cfg.ElectionTimeout, defaultElectionTimeout))
	transport.waits.tell = cfg.Waiting
	hc := &http.Client{Transport: transport}
	at := managers[0].String() // the transport replaces it by the leader's URL
	return &Client{
		Pool: dxpuv1connect.NewPoolServiceClient(hc, at),
		Node: dxpuv1connect.NewNodeServiceClient(hc, at),
		http: hc,
	}, nil
}

// ErrCleartext is returned by New for a token that would be sent without TLS.
var ErrCleartext = errors.New("the token would cross the network in cleartext")

// Close closes the connections that no request uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// ParseManagers splits and checks a list like "http://m1:7470,http://m2:7470".
func ParseManagers(list string) ([]string, error) {
	out := strings.Split(list, ",")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	_, err := parseURLs(out)
	return out, err
}

// bareIPv6 matches the URL with an address that has several colons.
var bareIPv6 = regexp.MustCompile(`^https?://[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*(?:/|$)`)

func parseURLs(list []string) ([]*url.URL, error) {
	if len(list) == 0 {
		return nil, errors.New("the URL of a manager is missing")
	}
	var out []*url.URL
	for _, s := range list {
		u, err := url.Parse(s)
		if err != nil && bareIPv6.MatchString(s) {
			return nil, fmt.Errorf("%q is not the URL of a manager: an IPv6 address stands in brackets, as in http://[::1]:7470", s)
		}
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return nil, fmt.Errorf("%q is not the URL of a manager", s)
		}
		if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return nil, fmt.Errorf("%q is not the URL of a manager: a name of a user, ? and # have no place in it", u.Redacted())
		}
		if n, err := strconv.ParseUint(cmp.Or(u.Port(), "1"), 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("%q is not the URL of a manager: %s is not a port", s, u.Port())
		}
		if len(out) > 0 && u.Scheme != out[0].Scheme {
			return nil, fmt.Errorf("%s and %s: the managers of one pool all use https, or all http", out[0], u)
		}
		out = append(out, u)
	}
	return out, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
