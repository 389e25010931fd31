package web

import (
	"crypto/sha256"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

const (
	// knownFor is how long a live page's caller is who the manager said he is: a
	// token that is deleted shows nothing new so long after.
	knownFor = time.Second
	// maxKnown bounds the callers that are remembered.
	maxKnown = 4096
)

// identities remembers for a moment who callers are, since a thousand live pages
// would ask the manager all at once.
type identities struct {
	mu    sync.Mutex // guards known
	known map[[sha256.Size]byte]identity
}

type identity struct {
	me    *dxpuv1.WhoAmIResponse
	until time.Time
}

// of says who sent a request. The manager is asked anew where that is wanted, and
// for a caller with a certificate of his own.
func (k *identities) of(r *http.Request, anew bool, client func(*http.Request) dxpuv1connect.PoolServiceClient) (*dxpuv1.WhoAmIResponse, error) {
	// Without a credential it matters where somebody comes from, and to what name.
	peer, _, _ := net.SplitHostPort(r.RemoteAddr)
	key := sha256.Sum256([]byte(credential(r) + "\n" + peer + "\n" + r.Host))
	own := r.TLS != nil && len(r.TLS.PeerCertificates) > 0
	if me := k.get(key); me != nil && !own && !anew {
		return me, nil
	}
	me, err := answer(client(r).WhoAmI(r.Context(), connect.NewRequest(&dxpuv1.WhoAmIRequest{})))
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
