package solver

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// evenSure is evenkeel for those who do not bet. Its fastest plan often uses what the
// baseline does without: device types whose laws are borrowed, kernels that nobody
// measured, a network known by its datasheet. Then the gain, however large, is less than
// what these laws may be off by, and a plan that gains a little less, but by the kernels
// and links of the baseline, is worth more. So of the layouts that evenkeel simulated on
// its way, and of what others run with what it hides communication by, it takes the fastest
// whose gain is beyond doubt.
type evenSure struct{}

func (evenSure) Name() string { return "evenkeel-sure" }

func (evenSure) Claims() Claims {
	return Claims{Doc: "of the layouts that evenkeel simulated, the fastest that surely gains over the strongest baseline, where no faster plan does"}
}

// Solve implements Strategy. It comes after evenkeel and has no layout where a plan that
// gains as surely is as fast, or none of them gains surely.
func (x evenSure) Solve(ctx context.Context, p *Problem, _ func(Progress)) (Result, error) {
	none := func(why string, args ...any) (Result, error) {
		return Result{}, &IllegalError{x.Name(), fmt.Sprintf(why, args...)}
	}
	if p.base == nil {
		return none("no baseline fits, so that there is nothing to gain over")
	}
	var sure *Result // the fastest so far
	for i := range p.seeds {
		if r := &p.seeds[i]; surelyFaster(r.Step, p.base.Step) && (sure == nil || r.Step.Time.Mid < sure.Step.Time.Mid) {
			sure = r
		}
	}
	doubts := map[string]units.Seconds{} // the least of a kind's layouts so far
	tried, left := 0, budgetOf(len(p.ranks))*surePart
	for _, k := range p.runners {
		if sure != nil && k.time >= sure.Step.Time.Mid*(1-minGain) {
			return none("no layout of evenkeel's is faster than a plan that surely gains already")
		}
		if p.base.Step.Time.Mid-k.time < hopeful*doubts[k.kind] {
			continue
		}
		if left -= briefWork * layoutWork(k.layout); left < 0 || ctx.Err() != nil {
			break
		}
		tried++
		step, err := p.sim.Brief(k.layout)
		if err != nil {
			return Result{}, err
		}
		half, _ := costmodel.GainError(p.base.Step, step)
		if p.base.Step.Time.Mid-step.Time.Mid > half {
			why := fmt.Sprintf("%s; the fastest layout whose gain is more than the cost model can be wrong by", describe(k.layout, p.Job.SeqLen))
			return Result{Layout: k.layout, Evaluated: tried, Why: why}, nil
		}
		if least, known := doubts[k.kind]; !known || half < least {
			doubts[k.kind] = half
		}
	}
	return none("of the %d layouts that were asked none gains more over the strongest baseline than the cost model can be wrong by", tried)
}

// hide keeps layouts of other strategies with what evenkeel hides communication by: own
// blocks last, heads in chunks, micro-batches in twos. All but that is as it was there, so
// that the gain is hardly in doubt. Equal devices keep the layout that is known.
func (s *search) hide() {
	left := budgetOf(len(s.p.ranks)) * hidePart
	if !s.unequal() {
		return
	}
	for i := range s.p.seeds {
		for _, l := range s.p.hiding(s.p.seeds[i].Layout) {
			work := layoutWork(l)
			if s.done() || work > left || s.p.overfull(l) != nil {
				continue
			}
			left -= work
			var t units.Seconds
			if t, s.err = s.p.sim.Time(l); s.err == nil {
				s.keep(l, t)
			}
		}
	}
}

// hiding lists the ways to go through a layout that it does not have.
func (p *Problem) hiding(l costmodel.Layout) []costmodel.Layout {
	var all []costmodel.Layout
	for _, ownLast := range []bool{false, true} {
		for _, two := range []bool{false, true} {
			for chunks := 0; chunks <= costmodel.MaxHeadChunks; chunks++ {
				x := l
				x.OwnLast, x.TwoBatch, x.HeadChunks = ownLast, two, chunks
				ring := len(l.Groups) > 1
				if ownLast && !ring || two && p.Job.Accumulate < 2 || chunks == 1 || chunks > 1 && (two || ring) || sameLayout(l, x) {
					continue
				}
				all = append(all, x)
			}
		}
	}
	return all
}

// surelyFaster says that a step gains more over another than the model can be wrong by.
func surelyFaster(a, base *costmodel.Step) bool {
	if a.Time.Mid >= base.Time.Mid {
		return false
	}
	half, _ := costmodel.GainError(base, a)
	return base.Time.Mid-a.Time.Mid > half
}

// surePart is how much of a search's budget may be spent on asking how sure gains are, and
// briefWork what that costs in simulations. A layout is not asked that gains less than this
// part of what the surest of its kind would have had to: layouts of a kind rest on much the
// same laws. Of 102 problems of results/evidence/hexiseq 46 had no need of all that, and 30
// more were given a plan by it. What hides communication of others' layouts may cost hidePart
// of the budget: their rings of thousands of ranks are not tried.
const (
	surePart  = 0.5
	hidePart  = 1.0 / 16
	briefWork = 5
	hopeful   = 0.7
)

// runners keeps the fastest of the layouts that a search simulates and that gain over the
// strongest baseline, some of each kind: fast ones come in crowds that are all as doubtful.
type runners struct {
	base  units.Seconds // the baseline's time; 0 keeps none
	model *perfModel
	kinds map[string][]runner // each in order of time
	kept  int
	most  int
}

// runner is a layout and the time that it takes.
type runner struct {
	layout costmodel.Layout
	time   units.Seconds
	kind   string // see kindOf
}

// mostAlike is how many layouts of a kind are kept. Where ranks are many and layouts
// large, they are fewer in all: about so many shards.
const (
	mostAlike  = 16
	mostShards = 1 << 18
)

func newRunners(p *Problem, m *perfModel) *runners {
	k := &runners{model: m, kinds: map[string][]runner{}, most: max(mostAlike, mostShards/len(p.ranks))}
	if p.base != nil {
		k.base = p.base.Step.Time.Mid
	}
	return k
}

// see keeps a layout if it is among the fastest of its kind.
func (k *runners) see(l costmodel.Layout, t units.Seconds) {
	if t >= k.base {
		return
	}
	kind := k.kindOf(l)
	alike := k.kinds[kind]
	at, _ := slices.BinarySearchFunc(alike, t, func(x runner, t units.Seconds) int {
		if x.time <= t { // behind those as fast
			return -1
		}
		return 1
	})
	if at == mostAlike {
		return
	}
	alike = slices.Insert(alike, at, runner{l, t, kind})
	if k.kept++; len(alike) > mostAlike {
		alike = alike[:mostAlike]
		k.kept--
	}
	k.kinds[kind] = alike
	if k.kept > k.most {
		k.drop()
	}
}

// drop drops the slowest of all.
func (k *runners) drop() {
	kind, most := "", units.Seconds(math.Inf(-1))
	for name, alike := range k.kinds {
		if t := alike[len(alike)-1].time; t > most || t == most && name < kind {
			kind, most = name, t
		}
	}
	k.kept--
	if alike := k.kinds[kind]; len(alike) > 1 {
		k.kinds[kind] = alike[:len(alike)-1]
	} else {
		delete(k.kinds, kind)
	}
}

// kindOf is how many groups a layout has, of ranks of how many of each device type, and how
// they go through them.
func (k *runners) kindOf(l costmodel.Layout) string {
	flags := uint64(l.HeadChunks) << 2
	if l.OwnLast {
		flags |= 1
	}
	if l.TwoBatch {
		flags |= 2
	}
	used := make([]uint64, len(k.model.types))
	for _, g := range l.Groups {
		for _, m := range g {
			used[k.model.dev[m.Rank]]++
		}
	}
	b := binary.AppendUvarint(nil, flags)
	b = binary.AppendUvarint(b, uint64(len(l.Groups)))
	for _, n := range used {
		b = binary.AppendUvarint(b, n)
	}
	return string(b)
}

// inOrder lists all by time.
func (k *runners) inOrder() []runner {
	var all []runner
	for _, alike := range k.kinds {
		all = append(all, alike...)
	}
	slices.SortFunc(all, func(a, b runner) int {
		if a.time != b.time {
			return cmp.Compare(a.time, b.time)
		}
		return cmp.Compare(layoutKey(a.layout), layoutKey(b.layout))
	})
	return all
}
