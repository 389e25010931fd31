package etcdstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// peerAuthority issues certificates of members.
type peerAuthority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPeerAuthority(t *testing.T) *peerAuthority {
	t.Helper()
	a := &peerAuthority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = a.sign("ca", template)
	return a
}

// sign writes a certificate and its key as NAME.crt and NAME.key.
func (a *peerAuthority) sign(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = template, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: raw}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// member returns the options of a member with a certificate of this authority.
func (a *peerAuthority) member(name string, addresses []string, i int) Options {
	a.t.Helper()
	a.sign(name, &x509.Certificate{
		SerialNumber: big.NewInt(int64(i) + 2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		// etcd also checks the caller's address, which on one machine is the first one.
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(addresses[i])},
	})
	var all []string
	for j, address := range addresses {
		all = append(all, fmt.Sprintf("m%d=https://%s:2380", j, address))
	}
	return Options{
		Dir: a.t.TempDir(), Name: name, PeerListen: fmt.Sprintf("https://%s:2380", addresses[i]), InitialCluster: strings.Join(all, ","),
		CAFile: filepath.Join(a.dir, "ca.crt"), CertFile: filepath.Join(a.dir, name+".crt"), KeyFile: filepath.Join(a.dir, name+".key"),
	}
}

// TestMembersKnowEachOtherByCertificate checks that members with certificates of one
// authority form a cluster, and that one with a certificate of another authority
// cannot join.
func TestMembersKnowEachOtherByCertificate(t *testing.T) {
	tests := []struct {
		name     string
		stranger bool
	}{{"one authority", false}, {"a stranger", true}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newPeerAuthority(t)
			other := a
			if tt.stranger {
				other = newPeerAuthority(t)
			}
			net := mathrand.N(256) // not used by other tests
			addresses := []string{fmt.Sprintf("127.89.%d.1", net), fmt.Sprintf("127.89.%d.2", net)}
			stores := make([]*Store, 2)
			var opening sync.WaitGroup
			for i, o := range []Options{a.member("m0", addresses, 0), other.member("m1", addresses, 1)} {
				opening.Go(func() {
					s, err := Open(t.Context(), o)
					if err != nil {
						t.Error(err)
						return
					}
					stores[i] = s
				})
			}
			opening.Wait()
			if t.Failed() {
				return
			}
			ready, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if tt.stranger {
				cancel()
				ready, cancel = context.WithTimeout(t.Context(), 3*time.Second) // about five elections
			}
			err := stores[0].ready(ready)
			cancel()
			if tt.stranger == (err == nil) {
				t.Errorf("quorum: %v, with a stranger: %v", err, tt.stranger)
			}
			if err == nil {
				lead(t, stores[0])
				if err := stores[0].Resign(t.Context()); err != nil { // while there is a quorum
					t.Error(err)
				}
			}
			var closing sync.WaitGroup
			for _, s := range stores {
				closing.Go(func() { closeStore(t, s) })
			}
			closing.Wait()
		})
	}
}
