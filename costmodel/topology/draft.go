package topology

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// FillIn stands for a device type that neither the file nor the user named.
const FillIn = "fill_in_the_device_type"

// Link classes as profiles name them.
const (
	nvlink = "nvlink"
	pcie   = "pcie"
)

// Datasheet is what is known about the links of a GPU model; zero values are unknown.
// Rates are in bytes per second, in one direction.
type Datasheet struct {
	Fabric            string // link class of its own links; empty where none are known
	LinkPerS, NetPerS units.BytesPerS
	HostPerS          units.BytesPerS // of PCIe, or what stands in its place
	Links             int             // how many NVLinks it has; 0 is unknown
	// Laws are the link classes for which there are laws without a profile of the user's.
	Laws []string
}

// rate is that of a link class inside a node, 0 if it is unknown.
func (s Datasheet) rate(class string) units.BytesPerS {
	switch class {
	case s.Fabric:
		return s.LinkPerS
	case pcie:
		return s.HostPerS
	}
	return 0
}

// joinsRack says whether the model's own links join the nodes of a rack as well, as
// those of a GB200 do: its network is as fast.
func (s Datasheet) joinsRack() bool { return s.NetPerS > 0 && s.NetPerS == s.LinkPerS }

// Options say what a file does not.
type Options struct {
	Device  string // device type of GPUs that the file does not name
	Nodes   int    // how many such machines there are; 0 is one
	Network string // link class between them
	// Model finds the GPU model that a GPU's own name means, "" for none or several; nil knows none.
	Model func(name string) string
	// Datasheet looks a GPU model up; nil knows none.
	Datasheet func(model string) Datasheet
}

// Draft is a cluster of equal machines as far as a file describes it, with what the user
// should know about it.
type Draft struct {
	Cluster costmodel.Cluster `json:"cluster"`
	Read    []string          `json:"read"`    // facts from the file, in sentences
	Guessed []string          `json:"guessed"` // assumptions beyond the file, in sentences
	FillIn  []string          `json:"fill_in"` // fields that the user has to fill in

	remarks costmodel.ClusterRemarks
	// nvlinks is the part of the datasheet's NVLinks that the file shows; 0 where it shows all.
	nvlinks float64
}

// Draft makes a cluster of machines like this one.
//
// Errors name the option that is wrong.
func (m *Machine) Draft(o Options) (*Draft, error) {
	if o.Nodes = cmp.Or(o.Nodes, 1); o.Nodes < 1 || o.Nodes > costmodel.MaxRanks/len(m.GPUs) {
		return nil, fmt.Errorf("--nodes %d: of %d GPUs each: want 1 to %d", o.Nodes, len(m.GPUs), costmodel.MaxRanks/len(m.GPUs))
	}
	if o.Network != "" && o.Nodes == 1 {
		return nil, fmt.Errorf("--network %s: joins nodes, and there is one: say with --nodes how many there are, or leave it out", o.Network)
	}
	if o.Network != "" {
		if err := costmodel.CheckLinkClass(o.Network); err != nil {
			return nil, fmt.Errorf("--network %w", err)
		}
	}
	if o.Datasheet == nil {
		o.Datasheet = func(string) Datasheet { return Datasheet{} }
	}
	d := &Draft{Read: slices.Clone(m.Read), Guessed: []string{}, FillIn: []string{}}
	node := costmodel.Node{Devices: d.devices(m, o)}
	node.Link = d.link(m, o, node.Devices)
	node.NICs = d.cards(m, o.Nodes)
	for i := range o.Nodes {
		n := node
		n.Name, n.Devices = fmt.Sprintf("n%d", i), slices.Clone(node.Devices)
		d.Cluster.Nodes = append(d.Cluster.Nodes, n)
	}
	if o.Nodes > 1 {
		d.network(m, o, node)
	}
	d.state(m, o, node)
	if err := d.Cluster.Validate(); err != nil {
		return nil, err
	}
	d.foot(o, d.Cluster.Nodes[0])
	return d, nil
}

func (d *Draft) read(format string, args ...any) {
	d.Read = append(d.Read, fmt.Sprintf(format, args...))
}

func (d *Draft) guess(format string, args ...any) {
	d.Guessed = append(d.Guessed, fmt.Sprintf(format, args...))
}

// link guesses the node's link class from the paths between its GPUs.
func (d *Draft) link(m *Machine, o Options, devices []op.Member) string {
	if len(m.GPUs) == 1 {
		return ""
	}
	if m.Between == nil {
		return d.unsaid(o, devices)
	}
	w := wiring(m)
	d.doubtDevice(w, o, devices)
	switch {
	case w.wired == 0 && sheetFabric(o, devices) != "":
		d.guess("link class pcie: the file shows no links between GPUs but PCIe, the farthest at %s, though by its datasheet %s has %s; topo -mp leaves these out, and so may a virtual machine: if they are there, write link: %[3]s", w.farthest, devices[0].Device, sheetFabric(o, devices))
		d.remarks.Link = "guessed: the file shows no " + sheetFabric(o, devices)
		return pcie
	case w.wired == 0:
		d.guess("link class pcie: no two GPUs have links of their own; the farthest meet at %s", w.farthest)
		d.remarks.Link = "guessed: no links between GPUs but PCIe, farthest " + string(w.farthest)
		return pcie
	case w.wired == w.pairs:
		d.guess("link class %s: every two GPUs are joined (links a pair: %s)", w.fabric, w.counts())
		d.remarks.Link = "guessed: it joins every two GPUs"
		return w.fabric
	case len(w.islands) == 1:
		d.guess("link class %s: its links reach every GPU, but only %d of %d pairs are joined (links a pair: %s); the others meet at %s or nearer, so all_to_all is slower than where every pair is joined", w.fabric, w.wired, w.pairs, w.counts(), w.farthest)
		d.remarks.Link = fmt.Sprintf("guessed: only %d of %d pairs have it", w.wired, w.pairs)
		return w.fabric
	}
	d.guess("link class pcie: %s joins only the GPUs of each island %s, so what crosses from one to another goes over PCIe (%s); one node has one class, and groups within an island are faster than this says", w.fabric, w.islandNames(), w.farthest)
	d.remarks.Link = fmt.Sprintf("guessed: the slower of two; %s joins GPUs of %d islands only", w.fabric, len(w.islands))
	return pcie
}

// sheetFabric is the datasheet's class of the GPUs' own links; "" where they have
// none but PCIe, differ, or are unknown.
func sheetFabric(o Options, devices []op.Member) string {
	f := o.Datasheet(costmodel.ModelOf(devices[0].Device)).Fabric
	if len(devices) > 1 || f == pcie {
		return ""
	}
	return f
}

// unsaid is the link class where the file does not say what joins the GPUs.
func (d *Draft) unsaid(o Options, devices []op.Member) string {
	class := ""
	for i, m := range devices {
		f := o.Datasheet(costmodel.ModelOf(m.Device)).Fabric
		if f == "" || i > 0 && f != class {
			d.FillIn = append(d.FillIn, "link: the file does not say what joins the GPUs of a node; add link: with its class, or choose it with --link when solving")
			return ""
		}
		class = f
	}
	d.guess("link class %s: as the datasheet of %s has it", class, devices[0].Device)
	d.remarks.Link = "guessed from the datasheet"
	return class
}

// cards counts the network cards that GPUs share: those that sit on PCIe beside
// GPUs, for others carry storage or management, or all where none does.
func (d *Draft) cards(m *Machine, nodes int) int {
	near := 0
	for _, n := range m.NICs {
		if n.Near {
			near++
		}
	}
	all, gpus := len(m.NICs), len(m.GPUs)
	switch {
	case all == 0 && nodes == 1:
		return 0
	case all == 0:
		d.guess("nics 1: the file shows no network card, and a node has at least one")
		d.remarks.NICs = "guessed: the file shows none"
		return 1
	case near > 0 && near < all:
		d.guess("nics %d: of %d network cards, those that share a PCIe bridge with a GPU", min(near, gpus), all)
		d.remarks.NICs = fmt.Sprintf("guessed: %d of %d cards sit beside GPUs", near, all)
		all = near
	default:
		d.read("%s for %s", units.Count(all, "network card"), units.Count(gpus, "GPU"))
	}
	if all > gpus {
		d.guess("nics %d: a device sends through one card, and the file has %d for %d GPUs; if a GPU drives several, give the network class the rate of all of them", gpus, all, gpus)
		d.remarks.NICs = fmt.Sprintf("guessed: the file has %d", all)
	}
	return min(all, gpus)
}

// anyNetwork names a network that a file tells the rate of and nobody named.
const anyNetwork = "net"

// socketRate is what NCCL writes of a network interface whose speed it cannot read, too.
const socketRate = units.BytesPerS(10e9 / 8)

// network names the class of the links between nodes. Where the file tells what its cards
// carry it states that rate, for otherwise it would be the datasheet's of the usual card.
func (d *Draft) network(m *Machine, o Options, n costmodel.Node) {
	d.Cluster.Network = o.Network
	card, each := slowestCard(m)
	l := costmodel.Link{Name: cmp.Or(o.Network, anyNetwork), Rate: card.Rate}
	switch told := l.Validate() == nil; {
	case told && l.Name != n.Link: // one class has one rate
		d.Cluster.Network, d.Cluster.Links = l.Name, append(d.Cluster.Links, l)
		d.guess("%s", cardRate(l, card, o.Network == ""))
		remark := "slowest of its network cards"
		if card.Ports > 0 {
			remark = fmt.Sprintf("PCIe link to the slowest of its network cards, whose ports have %g", float64(card.Ports))
		}
		if each > 1 {
			remark += fmt.Sprintf("; %g where a GPU drives its %d", float64(card.Rate)*float64(each), each)
		}
		d.remarks.Links = map[string]string{l.Name: remark}
	case told:
		d.guess("the file says %s of %s; %s is the class inside a node, too, and one class has one rate: give the network another name with --network", card.Rate, card.slowest(), l.Name)
	case o.Network == "":
		d.FillIn = append(d.FillIn, "network: no file of one machine tells the link class between nodes; add network: with its class, or choose it with --network")
	}
	d.guess("%d nodes like the one in the file", o.Nodes)
	if o.Datasheet(costmodel.ModelOf(n.Devices[0].Device)).joinsRack() {
		d.guess("a network between the nodes: in an NVL72 rack NVLink joins them; write the nodes of one rack as one node, or import the NCCL_TOPO_DUMP_FILE of a job on all of them")
	}
}

// slowest says which part of the slowest card its rate is of.
func (n NIC) slowest() string {
	if n.Ports == 0 {
		return "the slowest of the network cards"
	}
	return fmt.Sprintf("the PCIe link to the slowest of the network cards, whose ports have %s (in a virtual machine the link is perhaps not what the file says)", n.Ports)
}

// cardRate says what the rate of a network rests on.
func cardRate(l costmodel.Link, card NIC, unnamed bool) string {
	text := fmt.Sprintf("network %s at %s, which is what the file says of %s and counts as assumed: nobody measured it; to measure it there: evenkeel calibrate", l.Name, l.Rate, card.slowest())
	if cmp.Or(card.Ports, card.Rate) == socketRate {
		text += "; NCCL writes 10 Gbit/s of a card whose speed it cannot read, too"
	}
	if unnamed {
		text += "; the name is made up: where a profile has laws of the network, write their class"
	}
	return text
}

// narrow ends the name of a class whose links are narrower than what a profile's laws of the
// class were measured on: those laws would stand above what is stated of it.
const narrow = "_narrow"

// state states the rate of the nodes' link class where nothing else would: with it the draft
// can be planned with as it is, and a profile with laws of the class stands above it. Of PCIe
// the file's narrowest link stands above the datasheet, which has the device's own, and so do
// fewer NVLinks than it has.
func (d *Draft) state(m *Machine, o Options, n costmodel.Node) {
	model := costmodel.ModelOf(n.Devices[0].Device)
	sheet := o.Datasheet(model)
	rate, from := sheet.rate(n.Link), "the datasheet's of "+model
	measured, unknown := slices.Contains(sheet.Laws, n.Link), sheet.Fabric == "" && sheet.HostPerS == 0
	l := costmodel.Link{Name: n.Link, Rate: m.PCIePerS}
	less := n.Link == pcie && (rate == 0 || l.Rate < rate) && l.Validate() == nil
	switch {
	case less:
		rate, from = l.Rate, "the narrowest PCIe link that the file has between two GPUs (of an idle GPU, or in a virtual machine, perhaps less than it can)"
	case n.Link == nvlink && d.nvlinks > 0 && rate > 0:
		less, rate, from = true, rate*units.BytesPerS(d.nvlinks), fmt.Sprintf("%s for as many links as the file shows", from)
	}
	switch {
	case n.Link == "" || !less && (unknown || measured):
	case rate > 0:
		if l.Rate = rate; less && measured {
			l.Name += narrow
			for i := range d.Cluster.Nodes {
				d.Cluster.Nodes[i].Link = l.Name
			}
		}
		d.Cluster.Links = append(d.Cluster.Links, l)
		d.guess("%s at %s, %s, which counts as assumed: nobody measured it; to measure it there: evenkeel calibrate", l.Name, rate, from)
	default:
		d.FillIn = append(d.FillIn, fmt.Sprintf("links: nobody measured %s of %s, and no datasheet has its rate; state it, as in links: [{name: %[1]s, bytes_per_s: 25e9}], or measure it there: evenkeel calibrate", n.Link, model))
	}
}

// foot offers the datasheet's rates for classes that nobody measured and the draft does not
// state.
func (d *Draft) foot(o Options, n costmodel.Node) {
	var entries []string
	model := costmodel.ModelOf(n.Devices[0].Device)
	sheet := o.Datasheet(model)
	if n.Link != "" && n.Link == sheet.Fabric && sheet.LinkPerS > 0 && !d.stated(n.Link) {
		entries = append(entries, fmt.Sprintf("  - {name: %s, bytes_per_s: %g}  # datasheet of %s", n.Link, float64(sheet.LinkPerS), model))
	}
	if network := d.Cluster.Network; network != "" && !d.stated(network) && sheet.NetPerS > 0 {
		entries = append(entries, fmt.Sprintf("  - {name: %s, bytes_per_s: %g}  # usual card of %s", network, float64(sheet.NetPerS), model))
	}
	if len(entries) == 0 {
		return
	}
	head := []string{"Link classes that your profile has no laws of can be planned with at these rates, as assumed:", "links:"}
	if len(d.Cluster.Links) > 0 { // YAML takes no key twice
		head = []string{"A link class that your profile has no laws of can be planned with at this rate, as assumed, beside the links above:"}
	}
	d.remarks.Foot = append(head, entries...)
}

// stated says whether the draft states the rate of a link class.
func (d *Draft) stated(class string) bool {
	return slices.ContainsFunc(d.Cluster.Links, func(l costmodel.Link) bool { return l.Name == class })
}

// slowestCard is the one of the least rate of the cards that GPUs use, an empty one if no rate
// is known, and how many of them there are for each GPU, 0 if that is no whole number.
func slowestCard(m *Machine) (least NIC, each int) {
	near := slices.ContainsFunc(m.NICs, func(n NIC) bool { return n.Near })
	used := 0
	for _, n := range m.NICs {
		if n.Near != near {
			continue
		}
		if used++; n.Rate > 0 && (least.Rate == 0 || n.Rate < least.Rate) {
			least = n
		}
	}
	if used%len(m.GPUs) == 0 {
		each = used / len(m.GPUs)
	}
	return least, each
}

// YAML is the draft as a cluster.yaml, with what was read and guessed as comments.
func (d *Draft) YAML(source string) []byte {
	r := d.remarks
	r.Head = append(r.Head, "Drafted from "+source+".")
	for _, part := range []struct {
		title string
		lines []string
	}{{"Read", d.Read}, {"Guessed, so check it", d.Guessed}, {"To fill in", d.FillIn}} {
		for i, l := range part.lines {
			if i == 0 {
				r.Head = append(r.Head, part.title+":")
			}
			r.Head = append(r.Head, "  "+l)
		}
	}
	return d.Cluster.YAML(r)
}
