package solver

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// evenKeel is our strategy: shares in proportion to what each rank really does
// in its time, then local search. It judges every layout by the simulator, and
// the baseline's layout is among them, so it never loses to that.
//
// Under the nested zigzag a rank's attention work is s S/2 pairs, linear in its
// tokens s whatever the others have, so busy time is close to affine in s and
// one split balances linear and attention work at once. The affine paces are
// read off simulated steps rather than added up from laws a second time here:
// a cost the simulator charges cannot be forgotten.
type evenKeel struct{}

func (evenKeel) Name() string { return "evenkeel" }

func (evenKeel) Claims() Claims {
	return Claims{Doc: "shares in proportion to each rank's own pace under its memory, then local search on simulated time"}
}

// Solve implements Strategy.
func (e evenKeel) Solve(ctx context.Context, p *Problem, report func(Progress)) (Result, error) {
	s := newSearch(ctx, p, e.Name(), report)
	s.run()
	switch {
	case s.err != nil:
		return Result{}, s.err
	case s.best != nil:
		return s.result(), nil
	case s.cut:
		return Result{}, fmt.Errorf("stopped before a layout that fits was found: %w", context.Cause(ctx))
	}
	return Result{Layout: s.start.layout(), Step: s.start.step, Evaluated: s.evaluated}, s.start.bad
}

// layoutState is a point of the search.
type layoutState struct {
	split []units.Tokens
	order []int // of all ranks; those without tokens are skipped
	step  *costmodel.Step
	bad   *MemoryError
}

func (x *layoutState) layout() costmodel.Layout {
	l := costmodel.ZigZag(x.split)
	l.Ring = l.Ring[:0]
	for _, r := range x.order {
		if x.split[r] > 0 {
			l.Ring = append(l.Ring, r)
		}
	}
	return l
}

// search is one run of the strategy.
type search struct {
	ctx       context.Context
	p         *Problem
	name      string
	report    func(Progress)
	n         int
	paces     []pace
	start     *layoutState // the baseline's
	best      *layoutState // of those that fit; nil while there is none
	seen      map[string]bool
	evaluated int
	budget    int           // most simulations: a count, not a time, so that results repeat
	enough    units.Seconds // a time so near the bound that nothing is left to gain
	leastGain float64
	cut       bool // ctx ended the search
	err       error
}

// searchWork is the number of simulations times squared ranks that a search may
// take: a simulation's time grows with the square of the ranks. It comes to
// about a second on one core.
const searchWork = 1_500_000

func newSearch(ctx context.Context, p *Problem, name string, report func(Progress)) *search {
	n := len(p.ranks)
	s := &search{
		ctx: ctx, p: p, name: name, report: report, n: n, seen: map[string]bool{}, leastGain: minGain,
		budget: min(4000, max(64, searchWork/(n*n))),
	}
	bound, err := LowerBound(p)
	s.enough, s.err = bound*(1+nearBound), err
	return s
}

// nearBound is the gap at which the search stops: a tenth of a percent is less
// than any law is good for, and usually not to be had.
const nearBound = 1e-3

func (s *search) done() bool {
	// Two layouts are simulated even when time is up: equal shares may not fit.
	if s.evaluated >= 2 && s.ctx.Err() != nil {
		s.cut = true
	}
	near := s.best != nil && s.best.step.Time.Mid <= s.enough
	return s.err != nil || s.cut || near || s.evaluated >= s.budget
}

func (s *search) run() {
	order := rankOrder(s.n)
	s.start = s.try(equalSplit(s.p.Job.SeqLen, s.n), order)
	if s.err != nil {
		return
	}
	s.firstPaces(s.start)
	s.fill(order)
	s.rings()
	s.leastGain = dropGain
	s.fewer()
	s.leastGain = minGain
	if s.best == nil {
		return
	}
	s.descend()
	s.fewer()
	s.descend()
}

// descend improves the best layout until nothing does.
func (s *search) descend() {
	for improved := true; improved && !s.done(); {
		before := s.best
		s.rings()
		s.swaps()
		s.shift()
		improved = s.best != before
	}
}

func rankOrder(n int) []int {
	order := make([]int, n)
	for r := range order {
		order[r] = r
	}
	return order
}

// minGain is the least relative gain for which a layout is given up: below it
// two layouts differ by less than anything the laws know, and equal devices
// would get unequal shares for the sake of rounding.
const minGain = 1e-5

// dropGain is the least relative gain for which ranks are left out before the
// others' shares are settled. A rank dropped too early is hard to take in again
// by small moves.
const dropGain = 5e-3

// try simulates a layout that was not seen before and keeps it if it is the
// best yet. It returns nil for one seen before and when the search is over.
func (s *search) try(split []units.Tokens, order []int) *layoutState {
	if s.done() || split == nil {
		return nil
	}
	key := fmt.Sprint(split, order)
	if s.seen[key] {
		return nil
	}
	s.seen[key] = true
	x := &layoutState{split: split, order: order}
	s.evaluated++
	if x.step, s.err = s.p.simulate(x.layout()); s.err != nil {
		return nil
	}
	x.bad = s.p.misfit(x.step)
	if x.bad == nil && (s.best == nil || x.step.Time.Mid < s.best.step.Time.Mid*units.Seconds(1-s.leastGain)) {
		s.best = x
		if s.report != nil {
			s.report(Progress{s.name, s.evaluated, x.step.Time.Mid})
		}
	}
	return x
}

// firstPaces takes every rank's time as proportional to its tokens.
func (s *search) firstPaces(x *layoutState) {
	s.paces = make([]pace, s.n)
	for r, k := range x.step.Ranks {
		s.paces[r] = pace{perToken: float64(k.Busy) / float64(max(1, k.Tokens))}
	}
}

// refine draws the affine pace of each rank through its last two different
// layouts: what a launch or a tile costs shows as the fixed part.
func (s *search) refine(before, now *layoutState) {
	for r := range s.paces {
		a, b := before.step.Ranks[r], now.step.Ranks[r]
		if a.Tokens == b.Tokens || a.Tokens == 0 || b.Tokens == 0 {
			continue
		}
		slope := float64(b.Busy-a.Busy) / float64(b.Tokens-a.Tokens)
		fixed := float64(b.Busy) - slope*float64(b.Tokens)
		// A law with steps can put the line askew; then keep to proportion.
		if slope <= 0 || fixed < 0 {
			slope, fixed = float64(b.Busy)/float64(b.Tokens), 0
		}
		s.paces[r] = pace{fixed, slope}
	}
}

// fill iterates water-filling and simulation until the split stands still.
func (s *search) fill(order []int) {
	before := s.start
	for range 8 {
		split := s.split(s.all())
		now := s.try(split, order)
		if now == nil {
			return
		}
		s.refine(before, now)
		before = now
	}
}

func (s *search) all() []bool {
	on := make([]bool, s.n)
	for r := range on {
		on[r] = true
	}
	return on
}

// split fills the ranks that are on, within memory. How much a rank holds
// depends on the largest shard, whose blocks pass through its buffers, so the
// largest shard is tried on a grid: a larger one leaves more freedom and less
// room. The earliest finish wins; nil if none of the grid fits.
func (s *search) split(on []bool) []units.Tokens {
	var best []units.Tokens
	least := math.Inf(1)
	total := s.p.Job.SeqLen
	count := 0
	for _, yes := range on {
		if yes {
			count++
		}
	}
	for i := range widths {
		// From an equal share to everything, in equal ratios and whole blocks.
		ratio := math.Pow(float64(count), float64(i)/(widths-1))
		blocks := math.Ceil(float64(total) / float64(count) * ratio / float64(s.p.Block))
		widest := min(total, units.Tokens(blocks)*s.p.Block)
		rooms := s.p.rooms(on, widest)
		if split, theta := waterfill(total, s.p.Block, s.paces, rooms); split != nil && theta < least*(1-1e-9) {
			best, least = split, theta
		}
	}
	return best
}

// widths is the size of split's grid of largest shards.
const widths = 33

// fewer leaves ranks out: what a slow rank or a slow link costs can be more
// than it brings. It keeps the k fastest (where ranks are many, only the k at
// which the device type changes and the powers of two), each node alone, and
// all device types but one.
func (s *search) fewer() {
	byPace := rankOrder(s.n)
	slices.SortStableFunc(byPace, func(a, b int) int {
		return cmp.Compare(s.paces[a].perToken, s.paces[b].perToken)
	})
	for k := s.n - 1; k >= 1; k-- {
		edge := s.p.devices[byPace[k-1]].Name != s.p.devices[byPace[k]].Name
		if s.n <= 64 || edge || k&(k-1) == 0 {
			kept := byPace[:k]
			s.keep(func(r int) bool { return slices.Contains(kept, r) })
		}
	}
	alone := map[string]bool{} // nodes of the same devices and link are the same alone
	for i, node := range s.p.Job.Cluster.Nodes {
		if kind := fmt.Sprint(node.Devices, node.Link); !alone[kind] {
			alone[kind] = true
			s.keep(func(r int) bool { return s.p.ranks[r].Node == i })
		}
	}
	for _, d := range s.p.Profile.Devices {
		s.keep(func(r int) bool { return s.p.devices[r].Name != d.Name })
	}
}

// keep tries the chosen ranks alone, in the best ring so far.
func (s *search) keep(choose func(r int) bool) {
	if s.done() {
		return
	}
	on, some := make([]bool, s.n), false
	for r := range on {
		on[r] = choose(r)
		some = some || on[r]
	}
	order := s.start.order
	if s.best != nil {
		order = s.best.order
	}
	if some {
		s.try(s.split(on), order)
	}
}

// rings tries the best split in other rings.
func (s *search) rings() {
	if s.best == nil {
		return
	}
	x := s.best
	for _, order := range s.orders(x) {
		s.try(x.split, order)
	}
}

// swaps tries rings with two neighbours swapped, or any two ranks while they
// are few.
func (s *search) swaps() {
	for i := range s.n {
		for d := 1; d < s.n-i && (d == 1 || s.n <= fewRanks); d++ {
			if s.done() {
				return
			}
			order := slices.Clone(s.best.order)
			order[i], order[i+d] = order[i+d], order[i]
			s.try(s.best.split, order)
		}
	}
}

// fewRanks is up to how many ranks all pairs are tried in the local moves.
const fewRanks = 8

// orders lists rings worth trying with the split of x. Within a node the node's
// links carry the hops, so some go node by node. But a ring of unequal shards
// also wants them mixed: every rank takes about as long over a block as the
// block is large, and a rank can run ahead of the next only by its buffers, so a
// run of large blocks holds up whoever is behind it.
func (s *search) orders(x *layoutState) [][]int {
	node := func(r int) int { return s.p.ranks[r].Node }
	falling := slices.Clone(x.order)
	slices.SortStableFunc(falling, func(a, b int) int {
		return cmp.Or(cmp.Compare(node(a), node(b)), cmp.Compare(x.split[b], x.split[a]))
	})
	reverse := slices.Clone(x.order)
	slices.Reverse(reverse)
	everywhere := s.mixed(func(int) int { return 0 })
	return [][]int{rankOrder(s.n), falling, s.mixed(node), everywhere, reverse}
}

// mixed spreads each device type evenly over the ring, or where key tells ranks
// apart, over the stretch of each key: the k-th of n of a type (k from 0) has
// its place at (2k+1)/2n of the stretch.
func (s *search) mixed(key func(r int) int) []int {
	type kind struct {
		key    int
		device string
	}
	of := func(r int) kind { return kind{key(r), s.p.devices[r].Name} }
	count, nth := map[kind]int{}, map[kind]int{}
	for r := range s.n {
		count[of(r)]++
	}
	place := make([]float64, s.n)
	for r := range s.n {
		place[r] = float64(2*nth[of(r)]+1) / float64(2*count[of(r)])
		nth[of(r)]++
	}
	order := rankOrder(s.n)
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(key(a), key(b)), cmp.Compare(place[a], place[b]))
	})
	return order
}

// shift moves tokens between ranks, in steps that halve from a quarter of the
// largest shard to a block.
func (s *search) shift() {
	if s.n < 2 {
		return
	}
	for step := s.largestShift(); step >= s.p.Block && !s.done(); step /= 2 {
		for rounds := 0; rounds < 16 && s.shiftOnce(step); rounds++ {
		}
	}
}

func (s *search) largestShift() units.Tokens {
	step := s.p.Block
	for step*8 <= slices.Max(s.best.split) {
		step *= 2
	}
	return step
}

// shiftOnce tries every move of one step, first between whole device types, for
// where equal ranks are equally late relieving one of them gains nothing. It
// says whether anything was gained.
func (s *search) shiftOnce(step units.Tokens) bool {
	before := s.best
	for _, from := range s.p.Profile.Devices {
		for _, to := range s.p.Profile.Devices {
			if from.Name != to.Name {
				s.try(s.moveType(from.Name, to.Name, step), s.best.order)
			}
		}
	}
	from, to := s.donors()
	for _, a := range from {
		for _, b := range to {
			if a != b && s.best.split[a] > 0 {
				s.try(s.move(a, b, step), s.best.order)
			}
		}
	}
	return s.best != before
}

// donors lists the ranks that idle least and those that idle most: all of them
// while they are few, else four each.
func (s *search) donors() (from, to []int) {
	byIdle := rankOrder(s.n)
	idle := s.best.step.Ranks
	slices.SortStableFunc(byIdle, func(a, b int) int { return cmp.Compare(idle[a].Idle, idle[b].Idle) })
	if s.n <= fewRanks {
		return byIdle, byIdle
	}
	to = slices.Clone(byIdle[s.n-4:])
	slices.Reverse(to)
	return byIdle[:4], to
}

func (s *search) move(from, to int, step units.Tokens) []units.Tokens {
	split := slices.Clone(s.best.split)
	n := min(step, split[from])
	split[from] -= n
	split[to] += n
	return split
}

// moveType takes a step from every rank of a device type and deals what it got
// to those of another.
func (s *search) moveType(from, to string, step units.Tokens) []units.Tokens {
	split := slices.Clone(s.best.split)
	var pool units.Tokens
	var takers []int
	for r, d := range s.p.devices {
		switch d.Name {
		case from:
			n := min(step, split[r])
			split[r] -= n
			pool += n
		case to:
			takers = append(takers, r)
		}
	}
	if pool == 0 || len(takers) == 0 {
		return nil
	}
	blocks, rest := pool/s.p.Block, pool%s.p.Block
	n := units.Tokens(len(takers))
	for i, r := range takers {
		split[r] += blocks / n * s.p.Block
		if units.Tokens(i) < blocks%n {
			split[r] += s.p.Block
		}
	}
	split[takers[0]] += rest
	return split
}

func (s *search) result() Result {
	x := s.best
	used := 0
	for _, n := range x.split {
		if n > 0 {
			used++
		}
	}
	why := fmt.Sprintf("shares by pace, largest %d and smallest %d tokens; the best of %d simulated layouts", int64(slices.Max(x.split)), int64(smallest(x.split)), s.evaluated)
	if s.evaluated >= s.budget {
		why += " (the limit of the search)"
	}
	if used < s.n {
		why += fmt.Sprintf("; %d of %d ranks left out, for they cost more time than they save or hold nothing", s.n-used, s.n)
	}
	return Result{Layout: x.layout(), Step: x.step, Evaluated: s.evaluated, Stopped: s.cut, Why: why}
}

// smallest is the smallest share that is not empty.
func smallest(split []units.Tokens) units.Tokens {
	least := sum(split)
	for _, n := range split {
		if n > 0 {
			least = min(least, n)
		}
	}
	return least
}
