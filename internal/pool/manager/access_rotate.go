package manager

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// The pool's authority is replaced in three steps, while the pool works. BEGIN makes
// another authority, which is trusted beside the old one and signs the certificates of
// nodes from then on. Nodes are told in the answers to their reports to renew. ACTIVATE
// makes managers use certificates of the new authority, which all nodes know by then.
// RETIRE ends the trust in the old one. ACTIVATE and RETIRE are refused while a node has
// not renewed since the step before, or has not shown that it has the new certificate.

const (
	// renewRate is the number of nodes a second that are told to renew: a renewal is a
	// change of the state, and a signature.
	renewRate = 200
	// maxNodesLeft bounds the names of nodes that have not renewed, in an answer.
	maxNodesLeft = 20
)

// renewals bounds the nodes that are told to renew their certificates.
type renewals struct {
	second time.Time // the begin of the present second
	told   int       // nodes in it
}

// ask reports whether to tell a node to renew its certificate, by the serial number of the
// one that it presents; "": none. A node that has lost the answer to its last renewal
// presents the one before.
func (r *renewals) ask(t *tx, node, serial string) bool {
	n := t.nodes.get(node)
	if l := t.live[node]; l != nil {
		l.certificate = serial
	}
	if serial == "" || !t.authorityIsKnown() || len(n.Certificates) == 0 || n.AuthorityStep == t.authorityRecord().Steps && n.Certificates[0] == serial {
		return false
	}
	if t.now.Sub(r.second).Abs() >= time.Second {
		r.second, r.told = t.now, 0
	}
	r.told++
	return r.told <= renewRate
}

// authorityRecord returns the record of the pool's authority, an empty one for none.
func (t *tx) authorityRecord() *secretRecord {
	if r := t.secrets.get(authorityID); r != nil {
		return r
	}
	return &secretRecord{}
}

// authorityIsKnown reports whether all managers know the last step of a rotation: a
// manager that did not would refuse the certificates of a new authority.
func (t *tx) authorityIsKnown() bool {
	since := t.now.Sub(t.authorityRecord().StepTime)
	return since < 0 || since >= 2*authorityAge
}

// renewed reports whether a node has the certificate and the authorities that it needs
// after the next step, or needs none. During a rotation, the node has to have shown the
// certificate to this leader: the answer with it may have been lost before a failover.
func (t *tx) renewed(n *nodeRecord) bool {
	if len(n.Certificates) == 0 {
		return true
	}
	shown := ""
	if l := t.live[n.ID]; l != nil {
		shown = l.certificate
	}
	r := t.authorityRecord()
	unknown := shown == "" && r.NextCertificate == nil && r.PreviousCertificate == nil
	return n.AuthorityStep == r.Steps && (unknown || shown == n.Certificates[0])
}

// GetAuthority implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetAuthority(ctx context.Context, _ *connect.Request[dxpuv1.GetAuthorityRequest]) (*connect.Response[dxpuv1.GetAuthorityResponse], error) {
	if _, err := s.m.authority(ctx); err != nil { // creates it for a new pool
		return nil, apiError(err)
	}
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.GetAuthorityResponse) (err error) {
		res.Authority, err = t.authorityMessage(&s.m.ca)
		return err
	})
}

// RotateAuthority implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) RotateAuthority(ctx context.Context, req *connect.Request[dxpuv1.RotateAuthorityRequest]) (*connect.Response[dxpuv1.RotateAuthorityResponse], error) {
	if _, err := s.m.authority(ctx); err != nil {
		return nil, apiError(err)
	}
	alike := s.m.alike() // tx.alike is out of date when a leader begins
	res, err := updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.RotateAuthorityResponse) (err error) {
		if err := t.rotate(alike, req.Msg.Step, req.Msg.Force); err != nil {
			return err
		}
		res.Authority, err = t.authorityMessage(&s.m.ca)
		return err
	})
	if err == nil && s.m.cfg.OnRotate != nil {
		s.m.cfg.OnRotate([]byte(res.Msg.Authority.CaPem))
	}
	return res, err
}

// rotate takes a step of a rotation. alike says that all managers run one version.
func (t *tx) rotate(alike bool, step dxpuv1.AuthorityStep, force bool) error {
	next := *t.authorityRecord()
	if !t.authorityIsKnown() {
		return errorf(connect.CodeFailedPrecondition, "step: the last step was taken less than %s ago, and not all managers know it yet; try again", 2*authorityAge)
	}
	switch step {
	case dxpuv1.AuthorityStep_AUTHORITY_STEP_BEGIN:
		if next.NextCertificate != nil || next.PreviousCertificate != nil {
			return errorf(connect.CodeFailedPrecondition, "step: a rotation of the authority is under way; end it first")
		}
		if !alike {
			return errorf(connect.CodeFailedPrecondition, "step: managers of several versions run, and the older ones do not know a second authority; upgrade them first")
		}
		a, err := auth.NewAuthority(t.meta.ClusterID, t.now)
		if err != nil {
			return err
		}
		if next.NextCertificate, next.NextKey, err = a.Marshal(); err != nil {
			return err
		}
	case dxpuv1.AuthorityStep_AUTHORITY_STEP_ACTIVATE:
		if next.NextCertificate == nil {
			return errorf(connect.CodeFailedPrecondition, "step: there is no new authority; begin a rotation first")
		}
		if err := t.allRenewed(force); err != nil {
			return err
		}
		next.PreviousCertificate, next.Certificate, next.Key = next.Certificate, next.NextCertificate, next.NextKey
		next.NextCertificate, next.NextKey = nil, nil
	case dxpuv1.AuthorityStep_AUTHORITY_STEP_RETIRE:
		if next.PreviousCertificate == nil {
			return errorf(connect.CodeFailedPrecondition, "step: there is no old authority to retire")
		}
		if err := t.allRenewed(force); err != nil {
			return err
		}
		next.PreviousCertificate = nil
	default:
		return invalid("step: must be BEGIN, ACTIVATE or RETIRE")
	}
	next.Step, next.StepTime = step, t.now
	next.Steps++
	t.secrets.put(authorityID, &next)
	return nil
}

// allRenewed returns an error that names the nodes that have not renewed.
func (t *tx) allRenewed(force bool) error {
	left, names := t.nodesLeft()
	if left == 0 || force {
		return nil
	}
	return errorf(connect.CodeFailedPrecondition,
		"step: %s, %s first; wait, delete each node that is left, or set force: it then has to be enrolled again",
		plural.Count(left, "node has not renewed its certificate", "nodes have not renewed their certificates"), names[0])
}

// nodesLeft returns the number of nodes that have not renewed since the last step, and the
// names of the first ones.
func (t *tx) nodesLeft() (left int, names []string) {
	for id, n := range t.nodes.rows {
		if !n.Deleting && !t.renewed(n) {
			left++
			names = append(names, id)
		}
	}
	slices.Sort(names)
	return left, names[:min(len(names), maxNodesLeft)]
}

func (t *tx) authorityMessage(c *ca) (*dxpuv1.Authority, error) {
	a, err := c.load(t)
	if err != nil {
		return nil, err
	}
	r := t.authorityRecord()
	out := &dxpuv1.Authority{CaPem: string(a.PEM()), Hash: a.Current.Hash(), Step: r.Step}
	if a.Next != nil {
		out.NextHash = a.Next.Hash()
	}
	if a.Previous != nil {
		out.PreviousHash = auth.HashOf(a.Previous)
	}
	if !r.StepTime.IsZero() {
		out.StepTime = timestamppb.New(r.StepTime)
	}
	left, names := t.nodesLeft()
	out.NodesLeft, out.NodeIdsLeft = uint32(left), names
	return out, nil
}
