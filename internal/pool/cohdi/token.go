package cohdi

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// tokenLife is the time after which the components ask for an access token again. The
// pool checks its own token in each call, so one that is deleted does not work that long.
const tokenLife = 10 * time.Minute

// accessToken is an answer of the token endpoint (RFC 6749, section 5.1).
type accessToken struct {
	AccessToken string `json:"access_token"`
	ExpiresIn   int64  `json:"expires_in"`
	TokenType   string `json:"token_type"`
	Scope       string `json:"scope"`
}

// oauthError is its error (section 5.2).
type oauthError struct {
	Error       string `json:"error"`
	Description string `json:"error_description"`
}

// token serves the resource owner's password grant: the password is a token of the pool.
func (s *server) token(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		reply(w, http.StatusBadRequest, oauthError{"invalid_request", "the body is not a form: " + err.Error()})
		return
	}
	if g := r.PostForm.Get("grant_type"); g != "password" {
		reply(w, http.StatusBadRequest, oauthError{"unsupported_grant_type", fmt.Sprintf("grant_type is %q, want password", g)})
		return
	}
	secret := r.PostForm.Get("password")
	if strings.ContainsAny(secret, " \t\r\n") {
		reply(w, http.StatusUnauthorized, oauthError{"invalid_grant", "the password is not a token of the pool"})
		return
	}
	me, err := s.Client(as(r, secret)).WhoAmI(r.Context(), connect.NewRequest(&dxpuv1.WhoAmIRequest{}))
	switch {
	case connect.CodeOf(err) == connect.CodeUnauthenticated || err == nil && me.Msg.Role == dxpuv1.Role_ROLE_UNSPECIFIED:
		reply(w, http.StatusUnauthorized, oauthError{"invalid_grant", "the password is not a valid token of the pool"})
	case err != nil:
		fail(w, err)
	default:
		reply(w, http.StatusOK, accessToken{encode(secret, time.Now().Add(tokenLife)), int64(tokenLife / time.Second), "Bearer", "openid"})
	}
}

// encode returns an access token: the components read its expiry, as in a JSON web token
// (RFC 7519). Where that has a signature, it has the token of the pool.
func encode(secret string, expiry time.Time) string {
	part := base64.RawURLEncoding.EncodeToString
	claims, _ := json.Marshal(map[string]int64{"exp": expiry.Unix()}) // cannot fail: a map of numbers
	return part([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + part(claims) + "." + part([]byte(secret))
}

// secretOf returns the token of the pool in an Authorization header, empty if there is none.
func secretOf(header string) (string, error) {
	if header == "" {
		return "", nil
	}
	bad := connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("the access token is not one of this manager: ask for a new one"))
	access, ok := auth.Bearer(header)
	parts := strings.Split(access, ".")
	if !ok || len(parts) != 3 {
		return "", bad
	}
	secret, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || strings.ContainsAny(string(secret), " \t\r\n\x00") {
		return "", bad
	}
	return string(secret), nil
}
