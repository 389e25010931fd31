package kubevirt

import (
	"encoding/xml"
	"fmt"
	"strings"
	"testing"
)

// domain returns one like those of KubeVirt, with changed parts.
func domain(replace ...string) string {
	const text = `<domain type="kvm" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
	<name>lab_train</name>
	<memory unit="b">4294967296</memory>
	<os>
		<type arch="x86_64" machine="q35">hvm</type>
	</os>
	<cpu mode="host-model"></cpu>
	<devices>
		<controller type="pci" index="0" model="pcie-root"></controller>
		<interface type="ethernet"><address type="pci" domain="0x0000" bus="0x01" slot="0x1e" function="0x0"></address></interface>
	</devices>
</domain>`
	return strings.NewReplacer(replace...).Replace(text)
}

// shape is what a test looks at of a domain.
type shape struct {
	MemoryBacking []struct {
		Hugepages *struct{} `xml:"hugepages"`
		Source    []struct {
			Type string `xml:"type,attr"`
		} `xml:"source"`
		Access []struct {
			Mode string `xml:"mode,attr"`
		} `xml:"access"`
	} `xml:"memoryBacking"`
	Commandline []struct {
		Arg []struct {
			Value string `xml:"value,attr"`
		} `xml:"arg"`
	} `xml:"http://libvirt.org/schemas/domain/qemu/1.0 commandline"`
}

const device0 = `-device {"driver":"pcie-root-port","id":"dxpu-rp0","bus":"pcie.0","addr":"0x1e.0x0","multifunction":false,"chassis":200,"slot":200} ` +
	`-device {"driver":"vfio-user-pci","id":"dxpu0","bus":"dxpu-rp0","socket":{"type":"unix","path":"/run/dxpu/devices/0.sock"}}`

func TestAddDevices(t *testing.T) {
	for name, tc := range map[string]struct {
		domain    string
		arguments string
		source    string // "memfd" if empty
		err       string
	}{
		"as KubeVirt makes it":  {domain: domain(), arguments: device0},
		"without the namespace": {domain: domain(` xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0"`, ""), arguments: device0},
		"with another prefix":   {domain: domain("xmlns:qemu", "xmlns:q"), arguments: device0},
		"behind other arguments": {
			domain:    domain("</domain>", `<qemu:commandline><qemu:arg value="-snapshot"/></qemu:commandline></domain>`),
			arguments: "-snapshot " + device0,
		},
		"in the default namespace": {
			domain:    domain("</domain>", `<commandline xmlns="http://libvirt.org/schemas/domain/qemu/1.0"><arg value="-snapshot"/></commandline></domain>`),
			arguments: "-snapshot " + device0,
		},
		"a prefix with the same word": {
			domain:    domain("xmlns:qemu", "xmlns:xcommandline", "</domain>", `<xcommandline:commandline/></domain>`),
			arguments: device0,
		},
		"a prefix that is no name":      {domain: domain("xmlns:qemu", "xmlns:."), err: "with the devices: the domain: XML syntax error on line 12: invalid XML name"},
		"QEMU's prefix for another one": {domain: domain("libvirt.org/schemas/domain/qemu", "example.org"), err: "uses a prefix of QEMU's namespace"},
		"in an empty list":              {domain: domain("</domain>", `<qemu:commandline/></domain>`), arguments: device0},
		"memory that has a text":        {domain: domain("<cpu", "<memoryBacking><hugepages/></memoryBacking><cpu"), arguments: device0},
		"an empty memoryBacking":        {domain: domain("<cpu", "<memoryBacking/><cpu"), arguments: device0},
		"memory that is shared": {
			domain: domain("<cpu", `<memoryBacking><source type="file"/><access mode="shared"/></memoryBacking><cpu`), arguments: device0, source: "file",
		},
		"slot 30 in use": {
			domain: domain(`bus="0x01" slot="0x1e"`, `bus="0x00" slot="0x1e"`), arguments: strings.Replace(device0, "0x1e.0x0", "0x1d.0x0", 1),
		},
		"private memory":       {domain: domain("<cpu", `<memoryBacking><access mode="private"/></memoryBacking><cpu`), err: "the access to the memory is private"},
		"anonymous memory":     {domain: domain("<cpu", `<memoryBacking><source type="anonymous"/></memoryBacking><cpu`), err: "the source of the memory is anonymous"},
		"a private NUMA cell":  {domain: domain("</cpu>", `<numa><cell id="0" memAccess="private"/></numa></cpu>`), err: "a NUMA cell has private memory"},
		"without PCI Express":  {domain: domain(`machine="q35"`, `machine="pc-i440fx"`), err: `the machine type is "pc-i440fx"`},
		"no domain":            {domain: "<network></network>", err: "this is no domain: the element is network"},
		"an empty domain":      {domain: "<domain/>", err: "the domain is empty"},
		"a prefix at the root": {domain: `<x:domain xmlns:x="u"><os/></x:domain>`, err: "has a prefix"},
		"broken":               {domain: domain("</devices>", ""), err: "the domain: XML syntax error"},
		"too large":            {domain: domain("lab_train", strings.Repeat("x", 1<<20)), err: "more than 1048576"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := AddDevices(tc.domain, []string{"/run/dxpu/devices/0.sock"})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v; want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var s shape
			if err := xml.Unmarshal([]byte(got), &s); err != nil {
				t.Fatalf("%v:\n%s", err, got)
			}
			if len(s.MemoryBacking) != 1 || len(s.MemoryBacking[0].Source) != 1 || len(s.MemoryBacking[0].Access) != 1 || len(s.Commandline) != 1 {
				t.Fatalf("not one of each:\n%s", got)
			}
			want := tc.source
			if want == "" {
				want = "memfd"
			}
			if m := s.MemoryBacking[0]; m.Source[0].Type != want || m.Access[0].Mode != "shared" || (m.Hugepages != nil) != strings.Contains(tc.domain, "hugepages") {
				t.Errorf("memory %+v", m)
			}
			var args []string
			for _, a := range s.Commandline[0].Arg {
				args = append(args, a.Value)
			}
			if text := strings.Join(args, " "); text != tc.arguments {
				t.Errorf("arguments\n%s\nwant\n%s", text, tc.arguments)
			}
			if !strings.Contains(got, "<name>lab_train</name>") || !strings.Contains(got, `model="pcie-root"`) {
				t.Errorf("the rest has changed:\n%s", got)
			}
		})
	}
}

// TestAddSeveral: each device has a port, which is a function of one PCI device.
func TestAddSeveral(t *testing.T) {
	var sockets []string
	for i := range MaxDevices {
		sockets = append(sockets, fmt.Sprintf("/run/<&\">/%d.sock", i)) // a path needs to be escaped
	}
	got, err := AddDevices(domain(), sockets)
	if err != nil {
		t.Fatal(err)
	}
	var s shape
	if err := xml.Unmarshal([]byte(got), &s); err != nil {
		t.Fatal(err)
	}
	last := s.Commandline[0].Arg[len(s.Commandline[0].Arg)-3].Value
	if want := `"addr":"0x1e.0x7","multifunction":true,"chassis":207`; !strings.Contains(last, want) {
		t.Errorf("%s lacks %s", last, want)
	}
	if _, err := AddDevices(domain(), append(sockets, "x")); err == nil || !strings.Contains(err.Error(), "9 GPUs") {
		t.Errorf("one more: %v", err)
	}
	if same, err := AddDevices(domain(), nil); err != nil || same != domain() {
		t.Errorf("without devices: %v\n%s", err, same)
	}
}

// FuzzAddDevices: for any domain the output is XML, with the devices.
func FuzzAddDevices(f *testing.F) {
	f.Add(domain())
	f.Add(domain("<cpu", "<memoryBacking/><cpu", "</domain>", "<qemu:commandline/></domain>"))
	f.Add(domain("<cpu", "<memoryBacking><hugepages/></memoryBacking><!-- <memoryBacking> --><cpu"))
	f.Add(domain("xmlns:qemu", "xmlns:."))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := AddDevices(text, []string{"/s"})
		if err != nil {
			return
		}
		var s shape
		if err := xml.Unmarshal([]byte(got), &s); err != nil {
			t.Fatalf("%v:\n%s", err, got)
		}
		if !strings.Contains(got, "vfio-user-pci") || len(s.MemoryBacking) == 0 || len(s.Commandline) == 0 {
			t.Errorf("nothing was added:\n%s", got)
		}
	})
}
