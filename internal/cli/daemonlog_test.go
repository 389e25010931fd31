//go:build linux

package cli

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/dxpu-project/dxpu/internal/pool/oidc"
	"github.com/dxpu-project/dxpu/internal/pool/oidc/oidctest"
)

// The log of a daemon describes errors as the commands do, with the remedy, and has no
// attributes without a value.
func TestDaemonLog(t *testing.T) {
	unknown := fmt.Errorf("enrol: %w", connect.NewError(connect.CodeUnavailable, fmt.Errorf("tls: failed to verify certificate: %w", x509.UnknownAuthorityError{})))
	for _, tt := range []struct {
		name string
		args []any
		want string
	}{
		{"authority", []any{"err", unknown}, "an authority that this machine knows. --ca-file names"},
		{"plain HTTP", []any{"err", connect.NewError(connect.CodeInternal, errors.New("400 Bad Request"))}, "may want TLS: write the URL with https"},
		{"field", []any{"err", connect.NewError(connect.CodeAlreadyExists, errors.New("name: h1 is in use by a connected node"))}, "--name: h1 is in use"},
		{"no error", []any{"slot", 1, "err", error(nil)}, "msg=message slot=1\n"},
		{"empty text", []any{"lease", "", "gpu", "b1/0"}, "msg=message gpu=b1/0\n"},
		{"other values", []any{"slot", 1, "ok", true, "list", []int{1}}, "slot=1 ok=true list=[1]\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: plainAttr})).Info("message", tt.args...)
			got := strings.ReplaceAll(out.String(), `\"`, `"`)
			if m := foreignWords.FindString(got); !strings.Contains(got, tt.want) || m != "" {
				t.Errorf("%q has no %q, or the word %q", got, tt.want, m)
			}
		})
	}
}

// A provider that does not answer as one is in the log when the manager starts.
func TestProviderIsTried(t *testing.T) {
	p := &oidctest.Provider{ClientID: "dxpu"}
	good := httptest.NewServer(p)
	defer good.Close()
	p.Issuer = good.URL
	if err := p.Rotate(); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	for issuer, want := range map[string]string{good.URL: "", web.URL: "single sign-on does not work"} {
		var out bytes.Buffer
		provider := oidc.New(oidc.Config{Issuer: issuer, ClientID: "dxpu"})
		if err := tryProvider(t.Context(), provider, slog.New(slog.NewTextHandler(&out, nil))); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", issuer, got, want)
		}
	}
	if err := tryProvider(t.Context(), nil, slog.Default()); err != nil {
		t.Error(err)
	}
}
