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

// Cookies. Scripts can access the theme only.
const (
	tokenCookie  = "dxpu_token"  // the viewer's credential after signing in
	formCookie   = "dxpu_form"   // every form must repeat its value
	noticeCookie = "dxpu_notice" // a sentence for the next page
	themeCookie  = "dxpu_theme"  // "light" or "dark"
)

// signInLifetime is how long a browser keeps a token: a working week.
const signInLifetime = 5 * 24 * time.Hour

// setCookie sets a cookie for this site's requests only. "" deletes the cookie.
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

// formToken returns the token of the browser's forms, and sets a missing cookie.
func formToken(w http.ResponseWriter, r *http.Request) string {
	if t := cookie(r, formCookie); isFormToken(t) {
		return t
	}
	t := rand.Text()
	setCookie(w, r, formCookie, t, 365*24*time.Hour)
	return t
}

// isFormToken reports whether a value, which pages do not escape, is a rand.Text.
func isFormToken(t string) bool {
	return len(t) == 26 && strings.Trim(t, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// checkForm returns an error unless a form was sent by one of our pages in this browser.
func checkForm(r *http.Request) error {
	want, got := cookie(r, formCookie), r.PostFormValue("form")
	if !isFormToken(want) || subtle.ConstantTimeCompare([]byte(want), []byte(got)) != 1 {
		return errFormExpired
	}
	return nil
}

var errFormExpired = errors.New("this form has expired or was sent by another site: go back, reload the page and try again")

// checkRequest returns an error unless a form that changes the pool has the number that
// its page was given, from which its request ID is made.
func checkRequest(r *http.Request) error {
	if !isFormToken(r.PostFormValue("request")) {
		return errFormExpired
	}
	return nil
}

// setNotice stores a sentence for the next page.
func setNotice(w http.ResponseWriter, r *http.Request, sentence string) {
	setCookie(w, r, noticeCookie, base64.RawURLEncoding.EncodeToString([]byte(sentence)), time.Minute)
}

// takeNotice returns and deletes the stored sentence.
func takeNotice(w http.ResponseWriter, r *http.Request) string {
	v := cookie(r, noticeCookie)
	if v == "" {
		return ""
	}
	setCookie(w, r, noticeCookie, "", 0)
	b, err := base64.RawURLEncoding.DecodeString(v)
	if err != nil {
		return ""
	}
	return string(b)
}

// localPath returns a path of this server that a form names, or "/" for any other URL.
func localPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || u.Path != "/" && !strings.HasPrefix(u.Path, "/ui/") || strings.Contains(next, `\`) {
		return "/"
	}
	return u.RequestURI()
}

// signInData is the content of the sign-in page.
type signInData struct {
	Next, Error string
	Issuer      string // of single sign-on; "": none
}

func (s *Server) signInForm(w http.ResponseWriter, r *http.Request) {
	at, _ := s.provider(r) // without an answer the page takes a token
	s.renderBare(w, r, http.StatusOK, "signin", "Sign in", signInData{Next: localPath(r.FormValue("next")), Issuer: at.GetIssuer()})
}

func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	token, next := strings.TrimSpace(r.PostFormValue("token")), localPath(r.PostFormValue("next"))
	again := func(status int, why string) {
		s.renderBare(w, r, status, "signin", "Sign in", signInData{Next: next, Error: why})
	}
	if err := checkForm(r); err != nil {
		again(http.StatusForbidden, sentence(err.Error()))
		return
	}
	if token == "" || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`",;\`, c) }) {
		again(http.StatusBadRequest, "This is not a token: a token is one word.")
		return
	}
	try := r.Clone(r.Context())
	try.Header.Set("Authorization", "Bearer "+token)
	_, err := s.cfg.Client(try).WhoAmI(r.Context(), connect.NewRequest(&dxpuv1.WhoAmIRequest{}))
	switch code := connect.CodeOf(err); {
	case err == nil || code == connect.CodeUnimplemented:
		setCookie(w, r, tokenCookie, token, signInLifetime)
		http.Redirect(w, r, next, http.StatusSeeOther)
	case code == connect.CodeUnauthenticated || code == connect.CodePermissionDenied:
		again(http.StatusUnauthorized, "The manager does not know this token, or it has expired. An administrator creates one with \"dxpu token create\".")
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

// setTheme serves the theme button of browsers without JavaScript.
func setTheme(w http.ResponseWriter, r *http.Request) {
	theme := r.PostFormValue("theme")
	if theme != "light" && theme != "dark" {
		theme = ""
	}
	setCookie(w, r, themeCookie, theme, 365*24*time.Hour)
	http.Redirect(w, r, localPath(r.PostFormValue("next")), http.StatusSeeOther)
}
