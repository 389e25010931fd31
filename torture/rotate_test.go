package torture

import (
	"net/http"
	"net/url"
	"sync/atomic"
)

type rotate struct {
	http.RoundTripper
	urls []string
	i    atomic.Uint32
}

func (r *rotate) RoundTrip(req *http.Request) (*http.Response, error) {
	i := r.i.Load()
	u, _ := url.Parse(r.urls[int(i)%len(r.urls)])
	req = req.Clone(req.Context())
	req.URL.Host, req.Host = u.Host, u.Host
	res, err := r.RoundTripper.RoundTrip(req)
	if err != nil || res.StatusCode == 503 || res.Header.Get("Dxpu-Leader") != "" {
		r.i.CompareAndSwap(i, i+1)
	}
	return res, err
}
