package bound

import (
	"cmp"
	"slices"
)

// scope is a set of ranks of which a layout may use some, with bounds on how many.
type scope struct {
	counts map[string]int // ranks to choose from, by device type
	least  int            // fewest ranks that take part
	fewest int            // fewest and most in the range under consideration, see ranges
	most   int
	node   int  // index of the node that holds all of them, or -1
	exact  bool // at least one rank of each device type takes part
}

// scopes lists what the ranks at work may be: one alone, several on one node, or
// some of more than one node, by their device types.
func (f *floors) scopes() []scope {
	var all []scope
	add := func(s scope) {
		if !slices.ContainsFunc(all, func(o scope) bool { return f.same(s, o) }) {
			all = append(all, s)
		}
	}
	c := f.job.Cluster
	whole := map[string]int{}
	for i, n := range c.Nodes {
		of := map[string]int{}
		for _, m := range n.Devices {
			of[m.Device] += m.Count
			whole[m.Device] += m.Count
			add(scope{counts: map[string]int{m.Device: 1}, least: 1, node: i})
		}
		if inside := (scope{counts: of, least: 2, node: i}); inside.size() > 1 {
			add(inside)
		}
	}
	if len(c.Nodes) > 1 {
		for _, s := range f.byTypes(whole) {
			add(s)
		}
	}
	slices.SortStableFunc(all, func(a, b scope) int { return cmp.Compare(b.size(), a.size()) })
	return all
}

// byTypes lists the scopes of several nodes: what the ranks exchange is priced by
// the device types at work, so that each choice of these is one; of many types, all
// choices together.
func (f *floors) byTypes(whole map[string]int) []scope {
	if len(f.names) > mostTypes {
		return []scope{{counts: whole, least: 2, node: -1}}
	}
	var all []scope
	for bits := 1; bits < 1<<len(f.names); bits++ {
		s := scope{counts: map[string]int{}, node: -1, exact: true}
		for i, name := range f.names {
			if bits>>i&1 == 1 {
				s.counts[name] = whole[name]
			}
		}
		nodes := 0
		for _, n := range f.job.Cluster.Nodes {
			if s.within(n) > 0 {
				nodes++
			}
		}
		if s.least = max(2, len(s.counts)); nodes > 1 {
			all = append(all, s)
		}
	}
	return all
}

// mostTypes bounds the device types whose choices are told apart.
const mostTypes = 4

// size is the number of ranks to choose from.
func (s scope) size() int {
	n := 0
	for _, k := range s.counts {
		n += k
	}
	return n
}

// same says whether two scopes have the same floors.
func (f *floors) same(a, b scope) bool {
	if a.least != b.least || len(a.counts) != len(b.counts) || (a.node < 0) != (b.node < 0) {
		return false
	}
	for d, n := range a.counts {
		if b.counts[d] != n {
			return false
		}
	}
	return a.least == 1 || a.node < 0 || f.job.Cluster.Nodes[a.node].Link == f.job.Cluster.Nodes[b.node].Link
}

// linkOf is the link class that all collectives among a scope's ranks cross.
func (f *floors) linkOf(s scope) string {
	if s.node < 0 {
		return f.job.Cluster.Network
	}
	return f.job.Cluster.Nodes[s.node].Link
}

// ranges cuts a scope by the number of ranks at work: few have less to exchange
// and more to compute. Small numbers are looked at by themselves, of others those
// between one and its double, the same for all scopes of a cluster.
func (s scope) ranges(ranks int) []scope {
	var all []scope
	for most := s.size(); most >= s.least; most = s.fewest - 1 {
		s.most, s.fewest = most, max(s.least, most)
		if most > eachRank {
			from := ranks
			for from >= most {
				from = (from - 1) / 2
			}
			s.fewest = max(s.least, from+1)
		}
		all = append(all, s)
	}
	return all
}

// eachRank is up to how many ranks at work each number is looked at by itself.
const eachRank = 16
