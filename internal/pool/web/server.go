package web

import (
	"cmp"
	"crypto/sha256"
	"net/http"
	"runtime"
	"time"

	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/oidc"
)

// Config configures a Server. Only Client is required.
type Config struct {
	// Client returns a client of the API with the rights of the request's sender.
	// LocalClient makes such a function.
	Client func(*http.Request) dxpuv1connect.PoolServiceClient
	// Now is the clock for ages. nil: time.Now.
	Now func() time.Time
	// MaxStreams bounds the open event streams, and a sixteenth of it those of a tenant or a node;
	// further pages try again. 0: 4096.
	MaxStreams int
	// WriteTimeout is how long a browser may take to accept a write to its stream
	// before the stream is closed. 0: 10 s.
	WriteTimeout time.Duration
}

const (
	defaultMaxStreams   = 4096
	defaultWriteTimeout = 10 * time.Second
	// maxForm bounds the body of a form, such as a token or a reason, in bytes.
	maxForm = 16 << 10
)

// Server serves "/" and everything below "/ui/".
type Server struct {
	cfg     Config
	handler http.Handler
	streams chan struct{} // one entry per open stream
	racks   *rackCache
	viewers viewers
	feeds   *feeds
	shares  *shares
	flow    *oidc.Flow

	identities identities
	outcomes   outcomes
}

// New makes a Server.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.MaxStreams, cfg.WriteTimeout = cmp.Or(cfg.MaxStreams, defaultMaxStreams), cmp.Or(cfg.WriteTimeout, defaultWriteTimeout)
	s := &Server{
		cfg: cfg, streams: make(chan struct{}, cfg.MaxStreams), shares: newShares(runtime.GOMAXPROCS(0)), flow: oidc.NewFlow(),
		racks: &rackCache{kept: map[[sha256.Size]byte]rackTotals{}}, identities: identities{known: map[[sha256.Size]byte]identity{}},
		outcomes: outcomes{known: map[string]*outcome{}}, viewers: viewers{open: map[string]int{}},
	}
	s.feeds = &feeds{event: s.eventRow, open: map[string]*feed{}}
	mux := http.NewServeMux()
	for pattern, show := range map[string]pageFunc{
		"GET /{$}":                  s.poolPage,
		"GET /ui/leases":            s.leasesPage,
		"GET /ui/leases/{lease}":    s.leasePage,
		"GET /ui/hosts":             s.hostsPage,
		"GET /ui/hosts/{host}":      s.hostPage,
		"GET /ui/boxes/{box}":       s.boxPage,
		"GET /ui/gpus":              s.gpusPage,
		"GET /ui/gpus/{box}/{slot}": s.gpuPage,
		"GET /ui/tenants":           s.tenantsPage,
		"GET /ui/events":            s.eventsPage,
		"GET /ui/":                  s.noPage,
	} {
		mux.Handle(pattern, s.page(show))
	}
	mux.Handle("GET /ui/search", s.exactly(s.page(s.searchPage)))
	mux.HandleFunc("GET /ui/stream", s.stream)
	mux.HandleFunc("GET /ui/static/{file}", static)
	mux.HandleFunc("GET /ui/signin", s.signInForm)
	mux.HandleFunc("POST /ui/signin", s.signIn)
	mux.HandleFunc("GET "+ssoPath, s.ssoStart)
	mux.HandleFunc("GET "+ssoCallback, s.ssoReturn)
	mux.HandleFunc("POST /ui/signout", s.signOut)
	mux.HandleFunc("POST /ui/theme", setTheme)
	mux.HandleFunc("POST /ui/do", s.act)
	// Only our own pages may post forms: the origin that the browser sends is checked
	// here, a token in the form in checkForm.
	s.handler = http.NewCrossOriginProtection().Handler(mux)
	return s
}

// Handler returns a handler that serves an API and the pages rendered from it.
func Handler(api http.Handler) http.Handler {
	pages := New(Config{Client: LocalClient(api)})
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.Handle("GET /{$}", pages)
	mux.Handle("/ui/", pages)
	return mux
}

// securityPolicy allows a page its own style sheet, script, images and server, and
// nothing else. Inline scripts and style attributes are forbidden.
const securityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", securityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	}
	s.handler.ServeHTTP(w, r)
}
