package oidc

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/time/rate"
)

const (
	// requestTimeout bounds a request to the provider.
	requestTimeout = 10 * time.Second
	// maxAnswer bounds an answer of the provider, in bytes; maxRedirects the redirects to it.
	maxAnswer    = 1 << 20
	maxRedirects = 3
	// A manager asks the provider requestBurst times, and then once in requestInterval.
	// Everybody can send it a token with a key that it does not know, and each lets it read
	// the keys again. One read is enough for all that wait for a new key.
	requestInterval = 5 * time.Second
	requestBurst    = 6
)

// CheckIssuer returns an error for a URL that cannot be that of a provider.
func CheckIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	switch {
	case err != nil || u.Host == "":
		return fmt.Errorf("the issuer %q is not a URL like https://login.example.org", issuer)
	case !isSecret(u):
		return fmt.Errorf("the issuer %q must have https: its answers decide on roles", issuer)
	}
	return nil
}

// isSecret reports whether strangers can neither read nor change what a URL transports.
func isSecret(u *url.URL) bool {
	return u.Scheme == "https" || u.Scheme == "http" && isLocal(u.Hostname())
}

// NewClient returns a client for requests to a provider: they end in time, their answers
// are of bounded size, and none is in cleartext, also if the provider names such a URL.
func NewClient() *http.Client { return newClient(nil, nil) }

// newClient returns a client whose requests a limiter paces at the times of a clock.
func newClient(pace *rate.Limiter, now func() time.Time) *http.Client {
	return &http.Client{
		Timeout: requestTimeout, Transport: &transport{pace, now},
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			return nil
		},
	}
}

type transport struct {
	pace *rate.Limiter // nil: as often as wanted
	now  func() time.Time
}

var errPaced = errors.New("the provider was asked often; it is asked again in some seconds")

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !isSecret(r.URL) {
		return nil, fmt.Errorf("%s://%s has no https", r.URL.Scheme, r.URL.Host)
	}
	if t.pace != nil && !t.pace.AllowN(t.now(), 1) {
		return nil, errPaced
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		res.Body = &boundedBody{res.Body, maxAnswer}
	}
	return res, err
}

// boundedBody is a body of which at most left bytes can be read.
type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	b.left -= int64(n)
	return n, err
}
