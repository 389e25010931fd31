// Package kubevirt adds devices of the pool to the domain that KubeVirt defines in libvirt.
//
// libvirt has no element for vfio-user, so the devices and the root ports above them are arguments
// of QEMU. The domain is changed as text, because KubeVirt's types need not have all elements of it.
package kubevirt

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const (
	// MaxDevices is the number of functions of the PCI device whose functions are the root ports.
	MaxDevices = 8
	// maxDomain bounds the text of a domain.
	maxDomain = 1 << 20

	qemuNamespace = "http://libvirt.org/schemas/domain/qemu/1.0"
	// firstChassis is beyond those of libvirt, which counts its ports from 1.
	firstChassis = 200
)

// AddDevices returns a domain with a vfio-user device for each socket, in ports of their own, and
// with memory that the other end of the sockets can map.
func AddDevices(domain string, sockets []string) (string, error) {
	switch {
	case len(sockets) == 0:
		return domain, nil
	case len(sockets) > MaxDevices:
		return "", fmt.Errorf("%d GPUs: a domain has %d at most", len(sockets), MaxDevices)
	case len(domain) > maxDomain:
		return "", fmt.Errorf("the domain has %d bytes, more than %d", len(domain), maxDomain)
	}
	d, err := parse(domain)
	if err != nil {
		return "", err
	}
	if err := d.shareMemory(); err != nil {
		return "", err
	}
	if err := d.addArguments(sockets); err != nil {
		return "", err
	}
	// Names of attributes pass the decoder unchecked, and prefixes come from them.
	edited := d.edited()
	if again, err := parse(edited); err != nil {
		return "", fmt.Errorf("with the devices: %w", err)
	} else if again.arguments == nil {
		return "", errors.New("the domain uses a prefix of QEMU's namespace for another one")
	}
	return edited, nil
}

// parsed is a domain, the places in its text where something is added, and what is there.
type parsed struct {
	text  string
	edits []edit

	rootName   int      // the end of the root's name in its tag
	rootBody   int      // the end of the root's tag
	rootEnd    int      // the begin of its end tag
	qemuPrefix string   // with its colon
	arguments  *element // qemu:commandline
	memory     *element // memoryBacking
	source     string   // of the memory: the type
	access     string   // to the memory: the mode
	machine    string
	private    bool // a NUMA cell has private memory
	slots      map[string]bool
}

type edit struct {
	at   int
	text string
}

// element is an element of the domain.
type element struct {
	open, body, end int    // the begins of its tag, its content and its end tag
	prefix          string // with its colon
}

func parse(text string) (*parsed, error) {
	d := &parsed{text: text, slots: map[string]bool{}}
	r := xml.NewDecoder(strings.NewReader(text))
	var path []string
	for {
		begin := int(r.InputOffset())
		token, err := r.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("the domain: %w", err)
		}
		after := int(r.InputOffset())
		switch t := token.(type) {
		case xml.StartElement:
			path = append(path, t.Name.Local)
			if err := d.start(strings.Join(path, "/"), t, begin, after); err != nil {
				return nil, err
			}
		case xml.EndElement:
			d.stop(strings.Join(path, "/"), t, begin)
			path = path[:len(path)-1]
		}
	}
	switch {
	case d.rootEnd <= d.rootBody:
		return nil, errors.New("the domain is empty")
	case !strings.Contains(d.machine, "q35"):
		return nil, fmt.Errorf("the machine type is %q: the devices need the PCI Express of q35", d.machine)
	}
	return d, nil
}

// start takes the begin of an element. The path has the names from the root on.
func (d *parsed) start(path string, t xml.StartElement, begin, after int) error {
	switch path {
	case "domain":
		d.rootName, d.rootBody = begin+len("<domain"), after
		for _, a := range t.Attr {
			if a.Name.Space == "xmlns" && a.Value == qemuNamespace {
				d.qemuPrefix = a.Name.Local + ":"
			}
		}
		if !strings.HasPrefix(d.text[begin:], "<domain") {
			return errors.New("the domain's own element has a prefix")
		}
	case "domain/memoryBacking":
		d.memory = &element{open: begin, body: after}
	case "domain/memoryBacking/source":
		d.source = attribute(t, "type")
	case "domain/memoryBacking/access":
		d.access = attribute(t, "mode")
	case "domain/commandline":
		if t.Name.Space == qemuNamespace {
			name, _, _ := strings.Cut(d.text[begin+1:after], ">")
			name = strings.TrimSuffix(strings.Fields(name)[0], "/")
			d.arguments = &element{open: begin, body: after, prefix: strings.TrimSuffix(name, "commandline")}
		}
	case "domain/os/type":
		d.machine = attribute(t, "machine")
	case "domain/cpu/numa/cell":
		d.private = d.private || attribute(t, "memAccess") == "private"
	default:
		if t.Name.Local == "address" && attribute(t, "type") == "pci" && number(attribute(t, "bus")) == 0 {
			d.slots[strconv.Itoa(number(attribute(t, "slot")))] = true
		}
		if strings.Count(path, "/") == 0 {
			return fmt.Errorf("this is no domain: the element is %s", path)
		}
	}
	return nil
}

// stop takes the end of an element.
func (d *parsed) stop(path string, t xml.EndElement, begin int) {
	switch path {
	case "domain":
		d.rootEnd = begin
	case "domain/memoryBacking":
		d.memory.end = begin
	case "domain/commandline":
		if t.Name.Space == qemuNamespace {
			d.arguments.end = begin
		}
	}
}

func attribute(t xml.StartElement, name string) string {
	for _, a := range t.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// number returns a number as libvirt writes it, -1 for what is none.
func number(s string) int {
	n, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		return -1
	}
	return int(n)
}

// shareMemory makes the memory of the VM one that the host proxy can map: it does the DMA of the
// devices there.
func (d *parsed) shareMemory() error {
	const source, access = `<source type="memfd"/>`, `<access mode="shared"/>`
	switch {
	case d.access != "" && d.access != "shared":
		return fmt.Errorf("the access to the memory is %s: the devices need shared memory", d.access)
	case d.private:
		return errors.New("a NUMA cell has private memory: the devices need shared memory")
	case d.source != "" && d.source != "memfd" && d.source != "file":
		return fmt.Errorf("the source of the memory is %s: the devices need memfd, or a file", d.source)
	case d.memory == nil:
		d.add(d.rootBody, "<memoryBacking>"+source+access+"</memoryBacking>")
		return nil
	}
	more := ""
	if d.source == "" {
		more += source
	}
	if d.access == "" {
		more += access
	}
	if more == "" {
		return nil
	}
	if tag := d.text[d.memory.open:d.memory.body]; strings.HasSuffix(tag, "/>") {
		d.add(d.memory.body, "<memoryBacking>"+more+"</memoryBacking>")
		d.remove(d.memory.open, d.memory.body)
		return nil
	}
	d.add(d.memory.body, more)
	return nil
}

// addArguments adds the arguments of QEMU for the devices.
func (d *parsed) addArguments(sockets []string) error {
	slot, err := d.freeSlot()
	if err != nil {
		return err
	}
	prefix := d.qemuPrefix
	if prefix == "" {
		prefix = "qemu:"
		d.add(d.rootName, ` xmlns:qemu="`+qemuNamespace+`"`)
	}
	if d.arguments != nil {
		prefix = d.arguments.prefix
	}
	var args strings.Builder
	device := func(v any) error {
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		for _, value := range []string{"-device", string(raw)} {
			var escaped bytes.Buffer
			if err := xml.EscapeText(&escaped, []byte(value)); err != nil {
				return err
			}
			fmt.Fprintf(&args, `<%sarg value="%s"/>`, prefix, escaped.String())
		}
		return nil
	}
	for i, s := range sockets {
		port := fmt.Sprintf("dxpu-rp%d", i)
		if err := errors.Join(
			device(rootPort{"pcie-root-port", port, "pcie.0", fmt.Sprintf("%#x.%#x", slot, i), len(sockets) > 1, firstChassis + i, firstChassis + i}),
			device(vfioUser{"vfio-user-pci", fmt.Sprintf("dxpu%d", i), port, unixSocket{"unix", s}}),
		); err != nil {
			return err
		}
	}
	switch c := d.arguments; {
	case c == nil:
		d.add(d.rootEnd, fmt.Sprintf("<%scommandline>%s</%[1]scommandline>", prefix, args.String()))
	case c.end <= c.body && strings.HasSuffix(d.text[c.open:c.body], "/>"):
		d.add(c.body, fmt.Sprintf("<%scommandline>%s</%[1]scommandline>", prefix, args.String()))
		d.remove(c.open, c.body)
	default:
		d.add(c.end, args.String())
	}
	return nil
}

// rootPort and vfioUser are devices in QEMU's form.
type rootPort struct {
	Driver        string `json:"driver"`
	ID            string `json:"id"`
	Bus           string `json:"bus"`
	Address       string `json:"addr"`
	Multifunction bool   `json:"multifunction"`
	Chassis       int    `json:"chassis"`
	Slot          int    `json:"slot"`
}

type vfioUser struct {
	Driver string     `json:"driver"`
	ID     string     `json:"id"`
	Bus    string     `json:"bus"`
	Socket unixSocket `json:"socket"`
}

type unixSocket struct {
	Type string `json:"type"`
	Path string `json:"path"`
}

// freeSlot returns a slot of the root complex that the domain does not name. libvirt gives devices
// without an address the low ones, and 31 is the chipset.
func (d *parsed) freeSlot() (int, error) {
	for slot := 30; slot >= 16; slot-- {
		if !d.slots[strconv.Itoa(slot)] {
			return slot, nil
		}
	}
	return 0, errors.New("the domain has no free slot on its root complex")
}

func (d *parsed) add(at int, text string) { d.edits = append(d.edits, edit{at, text}) }

// remove blanks a part of the text.
func (d *parsed) remove(from, to int) {
	d.text = d.text[:from] + strings.Repeat(" ", to-from) + d.text[to:]
}

// edited returns the text with all that was added.
func (d *parsed) edited() string {
	slices.SortStableFunc(d.edits, func(a, b edit) int { return a.at - b.at })
	var out strings.Builder
	at := 0
	for _, e := range d.edits {
		out.WriteString(d.text[at:e.at])
		out.WriteString(e.text)
		at = e.at
	}
	out.WriteString(d.text[at:])
	return out.String()
}
