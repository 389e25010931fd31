package web

import (
	"crypto/sha256"
	"net"
	"net/http"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

const (
	// knownFor is how long an answer of WhoAmI is reused for live pages. A live page
	// shows nothing new this long after its token was deleted.
	knownFor = time.Second
	// maxKnown bounds the number of cached answers.
	maxKnown = 4096
)

// identities caches answers of WhoAmI, because a thousand live pages ask at once.
type identities struct {
	mu    sync.Mutex // guards known
	known map[[sha256.Size]byte]identity
}

type identity struct {
	me    *dxpuv1.WhoAmIResponse
	until time.Time
}

// of returns the identity of a request's sender. It asks the manager if fresh is set,
// and always for a sender with a client certificate.
func (k *identities) of(r *http.Request, fresh bool, client func(*http.Request) dxpuv1connect.PoolServiceClient) (*dxpuv1.WhoAmIResponse, error) {
	// Without a credential the identity depends on the address and the host name.
	peer, _, _ := net.SplitHostPort(r.RemoteAddr)
	key := sha256.Sum256([]byte(credential(r) + "\n" + peer + "\n" + r.Host))
	own := r.TLS != nil && len(r.TLS.PeerCertificates) > 0
	if me := k.get(key); me != nil && !own && !fresh {
		return me, nil
	}
	me, err := ask(r.Context(), client(r).WhoAmI, &dxpuv1.WhoAmIRequest{})
	if err == nil && !own {
		k.put(key, me)
	}
	return me, err
}

func (k *identities) get(key [sha256.Size]byte) *dxpuv1.WhoAmIResponse {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := k.known[key]; time.Now().Before(i.until) {
		return i.me
	}
	return nil
}

func (k *identities) put(key [sha256.Size]byte, me *dxpuv1.WhoAmIResponse) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.known) >= maxKnown {
		clear(k.known)
	}
	k.known[key] = identity{me, time.Now().Add(knownFor)}
}
