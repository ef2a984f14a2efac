package pipeline

import (
	"cmp"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
)

// mostShapes bounds how many sets of stages are looked at.
const mostShapes = 400

// unequalShapes are sets of stages, each of devices of one type, without layers yet: every
// type cut in every way, or left out, the types one behind the other in either direction; of very many
// those with most speed. Where mixed, a type's stages may be of several sizes, and of more
// stages than layers the slowest are left out. Where stages are fixed it is these alone.
func (p *Problem) unequalShapes(mixed bool) [][]pipeline.Stage {
	if p.Fixed != nil {
		return [][]pipeline.Stage{p.Fixed}
	}
	shapes := [][]pipeline.Stage{nil}
	types := p.Types()
	for _, t := range types {
		more, ways := newShapes(p, mixed), p.cuts(t, mixed)
		for _, x := range shapes {
			if len(types) > 1 {
				more.add(x)
			}
			for _, cut := range ways {
				more.add(slices.Concat(x, cut))
			}
		}
		shapes = p.speediest(more.list, mostShapes)
	}
	shapes = slices.DeleteFunc(shapes, func(x []pipeline.Stage) bool { return len(x) == 0 || p.Stages > 0 && len(x) != p.Stages })
	var out [][]pipeline.Stage
	for _, x := range p.speediest(shapes, mostShapes/2) {
		out = append(out, x)
		if back := p.reversed(x); back[0].Ranks[0] != x[0].Ranks[0] {
			out = append(out, back)
		}
	}
	return out
}

// speediest are so many of the shapes, those first whose stages together have most layers a
// second.
func (p *Problem) speediest(shapes [][]pipeline.Stage, most int) [][]pipeline.Stage {
	if len(shapes) <= most {
		return shapes
	}
	speeds := make([]float64, len(shapes))
	order := make([]int, len(shapes))
	for i, x := range shapes {
		order[i] = i
		for _, s := range x {
			speeds[i] += p.speed(s)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(speeds[b], speeds[a]) })
	out := make([][]pipeline.Stage, most)
	for i := range out {
		out[i] = shapes[order[i]]
	}
	return out
}

// speed is about how many layers a second a stage computes of the batch.
func (p *Problem) speed(s pipeline.Stage) float64 {
	like := p.Like(s.Ranks)
	v, ok := p.speeds[like]
	if !ok {
		f, t := p.fitted(s.Ranks), 0.0
		for _, n := range p.Lengths {
			t += f.of(0, n)
		}
		if p.speeds == nil {
			p.speeds = map[int]float64{}
		}
		v = 1 / t
		p.speeds[like] = v
	}
	return v
}

// quickest are so many of the stages in their order, without the slowest, of several the last.
func (p *Problem) quickest(stages []pipeline.Stage, most int) []pipeline.Stage {
	if len(stages) <= most {
		return stages
	}
	order := make([]int, len(stages))
	for s := range order {
		order[s] = s
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.speed(stages[b]), p.speed(stages[a])) })
	order = order[:most]
	slices.Sort(order)
	out := make([]pipeline.Stage, most)
	for i, s := range order {
		out[i] = stages[s]
	}
	return out
}

// reversed has the types in the other direction, the stages of each as they were.
func (p *Problem) reversed(stages []pipeline.Stage) []pipeline.Stage {
	blocks := p.blocks(stages)
	slices.Reverse(blocks)
	return slices.Concat(blocks...)
}

// blocks are stages of one type behind one another.
func (p *Problem) blocks(stages []pipeline.Stage) (all [][]pipeline.Stage) {
	device := func(s int) string { return p.Device(stages[s].Ranks[0]) }
	from := 0
	for s := range stages {
		if s+1 == len(stages) || device(s) != device(s+1) {
			all, from = append(all, stages[from:s+1]), s+1
		}
	}
	return all
}

// rounds are stages of three types or more with another one first and the others behind it in
// turn, in either direction: of three types all orders.
func (p *Problem) rounds(stages []pipeline.Stage) (all [][]pipeline.Stage) {
	if p.Fixed != nil {
		return nil
	}
	for _, way := range [][]pipeline.Stage{stages, p.reversed(stages)} {
		blocks := p.blocks(way)
		for i := 0; i < len(blocks) && len(blocks) > 2; i++ {
			all = append(all, slices.Concat(append(slices.Clone(blocks[i:]), blocks[:i]...)...))
		}
	}
	return all
}

// layered gives stages layers so that the busiest is as little so as can be: one after the
// other each layer to the stage that has least to do with it. each is the seconds of all
// chunks in a layer, extra what a stage has besides, most its layers at most. Fixed stages have
// the layers that they have. It is nil where there is no room.
func (p *Problem) layered(stages []pipeline.Stage, each, extra []float64, most []int) []pipeline.Stage {
	if p.Fixed != nil {
		for s, x := range p.Fixed {
			if most[s] < x.Layers {
				return nil
			}
		}
		return slices.Clone(p.Fixed)
	}
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
