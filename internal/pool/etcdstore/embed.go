package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"github.com/dxpu-project/dxpu/internal/dirlock"
)

// walSegment is the size of a file of the write-ahead log, in bytes. etcd allocates
// each at its full size, and one in advance; its default of 64 MB is large for a small
// disk.
const walSegment = 16 << 20

// etcd reads the size without a lock, so no server may run when it is set.
func init() { wal.SegmentSizeBytes = walSegment }

// alone reports whether the embedded server is the only member.
func (s *Store) alone() bool { return s.server != nil && s.opts.InitialCluster == "" }

// embed starts a server in this process. Its client calls it directly; the server
// listens for its peers only.
func (s *Store) embed(ctx context.Context) error {
	if s.opts.Dir == "" {
		return errors.New("no data directory and no endpoints")
	}
	if err := os.MkdirAll(s.opts.Dir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := s.lock(); err != nil {
		return err
	}
	if err := s.checkSpace("then start the manager again"); err != nil {
		return errors.Join(err, s.unlock())
	}
	// etcd's warnings during the start concern this configuration.
	level := zap.NewAtomicLevelAt(zap.ErrorLevel)
	cfg, err := s.embedConfig(level)
	if err != nil {
		return errors.Join(err, s.unlock())
	}
	if err := s.checkJoin(ctx, cfg); err != nil {
		return errors.Join(err, s.unlock())
	}
	server, err := start(cfg)
	if err != nil {
		return errors.Join(fmt.Errorf("start: %w", s.withRemedy(err)), s.unlock())
	}
	level.SetLevel(zap.WarnLevel)
	s.silence = func() { level.SetLevel(zap.DPanicLevel) }
	s.server, s.client = server, v3client.New(server.Server)
	s.maxOps, s.maxBytes, s.maxRecord = embeddedOps, embeddedBytes, embeddedRequest-requestSlack
	return nil
}

// damagedError is an error of a server that did not start because of its files.
type damagedError struct{ err error }

func (e *damagedError) Error() string { return e.err.Error() }
func (e *damagedError) Unwrap() error { return e.err }

// start starts a server. etcd panics or ends the process when its files are damaged;
// start returns a damagedError then. Other errors concern addresses, certificates and the
// cluster: to move the state away would not help, and would lose it.
func start(cfg *embed.Config) (server *embed.Etcd, err error) {
	member := filepath.Join(cfg.Dir, "member")
	had := wal.Exist(filepath.Join(member, "wal"))
	defer func() {
		if r := recover(); r != nil {
			server, err = nil, fmt.Errorf("%v", r)
			if had {
				err = &damagedError{err}
			}
		}
	}()
	if err := checkDatabase(filepath.Join(member, "snap", "db")); err != nil {
		return nil, err
	}
	server, err = embed.StartEtcd(cfg)
	if err != nil && had && (strings.Contains(err.Error(), "database file (") || checkLog(filepath.Join(member, "wal")) != nil) {
		err = &damagedError{err} // the database is missing, older than the log, or the log cannot be read
	}
	return server, err
}

// checkLog reads the write-ahead log.
func checkLog(dir string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	_, err = wal.ValidSnapshotEntries(zap.NewNop(), dir)
	return err
}

// withRemedy adds the remedy to an error of start.
func (s *Store) withRemedy(err error) error {
	var damaged *damagedError
	switch {
	case strings.Contains(err.Error(), "has already been bootstrapped"):
		return fmt.Errorf("%w: its data directory was lost, and with it the writes it had acknowledged: the other members continue; "+rejoin, err)
	case s.opts.Join && (strings.Contains(err.Error(), "member count is unequal") || strings.Contains(err.Error(), "PeerURLs")):
		return fmt.Errorf("%w: the cluster does not expect this member, or --etcd-initial-cluster does not list the members that it has: "+rejoin, err)
	case !errors.As(err, &damaged):
		return err
	case s.opts.InitialCluster != "":
		return fmt.Errorf("the state in %s is damaged (%w): the other members continue; "+rejoin, s.opts.Dir, err)
	}
	return fmt.Errorf("the state in %s is damaged (%w): move the directory away, and start the manager with --restore and a backup", s.opts.Dir, err)
}

// checkDatabase reads the whole database, if there is one: 100 MB take a tenth of a
// second. etcd opens it in a goroutine of its own, where no caller can catch its panic.
func checkDatabase(path string) (err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a bad page number points outside of the mapped file
	defer func() {
		if r := recover(); r != nil {
			err = &damagedError{fmt.Errorf("database: %v", r)}
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	var unreadable *fs.PathError
	switch {
	case errors.As(err, &unreadable) || errors.Is(err, bbolterrors.ErrTimeout):
		return fmt.Errorf("database: %w", err)
	case err != nil:
		return &damagedError{fmt.Errorf("database: %w", err)}
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
}

func (s *Store) embedConfig(level zap.AtomicLevel) (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(s.opts.Dir, "etcd")
	cfg.Name = cmp.Or(s.opts.Name, "manager")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(s.log, level))
	cfg.MaxTxnOps = embeddedOps + 8
	cfg.MaxRequestBytes = embeddedRequest
	cfg.QuotaBackendBytes = s.opts.Quota
	cfg.BootstrapDefragThresholdMegabytes = 64
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "0" // Store.compact does it
	cfg.EnableGRPCGateway = false
	// An election after twelve ticks: members that share a busy disk miss some.
	cfg.TickMs, cfg.ElectionMs = 50, 600
	cfg.WarningApplyDuration, cfg.WarningUnaryRequestDuration = time.Second, time.Second
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = nil, nil
	if s.opts.InitialCluster == "" {
		self := url.URL{Scheme: "http", Host: "127.0.0.1:1"} // never dialled
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{self}
		cfg.InitialCluster = cfg.Name + "=" + self.String()
		return cfg, nil
	}
	return cfg, s.joinPeers(cfg)
}

// joinPeers configures the server as a member of a cluster.
func (s *Store) joinPeers(cfg *embed.Config) error {
	advertise := ""
	for member := range strings.SplitSeq(s.opts.InitialCluster, ",") {
		if name, at, ok := strings.Cut(member, "="); ok && name == cfg.Name {
			advertise = at
		}
	}
	self, err := url.Parse(advertise)
	if err != nil || advertise == "" {
		return fmt.Errorf("--etcd-initial-cluster: %q has no \"%s=URL\" for this manager's --etcd-name", s.opts.InitialCluster, cfg.Name)
	}
	at := cmp.Or(s.opts.PeerListen, advertise)
	listen, err := url.Parse(at)
	if err != nil || listen.Host == "" {
		return fmt.Errorf("--etcd-peer-listen: %q is not a URL like http://10.0.0.1:2380", at)
	}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*listen}, []url.URL{*self}
	// Never dialled. Having published it, a member that comes back without its data
	// is recognised by the others and refused.
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:1"}}
	cfg.InitialCluster = s.opts.InitialCluster
	cfg.InitialClusterToken = "dxpu"
	if s.opts.Join {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	if s.opts.CAFile != "" {
		cfg.PeerTLSInfo = transport.TLSInfo{
			TrustedCAFile: s.opts.CAFile, CertFile: s.opts.CertFile, KeyFile: s.opts.KeyFile, ClientCertAuth: true,
		}
	}
	return nil
}

// lock locks the data directory against other processes. etcd itself would wait for
// the directory without a message.
func (s *Store) lock() error {
	lock, err := dirlock.Lock(s.opts.Dir, "lock")
	var held *dirlock.HeldError
	if errors.As(err, &held) {
		return fmt.Errorf("--data-dir: %s: another manager uses it", s.opts.Dir)
	}
	if err != nil {
		return err
	}
	s.unlock = lock.Close
	return nil
}

// ready waits until the embedded server has a quorum.
func (s *Store) ready(ctx context.Context) error {
	if s.server == nil {
		return nil
	}
	select {
	case <-s.server.Server.StopNotify():
		return s.whyStopped(ctx)
	default:
	}
	select {
	case <-s.server.Server.ReadyNotify():
		return nil
	case <-s.server.Server.StopNotify():
		return s.whyStopped(ctx)
	case err := <-s.server.Err():
		return fmt.Errorf("etcdstore: the embedded server: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dial connects to an existing cluster.
func (s *Store) dial() error {
	cfg := clientv3.Config{
		Endpoints: s.opts.Endpoints, Logger: zapTo(s.log, zap.WarnLevel), DialTimeout: commitTimeout,
		// A leader must notice a dead connection well before its lease ends.
		DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second,
	}
	if s.opts.CAFile != "" || s.opts.CertFile != "" {
		info := transport.TLSInfo{TrustedCAFile: s.opts.CAFile, CertFile: s.opts.CertFile, KeyFile: s.opts.KeyFile}
		tls, err := info.ClientConfig()
		if err != nil {
			return fmt.Errorf("--etcd-ca, --etcd-cert, --etcd-key: %w", err)
		}
		cfg.TLS = tls
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		return fmt.Errorf("--etcd-endpoints: %w", err)
	}
	s.client = c
	return nil
}
