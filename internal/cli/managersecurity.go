//go:build linux

package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

// securityOptions are the flags of "dxpu manager" for its security.
type securityOptions struct {
	open, insecureOpen, tls bool
	tlsCert, tlsKey         string
	tlsNames                []string
}

func (o *securityOptions) register(f *pflag.FlagSet) {
	f.BoolVar(&o.open, "open", true, "callers on this machine need no token if --listen is a loopback address")
	f.BoolVar(&o.insecureOpen, "insecure-open", false, "no caller needs a token: everyone with access to the address may do everything")
	f.BoolVar(&o.tls, "tls", false, "serve HTTPS with a certificate of the pool's own authority")
	f.StringArrayVar(&o.tlsNames, "tls-name", nil, "`name` or address of the manager for its certificate; repeatable (default: those of --listen and of the machine)")
	f.StringVar(&o.tlsCert, "tls-cert", "", "PEM file of a certificate of another authority; implies HTTPS")
	f.StringVar(&o.tlsKey, "tls-key", "", "PEM file of that certificate's private key")
}

func (o *securityOptions) https() bool { return o.tls || o.tlsCert != "" }

func (o *securityOptions) scheme() string {
	if o.https() {
		return "https"
	}
	return "http"
}

// openness returns the rights of callers without a token.
func (o *securityOptions) openness(cmd *cobra.Command, listen string) (manager.Open, error) {
	loopback := isLoopback(listen)
	switch {
	case o.insecureOpen:
		return manager.OpenInsecure, nil
	case loopback && o.open:
		return manager.OpenLoopback, nil
	case !loopback && cmd.Flags().Changed("open") && o.open:
		return 0, withHint(fmt.Errorf("--open: %s is not a loopback address", listen), "--insecure-open allows everything to everyone with access to the address")
	case !loopback && !o.https():
		return 0, withHint(fmt.Errorf("--listen: %s is not a loopback address, and tokens must not cross a network in cleartext", listen),
			"add --tls, or --insecure-open if everyone with access to the address may do everything")
	}
	return manager.OpenNever, nil
}

// isLoopback reports whether a listening address is for this machine only.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// tlsConfig returns the TLS configuration of the manager, nil without TLS.
func (o *securityOptions) tlsConfig(m *manager.Manager, addr net.Addr) (*tls.Config, error) {
	if !o.https() {
		return nil, nil
	}
	var own *tls.Certificate
	if o.tlsCert != "" {
		c, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
		if err != nil {
			return nil, keyPairError(o.tlsCert, o.tlsKey, err)
		}
		own = &c
	}
	return m.TLSConfig(o.names(addr), own), nil
}

// keyPairError says which of two files is not what it should be.
func keyPairError(cert, key string, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	for _, f := range []struct{ flag, file, label, what string }{
		{"--tls-cert", cert, "CERTIFICATE", "certificate"}, {"--tls-key", key, "PRIVATE KEY", "private key"},
	} {
		if raw, err := os.ReadFile(f.file); err == nil && !bytes.Contains(raw, []byte(f.label+"-----")) {
			return withHint(fmt.Errorf("%s: %s has no %s", f.flag, f.file, f.what), "it is a PEM file, with a line -----BEGIN %s-----", f.label)
		}
	}
	return fmt.Errorf("--tls-cert %s, --tls-key %s: %s", cert, key, strings.TrimPrefix(err.Error(), "tls: "))
}

// names returns the names and addresses of the manager, for its certificate.
func (o *securityOptions) names(addr net.Addr) []string {
	names := slices.Clone(o.tlsNames)
	if len(names) == 0 {
		if name, err := os.Hostname(); err == nil {
			names = append(names, name)
		}
	}
	names = append(names, "localhost", "127.0.0.1", "::1")
	a, ok := addr.(*net.TCPAddr)
	switch {
	case !ok:
	case !a.IP.IsUnspecified():
		names = append(names, a.IP.String())
	case len(o.tlsNames) == 0:
		all, err := net.InterfaceAddrs()
		if err != nil {
			break // the operator can use --tls-name
		}
		for _, a := range all {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				names = append(names, n.IP.String())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// publish writes the pool's authority and first admin token to the data directory,
// or prints them. Both are created for a new pool. Of several managers, only the
// leader does this.
func (o *managerOptions) publish(ctx context.Context, out io.Writer, m *manager.Manager, open manager.Open) error {
	if o.https() {
		pem, hash, err := m.Authority(ctx)
		if err != nil {
			return err
		}
		if o.tlsCert == "" {
			fmt.Fprintf(out, "Flag for nodes: --ca-hash %s\n", hash)
		}
		if o.dataDir != "" {
			if err := o.writeAuthority(pem); err != nil {
				return err
			}
		}
	}
	if o.dataDir == "" && open != manager.OpenNever {
		return nil // callers need no token
	}
	return m.FirstAdminToken(ctx, func(token string) error {
		if o.dataDir == "" {
			_, err := fmt.Fprintf(out, "Token of the first admin: export DXPU_TOKEN=%s\n", token)
			return err
		}
		return atomicfile.Write(filepath.Join(o.dataDir, "admin-token"), []byte(token+"\n"))
	})
}

// writeAuthority writes the certificates of the pool's authorities to the data directory.
func (o *managerOptions) writeAuthority(pem []byte) error {
	if err := atomicfile.Output(filepath.Join(o.dataDir, "ca.crt"), pem, 0o644); err != nil {
		return fmt.Errorf("authority: %w", err)
	}
	return nil
}
