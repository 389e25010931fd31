package transaction

import "github.com/dxpu-project/dxpu/tlp"

// Routable reports whether a port forwards a TLP of a device. Without Address
// Translation Services and process address spaces a request carries an
// untranslated address and no prefix: the device has no right to skip the
// translation of its addresses, or to name another address space (sections 2.2.4.1
// and 2.2.10.4). The port refuses others as Unsupported Request.
func Routable(p *tlp.Packet) bool { return p.AT == tlp.ATUntranslated && len(p.Prefix) == 0 }

// Integrity says whether the last receiver of a TLP may use it.
type Integrity uint8

// States of a received TLP. Completions with EP set are Intact: their Requester
// ends the request with an error.
const (
	Intact Integrity = iota
	// Poisoned: EP tells that the data of the request are bad. The receiver stores
	// none of them, and answers a request with a completion as Unsupported Request
	// (section 2.7.2.2).
	Poisoned
	// BadDigest: the ECRC does not match. The receiver discards the TLP, because
	// any part of it may be wrong (section 2.7.1).
	BadDigest
)

// String names the state as in logs.
func (i Integrity) String() string {
	return [...]string{"intact", "poisoned", "bad ECRC"}[min(i, BadDigest)]
}

// Inspect checks a TLP at its last receiver. Ports on the way forward poisoned
// TLPs and digests as they are.
func Inspect(p *tlp.Packet) Integrity {
	switch {
	case !p.CheckECRC():
		return BadDigest
	case p.EP && p.Type.HasData() && !p.Type.Completion():
		return Poisoned
	}
	return Intact
}
