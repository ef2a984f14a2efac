package evenkeel

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// pool is a set of ranks that a plan may confine itself to. Leaving ranks out can pay: a
// slow rank, or a slow link, can cost more than it contributes.
type pool struct {
	ranks       []int
	tax, hidden float64 // seconds of a step besides layers and loss, see estimator.tax
}

// pools lists the whole cluster and parts of it: every choice of classes of ranks while
// there are few classes, one node of every kind, halves (quarters, ...) of the nodes,
// while ranks are few the k fastest for every k, or else halves (quarters, ...) of a node of
// every kind, and one rank of every class.
func (e *estimator) pools() []pool {
	all := countTo(len(e.class))
	var parts []func(r int) bool
	for _, mask := range classSets(len(e.dev)) {
		parts = append(parts, func(r int) bool { return mask>>e.class[r]&1 == 1 })
	}
	parts = append(parts, e.nodeParts()...)
	if len(all) <= fewRanks {
		parts = append(parts, e.fastestParts(all)...)
	} else {
		parts = append(parts, e.partsOfNodes()...)
	}
	for c := range e.dev { // the fastest alone may have too little memory
		one := slices.Index(e.class, c)
		parts = append(parts, func(r int) bool { return r == one })
	}
	return e.poolsOf(append([][]int{all}, e.ranksIn(parts)...), map[string]bool{})
}

// furtherPools lists further pools beside the known ones: every choice of device types
// where there are too many classes to choose among, and the nodes with at least so many
// ranks, since a small node can cost more in the exchange than it computes.
func (e *estimator) furtherPools(known []pool) []pool {
	seen := map[string]bool{}
	for i := range known {
		seen[e.composition(known[i].ranks)] = true
	}
	var parts []func(r int) bool
	if len(e.dev) > mostChosen {
		for _, mask := range classSets(len(e.m.Types)) {
			parts = append(parts, func(r int) bool { return mask>>e.m.TypeOf[r]&1 == 1 })
		}
	}
	sizes := slices.Clone(e.size)
	slices.Sort(sizes)
	for _, z := range slices.Compact(sizes) {
		parts = append(parts, func(r int) bool { return e.size[e.class[r]] >= z })
	}
	return e.poolsOf(e.ranksIn(parts), seen)
}

// ranksIn lists the ranks of each part, without parts that have none or all.
func (e *estimator) ranksIn(parts []func(r int) bool) [][]int {
	var sets [][]int
	for _, in := range parts {
		var some []int
		for r := range e.class {
			if in(r) {
				some = append(some, r)
			}
		}
		if len(some) > 0 && len(some) < len(e.class) {
			sets = append(sets, some)
		}
	}
	return sets
}

// poolsOf makes pools of sets of ranks, one for each composition not yet seen, without
// those whose memory is too small.
func (e *estimator) poolsOf(sets [][]int, seen map[string]bool) []pool {
	var pools []pool
	for _, ranks := range sets {
		key := e.composition(ranks)
		if seen[key] {
			continue
		}
		seen[key] = true
		if e.tooSmall(ranks) && len(seen) > 1 {
			continue
		}
		if tax, hidden, err := e.tax(ranks); err == nil {
			pools = append(pools, pool{ranks, tax, hidden})
		}
	}
	return pools
}

// fewRanks is up to how many ranks sets, numbers of groups and shares are tried
// rank by rank.
const fewRanks = 16

// classSets lists the choices of classes as bit sets: all while they are few,
// else every one alone and all but one.
func classSets(n int) []uint {
	var sets []uint
	if n <= mostChosen {
		for m := uint(1); m < 1<<n-1; m++ {
			sets = append(sets, m)
		}
		return sets
	}
	for c := range min(n, 16) {
		sets = append(sets, 1<<c, (1<<n-1)&^(1<<c))
	}
	return sets
}

// mostChosen is up to how many classes or types every choice of them is tried.
const mostChosen = 4

// nodeParts are one node of every kind, and the first half, quarter and so on of the
// nodes of each kind.
func (e *estimator) nodeParts() (parts []func(r int) bool) {
	nth, count := make([]int, len(e.m.NodeKind)), map[int]int{}
	first := map[int]int{}
	for node, kind := range e.m.NodeKind {
		nth[node] = count[kind]
		if count[kind] == 0 {
			first[kind] = node
		}
		count[kind]++
	}
	most := 0
	for kind := range len(count) {
		parts = append(parts, func(r int) bool { return e.p.Ranks[r].Node == first[kind] })
		most = max(most, count[kind])
	}
	for part := 2; part <= most; part *= 2 {
		parts = append(parts, func(r int) bool {
			node := e.p.Ranks[r].Node
			return nth[node]*part < count[e.m.NodeKind[node]]
		})
	}
	return parts
}

// partsOfNodes are the first half, quarter and so on of the ranks of one node of each kind: what
// short sequences save by more ranks may be less than these cost in exchanges within the node.
func (e *estimator) partsOfNodes() (parts []func(r int) bool) {
	seen := map[int]bool{}
	for node, kind := range e.m.NodeKind {
		if seen[kind] {
			continue
		}
		seen[kind] = true
		var ranks []int
		for r := range e.p.Ranks {
			if e.p.Ranks[r].Node == node {
				ranks = append(ranks, r)
			}
		}
		for k := len(ranks) / 2; k > 1; k /= 2 {
			parts = append(parts, func(r int) bool { return slices.Contains(ranks[:k], r) })
		}
	}
	return parts
}

// fastestParts are the k fastest ranks, for every k.
func (e *estimator) fastestParts(all []int) (parts []func(r int) bool) {
	s := max(1, e.p.Job.SeqLen/2)
	fast := slices.Clone(all)
	slices.SortStableFunc(fast, func(a, b int) int {
		return cmp.Compare(e.m.LinearTime(e.m.TypeOf[a], s), e.m.LinearTime(e.m.TypeOf[b], s))
	})
	for k := 1; k < len(fast); k++ {
		parts = append(parts, func(r int) bool { return slices.Contains(fast[:k], r) })
	}
	return parts
}

// composition is a key that is equal for sets of ranks with the same numbers of each
// class on equally occupied nodes.
func (e *estimator) composition(ranks []int) string {
	var b []byte
	node := -1
	var parts []string
	flush := func() {
		if len(b) > 0 {
			parts = append(parts, string(b))
		}
		b = b[:0]
	}
	for _, r := range ranks {
		if e.p.Ranks[r].Node != node {
			flush()
			node = e.p.Ranks[r].Node
		}
		b = binary.AppendUvarint(b, uint64(e.class[r]+1))
	}
	flush()
	slices.Sort(parts)
	var key []byte
	for _, x := range parts {
		key = append(append(key, x...), 0)
	}
	return string(key)
}
