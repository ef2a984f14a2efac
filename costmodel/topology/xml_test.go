package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// nvidia is a dump of four H100, two behind each of two CPUs, on NVSwitches, with
// a card behind each bridge but the last, and one for storage.
const nvidia = `<?xml version="1.0"?>
<!-- a comment -->
<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:a0:00.0" count="10" tclass="0x068000"/><nvlink target="0000:a1:00.0" count="8" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="00000000:03:00.0" class="0x030200" vendor="0x10de" device="0x2330">
        <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="fffffff:ffff:ff" count="18" tclass="0xffffff"/></gpu>
      </pci>
      <pci busid="0000:04:00.0" class="0x020700" vendor="0x15b3"><nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1"/></nic></pci>
    </pci>
    <pci busid="0000:09:00.0" class="0x020000"><nic><net name="eth0" dev="2" speed="100000"/></nic></pci>
    <pci busid="0000:0a:00.0" class="0x030000" vendor="0x1a03" device="0x2000"/>
  </cpu>
  <cpu host_hash="0x1" numaid="1">
    <pci busid="0000:11:00.0" class="0x060400">
      <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x2330"><gpu dev="2" sm="90"><nvlink target="0000:a0:00.0" count="18" tclass="0x068000"/></gpu></pci>
      <pci busid="0000:14:00.0" class="0x020700"><nic><net name="mlx5_1" dev="1" speed="400000"/></nic></pci>
    </pci>
    <pci busid="0000:13:00.0" class="0x030200" vendor="0x10de" device="0x2330"><gpu dev="3" sm="90"><nvlink target="0000:a0:00.0" count="18" tclass="0x068000"/></gpu></pci>
  </cpu>
</system>
`

func TestXML(t *testing.T) {
	m, err := read(XML, nvidia)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.GPUs) != 4 || m.GPUs[1] != (GPU{Name: "0000:03:00.0", Model: "h100_sxm"}) || len(m.NICs) != 3 || !m.NICs[0].Near || m.NICs[1].Near || m.NICs[0].Rate != 50e9 {
		t.Errorf("%+v", m)
	}
	for i := range 4 {
		for j := range i {
			if m.Between[i][j] != (Path{Wires: 18, Fabric: "nvlink"}) {
				t.Errorf("%d to %d: %+v", i, j, m.Between[i][j])
			}
		}
	}
	d, err := m.Draft(Options{Device: "h100_sxm/mine", Nodes: 3, Network: "ib"})
	if err != nil {
		t.Fatal(err)
	}
	if n := d.Cluster.Nodes[2]; d.Cluster.String() != "3x4 h100_sxm/mine" || n.Link != "nvlink" || n.NICs != 2 || n.Name != "n2" || d.Cluster.Network != "ib" || len(d.FillIn) != 0 {
		t.Errorf("%+v %+v", d.Cluster, d)
	}
	if text := string(d.YAML("topo.xml")); !strings.Contains(text, "{name: ib, bytes_per_s: 5e+10}") {
		t.Error(text)
	}
	readsBack(t, d)
}

// Without links of their own GPUs meet on PCIe where their branches do.
func TestXMLMeetsOnPCIe(t *testing.T) {
	text := nvidia
	for strings.Contains(text, "<nvlink") {
		at := strings.Index(text, "<nvlink")
		text = text[:at] + text[at+strings.Index(text[at:], "/>")+2:]
	}
	m, err := read(XML, text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		a, b int
		want Hop
	}{{0, 1, PIX}, {0, 2, SYS}, {2, 3, PHB}} {
		if got := m.Between[c.a][c.b]; got != (Path{PCIe: c.want}) || got != m.Between[c.b][c.a] {
			t.Errorf("%d to %d: %+v, want %s", c.a, c.b, got, c.want)
		}
	}
	if d, err := m.Draft(Options{}); err != nil || d.Cluster.Nodes[0].Link != "pcie" || !strings.Contains(strings.Join(d.Guessed, " "), "farthest meet at SYS") {
		t.Errorf("%+v, %v", d, err)
	}
}

// Two GPUs talk at the rate of the narrowest PCIe link between them, of those that the file tells;
// the one above the bridge where they meet is not on their way.
func TestXMLPCIeRate(t *testing.T) {
	pci := func(attrs, inside string) string {
		return "<pci " + attrs + ">" + inside + "</pci>"
	}
	link := func(speed, width string) string {
		return fmt.Sprintf(`class="0x030200" vendor="0x10de" device="0x26b9" link_speed="%s" link_width="%s"`, speed, width)
	}
	gpu := func(speed, width string) string { return pci(link(speed, width), "<gpu/>") }
	wide := gpu("16.0 GT/s PCIe", "16")
	file := func(devices ...string) string { return "<system><cpu>" + strings.Join(devices, "") + "</cpu></system>" }
	for name, c := range map[string]struct {
		text string
		want units.BytesPerS
	}{
		"alike":         {file(wide, wide), 32e9},
		"one narrow":    {file(wide, gpu("8.0 GT/s PCIe", "4")), 4e9},
		"older kernels": {file(wide, gpu("8 GT/s", "4")), 4e9},
		"above both":    {file(pci(link("8.0 GT/s PCIe", "4"), wide+wide)), 32e9},
		"above one":     {file(wide, pci(link("8.0 GT/s PCIe", "8"), wide)), 8e9},
		"no lanes":      {file(wide, gpu("16.0 GT/s PCIe", "0")), 32e9},
		"no speed":      {file(wide, gpu("Unknown", "4")), 32e9},
		"of none":       {file(gpu("", ""), gpu("NaN GT/s", "255")), 0},
		"lanes of none": {file(gpu("16.0 GT/s PCIe", "255"), gpu("16.0 GT/s PCIe", "255")), 0},
		"one GPU":       {file(wide), 0},
	} {
		m, err := read(XML, c.text)
		if err != nil || m.PCIePerS != c.want {
			t.Errorf("%s: %+v, %v; want %g bytes/s", name, m, err, float64(c.want))
		}
	}
	m, err := read(XML, file(pci(`class="0x020000" link_speed="8.0 GT/s PCIe" link_width="4"`, `<nic><net name="a" speed="100000"/></nic>`), wide))
	if err != nil || m.NICs[0].Rate != 4e9 {
		t.Errorf("a card in a slot of 4 GB/s: %+v, %v", m, err)
	}
}

// What NVLink joins does not talk over PCIe, however narrow that is.
func TestXMLPCIeRateBesideNVLink(t *testing.T) {
	gpu := func(bus, to string) string {
		return fmt.Sprintf(`<pci busid="%s" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="4"><gpu><nvlink target="%s" count="2" tclass="0x030200"/></gpu></pci>`, bus, to)
	}
	m, err := read(XML, "<system><cpu>"+gpu("0000:01:00.0", "0000:02:00.0")+gpu("0000:02:00.0", "0000:01:00.0")+"</cpu></system>")
	if err != nil || m.Between[0][1].Wires != 2 || m.PCIePerS != 0 {
		t.Errorf("%+v, %v", m, err)
	}
}

// The slot of a card bounds what its ports carry, which the draft tells. Of a card whose ports the
// file says nothing of it is no rate: the draft offers the usual card's.
func TestXMLCardInSlot(t *testing.T) {
	const (
		virtual = "which is what the file says of the PCIe link to the slowest of the network cards, whose ports have 12.5 GB/s (in a virtual machine the link is perhaps not what the file says) and counts as assumed"
		usual   = "#   - {name: ib, bytes_per_s: 2.5e+10}  # usual card of x\n"
	)
	for name, c := range map[string]struct {
		speed, width, mbits string
		want                NIC
		network             string
		says                string
	}{
		"faster":          {"16.0", "16", `speed="100000"`, NIC{Rate: 12.5e9}, "", "{name: net, bytes_per_s: 1.25e+10}  # slowest of its network cards\n"},
		"slower":          {"2.5", "1", `speed="100000"`, NIC{Rate: 312.5e6, Ports: 12.5e9}, "", virtual},
		"remarked":        {"2.5", "1", `speed="100000"`, NIC{Rate: 312.5e6, Ports: 12.5e9}, "", "{name: net, bytes_per_s: 3.125e+08}  # PCIe link to the slowest of its network cards, whose ports have 1.25e+10\n"},
		"one name":        {"2.5", "1", `speed="100000"`, NIC{Rate: 312.5e6, Ports: 12.5e9}, "nvlink", "the file says 312 MB/s of the PCIe link to the slowest of the network cards, whose ports have 12.5 GB/s"},
		"socket":          {"2.5", "1", `speed="10000"`, NIC{Rate: 312.5e6, Ports: 1.25e9}, "", "NCCL writes 10 Gbit/s of a card whose speed it cannot read, too"},
		"untold":          {"16.0", "16", "", NIC{}, "", "network: no file of one machine tells the link class between nodes"},
		"untold, named":   {"16.0", "16", "", NIC{}, "ib", usual},
		"speed unknown":   {"16.0", "16", `speed="-1"`, NIC{}, "ib", usual},
		"in another unit": {"16.0", "16", `speed="200000000"`, NIC{}, "ib", usual},
	} {
		m, err := read(XML, fmt.Sprintf(`<system><cpu><pci busid="1" class="0x030200"><gpu/></pci><pci busid="2" class="0x020000" link_speed="%s GT/s PCIe" link_width="%s"><nic><net name="a" %s/></nic></pci></cpu></system>`, c.speed, c.width, c.mbits))
		c.want.Name = "2"
		if err != nil || len(m.NICs) != 1 || m.NICs[0] != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, m, err, c.want)
			continue
		}
		m.GPUs = append(m.GPUs, m.GPUs[0])
		d, err := m.Draft(Options{Device: "x", Nodes: 2, Network: c.network, Datasheet: func(string) Datasheet { return Datasheet{Fabric: "nvlink", LinkPerS: 3e11, NetPerS: 2.5e10} }})
		if err != nil || !strings.Contains(string(d.YAML("x")), c.says) {
			t.Errorf("%s: %v, want %q in\n%s", name, err, c.says, d.YAML("x"))
			continue
		}
		readsBack(t, d)
	}
}

// The draft states what the file tells of PCIe where it is less than the datasheet's, under a
// name that no laws are of where there are laws of pcie.
func TestXMLPCIeIsStated(t *testing.T) {
	for name, c := range map[string]struct {
		rate  units.BytesPerS
		sheet Datasheet
		link  string
		want  string
	}{
		"narrow":     {4e9, Datasheet{HostPerS: 3.2e10}, "pcie", "pcie at 4 GB/s, the narrowest PCIe link that the file has between two GPUs (of an idle GPU, or in a virtual machine, perhaps less than it can), which counts as assumed"},
		"wide":       {6.4e10, Datasheet{HostPerS: 3.2e10}, "pcie", "pcie at 32 GB/s, the datasheet's of x, which"},
		"no sheet":   {4e9, Datasheet{}, "pcie", "{name: pcie, bytes_per_s: 4e+09}"},
		"untold":     {0, Datasheet{HostPerS: 3.2e10}, "pcie", "{name: pcie, bytes_per_s: 3.2e+10}"},
		"laws":       {4e9, Datasheet{HostPerS: 3.2e10, Laws: []string{"pcie"}}, "pcie_narrow", "{name: pcie_narrow, bytes_per_s: 4e+09}"},
		"laws, wide": {3.2e10, Datasheet{HostPerS: 3.2e10, Laws: []string{"pcie"}}, "pcie", "link: pcie  # guessed"},
	} {
		m := machine([]string{"x", "x"})
		m.PCIePerS = c.rate
		d, err := m.Draft(Options{Datasheet: func(string) Datasheet { return c.sheet }})
		if err != nil || d.Cluster.Nodes[0].Link != c.link || !strings.Contains(string(d.YAML("x")), c.want) {
			t.Errorf("%s: %v, want %q in\n%s", name, err, c.want, d.YAML("x"))
			continue
		}
		readsBack(t, d)
	}
}

// Links that are stated at one end only, or at both, are counted once; those to
// CPUs and to GPUs that are not in the file are no way between two GPUs.
func TestXMLWires(t *testing.T) {
	gpu := func(bus, links string) string {
		return fmt.Sprintf(`<pci busid="%s" class="0x030200"><gpu sm="70">%s</gpu></pci>`, bus, links)
	}
	link := func(to string, n int, class string) string {
		return fmt.Sprintf(`<nvlink target="%s" count="%d" tclass="%s"/>`, to, n, class)
	}
	for name, c := range map[string]struct {
		a, b string
		want Path
	}{
		"one end":      {link("0000:02:00.0", 2, "0x030200"), "", Path{Wires: 2, Fabric: "nvlink"}},
		"both ends":    {link("0000:02:00.0", 2, "0x030200"), link("0000:01:00.0", 2, "0x030200"), Path{Wires: 2, Fabric: "nvlink"}},
		"uneven":       {link("0000:02:00.0", 2, "0x030200"), link("0000:01:00.0", 1, "0x030200"), Path{Wires: 1, Fabric: "nvlink"}},
		"two entries":  {link("0000:02:00.0", 1, "0x030200") + link("0000:02:00.0", 1, "0x030200"), "", Path{Wires: 2, Fabric: "nvlink"}},
		"cpu":          {link("0004:00:00.0", 3, "0x068001"), link("0004:00:00.0", 3, "0x068001"), Path{PCIe: PHB}},
		"absent":       {link("0000:09:00.0", 3, "0x030200"), "", Path{PCIe: PHB}},
		"one switched": {link("0000:a0:00.0", 3, "0x068000"), "", Path{PCIe: PHB}},
		"itself":       {link("0000:01:00.0", 3, "0x030200"), "", Path{PCIe: PHB}},
	} {
		m, err := read(XML, "<system><cpu>"+gpu("0000:01:00.0", c.a)+gpu("0000:02:00.0", c.b)+"</cpu></system>")
		if err != nil || m.Between[0][1] != c.want || m.Between[1][0] != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, m, err, c.want)
		}
		stray := slices.ContainsFunc(m.Read, func(s string) bool {
			return strings.Contains(s, "GPUs that are not in the file, which were not counted")
		})
		if want := name == "absent" || name == "itself"; stray != want {
			t.Errorf("%s: %v, want a note on links that were not counted: %t", name, m.Read, want)
		}
	}
}

// The trays of a rack have the same PCI addresses; NCCL tells them apart by the
// host's hash, and so do the links that a file states.
func TestXMLHosts(t *testing.T) {
	tray := func(host, first, second string) string {
		const gpu = `<pci busid="%s" class="0x030200" vendor="0x10de" device="0x2941"><gpu sm="100">%s<c2c bw="1" count="5"/></gpu></pci>`
		return fmt.Sprintf(`<cpu host_hash="%s" numaid="0">`+gpu+gpu+`</cpu>`, host, "0008:01:00.0", first, "0009:01:00.0", second)
	}
	const switched = `<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>`
	m, err := read(XML, "<system>"+tray("0xa", switched, switched)+tray("0xb", switched, switched)+"</system>")
	if err != nil || len(m.GPUs) != 4 || m.Between[0][2] != (Path{Wires: 18, Fabric: "nvlink"}) || !strings.HasPrefix(m.Read[0], "2 hosts in one file") {
		t.Fatalf("%+v, %v", m, err)
	}
	const pair = `<nvlink target="0009:01:00.0" count="4" tclass="0x030200"/>`
	m, err = read(XML, "<system>"+tray("0xa", pair, "")+tray("0xb", pair, "")+"</system>")
	if err != nil || m.Between[0][1].Wires != 4 || m.Between[2][3].Wires != 4 || m.Between[0][3] != (Path{PCIe: SYS}) {
		t.Fatalf("%+v, %v", m, err)
	}
	d, err := m.Draft(Options{})
	if err != nil || !strings.Contains(d.Guessed[0], "(host0/0008:01:00.0 host0/0009:01:00.0) (host1/0008:01:00.0 host1/0009:01:00.0)") {
		t.Errorf("%+v, %v", d, err)
	}
}

// A card whose place on PCIe nobody knows, as a container's eth0, stands in every
// CPU that has a GPU, and is one card for all that.
func TestXMLPlacelessCards(t *testing.T) {
	half := func(host, bus string, names ...string) string {
		text := fmt.Sprintf(`<cpu host_hash="%s"><pci busid="%s" class="0x030200"><gpu sm="90"/></pci>`, host, bus)
		for _, n := range names {
			text += fmt.Sprintf(`<nic><net name="%s" speed="10000"/></nic>`, n)
		}
		return text + "</cpu>"
	}
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"one in both":   {half("0xa", "1", "eth0") + half("0xa", "2", "eth0"), 1},
		"two in both":   {half("0xa", "1", "eth0", "eth1") + half("0xa", "2", "eth0", "eth1"), 2},
		"of two hosts":  {half("0xa", "1", "eth0") + half("0xb", "1", "eth0"), 2},
		"without names": {half("0xa", "1", "") + half("0xa", "2", ""), 2},
	} {
		m, err := read(XML, "<system>"+c.text+"</system>")
		if err != nil || len(m.NICs) != c.want || m.NICs[0].Rate != 1.25e9 {
			t.Errorf("%s: %+v, %v; want %d cards", name, m, err, c.want)
		}
	}
}

// Two GPUs of one host with one number are told; of two hosts they are as they should be.
func TestXMLTwins(t *testing.T) {
	gpu := func(host, bus, dev string) string {
		return fmt.Sprintf(`<cpu host_hash="%s">`+"\n"+`<pci busid="%s" class="0x030200" vendor="0x10de"><gpu dev="%s"/></pci></cpu>`, host, bus, dev)
	}
	for name, c := range map[string]struct {
		text string
		told bool
	}{
		"one host":  {gpu("0xa", "1", "0") + gpu("0xa", "2", "0"), true},
		"two hosts": {gpu("0xa", "1", "0") + gpu("0xb", "2", "0"), false},
		"apart":     {gpu("0xa", "1", "0") + gpu("0xa", "2", "1"), false},
		"untold":    {gpu("0xa", "1", "") + gpu("0xa", "2", ""), false},
	} {
		m, err := read(XML, "<system>"+c.text+"</system>")
		if err != nil || slices.Contains(m.Read, `line 3: a second GPU with dev="0", which line 2 has: look whether both are there, or one was copied`) != c.told {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

// A speed that no card has is in another unit: it is left out and told.
func TestXMLOddSpeed(t *testing.T) {
	m, err := read(XML, `<system><cpu><pci busid="1" class="0x030200"><gpu sm="228"/></pci>
<pci busid="2" class="0x020000"><nic><net name="cxi0" speed="200000000"/></nic></pci>
<pci busid="3" class="0x020000"><nic><net name="cxi1" speed="200000"/></nic></pci></cpu></system>`)
	if err != nil || len(m.NICs) != 2 || m.NICs[0].Rate != 0 || m.NICs[1].Rate != 25e9 || !slices.ContainsFunc(m.Read, func(s string) bool { return strings.HasPrefix(s, `line 2: speed="200000000" is more`) }) {
		t.Errorf("%+v, %v", m, err)
	}
}

// Files that clouds write may name GPUs as dumps do, and yet leave out the links:
// NCCL asks the driver for these.
func TestXMLLinksUntold(t *testing.T) {
	file := func(attrs string) string {
		gpu := func(bus int) string {
			return fmt.Sprintf(`<pci busid="0000:%02x:00.0" class="0x030200" %s><gpu dev="%[1]d" sm="90" rank="%[1]d" gdr="1"/></pci>`, bus, attrs)
		}
		return "<system><cpu>" + gpu(1) + gpu(2) + "</cpu></system>"
	}
	m, err := read(XML, file(""))
	if err != nil || m.Between != nil || !strings.Contains(strings.Join(m.Read, "\n"), "does not say what joins the GPUs") {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err = read(XML, file(`vendor="0x10de" device="0x26b9"`)); err != nil || m.Between == nil {
		t.Errorf("a dump of GPUs without links of their own: %+v, %v", m, err)
	}
	if m, err = read(XML, strings.ReplaceAll(file(""), `sm="90"`, `sm="64" gcn="906"`)); err != nil || m.Between == nil {
		t.Errorf("an early dump of RCCL: %+v, %v", m, err)
	}
}

func TestXMLErrors(t *testing.T) {
	in := func(s string) string { return "<system>\n<cpu>\n" + s + "\n</cpu></system>" }
	const gpu = `<pci busid="0000:01:00.0" class="0x030200"><gpu/></pci>`
	for name, c := range map[string]struct{ text, want string }{
		"text":         {"hello", "topo: is no XML"},
		"graph":        {"<!-- x -->\n<graphs version=\"1\">", "topo:2: <graphs> is a file of NCCL_GRAPH_FILE"},
		"other":        {"<html>", "topo:1: <html> where <system> should be"},
		"cut":          {"<system>\n<cpu>", "topo:2: ends in the middle: it was cut short; write it anew by running a job with NCCL_TOPO_DUMP_FILE=topo.xml"},
		"unbalanced":   {"<system>\n</cpu>", "topo:2: is no XML: element <system> closed by </cpu>"},
		"entity":       {"<!DOCTYPE x [<!ENTITY a \"aaaa\">]>\n<system v=\"&a;\"/>", "topo:2: is no XML: invalid character entity &a;"},
		"charset":      {"<?xml version=\"1.0\" encoding=\"utf-16\"?><system/>", "topo:1:"},
		"no gpu":       {in(""), "topo: no GPU: no <gpu>"},
		"two roots":    {in(gpu) + "\n<system/>", "topo:5: <system> after the end of <system>"},
		"lone pci":     {"<system><pci/></system>", "topo:1: <pci> outside of a <cpu>"},
		"lone gpu":     {in("<gpu/>"), "topo:3: <gpu> outside of a <pci>"},
		"lone net":     {in("<net/>"), "topo:3: <net> outside of a network card"},
		"lone link":    {in(`<pci><nvlink/></pci>`), "topo:3: <nvlink> outside of a <gpu>"},
		"no links":     {in(`<pci><gpu><nvlink count="0"/></gpu></pci>`), `topo:3: count="0": want the number of links`},
		"many links":   {in(`<pci><gpu><xgmi count="9999999999"/></gpu></pci>`), `topo:3: count="9999999999"`},
		"speed":        {in(`<pci><nic><net speed="fast"/></nic></pci>`), `topo:3: speed="fast": want Mbit/s`},
		"nan":          {in(`<pci><nic><net speed="NaN"/></nic></pci>`), `topo:3: speed="NaN": want Mbit/s`},
		"same address": {in(gpu + "\n" + gpu), `topo:4: a second GPU at busid="0000:01:00.0", which line 3 has`},
		"deep":         {"<system><cpu>" + strings.Repeat("<pci>", 100), "nested deeper than 64"},
		"many":         {in(strings.Repeat("<x/>", maxElements)), "more than 262144 elements"},
		"many gpus":    {in(strings.Repeat(`<pci><gpu/></pci>`, maxDevices+1)), "257 GPUs and 0 network cards: at most 256"},
	} {
		if _, err := read(XML, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := Read("yaml", "topo", strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "want nvidia-smi-topo or nccl-topo") {
		t.Error(err)
	}
}

// Models of the table have the form of a cluster's names, each PCI id once.
func TestModels(t *testing.T) {
	all := models()
	if len(all) != strings.Count(modelsCSV, "\n") {
		t.Errorf("%d models of %d lines", len(all), strings.Count(modelsCSV, "\n"))
	}
	if modelOf("0x10DE", "0x2330") != "h100_sxm" || modelOf("0x10de", "0xffff") != "" || modelOf("", "") != "" {
		t.Error("modelOf finds the wrong model")
	}
}

func FuzzXML(f *testing.F) {
	f.Add(nvidia)
	f.Add(`<system><cpu><nic><net name="eth0" speed="-1"/></nic><pci class="0x030000" vendor="0x10de"/></cpu></system>`)
	f.Add(`<graphs/>`)
	f.Fuzz(func(t *testing.T, text string) { drafts(t, XML, text) })
}
