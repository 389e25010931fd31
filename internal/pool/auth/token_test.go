package auth

import (
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func TestTokens(t *testing.T) {
	id, text, hash := NewToken()
	if got, ok := ParseToken(text); !ok || got != id {
		t.Fatalf("ParseToken(%q) = %q, %v; want %q", text, got, ok, id)
	}
	if !Matches(text, hash) {
		t.Error("a token does not match its own hash")
	}
	id2, text2, _ := NewToken()
	if id == id2 || text == text2 || Matches(text2, hash) {
		t.Error("two tokens are equal")
	}
	if strings.Contains(id, text[len(text)-tokenSecret:]) {
		t.Error("the ID contains a part of the secret")
	}
	for n := range len(text) {
		if _, ok := ParseToken(text[:n]); ok {
			t.Errorf("ParseToken accepts the first %d of %d characters", n, len(text))
		}
		if Matches(text[:n], hash) {
			t.Errorf("%d of %d characters match", n, len(text))
		}
	}
	for _, bad := range []string{text + "a", strings.ToUpper(text), strings.Replace(text, "_", "-", 2), text[:20] + "é" + text[22:]} {
		if _, ok := ParseToken(bad); ok {
			t.Errorf("ParseToken accepts %q", bad)
		}
	}
	if Matches("", nil) || Matches("", []byte{}) || Matches(text, hash[:31]) {
		t.Error("a malformed hash matches")
	}
}

func TestBearer(t *testing.T) {
	tests := []struct {
		header, secret string
		ok             bool
	}{
		{"Bearer abc", "abc", true},
		{"bearer abc", "abc", true},
		{"Bearer  abc ", "abc", true},
		{"Bearer ", "", false},
		{"Bearer", "", false},
		{"Basic abc", "", false},
		{"", "", false},
	}
	for _, tt := range tests {
		if s, ok := Bearer(tt.header); s != tt.secret || ok != tt.ok {
			t.Errorf("Bearer(%q) = %q, %v", tt.header, s, ok)
		}
	}
}

func TestWords(t *testing.T) {
	if RoleWord(dxpuv1.Role_ROLE_OPERATOR) != "operator" || RoleWord(0) != "" {
		t.Error("role words")
	}
	if NodeRole(dxpuv1.NodeKind_NODE_KIND_BOX) != dxpuv1.Role_ROLE_BOX || NodeRole(0) != 0 {
		t.Error("roles of nodes")
	}
}

func FuzzParseToken(f *testing.F) {
	_, text, _ := NewToken()
	for _, s := range []string{text, "", TokenPrefix, text[:30], strings.Repeat("_", tokenTextLen)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := ParseToken(s)
		if ok != (id != "") {
			t.Errorf("ParseToken(%q) = %q, %v", s, id, ok)
		}
		if ok && (!strings.HasPrefix(s, TokenPrefix+id[2:]+"_") || len(s) != tokenTextLen) {
			t.Errorf("%q is not a token of %q", s, id)
		}
		_, _ = Bearer(s)
	})
}
