package costmodel

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/evenkeel/evenkeel/costmodel/op"

	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
)

// ClusterSchema is the schema of cluster.yaml.
const ClusterSchema = "evenkeel.cluster/v1"

// MaxRanks bounds a cluster: what a shorthand such as 65536x65536 would
// otherwise allocate, and far beyond any ring.
const MaxRanks = 1 << 16

// Cluster is the devices a job may run on and the classes of the links between
// them, all by their names in a profile.
type Cluster struct {
	Nodes   []Node `json:"nodes"`
	Network string `json:"network,omitempty"` // link class between nodes
	// Links are classes at their datasheet's rate, which need no measured law.
	Links []Link `json:"links,omitempty"`
}

// Node is a machine: devices that share one link class.
type Node struct {
	Name    string      `json:"name" yaml:"name"`
	Link    string      `json:"link,omitempty" yaml:"link"` // link class between the node's devices
	NICs    int         `json:"nics,omitzero" yaml:"nics"`  // network cards that the devices share; 0 is one a device
	Devices []op.Member `json:"devices" yaml:"devices"`
}

// Rank is one device of a cluster.
type Rank struct {
	Node     int    // index into Cluster.Nodes
	NodeName string // of that node
	Device   string // device type
}

// Size is the number of devices of the node.
func (n Node) Size() int {
	total := 0
	for _, m := range n.Devices {
		total += m.Count
	}
	return total
}

// Ranks lists the devices in node order, within a node in the order of its
// device list; the index is the rank.
func (c Cluster) Ranks() []Rank {
	var ranks []Rank
	for i, n := range c.Nodes {
		for _, m := range n.Devices {
			for range m.Count {
				ranks = append(ranks, Rank{Node: i, NodeName: n.Name, Device: m.Device})
			}
		}
	}
	return ranks
}

// String writes the cluster in the shorthand of ParseCluster; node names and
// link classes, which the shorthand does not have, are left out.
func (c Cluster) String() string {
	var terms []string
	for i := 0; i < len(c.Nodes); {
		same := 1
		for i+same < len(c.Nodes) && slices.Equal(c.Nodes[i].Devices, c.Nodes[i+same].Devices) {
			same++
		}
		terms = append(terms, fmt.Sprintf("%dx%s", same, membersString(c.Nodes[i].Devices)))
		i += same
	}
	return strings.Join(terms, " + ")
}

func membersString(members []op.Member) string {
	var parts []string
	for _, m := range members {
		parts = append(parts, fmt.Sprintf("%d %s", m.Count, m.Device))
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return "(" + strings.Join(parts, " + ") + ")"
}

// Validate reports the first node or field that is missing, repeated or out of range.
func (c Cluster) Validate() error {
	if len(c.Nodes) == 0 {
		return fmt.Errorf("nodes: none: a cluster has at least one node, such as 1x8 h100_sxm")
	}
	names, ranks := map[string]int{}, 0
	for i, n := range c.Nodes {
		if err := n.validate(); err != nil {
			return fmt.Errorf("nodes[%d].%w", i, err)
		}
		if first, again := names[n.Name]; again {
			return fmt.Errorf("nodes[%d].name: %q: nodes[%d] has this name already; give every node its own", i, n.Name, first)
		}
		names[n.Name] = i
		if ranks += n.Size(); ranks > MaxRanks {
			return fmt.Errorf("nodes[%d]: more than %d devices up to here: that is the most a cluster may have", i, MaxRanks)
		}
	}
	if c.Network != "" && !isWord(c.Network) {
		return fmt.Errorf("network: %w", CheckLinkClass(c.Network))
	}
	return c.validateLinks()
}

// CheckLinkClass refuses what no cluster can call a class of links.
func CheckLinkClass(name string) error {
	if isWord(name) {
		return nil
	}
	return fmt.Errorf("%.80q: want the name of a link class: a word of at most %d bytes without spaces", name, maxName)
}

// maxName bounds the names in a cluster, whose nearest neighbours are looked for.
const maxName = 256

func isWord(s string) bool {
	return s != "" && len(s) <= maxName && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })
}

func (n Node) validate() error {
	switch {
	case !isWord(n.Name):
		return fmt.Errorf("name: %.80q: want a word of at most %d bytes without spaces", n.Name, maxName)
	case n.Link != "" && !isWord(n.Link):
		return fmt.Errorf("link: %w", CheckLinkClass(n.Link))
	case len(n.Devices) == 0:
		return fmt.Errorf("devices: none: node %s needs at least one device", n.Name)
	}
	if err := n.validateDevices(); err != nil {
		return err
	}
	switch {
	case n.NICs < 0:
		return fmt.Errorf("nics: %d: want the number of network cards that the devices of node %s share, or leave it out for one a device", n.NICs, n.Name)
	case n.NICs > n.Size():
		return fmt.Errorf("nics: %d for the %s of node %s: a device sends through one card; leave nics out for one a device, and give the network class the rate of all cards that a device drives", n.NICs, units.Count(n.Size(), "device"), n.Name)
	}
	return nil
}

func (n Node) validateDevices() error {
	seen := map[string]bool{}
	for i, m := range n.Devices {
		switch {
		case !isWord(m.Device) || strings.ContainsAny(m.Device, "+()"):
			return fmt.Errorf("devices[%d].device: %.80q: want the name of a device type, without spaces, + or parentheses", i, m.Device)
		case m.Count < 1:
			return fmt.Errorf("devices[%d].count: %d of %s: want at least 1", i, m.Count, m.Device)
		case m.Count > MaxRanks:
			return fmt.Errorf("devices[%d].count: %d of %s: want at most %d", i, m.Count, m.Device, MaxRanks)
		case seen[m.Device]:
			return fmt.Errorf("devices[%d].device: %q: listed twice in node %s; add the counts", i, m.Device, n.Name)
		}
		seen[m.Device] = true
	}
	return nil
}

const shorthandHelp = `write it as nodes x devices type, such as "2x8 h100_sxm + 2x8 a100_sxm", or "1x(4 h100_sxm + 4 a100_sxm)" for a mixed node`

// ParseCluster reads the shorthand: terms joined by +, each `NxM type` (N nodes
// with M devices of a type) or `Nx(M type + M type)` (N nodes of mixed
// devices). Nodes are named n0, n1, ...; link classes are left for Resolve.
//
// Errors name the term, what is wrong with it and the form to write.
func ParseCluster(s string) (Cluster, error) {
	var c Cluster
	ranks := 0
	for _, term := range splitTop(s) {
		count, members, err := parseTerm(strings.TrimSpace(term))
		if err != nil {
			return Cluster{}, fmt.Errorf("cluster %.80q: %w", s, err)
		}
		// Counted before it is built, so that 65536x65536 costs nothing.
		if ranks += count * (Node{Devices: members}).Size(); ranks > MaxRanks {
			return Cluster{}, fmt.Errorf("cluster %.80q: %d devices up to %q: a cluster has at most %d", s, ranks, strings.TrimSpace(term), MaxRanks)
		}
		for range count {
			c.Nodes = append(c.Nodes, Node{Name: "n" + strconv.Itoa(len(c.Nodes)), Devices: slices.Clone(members)})
		}
	}
	if err := c.Validate(); err != nil {
		return Cluster{}, fmt.Errorf("cluster %.80q: %w", s, err)
	}
	return c, nil
}

// splitTop splits at the + signs that are outside parentheses.
func splitTop(s string) []string {
	var terms []string
	depth, from := 0, 0
	for i, r := range s {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		case '+':
			if depth == 0 {
				terms = append(terms, s[from:i])
				from = i + 1
			}
		}
	}
	return append(terms, s[from:])
}

func parseTerm(term string) (nodes int, members []op.Member, err error) {
	if term == "" {
		return 0, nil, fmt.Errorf("nothing where a term should be; %s", shorthandHelp)
	}
	head, rest, ok := strings.Cut(term, "x")
	if !ok || strings.ContainsFunc(head, unicode.IsLetter) { // the x of h100_sxm is no times
		return 0, nil, fmt.Errorf("%q has no node count; %s", term, shorthandHelp)
	}
	if nodes, err = parseCount(head, "nodes"); err != nil {
		return 0, nil, fmt.Errorf("%q: %w", term, err)
	}
	inside, mixed := strings.CutPrefix(strings.TrimSpace(rest), "(")
	parts := []string{rest}
	if mixed {
		if inside, ok = strings.CutSuffix(inside, ")"); !ok || strings.ContainsAny(inside, "()") {
			return 0, nil, fmt.Errorf("%q: parentheses do not match; %s", term, shorthandHelp)
		}
		parts = strings.Split(inside, "+")
	}
	for _, part := range parts {
		m, err := parseMember(part)
		if err != nil {
			return 0, nil, fmt.Errorf("%q: %w", term, err)
		}
		members = append(members, m)
	}
	return nodes, members, nil
}

func parseMember(s string) (op.Member, error) {
	fields := strings.Fields(s)
	if len(fields) != 2 {
		return op.Member{}, fmt.Errorf("%q is not a count and a device type; %s", strings.TrimSpace(s), shorthandHelp)
	}
	n, err := parseCount(fields[0], "devices")
	return op.Member{Device: fields[1], Count: n}, err
}

func parseCount(s, of string) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		return 0, fmt.Errorf("%q is no number of %s; %s", strings.TrimSpace(s), of, shorthandHelp)
	}
	if n < 1 || n > MaxRanks {
		return 0, fmt.Errorf("%d %s: want 1 to %d", n, of, MaxRanks)
	}
	return n, nil
}

// Resolve checks the cluster against a profile, puts device types in the place of
// GPU models (see DeviceFor) and fills the link classes that are empty and needed
// (a node of one device has no inner link, a cluster of one node no network):
// with the given class, or else with the profile's only one. A class that the
// cluster's links state counts as known; AssumeLinks then gives it laws. As many
// network cards as devices of a node are none that these share (NICs 0).
//
// Errors name the unknown device type or link class with those there are and
// the nearest, or the flag (--link, --network) that settles an open choice, or
// a flag that contradicts every entry of the cluster. Where a datasheet knows
// the rate of a link that nobody measured, they say how to plan with that.
func (c Cluster) Resolve(p *Profile, link, network string) (Cluster, error) {
	if err := c.Validate(); err != nil {
		return Cluster{}, err
	}
	c, err := c.Named(p)
	if err != nil {
		return Cluster{}, err
	}
	if err := c.Contradicts(link, network); err != nil {
		return Cluster{}, err
	}
	inside := linkChoice{measured: LinkClasses(p), stated: c.linkNames(), flag: "--link"}
	for _, m := range c.members() {
		inside.torch = cmp.Or(inside.torch, throughTorch(m.Device))
	}
	out := c
	out.Nodes = slices.Clone(c.Nodes)
	for i := range out.Nodes {
		n := &out.Nodes[i]
		if n.NICs == n.Size() { // which nobody shares, as where none are stated: such nodes are alike
			n.NICs = 0
		}
		if n.Size() < 2 && n.Link == "" {
			continue
		}
		if err := inside.fill(&n.Link, link, insideRate(p.Devices, n.Devices, cmp.Or(n.Link, link))); err != nil {
			return Cluster{}, &FieldError{fmt.Sprintf("nodes[%d].link", i), fmt.Errorf("link between the devices of node %s: %w", n.Name, err)}
		}
	}
	if len(out.Nodes) < 2 && out.Network == "" {
		return out, nil
	}
	between := inside
	between.flag = "--network"
	if err := between.fill(&out.Network, network, networkRate(p.Devices, c.members())); err != nil {
		return Cluster{}, &FieldError{"network", fmt.Errorf("link between nodes: %w", err)}
	}
	return out, nil
}

// Contradicts says which of the link classes that flags name (empty: none) would change
// nothing, since the cluster names others.
func (c Cluster) Contradicts(link, network string) error {
	open := func(n Node) bool { return n.Link == link || n.Link == "" && n.Size() > 1 }
	named := func(n Node) bool { return n.Link != "" }
	switch {
	case link != "" && slices.ContainsFunc(c.Nodes, named) && !slices.ContainsFunc(c.Nodes, open):
		return fmt.Errorf("--link %s contradicts the cluster, where every node names its own link class; leave one of them out", link)
	case network != "" && c.Network != "" && c.Network != network:
		return fmt.Errorf("--network %s contradicts the cluster's network %q; leave one of them out", network, c.Network)
	}
	return nil
}

// LinkClasses lists the link classes of a profile's groups, sorted.
func LinkClasses(p *Profile) []string {
	var classes []string
	for _, g := range p.Groups {
		if !slices.Contains(classes, g.Link) {
			classes = append(classes, g.Link)
		}
	}
	slices.Sort(classes)
	return classes
}

// nearest ends an error about an unknown name: the closest known one when it is
// close enough to be a slip, and the list.
func nearest(name string, known []string) string {
	if len(known) == 0 {
		return ", which has none"
	}
	return spelling.Hint(name, known) + "; it has " + strings.Join(known, ", ")
}
