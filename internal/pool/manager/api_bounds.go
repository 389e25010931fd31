package manager

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Bounds of the values that a caller can set. They keep every record below
// maxRecord: TestRecordsFitTheStore encodes the largest of each kind. A store
// refuses a larger record, and the leader could then store no further change.
const (
	// maxText bounds a text, in bytes; textLimits has the exceptions.
	maxText = 256
	// maxLabels bounds the entries of a map, and maxModels those of a quota's.
	maxLabels = 64
	maxModels = 256
	// maxList bounds the elements of a list.
	maxList = 1024
	// Bounds of a report: far above any real node.
	maxSlots     = 1024
	maxAddresses = 64
	// maxReportErrors bounds the error classes of all devices: 128 devices have 64 each.
	maxReportErrors = 8192
	// maxLine bounds a sentence of the manager, in bytes: it may quote labels.
	// maxReason bounds several sentences, and maxLines the number that a lease keeps.
	maxLine   = 1 << 10
	maxReason = 4 << 10
	maxLines  = 48
	// maxAvoid bounds the list of GPUs that a lease must not get again.
	maxAvoid = 256
	// maxRecord bounds an encoded record, in bytes: etcd with its default
	// settings takes 1.5 MiB in a request, with the key and the guard.
	maxRecord = 1_300_000
)

// textLimits lists the fields with a limit other than maxText, in bytes.
var textLimits = map[protoreflect.FullName]int{
	"dxpu.v1.CreateLeaseRequest.request_id": 128,
	"dxpu.v1.CreateTokenRequest.request_id": 128,
	"dxpu.v1.ReplaceGPURequest.request_id":  128,

	"dxpu.v1.MigrateLeaseRequest.request_id":    128,
	"dxpu.v1.PlanMaintenanceRequest.request_id": 128,
	"dxpu.v1.EnrollRequest.csr_pem":             16 << 10,
	"dxpu.v1.SignInRequest.id_token":            16 << 10,
	"dxpu.v1.RenewRequest.csr_pem":              16 << 10,
}

// entryLimits lists the maps with a limit other than maxLabels.
var entryLimits = map[protoreflect.FullName]int{"dxpu.v1.Quota.max_gpus_by_model": maxModels}

// checkBounds checks the size of every text, list and map of a request. The
// error names the field, its size and the limit. checkReport checks a report
// instead, because reports are frequent.
func checkBounds(msg any) error {
	m, ok := msg.(proto.Message)
	if _, report := msg.(*dxpuv1.ReportRequest); !ok || report {
		return nil
	}
	return checkMessage("", m.ProtoReflect())
}

func checkMessage(path string, m protoreflect.Message) (err error) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		err = checkField(path+string(f.Name()), f, v)
		return err == nil
	})
	return err
}

func checkField(name string, f protoreflect.FieldDescriptor, v protoreflect.Value) (err error) {
	switch {
	case f.IsMap():
		limit := maxLabels
		if l, ok := entryLimits[f.FullName()]; ok {
			limit = l
		}
		if v.Map().Len() > limit {
			return invalid("%s: %d entries, at most %d", name, v.Map().Len(), limit)
		}
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			if k.String() == "" {
				err = invalid("%s: a key is empty", name)
				return false
			}
			if err = checkValue("a key of "+name, f.MapKey(), k.Value()); err == nil {
				err = checkValue(name+"["+truncate(k.String(), maxText)+"]", f.MapValue(), v)
			}
			return err == nil
		})
		return err
	case f.IsList():
		if v.List().Len() > maxList {
			return invalid("%s: %d elements, at most %d", name, v.List().Len(), maxList)
		}
		for i := range v.List().Len() {
			if err := checkValue(name, f, v.List().Get(i)); err != nil {
				return err
			}
		}
		return nil
	}
	return checkValue(name, f, v)
}

func checkValue(name string, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	size := 0
	switch f.Kind() {
	case protoreflect.StringKind:
		size = len(v.String())
	case protoreflect.BytesKind:
		size = len(v.Bytes())
	case protoreflect.MessageKind:
		return checkMessage(name+".", v.Message())
	}
	limit := maxText
	if l, ok := textLimits[f.FullName()]; ok {
		limit = l
	} else if f.Name() == "page_token" {
		limit = 4 * maxText // the encoded key of an item
	}
	if size > limit {
		return invalid("%s: %d bytes, at most %d", name, size, limit)
	}
	return nil
}

// checkReport checks the sizes of a report. The transaction cuts texts that are
// only displayed.
func checkReport(o *dxpuv1.ObservedState) error {
	switch {
	case len(o.Slots) > maxSlots:
		return invalid("state.slots: %d slots, at most %d", len(o.Slots), maxSlots)
	case len(o.Addresses) > maxAddresses:
		return invalid("state.addresses: %d addresses, at most %d", len(o.Addresses), maxAddresses)
	case len(o.Labels) > maxLabels:
		return invalid("state.labels: %d labels, at most %d", len(o.Labels), maxLabels)
	case len(o.InstanceId) > maxText:
		return invalid("state.instance_id: %d bytes, at most %d", len(o.InstanceId), maxText)
	}
	if o.LocalPeer != "" && !nodeNamePattern.MatchString(o.LocalPeer) {
		return invalid("state.local_peer: %q is not the name of a node", truncateText(o.LocalPeer))
	}
	for k, v := range o.Labels {
		if len(k) > maxText {
			return invalid("a key of state.labels: %d bytes, at most %d", len(k), maxText)
		}
		if len(v) > maxText {
			return invalid("state.labels[%s]: %d bytes, at most %d", k, len(v), maxText)
		}
	}
	seen, errs := map[uint32]bool{}, 0
	for _, s := range o.Slots {
		if s == nil || seen[s.Slot] {
			return invalid("state.slots: slot %d is listed twice", s.GetSlot())
		}
		seen[s.Slot] = true
		errs += len(s.Errors)
	}
	if errs > maxReportErrors {
		return invalid("state.slots: %d errors, at most %d", errs, maxReportErrors)
	}
	return nil
}

// explain adds sentences to the explanation of a lease and drops the oldest.
func (l *leaseRecord) explain(lines ...string) {
	for _, s := range lines {
		l.Explanation = append(l.Explanation, truncate(s, maxLine))
	}
	l.Explanation = l.Explanation[max(0, len(l.Explanation)-maxLines):]
}

// avoid notes that the lease should not get a binding's GPU again.
func (l *leaseRecord) avoid(b *bindingRecord) {
	l.Avoid = append(l.Avoid, b.ref())
	l.Avoid = l.Avoid[max(0, len(l.Avoid)-maxAvoid):]
}
