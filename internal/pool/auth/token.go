package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"strings"
)

// A token is TokenPrefix, its public ID, '_', and a secret of 130 bits from the
// system's generator in base 32:
//
//	dxpu_k3v5c7q2mn_q4x...(26)
//
// The manager keeps the SHA-256 of the whole. A plain hash is enough because
// 130 random bits cannot be guessed, however fast the hash is.
const (
	TokenPrefix  = "dxpu_"
	tokenIDLen   = 10
	tokenSecret  = 26
	tokenTextLen = len(TokenPrefix) + tokenIDLen + 1 + tokenSecret
	tokenLetters = "abcdefghijklmnopqrstuvwxyz234567"
)

// NewToken makes a token: its ID, which is no secret, the text that its owner
// gets, and the hash that the manager keeps.
func NewToken() (id, text string, hash []byte) {
	id = "t-" + strings.ToLower(rand.Text()[:tokenIDLen])
	text = TokenPrefix + id[2:] + "_" + strings.ToLower(rand.Text())
	return id, text, Hash(text)
}

// ParseToken returns the ID of a token, "" and false for what is none. It says
// nothing about whether the token is good.
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

// Hash is what is kept of a token or a node's credential: its SHA-256.
func Hash(secret string) []byte {
	h := sha256.Sum256([]byte(secret))
	return h[:]
}

// Matches reports in constant time whether a secret is that of a hash. An empty
// hash matches nothing.
func Matches(secret string, hash []byte) bool {
	return len(hash) == sha256.Size && subtle.ConstantTimeCompare(Hash(secret), hash) == 1
}

// Bearer returns what follows "Bearer " in an Authorization header; ok is false
// for a header of any other form.
func Bearer(header string) (secret string, ok bool) {
	const scheme = "bearer "
	if len(header) <= len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) {
		return "", false
	}
	return strings.TrimSpace(header[len(scheme):]), true
}
