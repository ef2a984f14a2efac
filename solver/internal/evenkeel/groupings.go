package evenkeel

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// grouper makes the groupings of a pool.
type grouper struct {
	*estimator
	classes [][]int // ranks by class, of those the pool has
	limit   int     // most groupings
	out     []*draft
	seen    map[string]bool
	cuts    map[sizeCut]*sortedGroups // those made so far
	key     []byte                    // room for that of a grouping
}

// sizeCut is a way to cut ranks, named by the first and how many follow it in their class,
// into groups of a size.
type sizeCut struct {
	first, ranks, size int
	strided            bool
}

// sortedGroups are groups, sorted into kinds.
type sortedGroups struct {
	kinds []groupKind
	keys  []string // of the kinds, with how many groups they have
	legal bool
}

// groupings lists ways to form groups of a pool's ranks, at most limit: every
// size within each class; groups that take a share of several classes, so that
// all can be equally strong; and while ranks are few, all there are.
func (e *estimator) groupings(ranks []int, limit int) []*draft {
	g := &grouper{estimator: e, limit: limit, seen: map[string]bool{}, cuts: map[sizeCut]*sortedGroups{}}
	byClass := make([][]int, len(e.dev))
	for _, r := range ranks {
		byClass[e.class[r]] = append(byClass[e.class[r]], r)
	}
	for _, of := range byClass {
		if len(of) > 0 {
			g.classes = append(g.classes, of)
		}
	}
	if len(ranks) <= partitionRanks {
		g.everyPartition(ranks)
	}
	g.apart(nil, g.classes)
	for _, together := range g.mixes() {
		var mixed, rest [][]int
		for i, of := range g.classes {
			if slices.Contains(together, i) {
				mixed = append(mixed, of)
			} else {
				rest = append(rest, of)
			}
		}
		for _, n := range stripeCounts(mixed) {
			g.apart(stripes(mixed, n), rest)
			g.apart(strided(mixed, n), rest)
		}
		if len(mixed) == 2 {
			g.teams(mixed[0], mixed[1], rest)
		}
	}
	return g.out
}

// teams forms as many groups as there can be of a ranks of one class and b of
// another, for small a and b, and leaves the others to their own.
func (g *grouper) teams(x, y []int, rest [][]int) {
	for a := 1; a <= teamSize; a++ {
		for b := 1; b <= teamSize; b++ {
			n := min(len(x)/a, len(y)/b)
			if n == 0 || n*a == len(x) && n*b == len(y) {
				continue // a stripe
			}
			groups := stripes([][]int{x[:n*a], y[:n*b]}, n)
			others := slices.Clone(rest)
			for _, left := range [][]int{x[n*a:], y[n*b:]} {
				if len(left) > 0 {
					others = append(others, left)
				}
			}
			g.apart(groups, others)
		}
	}
}

// teamSize is the most ranks of a class in a team.
const teamSize = 4

// partitionRanks is up to how many ranks all partitions are listed: of eight in
// two classes some hundred.
const partitionRanks = 8

// mixes lists which classes share groups: all, and every pair.
func (g *grouper) mixes() [][]int {
	n := len(g.classes)
	if n < 2 {
		return nil
	}
	all := [][]int{countTo(n)}
	for a := 0; n > 2 && a < n; a++ {
		for b := a + 1; b < n; b++ {
			all = append(all, []int{a, b})
		}
	}
	return all
}

// stripeCounts lists numbers of groups that several classes may share: up to
// the larger class's size, all numbers while they are few, then those by which
// it divides.
func stripeCounts(classes [][]int) []int {
	most := 0
	for _, of := range classes {
		most = max(most, len(of))
	}
	var counts []int
	for n := 1; n <= most; n++ {
		if most <= fewRanks || most%n == 0 {
			counts = append(counts, n)
		}
	}
	return counts
}

// stripes gives each of n groups an n-th of every class, neighbours together.
func stripes(classes [][]int, n int) [][]int {
	groups := make([][]int, n)
	for i := range groups {
		for _, of := range classes {
			groups[i] = append(groups[i], of[i*len(of)/n:(i+1)*len(of)/n]...)
		}
	}
	return slices.DeleteFunc(groups, func(g []int) bool { return len(g) == 0 })
}

// strided gives each of n groups an n-th of every class, every n-th rank: over
// several nodes neighbours are in different groups and so next to each other in
// the ring, which then keeps to the links inside nodes.
func strided(classes [][]int, n int) [][]int {
	groups := make([][]int, n)
	for _, of := range classes {
		for i, r := range of {
			groups[i%n] = append(groups[i%n], r)
		}
	}
	return slices.DeleteFunc(groups, func(g []int) bool { return len(g) == 0 })
}

// apart adds to some groups every combination of group sizes of the other
// classes. Groups of different classes, and the given ones, are never of one kind.
func (g *grouper) apart(given [][]int, classes [][]int) {
	options := make([][]*sortedGroups, len(classes)) // by class and size
	for i, of := range classes {
		for _, z := range g.sizes(of, len(classes)) {
			options[i] = append(options[i], g.cutOnce(of, z, false))
			if z > 1 && !g.together(of[0], of[len(of)-1]) {
				options[i] = append(options[i], g.cutOnce(of, z, true))
			}
		}
	}
	parts := make([]*sortedGroups, 1+len(classes))
	parts[0] = g.group(given)
	at := make([]int, len(classes))
	for {
		for i, k := range at {
			parts[1+i] = options[i][k]
		}
		g.addParts(parts)
		i := 0
		for i < len(at) {
			if at[i]++; at[i] < len(options[i]) {
				break
			}
			at[i] = 0
			i++
		}
		if i == len(at) || len(g.out) >= g.limit {
			return
		}
	}
}

// cutOnce cuts ranks of a class, or the rest of one, into groups of at most z.
func (g *grouper) cutOnce(of []int, z int, stride bool) *sortedGroups {
	key := sizeCut{of[0], len(of), z, stride}
	x, ok := g.cuts[key]
	if !ok {
		if stride {
			x = g.group(strided([][]int{of}, (len(of)+z-1)/z))
		} else {
			x = g.group(g.cutBySize(of, z))
		}
		g.cuts[key] = x
	}
	return x
}

// group sorts groups into kinds.
func (g *grouper) group(groups [][]int) *sortedGroups {
	d, keys := g.sorted(groups)
	x := &sortedGroups{kinds: d.kinds, legal: g.p.AllExchangeable(groups)}
	for i, k := range keys {
		x.keys = append(x.keys, string(binary.AppendUvarint(k, uint64(len(d.kinds[i].groups)))))
	}
	return x
}

// sizes lists group sizes for a class among so many: all while they are few
// ranks, else divisors of its share of a node and whole nodes together.
func (g *grouper) sizes(ranks []int, classes int) []int {
	n, inNode := len(ranks), 0
	for _, r := range ranks {
		if g.p.Ranks[r].Node == g.p.Ranks[ranks[0]].Node {
			inNode++
		}
	}
	most := 2 * g.p.Job.Model.QHeads
	var sizes []int
	for z := 1; z <= min(n, most); z++ {
		whole := z%inNode == 0 && (n/inNode)%(z/inNode) == 0
		few := n <= 8 && classes <= 2
		spread := (n/inNode)%z == 0
		if few || spread || z == n || z <= inNode && inNode%z == 0 || whole && z&(z-1) == 0 {
			sizes = append(sizes, z)
		}
	}
	// Where classes are many, so are combinations.
	for len(sizes) > 2 && power(2*len(sizes)-2, classes) > g.limit {
		at := leastMissed(sizes, inNode)
		sizes = slices.Delete(sizes, at, at+1)
	}
	return sizes
}

// leastMissed says where among some sizes, but for the first and the last, is the
// one that a class can do without: what is no part of a node, then the smallest
// part, and the whole node last.
func leastMissed(sizes []int, inNode int) int {
	for i := 1; i < len(sizes)-1; i++ {
		if inNode%sizes[i] != 0 {
			return i
		}
	}
	return 1
}

func power(x, n int) int {
	p := 1
	for range n {
		p *= x
	}
	return p
}

// cutBySize forms near-equal groups of at most z ranks, node by node where a
// group fits one.
func (g *grouper) cutBySize(ranks []int, z int) [][]int {
	var stretches [][]int
	for i := 0; i < len(ranks); {
		k := i + 1
		for k < len(ranks) && g.p.Ranks[ranks[k]].Node == g.p.Ranks[ranks[i]].Node {
			k++
		}
		stretches = append(stretches, ranks[i:k])
		i = k
	}
	if z > len(stretches[0]) {
		stretches = [][]int{ranks}
	}
	var groups [][]int
	for _, s := range stretches {
		groups = append(groups, stripes([][]int{s}, (len(s)+z-1)/z)...)
	}
	return groups
}

// everyPartition adds all partitions of a few ranks. Equal ranks of a node may
// change places, so each joins no group before that of the one before it.
func (g *grouper) everyPartition(ranks []int) {
	var groups [][]int
	var place func(i, from int)
	place = func(i, from int) {
		if i == len(ranks) {
			all := make([][]int, len(groups))
			for k := range groups {
				all[k] = slices.Clone(groups[k])
			}
			g.add(all)
			return
		}
		if i > 0 && !(g.together(ranks[i-1], ranks[i]) && g.class[ranks[i-1]] == g.class[ranks[i]]) {
			from = 0
		}
		for k := from; k < len(groups); k++ {
			groups[k] = append(groups[k], ranks[i])
			place(i+1, k)
			groups[k] = groups[k][:len(groups[k])-1]
		}
		groups = append(groups, []int{ranks[i]})
		place(i+1, len(groups)-1)
		groups = groups[:len(groups)-1]
	}
	place(0, 0)
}

// add takes a grouping that is legal and not there yet.
func (g *grouper) add(groups [][]int) { g.addParts([]*sortedGroups{g.group(groups)}) }

// addParts is add of groups together that share no kind.
func (g *grouper) addParts(parts []*sortedGroups) {
	if len(g.out) >= g.limit {
		return
	}
	kinds, keys := 0, make([]string, 0, 16)
	for _, x := range parts {
		if !x.legal {
			return
		}
		kinds += len(x.kinds)
		keys = append(keys, x.keys...)
	}
	g.key = appendDraftKey(g.key[:0], keys)
	if g.seen[string(g.key)] {
		return
	}
	g.seen[string(g.key)] = true
	d := &draft{kinds: make([]groupKind, 0, kinds)}
	for _, x := range parts {
		d.kinds = append(d.kinds, x.kinds...)
	}
	d.ring = d.byRank()
	g.out = append(g.out, d)
}

// draft sorts groups into kinds, without shares, in a ring by rank.
func (e *estimator) draft(groups [][]int) *draft {
	d, _ := e.sorted(groups)
	d.ring = d.byRank()
	return d
}

// sorted is a draft without a ring, and the keys of its kinds.
func (e *estimator) sorted(groups [][]int) (d *draft, keys [][]byte) {
	d = &draft{}
	kind, count := make([]int, len(groups)), make([]int, 0, 8) // of each group; how many of each kind
	var key []byte
	for g, ranks := range groups {
		key = e.appendGroupKey(key[:0], ranks)
		at := slices.IndexFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
		if at < 0 {
			at = len(d.kinds)
			keys = append(keys, bytes.Clone(key))
			k := groupKind{class: make([]int, len(ranks))}
			for i, r := range ranks {
				k.class[i] = e.class[r]
			}
			d.kinds, count = append(d.kinds, k), append(count, 0)
		}
		kind[g] = at
		count[at]++
	}
	for k := range d.kinds {
		d.kinds[k].groups = make([][]int, 0, count[k])
	}
	for g, ranks := range groups {
		d.kinds[kind[g]].groups = append(d.kinds[kind[g]].groups, ranks)
	}
	return d, keys
}

// appendGroupKey tells groups apart by the classes of their members and by which of
// them share a node.
func (e *estimator) appendGroupKey(b []byte, ranks []int) []byte {
	first := e.p.Ranks[ranks[0]].Node
	nth, last := 0, first
	for _, r := range ranks {
		if node := e.p.Ranks[r].Node; node != last {
			nth, last = nth+1, node
		}
		b = binary.AppendUvarint(b, uint64(e.class[r]))
		b = binary.AppendUvarint(b, uint64(nth))
	}
	return b
}

// draftKey tells groupings apart: how many groups of which kind.
func draftKey(d *draft, keys [][]byte) string {
	counted := make([]string, len(keys))
	for i := range d.kinds {
		counted[i] = string(binary.AppendUvarint(keys[i], uint64(len(d.kinds[i].groups))))
	}
	return string(appendDraftKey(nil, counted))
}

// appendDraftKey is the same from the keys of kinds with their counts, which it sorts.
func appendDraftKey(b []byte, keys []string) []byte {
	slices.Sort(keys)
	for _, k := range keys {
		b = append(append(b, byte(len(k))), k...)
	}
	return b
}

// countTo lists 0 to n-1.
func countTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
