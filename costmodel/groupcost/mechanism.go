package groupcost

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// group is a kind of group on its own sub-cluster.
type group struct {
	b      *builder
	kind   kind
	job    costmodel.Job
	packer *costmodel.Packer
}

// mechanism is a way to share a sequence among the ranks of a group.
type mechanism struct {
	groups []costmodel.Group // of the sub-cluster's ranks
	heads  int               // ranks that share heads
	qHeads []int             // by pool where unequal
	share  []float64         // of a sequence, by rank
	kept   units.Tokens      // that fit with activations kept
	again  units.Tokens      // and with recomputation
	times  [2]units.Seconds  // of a full group of one sequence and of many
	// Schedule is how the groups are run: backward with own blocks last, or as ever.
	costmodel.Schedule
}

// String says how devices share a sequence.
func (m *mechanism) String() string {
	switch {
	case m.heads == 1:
		return "ring"
	case len(m.groups) == 1:
		return "all-to-all"
	}
	return fmt.Sprintf("all-to-all %d x ring %d", m.heads, len(m.groups))
}

// choose finds the fastest mechanisms of a group among those that hold at least
// half of what the one with the most memory left holds: the one that is within
// closeBy of the fastest for a full group of one sequence and for one of many (loads),
// or else the fastest of either, which are then classes of their own. There is none
// where nothing fits.
//
// Where links are fast one mechanism serves all lengths; where they are slow a
// ring, whose messages hide behind the attention of long sequences, wins there,
// and an all-to-all, which moves less, wins for short ones.
func (g *group) choose(ctx context.Context) ([]*mechanism, error) {
	fits, err := g.fitting(ctx)
	if err != nil || len(fits) == 0 {
		return nil, err
	}
	var fastest [2]*mechanism
	loads := g.loads(fits)
	for _, m := range fits {
		if err := g.time(ctx, m, loads); err != nil {
			return nil, err
		}
		for i := range loads {
			if fastest[i] == nil || m.times[i] < fastest[i].times[i] {
				fastest[i] = m
			}
		}
	}
	best, least := fits[0], math.Inf(1)
	for _, m := range fits {
		if p := float64(m.times[0]) * float64(m.times[1]); p < least {
			best, least = m, p
		}
	}
	for i, f := range fastest {
		if float64(best.times[i]) > closeBy*float64(f.times[i]) {
			return fastest[:], nil
		}
	}
	return []*mechanism{best}, nil
}

// closeBy is how many times slower than the fastest a mechanism may be without
// another class being made: less than what the laws are off by.
const closeBy = 1.05

// fitting lists the mechanisms with laws and memory. The error is the missing law
// if none has laws.
func (g *group) fitting(ctx context.Context) ([]*mechanism, error) {
	var fits []*mechanism
	var most units.Tokens
	var missing error
	weight := slices.Repeat([]float64{1}, len(g.kind.uses))
	lawful := false
	for _, m := range g.mechanisms() {
		err := g.tune(ctx, m, weight)
		if isMissing(err) {
			missing = err
			continue
		}
		if err != nil {
			return nil, err
		}
		lawful = true
		if g.fit(m); m.most() > 0 {
			fits = append(fits, m)
			most = max(most, m.most())
		}
	}
	if !lawful {
		return nil, missing
	}
	return slices.DeleteFunc(fits, func(m *mechanism) bool { return m.most() < most/2 }), nil
}

// loads are the groups for which mechanisms are compared: one long sequence and 64
// short ones that all of them hold; or one and as many as fit of the only length there is.
func (g *group) loads(fits []*mechanism) [2]costmodel.Documents {
	most := fits[0].most()
	for _, m := range fits {
		most = min(most, m.most())
	}
	if of := g.b.o.Of; of.Tokens > 0 {
		return [2]costmodel.Documents{{Tokens: of.Tokens, Count: 1}, {Tokens: of.Tokens, Count: g.together(most)}}
	}
	return [2]costmodel.Documents{{Tokens: most, Count: 1}, {Tokens: most / 64, Count: 64}}
}

// together is how many sequences of the only length a group has at most that holds so
// many tokens.
func (g *group) together(tokens units.Tokens) int {
	return int(min(units.Tokens(g.b.o.Of.Count), tokens/g.b.o.Of.Tokens))
}

// time fills in how long a mechanism takes over the loads. Of sequences of one length it
// has own blocks last where that takes less of both in the geometric mean. Of all lengths
// none has: in 54 batches on mixed clusters one order for a class gained 1 % (from a loss of
// 1 to a gain of 8), and in two of them plans fell behind those of each type apart.
func (g *group) time(ctx context.Context, m *mechanism, loads [2]costmodel.Documents) error {
	var last [2]units.Seconds
	for i, load := range loads {
		load.Tokens = max(load.Tokens, g.shortest(m))
		x, err := g.simulate(ctx, m, m.share, load)
		if err != nil {
			return err
		}
		m.times[i] = x.Time(m.kept == 0)
		if len(m.groups) < 2 || g.b.o.Of.Tokens == 0 {
			continue
		}
		if x, err = g.packer.OwnLast(); err != nil {
			return err
		}
		last[i] = x.Time(m.kept == 0)
	}
	if m.OwnLast = last[0]*last[1] > 0 && last[0]*last[1] < m.times[0]*m.times[1]; m.OwnLast {
		m.times = last
	}
	return nil
}

// passes simulates equal sequences in a group of a mechanism.
func (g *group) passes(ctx context.Context, m *mechanism, docs costmodel.Documents) (costmodel.Passes, error) {
	x, err := g.simulate(ctx, m, m.share, docs)
	if err != nil || !m.OwnLast {
		return x, err
	}
	return g.packer.OwnLast()
}

// simulate simulates equal sequences in a group of a mechanism, by given shares. Nothing
// else of pricing takes long, so that here is where the end of ctx, the error then, is seen.
func (g *group) simulate(ctx context.Context, m *mechanism, share []float64, docs costmodel.Documents) (costmodel.Passes, error) {
	if err := ctx.Err(); err != nil {
		return costmodel.Passes{}, err
	}
	return g.packer.Passes(m.groups, share, []costmodel.Documents{docs})
}

func (m *mechanism) most() units.Tokens { return max(m.kept, m.again) }

// shortest is the shortest sequence that is simulated: a token for every rank.
func (g *group) shortest(m *mechanism) units.Tokens {
	least := 1.0
	for _, w := range m.share {
		least = min(least, w)
	}
	return max(shortestSample, units.Tokens(math.Ceil(2/least)))
}

// shortestSample is the shortest length that laws are asked for; shorter
// sequences are priced in proportion.
const shortestSample = 256

// mechanisms lists the ways that the devices and the model's heads allow: a
// ring of all-to-alls among h neighbours of one part, h dividing every part and
// the heads (h = 1 is a ring); an all-to-all of all ranks of one type; and of
// several types one with unequal heads.
// A ring of more than longestRing single ranks is not tried where there are
// all-to-alls: it waits for its slowest link as often as it has ranks.
func (g *group) mechanisms() []*mechanism {
	heads, ranks := g.job.Model.QHeads, 0
	blocks := []int{}
	for _, p := range g.kind.parts {
		ranks += p.count
		blocks = append(blocks, p.count)
	}
	if g.pools() == 1 {
		blocks = []int{ranks}
	}
	var all []*mechanism
	for h := 1; h <= min(heads, slices.Max(blocks)); h++ {
		if heads%h == 0 && !slices.ContainsFunc(blocks, func(n int) bool { return n%h != 0 }) {
			all = append(all, g.equalHeads(ranks, h))
		}
	}
	if ranks > longestRing && len(all) > 1 {
		all = all[1:]
	}
	if g.pools() > 1 && ranks <= heads {
		if m := g.unequalHeads(ranks); m != nil {
			all = append(all, m)
		}
	}
	return all
}

// longestRing bounds rings of single ranks.
const longestRing = 32

// pools is the number of pools with devices in the group.
func (g *group) pools() int {
	n := 0
	for _, u := range g.kind.uses {
		if u > 0 {
			n++
		}
	}
	return n
}

// equalHeads makes all-to-alls of h neighbours with equal heads, in a ring.
func (g *group) equalHeads(ranks, h int) *mechanism {
	m := &mechanism{heads: h}
	for from := 0; from < ranks; from += h {
		var x costmodel.Group
		for i := range h {
			x = append(x, costmodel.HeadShare{Rank: from + i, QHeads: g.job.Model.QHeads / h})
		}
		m.groups = append(m.groups, x)
	}
	return m
}

// poolOf is the pool of a rank of the sub-cluster.
func (g *group) poolOf(rank int) int {
	for _, p := range g.kind.parts {
		if rank -= p.count; rank < 0 {
			return p.pool
		}
	}
	panic(fmt.Sprintf("groupcost: rank %d beyond the group", rank))
}

// typicalTokens a device is the sequence for which shares are set. Shorter ones
// lean on linear work and longer ones on attention, in which types differ alike
// to within some per cent.
const typicalTokens = 4096

// tune sets a mechanism's shares: equal on one type; on several such that, for a
// typical sequence, all devices compute for as long. Each round moves shares
// against the times of the last, since attention's time does not follow a rank's
// own tokens alone; the fastest round counts. The weights that it leaves are where
// the next mechanism of the same devices begins.
func (g *group) tune(ctx context.Context, m *mechanism, weight []float64) error {
	ranks := len(g.job.Cluster.Ranks())
	rounds := 1
	if g.pools() > 1 {
		rounds = tuneRounds
	}
	docs := costmodel.Documents{Tokens: units.Tokens(typicalTokens * ranks), Count: 1}
	var best units.Seconds
	for range rounds {
		share := g.sharesOf(weight)
		x, err := g.simulate(ctx, m, share, docs)
		if err != nil {
			return err
		}
		t, before := x.Time(false), best
		if m.share == nil || t < best {
			m.share, best = share, t
		}
		if rounds == 1 || before > 0 && math.Abs(float64(t-before)) < settled*float64(before) {
			break
		}
		g.shift(weight, x)
	}
	return nil
}

// After tuneRounds at most, or when a round changes the time by less than
// settled, shares stay.
const (
	tuneRounds = 4
	settled    = 0.01
)

// shift moves weights against the times of a round.
func (g *group) shift(weight []float64, x costmodel.Passes) {
	slowest := make([]float64, len(weight))
	for r := range x.Linear {
		p := g.poolOf(r)
		slowest[p] = max(slowest[p], float64(x.Linear[r]+x.Attention[r]))
	}
	for p, t := range slowest {
		if t > 0 {
			weight[p] /= t
		}
	}
	sum := 0.0
	for _, w := range weight {
		sum += w
	}
	for p := range weight {
		weight[p] /= sum
	}
}

// sharesOf are the shares of the ranks for weights of their pools.
func (g *group) sharesOf(weight []float64) []float64 {
	sum := 0.0
	for p, u := range g.kind.uses {
		sum += float64(u) * weight[p]
	}
	share := make([]float64, 0, len(g.kind.parts))
	for _, p := range g.kind.parts {
		for range p.count {
			share = append(share, weight[p.pool]/sum)
		}
	}
	return share
}

// shares are a mechanism's shares by pool, nil where all are equal.
func (m *mechanism) shares(g *group) []float64 {
	if g.pools() == 1 {
		return nil
	}
	by := make([]float64, len(g.kind.uses))
	for r, w := range m.share {
		by[g.poolOf(r)] = w
	}
	return by
}

// byPool are a mechanism's groups with the ranks counted pool by pool instead of
// node by node.
func (g *group) byPool(m *mechanism) []costmodel.Group {
	order := make([]int, len(m.share)) // ranks of the sub-cluster
	for r := range order {
		order[r] = r
	}
	slices.SortStableFunc(order, func(a, b int) int { return g.poolOf(a) - g.poolOf(b) })
	place := make([]int, len(order))
	for i, r := range order {
		place[r] = i
	}
	all := make([]costmodel.Group, len(m.groups))
	for i, x := range m.groups {
		for _, h := range x {
			all[i] = append(all[i], costmodel.HeadShare{Rank: place[h.Rank], QHeads: h.QHeads})
		}
	}
	return all
}

// fit finds how many tokens a mechanism holds.
func (g *group) fit(m *mechanism) {
	if !g.b.o.Recompute {
		m.kept = g.capacity(m, costmodel.RecomputeNone)
	}
	if !g.b.o.NoRecompute {
		m.again = g.capacity(m, costmodel.RecomputeFull)
	}
	// What does not hold one sequence of the only length holds none.
	if m.kept < g.b.o.Of.Tokens {
		m.kept = 0
	}
	if m.again < g.b.o.Of.Tokens {
		m.again = 0
	}
}

// capacity is the most tokens with which the usable memory of every rank suffices; the
// tightest one decides. Memory is all but straight in the tokens, so lines through
// two points find the border in a few steps; halves do where they do not.
func (g *group) capacity(m *mechanism, r costmodel.Recompute) units.Tokens {
	j := g.job
	j.Recompute = r
	room := func(t units.Tokens) float64 { // of the tightest rank, in bytes
		least := math.Inf(1)
		for _, x := range g.b.q.PackMemory(j, m.groups, m.share, t, len(g.b.ranks)) {
			least = min(least, x.Room())
		}
		return least
	}
	lo, hi := units.Tokens(1), mostTokens
	left, short := room(lo), room(hi)
	switch {
	case left < 0:
		return 0
	case short >= 0:
		return hi
	}
	for step := 0; lo+1 < hi; step++ {
		mid := lo + (hi-lo)/2
		if step%3 != 2 {
			mid = lo + units.Tokens(float64(hi-lo)*left/(left-short))
			mid = min(max(mid, lo+1), hi-1)
		}
		if x := room(mid); x >= 0 {
			lo, left = mid, x
		} else {
			hi, short = mid, x
		}
		if float64(hi-lo) < float64(lo)/1e4 {
			break
		}
	}
	return lo
}

// mostTokens is more than any group of a cluster holds.
const mostTokens = units.Tokens(1) << 30
