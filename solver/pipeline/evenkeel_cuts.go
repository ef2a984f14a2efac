package pipeline

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
)

// cuts are the ways to cut a type's devices into stages: within every node into as many each, or
// into as many whole nodes of one size each. What is left over is left out, or, where mixed, makes
// further stages as well, of as many as fit. Where the number of stages is given there are, mixed,
// also those that have so many, or fewer, on all devices: see halved.
func (p *Problem) cuts(t pipeline.Type, mixed bool) [][]pipeline.Stage {
	all, size := newShapes(p, mixed), 0
	for _, n := range t.Nodes {
		size = max(size, len(n))
	}
	var whole, small [][]int
	for _, n := range t.Nodes {
		if len(n) == size {
			whole = append(whole, n)
		} else {
			small = append(small, n)
		}
	}
	add := func(pieces []piece, many int) {
		all.add(stagesOf(slices.DeleteFunc(slices.Clone(pieces), func(x piece) bool { return x.devices() < many })))
		if mixed {
			all.add(stagesOf(pieces))
		}
	}
	for d := 1; d <= size; d++ {
		var pieces []piece
		for _, n := range t.Nodes {
			pieces = append(pieces, p.within(n, d)...)
		}
		if p.Fits(make([]int, d)) == nil {
			add(pieces, d)
		}
	}
	rest := p.apart(small, 1)
	for k := 2; k <= len(whole); k++ {
		if pieces := p.apart(whole, k); len(pieces[0]) == k {
			add(slices.Concat(pieces, rest), k*size)
		}
	}
	if mixed && p.Stages > 0 {
		for pieces := slices.Concat(p.apart(whole, len(whole)), rest); len(pieces) <= all.most; {
			all.add(stagesOf(pieces))
			if pieces = p.halved(pieces); pieces == nil {
				break
			}
		}
	}
	return all.list
}

// piece is a stage in the making: devices of one node, or whole nodes.
type piece [][]int

func (x piece) devices() int {
	n := 0
	for _, node := range x {
		n += len(node)
	}
	return n
}

// stagesOf are pieces as stages.
func stagesOf(pieces []piece) []pipeline.Stage {
	var out []pipeline.Stage
	for _, x := range pieces {
		ranks := slices.Concat(x...)
		slices.Sort(ranks)
		out = append(out, pipeline.Stage{Ranks: ranks})
	}
	return out
}

// within cuts a node into pieces of up to d devices, each as large as fits.
func (p *Problem) within(node []int, d int) []piece {
	var out []piece
	for len(node) > 0 {
		n := p.fitting(node, min(d, len(node)))
		out, node = append(out, piece{node[:n:n]}), node[n:]
	}
	return out
}

// apart cuts nodes into pieces of up to k nodes, each as large as fits; nodes that do not fit
// are cut themselves.
func (p *Problem) apart(nodes [][]int, k int) []piece {
	var out []piece
	for len(nodes) > 0 {
		n := min(k, len(nodes))
		for n > 1 && p.Fits(slices.Concat(nodes[:n]...)) != nil {
			n--
		}
		if one := nodes[0]; n == 1 {
			out = append(out, p.within(one, len(one))...)
		} else {
			out = append(out, piece(nodes[:n:n]))
		}
		nodes = nodes[n:]
	}
	return out
}

// fitting is how many of a node's first devices make a stage, up to d of them: one always does.
func (p *Problem) fitting(node []int, d int) int {
	for d > 1 && p.Fits(node[:d]) != nil {
		d--
	}
	return d
}

// halved is the pieces with the largest, of several the last, cut in two halves, or, where halves
// do not fit, into the least more than that and what is left; nil where all are of one device.
func (p *Problem) halved(pieces []piece) []piece {
	at := 0
	for i, x := range pieces {
		if x.devices() >= pieces[at].devices() {
			at = i
		}
	}
	x := pieces[at]
	var parts []piece
	if n := len(x); n > 1 {
		parts = p.apart(x, p.half(n, func(k int) []int { return slices.Concat(x[:k]...) }))
	} else if n := len(x[0]); n > 1 {
		parts = p.within(x[0], p.half(n, func(k int) []int { return x[0][:k] }))
	} else {
		return nil
	}
	return slices.Concat(pieces[:at], parts, pieces[at+1:])
}

// half is the least of n parts, half of them at least but not all, that fits, or else the most.
func (p *Problem) half(n int, of func(k int) []int) int {
	for k := (n + 1) / 2; k < n; k++ {
		if p.Fits(of(k)) == nil {
			return k
		}
	}
	return n / 2 // of which as many are taken as fit
}

// unequal are sets of stages without layers yet, none twice and none with more stages than are
// looked for: those with more are without their slowest where they are shortened, or left out.
type unequal struct {
	p         *Problem
	most      int
	shortened bool
	list      [][]pipeline.Stage
	seen      map[string]bool
}

func newShapes(p *Problem, mixed bool) *unequal {
	most := min(p.Layers, mostStages)
	if p.Stages > 0 {
		most = min(most, p.Stages)
	}
	return &unequal{p: p, most: most, shortened: mixed || p.Stages > 0, seen: map[string]bool{}}
}

// add adds a set.
func (u *unequal) add(stages []pipeline.Stage) {
	if len(stages) > u.most && !u.shortened {
		return
	}
	stages = u.p.quickest(stages, u.most)
	if key := keyOf(stages); !u.seen[key] {
		u.seen[key] = true
		u.list = append(u.list, stages)
	}
}

// keyOf tells sets of stages apart.
func keyOf(stages []pipeline.Stage) string {
	var key []byte
	for _, s := range stages {
		for _, r := range s.Ranks {
			key = append(key, byte(r), byte(r>>8), byte(r>>16))
		}
		key = append(key, 255, 255, 255)
	}
	return string(key)
}
