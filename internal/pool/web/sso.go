package web

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/oidc"
)

const (
	// ssoCookie holds a sign-in that has begun. It is the only cookie that comes along when
	// another site sends the browser here: the provider does, when the person has signed in.
	ssoCookie   = "dxpu_sso"
	ssoPath     = "/ui/sso"
	ssoCallback = ssoPath + "/callback"
	// ssoTime is how long a person may take at the provider.
	ssoTime = 10 * time.Minute
	// maxNext bounds the page after the sign-in, in bytes: browsers keep no cookie above 4096.
	maxNext = 2048
)

// ssoState is the value of ssoCookie.
type ssoState struct {
	oidc.Pending
	Next string `json:"next"`
}

func setSSOCookie(w http.ResponseWriter, r *http.Request, value string, age time.Duration) {
	c := &http.Cookie{
		Name: ssoCookie, Value: value, Path: ssoPath, MaxAge: int(age / time.Second),
		Secure: r.TLS != nil, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// redirectURL is where the provider sends the browser back: this server, by the name under
// which the browser knows it. The provider accepts only those that are registered.
func redirectURL(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host + ssoCallback
}

// stranger returns a request without the credentials of its sender: an old token would
// only make the calls of a sign-in fail.
func stranger(r *http.Request) *http.Request {
	out := r.Clone(r.Context())
	out.Header.Del("Authorization")
	out.Header.Del("Cookie")
	return out
}

// provider returns the provider of the pool; no issuer: there is none, or no answer.
func (s *Server) provider(r *http.Request) (*dxpuv1.GetSignInResponse, error) {
	res, err := s.cfg.Client(stranger(r)).GetSignIn(r.Context(), connect.NewRequest(&dxpuv1.GetSignInRequest{}))
	if err != nil {
		return &dxpuv1.GetSignInResponse{}, err
	}
	return res.Msg, nil
}

func (s *Server) ssoFails(w http.ResponseWriter, r *http.Request, status int, next, why string) {
	setSSOCookie(w, r, "", 0)
	at, _ := s.provider(r)
	s.renderBare(w, r, status, "signin", "Sign in", signInData{Next: next, Issuer: at.GetIssuer(), Error: why})
}

// ssoStart sends the browser to the provider.
func (s *Server) ssoStart(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.FormValue("next"))
	if len(next) > maxNext {
		next = "/"
	}
	at, err := s.provider(r)
	switch {
	case err != nil:
		s.ssoFails(w, r, httpStatus(err), next, sentence(message(err)))
		return
	case at.Issuer == "":
		s.ssoFails(w, r, http.StatusNotFound, next, "This pool has no single sign-on: use a token.")
		return
	}
	url, pending, err := s.flow.Start(r.Context(), at.Issuer, at.ClientId, redirectURL(r))
	if err != nil {
		s.ssoFails(w, r, http.StatusBadGateway, next, "The provider of single sign-on does not answer: try again, or use a token.")
		return
	}
	value, err := json.Marshal(ssoState{pending, next})
	if err != nil {
		s.ssoFails(w, r, http.StatusInternalServerError, next, sentence(err.Error()))
		return
	}
	setSSOCookie(w, r, base64.RawURLEncoding.EncodeToString(value), ssoTime)
	http.Redirect(w, r, url, http.StatusSeeOther)
}

// ssoReturn takes the browser that comes back from the provider.
func (s *Server) ssoReturn(w http.ResponseWriter, r *http.Request) {
	var state ssoState
	value, err := base64.RawURLEncoding.DecodeString(cookie(r, ssoCookie))
	if err != nil || json.Unmarshal(value, &state) != nil {
		state = ssoState{}
	}
	next, q := localPath(state.Next), r.URL.Query()
	const notOurs = "This is not the answer to a sign-in that this browser began, or the sign-in took longer than ten minutes: sign in again."
	at, err := s.provider(r)
	switch {
	case err != nil:
		s.ssoFails(w, r, httpStatus(err), next, sentence(message(err)))
		return
	case q.Get("iss") != "" && q.Get("iss") != at.Issuer: // RFC 9207
		s.ssoFails(w, r, http.StatusBadRequest, next, notOurs)
		return
	case q.Get("code") == "" && state.State != "" && q.Get("state") == state.State:
		why := cmp.Or(q.Get("error_description"), q.Get("error"), "it sent no code")
		s.ssoFails(w, r, http.StatusUnauthorized, next, sentence("the provider refused the sign-in: "+why[:min(len(why), 200)]))
		return
	}
	raw, err := s.flow.Finish(r.Context(), at.Issuer, at.ClientId, redirectURL(r), state.Pending, q.Get("state"), q.Get("code"))
	switch {
	case errors.Is(err, oidc.ErrState):
		s.ssoFails(w, r, http.StatusBadRequest, next, notOurs)
		return
	case err != nil:
		s.ssoFails(w, r, http.StatusUnauthorized, next, "The provider did not confirm the sign-in: sign in again.")
		return
	}
	res, err := s.cfg.Client(stranger(r)).SignIn(r.Context(), connect.NewRequest(&dxpuv1.SignInRequest{IdToken: raw}))
	if err != nil {
		s.ssoFails(w, r, httpStatus(err), next, sentence(message(err)))
		return
	}
	life := signInLifetime
	if t := res.Msg.GetToken().GetExpireTime(); t != nil {
		life = min(life, t.AsTime().Sub(s.cfg.Now()))
	}
	setSSOCookie(w, r, "", 0)
	setCookie(w, r, tokenCookie, res.Msg.Secret, life)
	// A redirect would go on with the request of the other site, and browsers send it no
	// strict cookies. The page that this answer is goes on with one of its own.
	w.Header().Set("Refresh", "0; url="+next)
	s.renderBare(w, r, http.StatusOK, "signedin", "Signed in", signInData{Next: next})
}
