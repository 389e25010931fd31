package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"
)

//go:embed assets
var assets embed.FS

// assetVersion returns a hash of the files that browsers cache.
var assetVersion = sync.OnceValue(func() string {
	h := fnv.New64a()
	for _, name := range []string{"app.js", "style.css", "favicon.svg"} {
		b, err := assets.ReadFile("assets/" + name)
		if err != nil {
			panic("web: " + err.Error()) // the file is not embedded
		}
		_, _ = h.Write(b)
	}
	return strconv.FormatUint(h.Sum64(), 36)
})

// static serves assets, which browsers may cache: their URLs contain assetVersion.
func static(w http.ResponseWriter, r *http.Request) {
	types := map[string]string{"app.js": "text/javascript; charset=utf-8", "style.css": "text/css; charset=utf-8", "favicon.svg": "image/svg+xml"}
	name := r.PathValue("file")
	b, err := assets.ReadFile("assets/" + name)
	if types[name] == "" || err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", types[name])
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(b)
}

// parsed returns the templates. It parses them for the first page and not when the
// program starts, because only the manager has pages. It panics on a template that
// cannot be parsed; a test parses them all.
var parsed = sync.OnceValue(func() (p struct {
	frame *template.Template            // the frame of all pages and the parts that they share
	pages map[string]*template.Template // the contents of pages, by name
},
) {
	p.frame = template.Must(template.New("").Funcs(functions).ParseFS(assets, "assets/frame.html", "assets/parts.html"))
	p.pages = map[string]*template.Template{}
	names, err := fs.Glob(assets, "assets/pages/*.html")
	if err != nil {
		panic("web: " + err.Error())
	}
	for _, name := range names {
		base := name[len("assets/pages/") : len(name)-len(".html")]
		p.pages[base] = template.Must(template.Must(p.frame.Clone()).ParseFS(assets, name))
	}
	return p
})

var functions = template.FuncMap{
	"word": word, "number": number, "duration": formatStep, "rate": rate, "memory": memory, "rtt": rtt, "rfc3339": formatRFC3339,
	"sentence": sentence, "request": describeRequest, "partWords": partWords, "orElse": func(s, other string) string { return cmp.Or(s, other) }, "plural": plural, "noReport": noReport, "kindOf": kindOf, "describe": describeGPU,
	"taint": taintText, "closed": closed,
	"time": formatTime, "ago": ago, "query": query, "use": useWord,
	"percent": func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + "%" },
	"dict":    dict, "gpuHref": gpuHref, "leaseClass": leaseClass, "between": between, "over": over,
	"inc": func(n int, by ...int) int {
		n++
		for _, b := range by {
			n += b
		}
		return n
	},
	// The heading of the table says that the lease is in the queue.
	"queueReason": func(s string) string { return sentence(strings.TrimPrefix(s, "in the queue: ")) },
	"step":        func(s string) string { return strings.ReplaceAll(s, "_", " ") },
	"navigation":  func() []entry { return navigation },
	"hostFilters": func() []entry { return hostFilters },
}

// entry is a choice in a list or menu.
type entry struct{ Key, Name, Href string }

var navigation = []entry{
	{"pool", "Pool", "/"},
	{"leases", "Leases", "/ui/leases"},
	{"hosts", "Hosts", "/ui/hosts"},
	{"gpus", "GPUs", "/ui/gpus"},
	{"tenants", "Tenants", "/ui/tenants"},
	{"events", "Events", "/ui/events"},
}

var hostFilters = []entry{
	{Name: "all"},
	{Key: "lost", Name: "silent"},
	{Key: "cordoned", Name: "cordoned"},
	{Key: "used", Name: "with GPUs"},
	{Key: "free", Name: "with free slots"},
}

// leaseClass returns the style class of a lease's state.
func leaseClass(s dxpuv1.LeaseState) string {
	switch s {
	case dxpuv1.LeaseState_LEASE_STATE_ACTIVE:
		return "good"
	case dxpuv1.LeaseState_LEASE_STATE_PENDING, dxpuv1.LeaseState_LEASE_STATE_BINDING:
		return "wait"
	case dxpuv1.LeaseState_LEASE_STATE_DEGRADED, dxpuv1.LeaseState_LEASE_STATE_FAILED:
		return "bad"
	}
	return "off"
}

// over reports whether a time is in the past.
func over(t *timestamppb.Timestamp, now time.Time) bool { return t.AsTime().Before(now) }

func between(a, b *timestamppb.Timestamp) string { return formatDuration(b.AsTime().Sub(a.AsTime())) }

// dict returns a map, to pass several values to a template.
func dict(pairs ...any) (map[string]any, error) {
	out := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		key, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: the key %v is not a string", pairs[i])
		}
		out[key] = pairs[i+1]
	}
	return out, nil
}

// query returns a query with some values changed. An empty value removes the key.
func query(q url.Values, pairs ...any) template.URL {
	out := url.Values{}
	maps.Copy(out, q)
	for i := 0; i+1 < len(pairs); i += 2 {
		k, v := fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1])
		out.Del(k)
		if v != "" {
			out.Set(k, v)
		}
	}
	return template.URL("?" + out.Encode()) // Encode escapes everything that is not a letter, digit, '-', '_', '.' or '~'
}

// view is the data of one rendering of a page.
type view struct {
	Title  string
	Nav    string // Key of the page's entry in the navigation
	Name   string // of the template
	Now    time.Time
	Query  url.Values
	Here   string // path and query
	Theme  string
	Form   string // token for forms
	Number string // of this copy of the page, for the request IDs of its forms
	Notice string // result of the last action; set for a page with its frame
	// Poll is the interval in seconds at which the page is fetched without events, to
	// update ages and counters. 0: never.
	Poll     int
	Live     bool
	Me       *dxpuv1.WhoAmIResponse // nil: not known
	SignedIn bool                   // by a token in a cookie
	Pool     *dxpuv1.Pool
	Data     any
	Content  template.HTML // the output of the page's template "main"

	Assets string

	api    dxpuv1connect.PoolServiceClient // while the page is filled
	r      *http.Request
	update bool // an open page updates itself
}

func (v *view) ctx() context.Context { return v.r.Context() }

// Operator reports whether to show maintenance buttons. The API checks the rights.
func (v *view) Operator() bool {
	role := v.Me.GetRole()
	return role == dxpuv1.Role_ROLE_UNSPECIFIED || role == dxpuv1.Role_ROLE_ADMIN || role == dxpuv1.Role_ROLE_OPERATOR
}

// pageFunc fills a view with the data of a page.
type pageFunc func(*view) error

// afterHeader marks a request by which a live page updates itself. Its value is the
// revision of the newest event that the page knows. The answer is the content without
// the frame. After a reset of the stream the value is empty, and the answer is the whole
// page.
const afterHeader = "Dxpu-After"

// page returns the handler of a page.
func (s *Server) page(fill pageFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := s.newView(w, r)
		revision, err := strconv.ParseUint(r.Header.Get(afterHeader), 10, 64)
		live := err == nil
		v.update = r.Header[afterHeader] != nil
		if v.Me, err = s.identities.of(r, !live, s.cfg.Client); err != nil {
			s.fail(w, v, err)
			return
		}
		out, err := s.rendered(v, live, revision, fill)
		if err != nil {
			s.fail(w, v, err)
			return
		}
		v.Title, v.Nav, v.Poll, v.Pool = out.title, out.nav, out.poll, out.pool
		if live {
			writeHTML(w, http.StatusOK, []byte(`<div id="content">`), v.withOwnForms(out.content), []byte("</div>"))
			return
		}
		v.write(w, http.StatusOK, out.content)
	})
}

// rendered returns the content of a page, which viewers with the same access share.
func (s *Server) rendered(v *view, live bool, revision uint64, fill pageFunc) (*rendering, error) {
	render := func(ctx context.Context) (*rendering, error) {
		v := *v // without the fields that belong to one viewer
		v.api, v.r = s.cfg.Client(v.r), v.r.WithContext(ctx)
		v.Form, v.Number, v.Theme = formPlaceholder, numberPlaceholder, ""
		err := v.load()
		if err == nil {
			err = fill(&v)
		}
		if err != nil {
			return nil, err
		}
		content, err := v.content()
		return &rendering{content: content, revision: v.Pool.Revision, title: v.Title, nav: v.Nav, poll: v.Poll, pool: v.Pool}, err
	}
	key := scopeOf(v.Me)
	if key == "" {
		return render(v.ctx())
	}
	return s.shares.get(v.ctx(), key+" "+v.Here, live, revision, render)
}

func (s *Server) newView(w http.ResponseWriter, r *http.Request) *view {
	v := &view{
		Now: s.cfg.Now(), Query: r.URL.Query(), Here: r.URL.RequestURI(), Form: formToken(w, r),
		Poll: 5, Live: true, SignedIn: cookie(r, tokenCookie) != "", Pool: &dxpuv1.Pool{}, Assets: assetVersion(),
		r: r,
	}
	if t := cookie(r, themeCookie); t == "light" || t == "dark" {
		v.Theme = t
	}
	return v
}

// load loads the pool's totals, if the viewer has access to them.
func (v *view) load() error {
	pool, err := ask(v.ctx(), v.api.GetPool, &dxpuv1.GetPoolRequest{})
	if p := pool.GetPool(); p != nil {
		v.Pool = p
	}
	return allowed(err)
}

// allowed returns err, or nil if err says that the viewer has no access.
func allowed(err error) error {
	if connect.CodeOf(err) == connect.CodePermissionDenied {
		return nil
	}
	return err
}

// The placeholders stand for the form token and the number of the page in renderings,
// which viewers share; they are never sent.
var formPlaceholder, numberPlaceholder = rand.Text(), rand.Text()

// content renders the page without the frame.
func (v *view) content() ([]byte, error) {
	var b bytes.Buffer
	err := parsed().pages[v.Name].ExecuteTemplate(&b, "main", v)
	return b.Bytes(), err
}

// withOwnForms returns a shared rendering with the viewer's own form token, and with a
// number that no other copy of the page has.
func (v *view) withOwnForms(content []byte) []byte {
	if !bytes.Contains(content, []byte(formPlaceholder)) {
		return content // no copy: it may be large and have a thousand viewers
	}
	content = bytes.ReplaceAll(content, []byte(formPlaceholder), []byte(v.Form))
	return bytes.ReplaceAll(content, []byte(numberPlaceholder), []byte(rand.Text()))
}

// write sends a page, or an error if it cannot be rendered completely.
func (v *view) write(w http.ResponseWriter, status int, content []byte) {
	var b bytes.Buffer
	// The page on which the action was taken may update itself before the browser
	// follows the redirect. The notice is for the page after that.
	if !v.update {
		v.Notice = takeNotice(w, v.r)
	}
	v.Content = template.HTML(v.withOwnForms(content)) // made and escaped by a template
	if err := parsed().frame.ExecuteTemplate(&b, "frame", v); err != nil {
		http.Error(w, "this page cannot be rendered: "+err.Error(), http.StatusInternalServerError)
		return
	}
	writeHTML(w, status, b.Bytes())
}

func writeHTML(w http.ResponseWriter, status int, parts ...[]byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	for _, b := range parts {
		_, _ = w.Write(b) // fails if the browser has closed the connection
	}
}

// writeBare renders and sends a page that is not shared.
func (v *view) writeBare(w http.ResponseWriter, status int) {
	content, err := v.content()
	if err != nil {
		http.Error(w, "this page cannot be rendered: "+err.Error(), http.StatusInternalServerError)
		return
	}
	v.write(w, status, content)
}

// renderBare sends a page that needs no data from the manager.
func (s *Server) renderBare(w http.ResponseWriter, r *http.Request, status int, name, title string, data any) {
	v := s.newView(w, r)
	v.Name, v.Title, v.Data, v.Live, v.Poll = name, title, data, false, 0
	v.writeBare(w, status)
}

// failure is the content of the page of an error.
type failure struct {
	Status  int
	Message string
	Leader  string // URL of the leading manager, if this one does not lead
}

// fail sends the page of an error. It redirects a viewer without a valid credential to
// the sign-in page.
func (s *Server) fail(w http.ResponseWriter, v *view, err error) {
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		http.Redirect(w, v.r, "/ui/signin?next="+url.QueryEscape(v.Here), http.StatusSeeOther)
		return
	}
	status := httpStatus(err)
	v.Name, v.Title, v.Poll = "failure", http.StatusText(status), 0
	f := failure{Status: status, Message: sentence(message(err))}
	var ce *connect.Error
	if errors.As(err, &ce) {
		// A follower names the leader.
		if f.Leader = ce.Meta().Get(client.LeaderHeader); f.Leader == client.NoLeader {
			f.Leader = ""
		}
	}
	v.Data = f
	for _, p := range navigation[1:] {
		if strings.HasPrefix(v.r.URL.Path, p.Href) {
			v.Nav = p.Key
		}
	}
	v.writeBare(w, status)
}

var errNoPage = connect.NewError(connect.CodeNotFound, errors.New("there is no such page"))

func (s *Server) noPage(*view) error { return errNoPage }

func httpStatus(err error) int {
	return cmp.Or(statuses[connect.CodeOf(err)], http.StatusInternalServerError)
}

var statuses = map[connect.Code]int{
	connect.CodeNotFound: http.StatusNotFound, connect.CodeUnimplemented: http.StatusNotImplemented,
	connect.CodeInvalidArgument: http.StatusBadRequest, connect.CodeOutOfRange: http.StatusBadRequest,
	connect.CodeUnauthenticated: http.StatusUnauthorized, connect.CodePermissionDenied: http.StatusForbidden,
	connect.CodeAborted: http.StatusConflict, connect.CodeAlreadyExists: http.StatusConflict, connect.CodeFailedPrecondition: http.StatusConflict,
	connect.CodeResourceExhausted: http.StatusTooManyRequests,
	connect.CodeUnavailable:       http.StatusServiceUnavailable, connect.CodeCanceled: http.StatusServiceUnavailable,
	connect.CodeDeadlineExceeded: http.StatusServiceUnavailable,
}
