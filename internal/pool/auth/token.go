package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"strings"
)

// A token is TokenPrefix, its public ID, '_', and 130 bits from crypto/rand in
// base 32:
//
//	dxpu_k3v5c7q2mn_q4x...(26)
//
// The manager keeps the SHA-256 of the whole token. A fast hash suffices because
// 130 random bits cannot be guessed.
const (
	TokenPrefix  = "dxpu_"
	tokenIDLen   = 10
	tokenSecret  = 26
	tokenTextLen = len(TokenPrefix) + tokenIDLen + 1 + tokenSecret
	tokenLetters = "abcdefghijklmnopqrstuvwxyz234567"
)

// NewToken makes a token. It returns the ID, which is public, the text for the
// owner, and the hash that the manager keeps.
func NewToken() (id, text string, hash []byte) {
	id = "t-" + strings.ToLower(rand.Text()[:tokenIDLen])
	text, hash = NewSecret(id)
	return id, text, hash
}

// NewSecret makes another text and hash for the token with an ID.
func NewSecret(id string) (text string, hash []byte) {
	text = TokenPrefix + id[2:] + "_" + strings.ToLower(rand.Text())
	return text, Hash(text)
}

// ParseToken returns the ID in a token, and false if text does not have the form of
// a token. It does not check the secret.
func ParseToken(text string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(text, TokenPrefix)
	if !ok || len(text) != tokenTextLen || rest[tokenIDLen] != '_' {
		return "", false
	}
	id, secret := rest[:tokenIDLen], rest[tokenIDLen+1:]
	if strings.Trim(id+secret, tokenLetters) != "" {
		return "", false
	}
	return "t-" + id, true
}

// Hash returns the SHA-256 of a token or of a node's credential.
func Hash(secret string) []byte {
	h := sha256.Sum256([]byte(secret))
	return h[:]
}

// Matches reports in constant time whether hash is that of secret; an empty one is not.
func Matches(secret string, hash []byte) bool {
	return len(hash) == sha256.Size && subtle.ConstantTimeCompare(Hash(secret), hash) == 1
}

// Bearer returns the credential in an Authorization header (RFC 6750). ok is false
// for any other scheme.
func Bearer(header string) (secret string, ok bool) {
	const scheme = "bearer "
	if len(header) <= len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return "", false
	}
	return strings.TrimSpace(header[len(scheme):]), true
}
