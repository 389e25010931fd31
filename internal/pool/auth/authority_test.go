package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

var epoch = time.Unix(1_800_000_000, 0)

func newAuthority(t testing.TB) *Authority {
	t.Helper()
	a, err := NewAuthority("c-1", epoch)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAuthorityOutlivesTheProcess(t *testing.T) {
	a := newAuthority(t)
	cert, key, err := a.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	b, err := LoadAuthority(cert, key)
	if err != nil || !bytes.Equal(a.PEM(), b.PEM()) || a.Hash() != b.Hash() {
		t.Fatalf("LoadAuthority returns another authority: %v", err)
	}
	_, other, err := newAuthority(t).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadAuthority(cert, other); err == nil {
		t.Error("LoadAuthority accepts another authority's key")
	}
	for n := range key {
		if _, err := LoadAuthority(cert, key[:n]); err == nil {
			t.Errorf("LoadAuthority accepts %d of %d bytes of a key", n, len(key))
		}
	}
}

func TestNodeCertificates(t *testing.T) {
	a := newAuthority(t)
	text, key, err := NewRequest("anything")
	if err != nil {
		t.Fatal(err)
	}
	req, err := ParseRequest(text)
	if err != nil {
		t.Fatal(err)
	}
	const life = 30 * 24 * time.Hour
	c, err := a.IssueNode(req, NodeURI("c-1", dxpuv1.NodeKind_NODE_KIND_HOST, "h1"), epoch, life)
	if err != nil {
		t.Fatal(err)
	}
	kind, node, err := NodeOf(c, "c-1")
	if err != nil || kind != "host" || node != "h1" || !key.PublicKey.Equal(c.PublicKey) {
		t.Errorf("got a certificate of %s %s: %v", kind, node, err)
	}
	if _, _, err := NodeOf(c, "c-2"); err == nil {
		t.Error("NodeOf accepts it for another pool")
	}
	if len(c.DNSNames)+len(c.IPAddresses) != 0 || c.IsCA {
		t.Error("the certificate is valid for more than a client")
	}
	verify := func(a *Authority, at time.Time, use x509.ExtKeyUsage) error {
		roots := x509.NewCertPool()
		roots.AddCert(a.Certificate())
		_, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{use}})
		return err
	}
	tests := []struct {
		name string
		err  error
		good bool
	}{
		{"now", verify(a, epoch, x509.ExtKeyUsageClientAuth), true},
		{"a clock that is a little behind", verify(a, epoch.Add(-clockSkew), x509.ExtKeyUsageClientAuth), true},
		{"too early", verify(a, epoch.Add(-clockSkew-time.Second), x509.ExtKeyUsageClientAuth), false},
		{"the last second", verify(a, epoch.Add(life), x509.ExtKeyUsageClientAuth), true},
		{"too late", verify(a, epoch.Add(life+time.Second), x509.ExtKeyUsageClientAuth), false},
		{"as a server's", verify(a, epoch, x509.ExtKeyUsageServerAuth), false},
		{"of another authority", verify(newAuthority(t), epoch, x509.ExtKeyUsageClientAuth), false},
	}
	for _, tt := range tests {
		if (tt.err == nil) != tt.good {
			t.Errorf("%s: %v", tt.name, tt.err)
		}
	}
}

func TestRequestsAreChecked(t *testing.T) {
	good, _, err := NewRequest("n")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(good))
	forged := slices.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, k)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(typ string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}))
	}
	tests := []struct{ name, text, why string }{
		{"empty", "", "not one PEM block"},
		{"no PEM", "hello", "not one PEM block"},
		{"another block", encode(pemCert, block.Bytes), "not one PEM block"},
		{"two blocks", good + good, "not one PEM block"},
		{"no request", encode(pemRequest, []byte{1, 2, 3}), "PKCS #10"},
		{"forged", encode(pemRequest, forged), "signature"},
		{"RSA", encode(pemRequest, weak), "neither"},
		{"long", good + strings.Repeat(" ", maxRequestPEM), "longer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseRequest(tt.text); err == nil || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("got %v, want %q", err, tt.why)
			}
		})
	}
	for n := range block.Bytes {
		if _, err := ParseRequest(encode(pemRequest, block.Bytes[:n])); err == nil {
			t.Errorf("ParseRequest accepts %d of %d bytes", n, len(block.Bytes))
		}
	}
}

func TestServersAreKnownByTheHash(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	s, err := a.IssueServer([]string{"m1.example", "10.0.0.1", "::1"}, epoch, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	fake, err := other.IssueServer([]string{"m1.example"}, epoch, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	chain := []*x509.Certificate{s.Leaf, a.Certificate()}
	tests := []struct {
		name, hash, host string
		chain            []*x509.Certificate
		at               time.Time
		good             bool
	}{
		{"name", a.Hash(), "m1.example", chain, epoch, true},
		{"address", a.Hash(), "10.0.0.1", chain, epoch, true},
		{"IPv6", a.Hash(), "::1", chain, epoch, true},
		{"another name", a.Hash(), "m2.example", chain, epoch, false},
		{"another hash", other.Hash(), "m1.example", chain, epoch, false},
		{"another authority", a.Hash(), "m1.example", []*x509.Certificate{fake.Leaf, other.Certificate()}, epoch, false},
		{"the right authority beside a forged certificate", a.Hash(), "m1.example", []*x509.Certificate{fake.Leaf, a.Certificate()}, epoch, false},
		{"without the authority", a.Hash(), "m1.example", chain[:1], epoch, false},
		{"nothing", a.Hash(), "m1.example", nil, epoch, false},
		{"expired", a.Hash(), "m1.example", chain, epoch.Add(2 * time.Hour), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := VerifyPinned(tt.hash, tt.chain, tt.host, tt.at); (err == nil) != tt.good {
				t.Errorf("got %v", err)
			}
		})
	}
	if CheckHash(a.Hash()) != nil || CheckHash(a.Hash()[7:]) == nil || CheckHash("sha256:00") == nil {
		t.Error("CheckHash accepts a malformed hash or refuses a good one")
	}
}

func FuzzParseRequest(f *testing.F) {
	good, _, err := NewRequest("n")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add("")
	f.Add("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
	f.Fuzz(func(t *testing.T, s string) {
		req, err := ParseRequest(s)
		if (req == nil) != (err != nil) {
			t.Errorf("request %v with error %v", req, err)
		}
	})
}
