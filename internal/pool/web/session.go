package web

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Cookies. None of them is for scripts but the theme, which a script may set.
const (
	tokenCookie = "dxpu_token" // the credential of who signed in
	formCookie  = "dxpu_form"  // must come back in every form
	saidCookie  = "dxpu_said"  // one sentence for the next page
	themeCookie = "dxpu_theme" // "light" or "dark"
)

// signedInFor is how long a browser keeps a token: a working week.
const signedInFor = 5 * 24 * time.Hour

// setCookie sets a cookie that no other site's request carries; empty: forget it.
func setCookie(w http.ResponseWriter, r *http.Request, name, value string, age time.Duration) {
	c := &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: int(age / time.Second),
		Secure: r.TLS != nil, HttpOnly: name != themeCookie, SameSite: http.SameSiteStrictMode,
	}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

func cookie(r *http.Request, name string) string {
	if c, err := r.Cookie(name); err == nil {
		return c.Value
	}
	return ""
}

// formToken returns what a browser's forms must carry, and gives the browser one
// if it has none.
func formToken(w http.ResponseWriter, r *http.Request) string {
	if t := cookie(r, formCookie); isFormToken(t) {
		return t
	}
	t := rand.Text()
	setCookie(w, r, formCookie, t, 365*24*time.Hour)
	return t
}

// isFormToken reports whether a cookie may be what rand.Text made: it goes into
// pages as it is.
func isFormToken(t string) bool {
	return len(t) == 26 && strings.Trim(t, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// checkForm reports whether a form came from one of our pages in this browser.
func checkForm(r *http.Request) error {
	want, got := cookie(r, formCookie), r.PostFormValue("form")
	if !isFormToken(want) || subtle.ConstantTimeCompare([]byte(want), []byte(got)) != 1 {
		return errors.New("this form is too old or not from this page: go back, load the page again and repeat")
	}
	return nil
}

// say leaves a sentence for the next page.
func say(w http.ResponseWriter, r *http.Request, sentence string) {
	setCookie(w, r, saidCookie, base64.RawURLEncoding.EncodeToString([]byte(sentence)), time.Minute)
}

// said returns the sentence that was left, once.
func said(w http.ResponseWriter, r *http.Request) string {
	v := cookie(r, saidCookie)
	if v == "" {
		return ""
	}
	setCookie(w, r, saidCookie, "", 0)
	b, err := base64.RawURLEncoding.DecodeString(v)
	if err != nil {
		return ""
	}
	return string(b)
}

// ours returns a place of this server that a form names, or "/".
func ours(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || u.Path != "/" && !strings.HasPrefix(u.Path, "/ui/") || strings.Contains(next, `\`) {
		return "/"
	}
	return u.RequestURI()
}

// signInData is what the form shows.
type signInData struct {
	Next, Error string
}

func (s *Server) signInForm(w http.ResponseWriter, r *http.Request) {
	s.renderBare(w, r, http.StatusOK, "signin", "Sign in", signInData{Next: ours(r.FormValue("next"))})
}

func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	token, next := strings.TrimSpace(r.PostFormValue("token")), ours(r.PostFormValue("next"))
	again := func(status int, why string) {
		s.renderBare(w, r, status, "signin", "Sign in", signInData{Next: next, Error: why})
	}
	if err := checkForm(r); err != nil {
		again(http.StatusForbidden, sentence(err.Error()))
		return
	}
	if token == "" || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`",;\`, c) }) {
		again(http.StatusBadRequest, "A token is one word; this is none.")
		return
	}
	try := r.Clone(r.Context())
	try.Header.Set("Authorization", "Bearer "+token)
	_, err := s.cfg.Client(try).WhoAmI(r.Context(), connect.NewRequest(&dxpuv1.WhoAmIRequest{}))
	switch code := connect.CodeOf(err); {
	case err == nil || code == connect.CodeUnimplemented:
		setCookie(w, r, tokenCookie, token, signedInFor)
		http.Redirect(w, r, next, http.StatusSeeOther)
	case code == connect.CodeUnauthenticated || code == connect.CodePermissionDenied:
		again(http.StatusUnauthorized, "The manager does not know this token, or it has expired. An administrator makes one with \"dxpu token create\".")
	default:
		again(httpStatus(err), sentence(message(err)))
	}
}

func (s *Server) signOut(w http.ResponseWriter, r *http.Request) {
	if checkForm(r) == nil {
		setCookie(w, r, tokenCookie, "", 0)
	}
	http.Redirect(w, r, "/ui/signin", http.StatusSeeOther)
}

// setTheme is what the button does where there is no script.
func setTheme(w http.ResponseWriter, r *http.Request) {
	theme := r.PostFormValue("theme")
	if theme != "light" && theme != "dark" {
		theme = ""
	}
	setCookie(w, r, themeCookie, theme, 365*24*time.Hour)
	http.Redirect(w, r, ours(r.PostFormValue("next")), http.StatusSeeOther)
}
