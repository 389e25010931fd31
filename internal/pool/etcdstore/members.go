package etcdstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Errors of ReplaceMember.
var (
	errAlone    = errors.New("this manager is the only one: restore a backup instead (--restore)")
	errExternal = errors.New("the state is in an etcd cluster of its own: replace its members there (etcdctl member)")
)

// ReplaceMember prepares the replacement of a member whose disk is lost: the cluster
// forgets the old member and expects a new one at a URL, or at that of the old one if the
// URL is empty. It returns all members, for the flag --etcd-initial-cluster of the new
// one. A call that was interrupted may be repeated. Only a leader calls it.
//
// Two of three members remain a majority before, between and after the two steps, even if
// the new member never starts.
func (s *Store) ReplaceMember(ctx context.Context, name, peerURL string) (string, error) {
	switch {
	case s.server == nil:
		return "", errExternal
	case s.alone():
		return "", errAlone
	}
	s.readManagers(ctx)
	for _, m := range s.Managers() {
		if m.Id == name {
			return "", fmt.Errorf("manager %s runs: only a manager that has stopped can be replaced; one that was just stopped counts as running for %s", name, s.opts.TTL)
		}
	}
	list, err := s.client.MemberList(ctx)
	if err != nil {
		return "", fmt.Errorf("list of members: %w", err)
	}
	old, err := s.memberToReplace(list.Members, name, peerURL)
	if err != nil {
		return "", err
	}
	if peerURL == "" {
		peerURL = s.peerURLOf(old, name)
	}
	if err := checkPeerURL(peerURL); err != nil {
		return "", err
	}
	if (old == nil || old.Name == "") && awaited(list.Members, peerURL) { // an earlier call has prepared it
		return clusterText(list.Members, name, peerURL), nil
	}
	for _, m := range list.Members {
		if m != old && slices.Contains(m.PeerURLs, peerURL) {
			return "", fmt.Errorf("the peer URL %s is that of member %s", peerURL, cmp.Or(m.Name, "that another call has prepared"))
		}
	}
	if old != nil {
		if _, err := s.client.MemberRemove(ctx, old.ID); err != nil {
			return "", fmt.Errorf("remove %s: %w", name, err)
		}
	}
	added, err := s.client.MemberAdd(ctx, []string{peerURL})
	if err != nil {
		return "", fmt.Errorf("add %s, after the old one was removed (repeat the command): %w", name, err)
	}
	s.log.Info("member replaced", "name", name, "url", peerURL)
	return clusterText(added.Members, name, peerURL), nil
}

// memberToReplace returns the member that has to go. After an earlier call that is the
// member which has never started and so has no name: its URL may have been wrong. It is
// nil if the old one was removed and no new one added.
func (s *Store) memberToReplace(members []*pb.Member, name, peerURL string) (*pb.Member, error) {
	if old := memberNamed(members, name); old != nil {
		return old, nil
	}
	var waiting []*pb.Member
	for _, m := range members {
		if m.Name == "" {
			waiting = append(waiting, m)
		}
	}
	complete := len(members) >= s.configured()
	switch {
	case s.peerURLOf(nil, name) == "" || complete && len(waiting) == 0:
		return nil, fmt.Errorf("there is no member %q: the members are %s", name, memberNames(members))
	case !complete || awaited(members, peerURL):
		return nil, nil
	case len(waiting) > 1:
		return nil, fmt.Errorf("%d members were replaced and have not started: start the others before %s gets another URL", len(waiting), name)
	}
	return waiting[0], nil
}

// checkPeerURL refuses what etcd refuses for the new member, before the old one is removed.
func checkPeerURL(text string) error {
	u, err := url.Parse(text)
	if err == nil {
		_, err = types.NewURLs([]string{text})
	}
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.ContainsAny(text, ",=?#") {
		return fmt.Errorf("the peer URL %q is not a URL like http://10.0.0.4:2380", text)
	}
	return nil
}

// Absent implements manager.Cluster.
func (s *Store) Absent() []string {
	if p := s.absent.Load(); p != nil {
		return slices.Clone(*p)
	}
	return nil
}

// readAbsent compares the members with the managers that run. Without a majority it keeps
// the last list.
func (s *Store) readAbsent(ctx context.Context) {
	if s.server == nil || s.alone() || s.managers.Load() == nil { // not known yet
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	list, err := s.client.MemberList(ctx)
	if err != nil {
		return
	}
	run := s.Managers()
	var out []string
	for _, m := range list.Members {
		if !slices.ContainsFunc(run, func(i *dxpuv1.ManagerInfo) bool { return i.Id == m.Name }) {
			out = append(out, cmp.Or(m.Name, strings.Join(m.PeerURLs, ",")))
		}
	}
	slices.Sort(out)
	s.absent.Store(&out)
}

// awaited reports whether the cluster expects a member that has never started at a URL.
func awaited(members []*pb.Member, peerURL string) bool {
	return slices.ContainsFunc(members, func(m *pb.Member) bool { return m.Name == "" && slices.Contains(m.PeerURLs, peerURL) })
}

func memberNamed(members []*pb.Member, name string) *pb.Member {
	if i := slices.IndexFunc(members, func(m *pb.Member) bool { return m.Name == name }); i >= 0 && name != "" {
		return members[i]
	}
	return nil
}

func memberNames(members []*pb.Member) string {
	var out []string
	for _, m := range members {
		if m.Name != "" {
			out = append(out, m.Name)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// peerURLOf returns the URL of a member, or that which this manager's flags have for it.
func (s *Store) peerURLOf(m *pb.Member, name string) string {
	if m != nil && len(m.PeerURLs) > 0 {
		return m.PeerURLs[0]
	}
	for entry := range strings.SplitSeq(s.opts.InitialCluster, ",") {
		if of, at, _ := strings.Cut(entry, "="); of == name {
			return at
		}
	}
	return ""
}

// configured returns the number of members in this manager's flags.
func (s *Store) configured() int { return strings.Count(s.opts.InitialCluster, ",") + 1 }

// clusterText returns the members as "name=URL,name=URL", among them a new one that
// has not yet told its name.
func clusterText(members []*pb.Member, name, peerURL string) string {
	var out []string
	for _, m := range members {
		as := m.Name
		if as == "" && slices.Contains(m.PeerURLs, peerURL) {
			as = name
		}
		for _, u := range m.PeerURLs {
			out = append(out, as+"="+u)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// whyStopped returns why the embedded server has stopped. It does not start again in this
// process.
func (s *Store) whyStopped(ctx context.Context) error {
	removed, err := s.removed(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("etcdstore: the embedded server has stopped, and no other member says whether this one was replaced: %w", err)
	case removed:
		return ErrReplaced
	}
	return errStopped
}

// removed reports whether this member is not part of the cluster any more. etcd tells that
// to its log only. A member that was away or frozen has not received its own removal: the
// others refuse it, and know. They also refuse one that still is a member, if it sends to
// a member that was replaced.
func (s *Store) removed(ctx context.Context) (bool, error) {
	self := s.server.Server.MemberID()
	if s.alone() {
		return false, nil
	}
	if s.server.Server.IsIDRemoved(uint64(self)) {
		return true, nil
	}
	cfg := s.server.Config()
	web, err := peerClient(&cfg)
	if err != nil {
		return false, err
	}
	var unreachable error
	member := false
	for _, m := range s.server.Server.Cluster().Members() {
		if m.ID == self {
			continue
		}
		for _, at := range m.PeerURLs {
			members, err := membersAt(ctx, web, at)
			switch {
			case err != nil:
				unreachable = errors.Join(unreachable, fmt.Errorf("member %s: %w", m.Name, err))
			case !slices.ContainsFunc(members, func(p peerMember) bool { return p.ID == uint64(self) }):
				return true, nil // its ID never comes back
			default:
				member = true
			}
		}
	}
	if member {
		return false, nil
	}
	return false, unreachable
}

// stopped ends a manager whose embedded server has stopped.
type stopped string

func (e stopped) Error() string { return string(e) }

// Permanent tells the manager that trying again is of no use.
func (stopped) Permanent() bool { return true }

const (
	// ErrReplaced is the end of a member that is not part of the cluster any more. It never
	// is again: the next start with its data ends in the same way.
	ErrReplaced = stopped("etcdstore: another member has replaced this one: " + rejoin)
	errStopped  = stopped("etcdstore: the embedded server has stopped: start this manager again")
)

// rejoin is the remedy for a member that is not part of the cluster.
const rejoin = `run "dxpu manager replace-member NAME" against the other managers, and start this one with an empty data directory and --etcd-join`

const (
	// memberTimeout bounds the question to another member, and maxMemberList its answer in
	// bytes.
	memberTimeout = 5 * time.Second
	maxMemberList = 1 << 20
)

// checkJoin refuses to join in the place of a member that the cluster has not forgotten.
// etcd would take the empty directory for that member's own, and so lose the writes that
// it had acknowledged: two members of three could then disagree with the third. A member may
// be behind the others, so a majority of the cluster must say the same.
func (s *Store) checkJoin(ctx context.Context, cfg *embed.Config) error {
	if !s.opts.Join || wal.Exist(filepath.Join(cfg.Dir, "member", "wal")) {
		return nil
	}
	web, err := peerClient(cfg)
	if err != nil {
		return err
	}
	var unreachable error
	agree, all := 0, 0
	for member := range strings.SplitSeq(s.opts.InitialCluster, ",") {
		name, at, _ := strings.Cut(member, "=")
		all++
		if name == cfg.Name {
			continue
		}
		members, err := membersAt(ctx, web, at)
		if err != nil {
			unreachable = errors.Join(unreachable, fmt.Errorf("member %s: %w", name, err))
			continue
		}
		self := cfg.AdvertisePeerUrls[0].String()
		i := slices.IndexFunc(members, func(m peerMember) bool { return slices.Contains(m.PeerURLs, self) })
		switch {
		case i < 0:
			return fmt.Errorf("--etcd-join: the cluster has no member at %s: %s", self, rejoin)
		case members[i].Name != "":
			return fmt.Errorf("--etcd-join: the cluster has not replaced member %s, whose data is not here: %s", cfg.Name, rejoin)
		}
		agree++
	}
	switch {
	case agree >= all/2+1:
		return nil
	case agree == 0:
		return fmt.Errorf("--etcd-join: no other member answers: %w", unreachable)
	}
	return fmt.Errorf("--etcd-join: only %d of %d members say that the cluster expects this one, which is no majority; try again when the others answer: %w", agree, all, unreachable)
}

// peerMember is a member in the list that etcd shows to its peers. One that has never
// started has no name.
type peerMember struct {
	ID       uint64   `json:"id"`
	Name     string   `json:"name"`
	PeerURLs []string `json:"peerURLs"`
}

// peerClient returns a client for questions to the other members.
func peerClient(cfg *embed.Config) (*http.Client, error) {
	tls, err := cfg.PeerTLSInfo.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--etcd-ca, --etcd-cert, --etcd-key: %w", err)
	}
	return &http.Client{Timeout: memberTimeout, Transport: &http.Transport{TLSClientConfig: tls, DisableKeepAlives: true}}, nil
}

// membersAt asks the member at a URL for the list of members.
func membersAt(ctx context.Context, web *http.Client, at string) ([]peerMember, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/members", nil)
	if err != nil {
		return nil, err
	}
	res, err := web.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s", res.Status)
	}
	var out []peerMember
	err = json.NewDecoder(io.LimitReader(res.Body, maxMemberList)).Decode(&out)
	return out, err
}
