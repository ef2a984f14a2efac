package costmodel

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Link is a link class that nobody measured and whose rate is known from a datasheet.
// AssumeLinks makes laws of it.
type Link struct {
	Name    string          `json:"name"`
	Rate    units.BytesPerS `json:"bytes_per_s"`        // of a device's port, or of a network card, in one direction
	Latency units.Seconds   `json:"latency_s,omitzero"` // of one hop; 0 is 8e-6 in a node and 12e-6 between nodes
}

// Limits of what a cluster may state of a link: they catch a rate in GB/s and a
// latency in microseconds.
const (
	maxLinks       = 1024
	leastLinkRate  = units.BytesPerS(1e6)
	mostLinkRate   = units.BytesPerS(1e14)
	mostLinkLength = units.Seconds(0.1)
)

func (c Cluster) validateLinks() error {
	if len(c.Links) > maxLinks {
		return fmt.Errorf("links: %d: want at most %d", len(c.Links), maxLinks)
	}
	seen := map[string]Link{}
	for i, l := range c.Links {
		if err := l.Validate(); err != nil {
			return fmt.Errorf("links[%d].%w", i, err)
		}
		if first, again := seen[l.Name]; again && first != l {
			return fmt.Errorf("links[%d].name: %q is stated twice, at %g and %g bytes/s and %g and %g s; a class has one rate and latency: keep one entry, or give them two names", i, l.Name, float64(first.Rate), float64(l.Rate), float64(first.Latency), float64(l.Latency))
		} else if again {
			return fmt.Errorf("links[%d].name: %q is stated twice; keep one entry", i, l.Name)
		}
		seen[l.Name] = l
	}
	return nil
}

// Validate says what of a link cannot be meant: a name that is no word, a rate outside 1 MB/s
// to 100 TB/s, a latency above 0.1 s.
func (l Link) Validate() error {
	switch {
	case !isWord(l.Name):
		return fmt.Errorf("name: %w", CheckLinkClass(l.Name))
	case !(l.Rate >= leastLinkRate && l.Rate <= mostLinkRate):
		return fmt.Errorf("bytes_per_s: %g of %s: want %g to %g; 200 GB/s are 200e9", float64(l.Rate), l.Name, float64(leastLinkRate), float64(mostLinkRate))
	case !(l.Latency >= 0 && l.Latency <= mostLinkLength):
		return fmt.Errorf("latency_s: %g of %s: want 0 to %g; 3 microseconds are 3e-6", float64(l.Latency), l.Name, float64(mostLinkLength))
	}
	return nil
}

// stated is the entry of a class in the cluster's links, if it has one.
func (c Cluster) stated(class string) (Link, bool) {
	at := slices.IndexFunc(c.Links, func(l Link) bool { return l.Name == class })
	if at < 0 {
		return Link{}, false
	}
	return c.Links[at], true
}

// Unheeded says of every stated class that no law of a profile of AssumeLinks is of, why not.
func (c Cluster) Unheeded(p *Profile) []string {
	var out []string
	for _, l := range c.Links {
		assumed := slices.ContainsFunc(p.Laws, func(w Law) bool {
			return strings.Contains(w.Assumed, statedBy) && slices.ContainsFunc(p.Groups, func(g op.GroupType) bool { return g.Name == w.Group && g.Link == l.Name })
		})
		switch used := c.Network == l.Name && len(c.Nodes) > 1 || slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.Link == l.Name && n.Size() > 1 }); {
		case !used:
			out = append(out, fmt.Sprintf("links: %s: joins no two devices of the cluster, and what is stated of it changes nothing", l.Name))
		case !assumed:
			out = append(out, fmt.Sprintf("links: %s: the profile has laws of this class, which stand; to plan with the stated %s call it by a name that no law has", l.Name, l.Rate))
		}
	}
	return out
}

func (c Cluster) linkNames() []string {
	var names []string
	for _, l := range c.Links {
		names = append(names, l.Name)
	}
	return names
}

// members are the devices of all nodes, each type once.
func (c Cluster) members() []op.Member {
	var all []op.Member
	for _, n := range c.Nodes {
		all = append(all, n.Devices...)
	}
	return op.Merged(all)
}

// linkChoice is what a link class is chosen from, and the flag that chooses.
type linkChoice struct {
	measured, stated []string
	flag             string
	torch            string // the flag of calibrate that the devices' backend takes, if any (see throughTorch)
}

// fill settles an open class and checks a named one. The rate is that of the
// devices' datasheets, 0 where they are silent, as a way out of an error.
func (c linkChoice) fill(link *string, given string, rate float64) error {
	*link = cmp.Or(*link, given)
	all := slices.Concat(c.measured, c.stated)
	slices.Sort(all)
	all = slices.Compact(all)
	switch r, err := units.ParseRate(perSecond(*link)); {
	case err == nil && !slices.Contains(all, *link):
		name := c.anyName()
		return fmt.Errorf("%q is a rate, and no name of a link class; to plan with a rate that you state, which counts as assumed, give it a name: %s %s=%s, or in the links of the cluster file {name: %s, bytes_per_s: %g}", *link, c.flag, name, perSecond(*link), name, float64(r))
	case len(all) == 0:
		return fmt.Errorf("the profile has no link class at all; %s%s", c.measure(*link), c.bySheet(*link, rate))
	case *link == "" && len(c.measured) == 1:
		*link = c.measured[0]
	case *link == "" && len(all) == 1:
		*link = all[0]
	case *link == "" && len(c.stated) == 0:
		return fmt.Errorf("the profile has the link classes %s; choose with %s", strings.Join(all, ", "), c.flag)
	case *link == "":
		return fmt.Errorf("the profile and the cluster's links have the classes %s; choose with %s", strings.Join(all, ", "), c.flag)
	case !slices.Contains(all, *link):
		if spelling.Nearest(*link, all) != "" { // a slip is not asked to become a class
			return fmt.Errorf("link class %q is not in the profile%s", *link, nearest(*link, all))
		}
		return fmt.Errorf("link class %q is not in the profile%s; %s%s", *link, nearest(*link, all), c.measure(*link), c.bySheet(*link, rate))
	}
	return nil
}

// perSecond writes a rate as ParseRate reads it, 200Gbps as 200Gb/s: it is a common slip to
// give a link's rate in the place of its class.
func perSecond(rate string) string {
	if bits, ok := strings.CutSuffix(rate, "ps"); ok {
		return bits + "/s"
	}
	return rate
}

// anyName is a name for a link that has none, as the help of the flags has it.
func (c linkChoice) anyName() string {
	if c.flag == "--network" {
		return "net"
	}
	return "bus"
}

// measure is the way out of a link class without laws.
func (c linkChoice) measure(link string) string {
	return "measure one: evenkeel calibrate --fresh --only send_recv" + cmp.Or(throughTorch(link), c.torch)
}

// bySheet ends an error with what datasheets offer instead of a measurement, or with the flag
// that states what they do not.
func (c linkChoice) bySheet(link string, rate float64) string {
	name := cmp.Or(link, strings.TrimPrefix(c.flag, "--"))
	if rate == 0 {
		return fmt.Sprintf("; or plan with a rate that you state, which counts as assumed, such as %s %s=25GB/s", c.flag, name)
	}
	entry := fmt.Sprintf("{name: %s, bytes_per_s: %g}", name, rate)
	add := "links: [" + entry + "] to the cluster file"
	if len(c.stated) > 0 { // YAML takes no key twice
		add = entry + " to the links of the cluster file"
	}
	return fmt.Sprintf("; or plan with the datasheet's rate, which counts as assumed: %s %s=%gGB/s, or add %s", c.flag, name, rate/1e9, add)
}

// insideRate is the rate between the devices of a node over a link class, by their
// datasheets: of PCIe that of a device to its host, for its own links may be NVLink.
func insideRate(devices []op.DeviceType, members []op.Member, class string) float64 {
	return slowestSheet(devices, members, func(s op.Sheet) float64 {
		if strings.Contains(class, "pcie") {
			return s.HostPerS
		}
		return cmp.Or(s.LinkPerS, s.HostPerS)
	})
}

// networkRate is the rate of a device to other nodes, by their datasheets.
func networkRate(devices []op.DeviceType, members []op.Member) float64 {
	return slowestSheet(devices, members, func(s op.Sheet) float64 { return s.NetPerS })
}

// slowestSheet is the least rate among members' datasheets; 0 where one is silent.
func slowestSheet(devices []op.DeviceType, members []op.Member, rate func(op.Sheet) float64) float64 {
	least := math.Inf(1)
	for _, m := range members {
		at := slices.IndexFunc(devices, func(d op.DeviceType) bool { return d.Name == m.Device })
		if at < 0 {
			return 0
		}
		least = min(least, rate(devices[at].Sheet))
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// mostSizes bounds the groups of which an assumed link gets laws size by size.
const mostSizes = 64

// AssumeLinks is the profile with laws of the link classes that a resolved
// cluster states and uses: for a whole node and for each number of its like
// devices, and between nodes for all devices of every choice of kinds of nodes.
// They are marked as assumed, with a wide interval (see AssumedWire). Where the
// profile itself has a law of a collective over the class among the same GPU
// models, that one stays and none is assumed. The profile given is left as it is.
func AssumeLinks(p *Profile, c Cluster) *Profile {
	out := *p
	out.Groups, out.Laws = slices.Clone(p.Groups), slices.Clone(p.Laws)
	for _, n := range c.Nodes {
		if l, ok := c.stated(n.Link); ok && n.Size() > 1 {
			out.assumeInside(p, n, l)
		}
	}
	if l, ok := c.stated(c.Network); ok && len(c.Nodes) > 1 {
		for _, nodes := range slices.Concat(c.kindsTogether(), c.FasterTogether(p)) {
			part := c
			part.Nodes = nodes
			out.assume(p, networkWire(p, part, l))
		}
	}
	return &out
}

// mostKinds bounds the kinds of nodes, and the device types, of which every choice gets
// laws of a network.
const mostKinds = 6

// kindsTogether lists the nodes of every choice of kinds, for a plan may leave
// some out and be spared their links: kinds are told apart by their devices, as
// laws of groups are. Of many kinds it is all nodes and the nodes of each kind.
// Choices of a single node have no network.
func (c Cluster) kindsTogether() [][]Node {
	var kinds []string
	of := make([]int, len(c.Nodes))
	for i, n := range c.Nodes {
		var types []string
		for _, m := range n.Devices {
			types = append(types, m.Device)
		}
		slices.Sort(types)
		name := strings.Join(types, " ")
		if of[i] = slices.Index(kinds, name); of[i] < 0 {
			of[i] = len(kinds)
			kinds = append(kinds, name)
		}
	}
	var out [][]Node
	for _, choice := range choices(len(kinds)) {
		var nodes []Node
		for i, n := range c.Nodes {
			if choice[of[i]] {
				nodes = append(nodes, n)
			}
		}
		if len(nodes) > 1 {
			out = append(out, nodes)
		}
	}
	return out
}

// TypesTogether lists the cluster with the devices of every choice of device types
// alone, first with all, where these are in more than one node. Of many types it is
// all and each.
func (c Cluster) TypesTogether() []Cluster {
	types := c.members()
	var out []Cluster
	for _, choice := range choices(len(types)) {
		part := c
		part.Nodes = nil
		for _, n := range c.Nodes {
			n.Devices = slices.DeleteFunc(slices.Clone(n.Devices), func(m op.Member) bool {
				return !choice[slices.IndexFunc(types, func(t op.Member) bool { return t.Device == m.Device })]
			})
			if len(n.Devices) > 0 {
				part.Nodes = append(part.Nodes, n)
			}
		}
		if len(part.Nodes) > 1 {
			out = append(out, part)
		}
	}
	return out
}

// choices lists the choices among n kinds that get laws: all kinds, each alone,
// and while they are few every other choice.
func choices(n int) [][]bool {
	all := make([]bool, n)
	for i := range all {
		all[i] = true
	}
	out := [][]bool{all}
	if n <= mostKinds {
		for bits := 1<<n - 2; bits > 0; bits-- {
			some := make([]bool, n)
			for i := range some {
				some[i] = bits>>i&1 == 1
			}
			out = append(out, some)
		}
		return out
	}
	for i := range n {
		one := make([]bool, n)
		one[i] = true
		out = append(out, one)
	}
	return out
}

// assumeInside adds the groups of a node.
func (p *Profile) assumeInside(own *Profile, n Node, l Link) {
	w := AssumedWire{Class: l.Name, Nodes: 1, Latency: cmp.Or(l.Latency, BusLatency), One: l.Rate, All: l.Rate, By: statedBy, Port: &op.Port{PerS: l.Rate, InNetwork: true}}
	for _, m := range n.Devices {
		for size := 2; size <= m.Count && m.Count <= mostSizes; size++ {
			w.Members = []op.Member{{Device: m.Device, Count: size}}
			p.assume(own, w)
		}
	}
	w.Members = n.Devices
	p.assume(own, w)
}

const statedBy = "the rate that the cluster states"

// networkWire is the network of a cluster: a hop and what an all-to-all sends to other
// nodes go through one card a device (the simulator charges for shared cards, and for the
// rest by the links inside; see Predictor.AbroadFactor), other collectives leave
// a node through all its cards at once, as far as the links inside it go. Cards bound
// no port, for a rank reaches those of its node past them.
func networkWire(p *Profile, c Cluster, l Link) AssumedWire {
	together, by := units.BytesPerS(math.Inf(1)), ""
	for _, n := range c.Nodes {
		if rate := c.leaves(p.Devices, n); rate < together {
			together, by = rate, cardsStated(n, l, rate)
		}
	}
	return AssumedWire{
		Class: l.Name, Members: c.members(), Nodes: len(c.Nodes), Latency: cmp.Or(l.Latency, NetLatency),
		One: l.Rate, All: together, By: statedBy, AllBy: by,
	}
}

// cardsStated says whose rate all cards of a node together have: the cluster states one card's.
func cardsStated(n Node, l Link, together units.BytesPerS) string {
	cards := cmp.Or(n.NICs, n.Size())
	switch {
	case together == l.Rate:
		return statedBy
	case together < l.Rate*units.BytesPerS(cards):
		return fmt.Sprintf("what the links inside a node carry of %s of its %d cards", statedBy, cards)
	}
	text := fmt.Sprintf("%s of %d cards a node, %.3g GB/s each", statedBy, cards, float64(l.Rate)/1e9)
	if n.NICs == 0 { // left out, or as many as devices: see Resolve
		text += ", one a device since nics says no fewer"
	}
	return text
}

// insideOf is the rate inside a node: as the cluster states it, or as its
// devices' datasheets do; 0 where neither does.
func (c Cluster) insideOf(devices []op.DeviceType, n Node) float64 {
	if l, ok := c.stated(n.Link); ok {
		return float64(l.Rate)
	}
	if n.Size() < 2 {
		return 0
	}
	return insideRate(devices, n.Devices, n.Link)
}

// assume adds a wire's group and those of its laws that the profile
// had none of on its own.
func (p *Profile) assume(own *Profile, w AssumedWire) {
	g, laws := w.Laws()
	for _, l := range laws {
		if own.answersOver(g, l.Op) || slices.ContainsFunc(p.Laws, func(o Law) bool { return o.key() == l.key() }) {
			continue
		}
		if !slices.ContainsFunc(p.Groups, func(o op.GroupType) bool { return o.Name == g.Name }) {
			p.Groups = append(p.Groups, g)
		}
		p.Laws = append(p.Laws, l)
	}
}

// answersOver says whether a collective has a law over a group's link class
// among its GPU models, in whatever library and number, inside a node or between
// nodes as the group is.
func (p *Profile) answersOver(g op.GroupType, k op.Kind) bool {
	return slices.ContainsFunc(p.Groups, func(o op.GroupType) bool {
		if o.Link != g.Link || (o.Nodes > 1) != (g.Nodes > 1) || !slices.Equal(modelsOf(o.Members), modelsOf(g.Members)) {
			return false
		}
		return slices.ContainsFunc(p.Laws, func(l Law) bool { return l.Group == o.Name && l.Op == k })
	})
}

// modelsOf lists the GPU models among members, sorted, each once.
func modelsOf(members []op.Member) []string {
	var names []string
	for _, m := range members {
		names = append(names, ModelOf(m.Device))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
