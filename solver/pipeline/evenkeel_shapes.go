package pipeline

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
)

// typeRanks is the ranks of a device type, by node.
type typeRanks struct {
	device string
	nodes  [][]int
	count  int
}

// typesOf lists the device types in the order of their first ranks.
func (p *Problem) typesOf() []*typeRanks {
	var all []*typeRanks
	for _, node := range p.Nodes() {
		for _, r := range node {
			device := p.Device(r)
			at := slices.IndexFunc(all, func(t *typeRanks) bool { return t.device == device })
			if at < 0 {
				at = len(all)
				all = append(all, &typeRanks{device: device})
			}
			t := all[at]
			if last := len(t.nodes) - 1; last < 0 || !slices.Contains(node, t.nodes[last][0]) {
				t.nodes = append(t.nodes, nil)
			}
			last := len(t.nodes) - 1
			t.nodes[last] = append(t.nodes[last], r)
			t.count++
		}
	}
	return all
}

// cuts are the ways to cut a type's devices into stages that are alike: of as many devices of
// a node, which as many divide, or of as many whole nodes of one size.
func (p *Problem) cuts(t *typeRanks) [][]pipeline.Stage {
	var all [][]pipeline.Stage
	add := func(stages []pipeline.Stage) {
		if len(stages) <= min(p.Layers, mostStages) && !slices.ContainsFunc(stages, func(s pipeline.Stage) bool { return p.Fits(s.Ranks) != nil }) {
			all = append(all, stages)
		}
	}
	size := len(t.nodes[0])
	alike := !slices.ContainsFunc(t.nodes, func(n []int) bool { return len(n) != size })
	for d := 1; d <= size; d++ {
		if slices.ContainsFunc(t.nodes, func(n []int) bool { return len(n)%d != 0 }) {
			continue
		}
		var stages []pipeline.Stage
		for _, n := range t.nodes {
			for of := range slices.Chunk(n, d) {
				stages = append(stages, pipeline.Stage{Ranks: of})
			}
		}
		add(stages)
	}
	for k := 2; k <= len(t.nodes) && alike; k++ {
		if len(t.nodes)%k != 0 {
			continue
		}
		var stages []pipeline.Stage
		for of := range slices.Chunk(t.nodes, k) {
			ranks := slices.Concat(of...)
			slices.Sort(ranks)
			stages = append(stages, pipeline.Stage{Ranks: ranks})
		}
		add(stages)
	}
	return all
}

// mostShapes bounds how many sets of stages are looked at.
const mostShapes = 400

// unequalShapes are sets of stages, each of devices of one type, without layers yet: every
// type cut in every way, or left out, the types one behind the other in either direction.
func (p *Problem) unequalShapes() [][]pipeline.Stage {
	shapes := [][]pipeline.Stage{nil}
	types := p.typesOf()
	for _, t := range types {
		var more [][]pipeline.Stage
		ways := p.cuts(t)
		for _, x := range shapes {
			if len(types) > 1 {
				more = append(more, x)
			}
			for _, cut := range ways {
				more = append(more, slices.Concat(x, cut))
			}
		}
		shapes = more
	}
	if len(types) > 1 {
		for _, x := range slices.Clone(shapes) {
			back := p.reversed(x)
			if len(back) > 0 && back[0].Ranks[0] != x[0].Ranks[0] {
				shapes = append(shapes, back)
			}
		}
	}
	shapes = slices.DeleteFunc(shapes, func(x []pipeline.Stage) bool {
		return len(x) == 0 || len(x) > min(p.Layers, mostStages) || p.Stages > 0 && len(x) != p.Stages
	})
	return shapes[:min(len(shapes), mostShapes)]
}

// reversed has the types in the other direction, the stages of each as they were.
func (p *Problem) reversed(stages []pipeline.Stage) []pipeline.Stage {
	var out []pipeline.Stage
	for to := len(stages); to > 0; {
		from := to - 1
		for from > 0 && p.Device(stages[from-1].Ranks[0]) == p.Device(stages[from].Ranks[0]) {
			from--
		}
		out = append(out, stages[from:to]...)
		to = from
	}
	return out
}

// layered gives stages layers so that the busiest is as little so as can be: one after the
// other each layer to the stage that has least to do with it. each is the seconds of all
// chunks in a layer, extra what a stage has besides, most its layers at most.
func (p *Problem) layered(stages []pipeline.Stage, each, extra []float64, most []int) []pipeline.Stage {
	out := slices.Clone(stages)
	for s := range out {
		if out[s].Layers = 1; most[s] < 1 {
			return nil
		}
	}
	for left := p.Layers - len(out); left > 0; left-- {
		at, least := -1, 0.0
		for s := range out {
			if load := extra[s] + float64(out[s].Layers+1)*each[s]; out[s].Layers < most[s] && (at < 0 || load < least) {
				at, least = s, load
			}
		}
		if at < 0 {
			return nil
		}
		out[at].Layers++
	}
	return out
}
