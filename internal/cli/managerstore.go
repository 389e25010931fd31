package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/etcdstore"
)

// storeOptions are the flags of "dxpu manager" that say where the state is.
type storeOptions struct {
	dataDir   string
	advertise string
	quotaMiB  int64
	restore   string // path of a backup
	etcd      etcdstore.Options
}

// registerPlace adds the flags that say where a state is that one process has for itself.
func (o *storeOptions) registerPlace(f *pflag.FlagSet) {
	f.StringVar(&o.dataDir, "data-dir", "", "directory of the state, kept by an etcd in this process (default: memory)")
	f.StringSliceVar(&o.etcd.Endpoints, "etcd-endpoints", nil, "keep the state in this etcd cluster, for example https://etcd1:2379,https://etcd2:2379")
	f.StringVar(&o.etcd.CAFile, "etcd-ca", "", "PEM file of the authority of etcd's certificates")
	f.StringVar(&o.etcd.CertFile, "etcd-cert", "", "PEM file of this manager's certificate for etcd")
	f.StringVar(&o.etcd.KeyFile, "etcd-key", "", "PEM file of that certificate's key")
	f.StringVar(&o.etcd.Prefix, "etcd-prefix", "/dxpu/", "prefix of the keys in etcd: one per pool")
	f.Int64Var(&o.quotaMiB, "etcd-quota", 4096, "most that the state may take on disk in --data-dir, in MiB")
}

func (o *storeOptions) register(f *pflag.FlagSet) {
	o.registerPlace(f)
	f.StringVar(&o.advertise, "advertise-url", "", "URL by which others reach this manager (default: that of --listen)")
	f.StringVar(&o.restore, "restore", "", "backup that becomes the state where there is none yet; for several managers, given to each")
	f.StringVar(&o.etcd.Name, "etcd-name", "", "name of this manager among several with an etcd of their own")
	f.StringVar(&o.etcd.PeerListen, "etcd-peer-listen", "", "URL on which this manager's etcd listens for the others (default: that of --etcd-initial-cluster)")
	f.StringVar(&o.etcd.InitialCluster, "etcd-initial-cluster", "", "all managers that share the state, as NAME=URL,NAME=URL,NAME=URL of their --etcd-peer-listen")
}

func (o *storeOptions) check() error {
	several := o.etcd.InitialCluster != ""
	switch {
	case o.restore != "" && o.dataDir == "" && len(o.etcd.Endpoints) == 0:
		return withHint(errors.New("--restore needs --data-dir or --etcd-endpoints"), "a state in memory is gone when the manager ends")
	case len(o.etcd.Endpoints) > 0 && several:
		return withHint(errors.New("--etcd-endpoints and --etcd-initial-cluster exclude each other"), "the state is in one place")
	case several && o.dataDir == "":
		return withHint(errors.New("--etcd-initial-cluster needs --data-dir"), "this manager's part of the state is kept there")
	case several && o.etcd.Name == "":
		return withHint(errors.New("--etcd-initial-cluster needs --etcd-name"), "it says which of them this manager is")
	case !several && (o.etcd.Name != "" || o.etcd.PeerListen != ""):
		return withHint(errors.New("--etcd-name and --etcd-peer-listen need --etcd-initial-cluster"), "it lists all managers that share the state")
	case (o.etcd.CertFile == "") != (o.etcd.KeyFile == ""):
		return errors.New("--etcd-cert and --etcd-key go together")
	case o.quotaMiB < 16:
		return withHint(fmt.Errorf("--etcd-quota: %d MiB is too little", o.quotaMiB), "16 at least; 4096 is the default")
	}
	return nil
}

// shared reports whether other managers may lead on the same state.
func (o *storeOptions) shared() bool { return len(o.etcd.Endpoints) > 0 || o.etcd.InitialCluster != "" }

// open opens the store, nil for none but memory.
func (o *storeOptions) open(ctx context.Context, url string, log *slog.Logger) (*etcdstore.Store, error) {
	if o.dataDir == "" && len(o.etcd.Endpoints) == 0 {
		return nil, nil
	}
	e := o.etcd
	e.Dir, e.Quota, e.Log = o.dataDir, o.quotaMiB<<20, log
	if o.restore != "" {
		records, err := readBackup(o.restore) // now, so that a bad one is not found out later
		if err != nil {
			return nil, err
		}
		e.Initial = func() (map[string][]byte, error) { return records.records, nil }
	}
	if o.dataDir != "" {
		e.Legacy = filepath.Join(o.dataDir, "pool.json")
	}
	host, _ := os.Hostname()
	e.Self = &dxpuv1.ManagerInfo{Id: cmp.Or(e.Name, strings.Trim(host+"@"+url, "@")), Url: cmp.Or(o.advertise, url), Version: version()}
	return etcdstore.Open(ctx, e)
}
