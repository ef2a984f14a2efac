package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// PCI classes, by their first digits, and that of an NVSwitch.
const (
	nicClass    = "0x02"
	switchClass = "0x068000"
)

// gpuClasses are those of NVIDIA's GPUs and of AMD's.
func gpuClasses() []string { return []string{"0x0302", "0x0300", "0x0380", "0x1200"} }

func (d *device) has(classes ...string) bool {
	return slices.ContainsFunc(classes, func(c string) bool { return strings.HasPrefix(strings.ToLower(d.class), c) })
}

// looksLikeGPU says whether a device without <gpu> is one: a display controller,
// but not the small one of a server's management chip.
func (d *device) looksLikeGPU() bool {
	v := strings.ToLower(d.vendor)
	return d.has(gpuClasses()...) && (v == "" || v == "0x10de" || v == "0x1002")
}

// machine turns the tree into a machine. Files that NCCL wrote hold a <gpu> for
// every GPU it used and a <net> for every card; files that clouds ship for it to
// start from hold PCI addresses only, and nothing of what joins the GPUs.
func (t *tree) machine() (*Machine, error) {
	dumped := slices.ContainsFunc(t.devices, func(d *device) bool { return d.gpu })
	nets := slices.ContainsFunc(t.devices, func(d *device) bool { return d.nic })
	var gpus, nics []*device
	virtual := map[place]bool{}
	for _, d := range t.devices {
		switch {
		case d.placeless && d.bus != "" && virtual[d.place()]:
			continue // every process puts it into the CPU of its own GPU
		case d.gpu || !dumped && d.looksLikeGPU():
			gpus = append(gpus, d)
		case d.nic || !nets && d.has(nicClass):
			nics = append(nics, d)
			virtual[d.place()] = d.placeless
		}
	}
	if len(gpus) == 0 {
		return nil, wrongf(0, "no GPU: no <gpu>, and no <pci> of a GPU's class (%s..); a job's NCCL_TOPO_DUMP_FILE has them", strings.Join(gpuClasses(), ".., "))
	}
	if len(gpus) > maxDevices || len(nics) > maxDevices {
		return nil, wrongf(0, "%d GPUs and %d network cards: at most %d of each are read", len(gpus), len(nics), maxDevices)
	}
	m := &Machine{}
	for i, d := range gpus {
		name := d.bus
		if name == "" {
			name = fmt.Sprintf("GPU%d", i)
		}
		if len(t.hosts) > 1 {
			name = fmt.Sprintf("host%d/%s", slices.Index(t.hosts, d.host), name)
		}
		m.GPUs = append(m.GPUs, GPU{Name: short(name), Model: modelOf(d.vendor, d.number)})
	}
	for _, d := range nics {
		near := slices.ContainsFunc(gpus, func(g *device) bool { h := meet(g, d); return h == PIX || h == PXB })
		m.NICs = append(m.NICs, card(d, near))
	}
	if err := unique(gpus); err != nil {
		return nil, err
	}
	told := dumped && tellsLinks(gpus)
	m.Read = t.remarks(gpus, told)
	if told {
		m.Between = between(gpus)
	}
	m.PCIePerS = narrowest(gpus, m.Between)
	return m, nil
}

// card is a network card. The PCIe link to it bounds what its ports carry; of ports that the
// file says nothing of it tells nothing, for a slot is as wide as the board has it.
func card(d *device, near bool) NIC {
	n := NIC{Name: short(d.bus), Near: near, Rate: d.rate}
	if d.slot > 0 && d.slot < d.rate {
		n.Rate, n.Ports = d.slot, d.rate
	}
	return n
}

// tellsLinks says whether links that are not in the file are not there: it has
// some, or NCCL wrote it, which states every GPU's PCI ids, or RCCL, whose first
// versions did not, but the architecture (gcn). Files that clouds write leave all
// of these out, as NCCL asks the driver for the links anyway.
func tellsLinks(gpus []*device) bool {
	return slices.ContainsFunc(gpus, func(d *device) bool {
		return len(d.wires) > 0 || d.vendor != "" || strings.HasPrefix(d.said, "gcn")
	})
}

// place is a PCI address of one host: the trays of a rack, which NCCL fuses into
// one file where NVLink joins them, have the same addresses.
type place struct{ host, bus string }

func (d *device) place() place { return place{d.host, d.bus} }

// unique refuses two GPUs at one address of one host.
func unique(gpus []*device) error {
	first := map[place]*device{}
	for _, d := range gpus {
		if o := first[d.place()]; o != nil && d.bus != "" {
			return wrongf(d.line, "a second GPU at busid=%q, which line %d has", short(d.bus), o.line)
		}
		first[d.place()] = d
	}
	return nil
}

// remarks are what else the file tells.
func (t *tree) remarks(gpus []*device, told bool) []string {
	var out, kinds []string
	for _, d := range gpus {
		if d.said != "" && modelOf(d.vendor, d.number) == "" && !slices.Contains(kinds, d.said) {
			kinds = append(kinds, d.said)
		}
	}
	if len(kinds) > 0 {
		out = append(out, "the GPUs' architecture: "+strings.Join(kinds, ", "))
	}
	if len(t.hosts) > 1 {
		out = append(out, fmt.Sprintf("%d hosts in one file, which NCCL sees as one machine; they are drafted as one node", len(t.hosts)))
	}
	if !told {
		out = append(out, "no links of GPUs, as in what clouds ship: the file does not say what joins the GPUs (a job's NCCL_TOPO_DUMP_FILE does)")
	}
	if t.odd != "" {
		out = append(out, t.odd)
	}
	if text := twins(gpus); text != "" {
		out = append(out, text)
	}
	if n := strays(gpus); n > 0 {
		out = append(out, fmt.Sprintf("%d of %d GPUs have links to themselves or to GPUs that are not in the file, which were not counted", n, len(gpus)))
	}
	return out
}

// twins tells of two GPUs of one host with one number, which NCCL gives no two of a machine. They
// are drafted as the file has them: containers number their GPUs each from 0.
func twins(gpus []*device) string {
	type number struct{ host, dev string }
	first := map[number]*device{}
	for _, d := range gpus {
		at := number{d.host, d.dev}
		if o := first[at]; o != nil && d.dev != "" {
			return fmt.Sprintf("line %d: a second GPU with dev=%q, which line %d has: look whether both are there, or one was copied", d.line, short(d.dev), o.line)
		}
		first[at] = d
	}
	return ""
}

// strays counts the GPUs with links that lead to no other GPU of the file: to
// GPUs that the job did not use, or, from virtual machines, to themselves.
func strays(gpus []*device) int {
	at := map[place]*device{}
	for _, d := range gpus {
		at[d.place()] = d
	}
	n := 0
	for _, d := range gpus {
		if slices.ContainsFunc(d.wires, func(w wire) bool {
			to := at[place{d.host, w.target}]
			return to == d || to == nil && strings.HasPrefix(w.class, "0x03")
		}) {
			n++
		}
	}
	return n
}

// between finds the path between every two GPUs: wires to each other, wires to
// switches, or else PCIe.
func between(gpus []*device) [][]Path {
	g := grid(len(gpus))
	at := map[place]int{}
	for i, d := range gpus {
		at[d.place()] = i
	}
	ports, fabric := make([]int, len(gpus)), ""
	for i, d := range gpus {
		for _, w := range d.wires {
			switch to, peer := at[place{d.host, w.target}]; {
			case peer && to != i:
				g[i][to].Wires += w.count
				g[i][to].Fabric = w.fabric
			case !peer && isSwitch(w):
				ports[i] += w.count
				fabric = w.fabric
			}
		}
	}
	for i := range gpus {
		for j := range i {
			p := joined(g[i][j], g[j][i], min(ports[i], ports[j]), fabric)
			if p.Wires == 0 {
				p.PCIe = meet(gpus[i], gpus[j])
			}
			g[i][j], g[j][i] = p, p
		}
	}
	return g
}

// isSwitch says whether a link ends at an NVSwitch: by its class, or by an
// address that virtual machines hide.
func isSwitch(w wire) bool {
	return w.class == switchClass || w.class == "" || strings.Trim(w.target, "f:.") == ""
}

// joined is the path by the links of either end to the other, which a file may
// state at one end only, and by those of both to switches.
func joined(a, b Path, switched int, fabric string) Path {
	direct := min(a.Wires, b.Wires)
	if direct == 0 {
		direct = max(a.Wires, b.Wires)
	}
	if direct == 0 && switched == 0 {
		return Path{}
	}
	for _, f := range []string{a.Fabric, b.Fabric} {
		if f != "" {
			fabric = f
		}
	}
	return Path{Wires: direct + switched, Fabric: fabric}
}

// meet is where two devices meet on PCIe.
func meet(a, b *device) Hop {
	if a.parent == b.parent && a.parent.parent != nil {
		return PIX
	}
	above := map[*device]bool{}
	for d := a; d != nil; d = d.parent {
		above[d] = true
	}
	for d := b; d != nil; d = d.parent {
		if above[d] && d.parent != nil {
			return PXB
		}
		if above[d] {
			return PHB
		}
	}
	return SYS
}

// narrowest is the least rate of a PCIe link between two GPUs that have no links of their own to
// each other, as far as the file tells, 0 where it tells of none: the links of each up to
// where the two meet.
func narrowest(gpus []*device, wired [][]Path) (least units.BytesPerS) {
	for i := range gpus {
		for j := range i {
			if wired == nil || wired[i][j].Wires == 0 {
				a, b := branches(gpus[i], gpus[j])
				for _, d := range slices.Concat(a, b) {
					least = slower(least, d.slot)
				}
			}
		}
	}
	return least
}

// branches are two devices with what is above each, below where they meet.
func branches(a, b *device) (ofA, ofB []*device) {
	for d := a; d != nil; d = d.parent {
		ofA = append(ofA, d)
	}
	for d := b; d != nil; d = d.parent {
		if at := slices.Index(ofA, d); at >= 0 {
			return ofA[:at], ofB
		}
		ofB = append(ofB, d)
	}
	return ofA, ofB
}

// slower is the lesser of two rates of which 0 is unknown.
func slower(a, b units.BytesPerS) units.BytesPerS {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
