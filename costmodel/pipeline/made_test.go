package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// made are prices that follow no model: numbers of whole microseconds and bytes, drawn from
// what is priced, so that whatever the simulator mixes up has another price. Ranks are like
// one another where their first ones are in the same half of sixty-four.
type made struct {
	salt  uint64
	rate  units.Seconds         // of all times; 0 is 1
	slow  map[int]units.Seconds // by the first rank of a stage: what its passes take times that
	asked map[string]int        // how often each price was asked for
	lacks string                // what has no price: work, send, finish, tied or floor
	room  units.Bytes
}

func (m *made) draw(what string, most int) float64 {
	if m.asked != nil {
		m.asked[what]++
	}
	h := fnv.New64a()
	fmt.Fprint(h, m.salt, what)
	return float64(1 + rand.New(rand.NewPCG(h.Sum64(), 1)).IntN(most))
}

func (m *made) seconds(what string) units.Seconds {
	rate := m.rate
	if rate == 0 {
		rate = 1
	}
	return rate * units.Seconds(m.draw(what, 100)) * 1e-6
}

var errLacks = errors.New("not measured")

func (m *made) lacking(what string) error {
	if m.lacks == what {
		return fmt.Errorf("%s: %w", what, errLacks)
	}
	return nil
}

func (m *made) like(ranks []int) string { return fmt.Sprint(len(ranks), ranks[0]/32) }

func (m *made) work(ranks []int, x costmodel.Chunk) (Work, error) {
	by := units.Seconds(1)
	if f, ok := m.slow[ranks[0]]; ok {
		by = f
	}
	key := fmt.Sprint(m.like(ranks), x)
	w := Work{by * m.seconds("forward"+key), by * m.seconds("again"+key), by * m.seconds("backward"+key), by * m.seconds("loss"+key)}
	return w, m.lacking("work")
}

func (m *made) send(from, to []int, tokens units.Tokens) (units.Seconds, error) {
	return m.seconds(fmt.Sprint("send", m.like(from), m.like(to), tokens)), m.lacking("send")
}

func (m *made) finish(ranks []int, layers int, first, last bool) (Finish, error) {
	key := fmt.Sprint("finish", m.like(ranks), layers, first, last)
	return Finish{m.seconds("gradients" + key), m.seconds("parameters" + key)}, m.lacking("finish")
}

// tied is 0 of half of all models.
func (m *made) tied(first, last []int) (units.Seconds, error) {
	return units.Seconds(m.salt%2) * m.seconds(fmt.Sprint("tied", m.like(first), m.like(last))), m.lacking("tied")
}

func (m *made) held(ranks []int, x costmodel.Chunk) costmodel.ChunkBytes {
	key := fmt.Sprint(m.like(ranks), x)
	b := costmodel.ChunkBytes{Kept: m.draw("kept"+key, 1000), Transient: m.draw("transient"+key, 1000), Logits: m.draw("logits"+key, 1000)}
	b.Again = float64(int(b.Kept * 0.3))
	if x.More {
		b.Gradients = m.draw("gradients"+key, 1000)
	}
	return b
}

func (m *made) states(ranks []int, layers int, first, last bool) units.Bytes {
	return units.Bytes(m.draw(fmt.Sprint("states", m.like(ranks), layers, first, last), 1000))
}

func (m *made) capacity([]int) units.Bytes { return m.room }

func (m *made) fits([]int) error { return nil }

func (m *made) brief([]int, costmodel.Chunk, costmodel.ChunkTimes) (*costmodel.Step, error) {
	return nil, nil
}

func (m *made) briefTied(first, last []int) (*costmodel.Step, error) { return nil, nil }

// replayed lets every rank compute something before and behind an all-to-all, which all of
// them leave together, in every layer.
func (m *made) replayed(ranks []int, x costmodel.Chunk, w costmodel.ChunkReplay) (*costmodel.Replayed, error) {
	if m.asked != nil {
		m.asked["replayed"]++
	}
	x.Whole = slices.Clone(x.Whole)
	slices.SortFunc(x.Whole, func(a, b costmodel.Documents) int { return cmp.Compare(a.Tokens, b.Tokens) })
	out := &costmodel.Replayed{Ranks: make([]costmodel.ReplayedRank, len(ranks))}
	at := make([]units.Seconds, len(ranks))
	task := func(i int, key costmodel.ReplayKey, o costmodel.ReplayOp, until units.Seconds) {
		key.Rank, key.Op = i, o
		out.Tasks = append(out.Tasks, costmodel.ReplayTask{ReplayKey: key, Start: at[i], Time: until - at[i]})
		at[i] = until
	}
	compute := func(i int, key costmodel.ReplayKey, o costmodel.ReplayOp) {
		key.Rank, key.Op = i, o
		t := m.seconds(fmt.Sprint(m.like(ranks), x, key))
		if w.Took != nil {
			if given, ok := w.Took(key); ok {
				t = given
			}
		}
		out.Ranks[i].Compute += t
		task(i, key, o, at[i]+t)
	}
	layer := func(key costmodel.ReplayKey, first, last costmodel.ReplayOp) {
		for i := range ranks {
			compute(i, key, first)
		}
		moved := m.seconds(fmt.Sprint("moved", m.like(ranks), x, key))
		together := slices.Max(at) + moved
		for i := range ranks {
			out.Ranks[i].Exposed += moved
			task(i, key, costmodel.AllToAllIn, together)
			compute(i, key, last)
		}
	}
	for i := range w.Layers {
		key := costmodel.ReplayKey{Layer: i, Dir: costmodel.ForwardPass}
		if w.Back {
			if key.Layer, key.Again = w.Layers-1-i, true; key.Layer < w.Again {
				layer(key, costmodel.LinearIn, costmodel.LinearOut)
			}
			key.Dir, key.Again = costmodel.BackwardPass, false
			layer(key, costmodel.LinearOut, costmodel.LinearIn)
			continue
		}
		layer(key, costmodel.LinearIn, costmodel.LinearOut)
	}
	for i := range ranks {
		if w.Loss {
			compute(i, costmodel.ReplayKey{Layer: w.Layers - 1, Dir: costmodel.ForwardPass}, costmodel.LossOp)
		}
		out.Ranks[i].End = at[i]
	}
	mid := slices.Max(at)
	out.Step = costmodel.Estimate{Lo: mid * units.Seconds(0.7+m.draw(fmt.Sprint("lo", x, w.Back), 20)/100), Mid: mid, Hi: mid * 1.2, Source: costmodel.Interpolated}
	if x.Context > 0 {
		out.Step.Source = costmodel.Extrapolated
	}
	return out, m.lacking("replayed")
}

func (m *made) floor(string, int, []units.Tokens) (layer, loss units.Seconds, err error) {
	return 0, 0, m.lacking("floor")
}

func (m *made) moving([]int, units.Tokens, bool) (units.Seconds, error) { return 0, nil }

func (m *made) warnings() []string { return nil }

func (m *made) inOrder([]units.Tokens) (*Costs, []int) { return nil, nil }

// costsOf prices lengths for a model of so many layers on nodes of four devices.
func costsOf(t testing.TB, lengths []units.Tokens, layers, devices int, from source) *Costs {
	t.Helper()
	ranks := make([]costmodel.Rank, devices)
	for r := range ranks {
		ranks[r] = costmodel.Rank{Device: "made", Node: r / 4}
	}
	c, err := newCosts(lengths, layers, ranks, from)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// drawnChunks cuts and packs some sequences at random: slices of some, each in a chunk of its
// own, behind those before; whole ones beside slices or one another.
func drawnChunks(r *rand.Rand, lengths []units.Tokens) []Chunk {
	var rest [][]Chunk // of a sequence, in order
	var whole []int
	for i, n := range lengths {
		if r.IntN(2) == 0 {
			whole = append(whole, i)
			continue
		}
		var all []Chunk
		for from := units.Tokens(0); from < n; {
			slice := min(n-from, units.Tokens(1+r.IntN(int(n))))
			all = append(all, Chunk{Sequence: i, Context: from, Slice: slice})
			from += slice
		}
		rest = append(rest, all)
	}
	var chunks []Chunk
	for len(rest) > 0 { // one sequence's slices among another's
		i := r.IntN(len(rest))
		chunks = append(chunks, rest[i][0])
		if rest[i] = rest[i][1:]; len(rest[i]) == 0 {
			rest = slices.Delete(rest, i, i+1)
		}
	}
	for _, w := range whole {
		k := r.IntN(len(chunks) + 1)
		if k == len(chunks) {
			chunks = append(chunks, Chunk{Sequence: -1})
		}
		chunks[k].Whole = append(chunks[k].Whole, w)
	}
	return chunks
}

// drawnStages gives out layers and devices at random, some of which have no stage.
func drawnStages(r *rand.Rand, layers, devices int) []Stage {
	n := 1 + r.IntN(min(layers, devices, 5))
	stages := make([]Stage, n)
	for range layers - n {
		stages[r.IntN(n)].Layers++
	}
	rank := 0
	for s := range stages {
		stages[s].Layers++
		rank += r.IntN(devices - rank - (n - s) + 1)
		width := 1 + r.IntN(devices-rank-(n-s)+1)
		for range width {
			stages[s].Ranks = append(stages[s].Ranks, rank)
			rank++
		}
	}
	return stages
}

// drawnPlan draws all of a plan: any order in which passes can go one at a time on all stages
// together is one in which no stages wait for each other.
func drawnPlan(r *rand.Rand, c *Costs) *Plan {
	p := &Plan{Stages: drawnStages(r, c.Layers, c.Devices()), Chunks: drawnChunks(r, c.Lengths)}
	n := len(p.Chunks)
	for _, x := range p.Stages {
		again := make([]int, n)
		for k := range again {
			again[k] = max(0, r.IntN(2*x.Layers+2)-x.Layers-1)
		}
		p.Recompute, p.Orders = append(p.Recompute, again), append(p.Orders, nil)
	}
	type pass struct {
		s, k int
		back bool
	}
	done := map[pass]bool{}
	could := func(x pass) bool {
		for _, need := range neededBy(p, x.s, x.k, x.back) {
			if !done[pass{need[0], need[1], need[2] == 1}] {
				return false
			}
		}
		return !done[x]
	}
	for len(done) < 2*n*len(p.Stages) {
		var next []pass
		for s := range p.Stages {
			for k := range n {
				for _, back := range []bool{false, true} {
					if x := (pass{s, k, back}); could(x) {
						next = append(next, x)
					}
				}
			}
		}
		x := next[r.IntN(len(next))]
		done[x] = true
		p.Orders[x.s] = append(p.Orders[x.s], Op{Chunk: x.k, Backward: x.back})
	}
	return p
}

// neededBy are the passes without whose results one cannot begin, as stage, chunk and 1 for a
// backward one; those of the sequence's slices next before or behind found anew each time.
func neededBy(p *Plan, s, k int, back bool) (all [][3]int) {
	of := p.Chunks[k]
	for j, x := range p.Chunks {
		if of.Slice > 0 && x.Slice > 0 && x.Sequence == of.Sequence {
			if !back && x.Context+x.Slice == of.Context {
				all = append(all, [3]int{s, j, 0})
			}
			if back && of.Context+of.Slice == x.Context {
				all = append(all, [3]int{s, j, 1})
			}
		}
	}
	switch {
	case back:
		all = append(all, [3]int{s, k, 0})
		if s+1 < len(p.Stages) {
			all = append(all, [3]int{s + 1, k, 1})
		}
	case s > 0:
		all = append(all, [3]int{s - 1, k, 0})
	}
	return all
}

// drawnLengths are up to so many sequences.
func drawnLengths(r *rand.Rand, most int) []units.Tokens {
	lengths := make([]units.Tokens, 1+r.IntN(most))
	for i := range lengths {
		lengths[i] = units.Tokens(1 + r.IntN(1000))
	}
	return lengths
}

// split says, by chunk, whether its slice's keys and values have to be kept for other slices.
func split(chunks []Chunk) []bool {
	before, behind := slicesOf(chunks)
	split := make([]bool, len(chunks))
	for k := range chunks {
		split[k] = before[k] >= 0 || behind[k] >= 0
	}
	return split
}
