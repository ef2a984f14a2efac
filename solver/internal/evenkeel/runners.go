package evenkeel

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/analytic"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
)

// runners keeps the fastest of the layouts that a search simulates and that gain over the
// strongest baseline, some of each kind: fast ones come in crowds that are all as doubtful.
type runners struct {
	base  units.Seconds // the baseline's time; 0 keeps none
	model *analytic.Model
	kinds map[string][]runner // each in order of time
	most  int                 // in all
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

func newRunners(p *strategy.Problem, m *analytic.Model) *runners {
	k := &runners{model: m, kinds: map[string][]runner{}, most: max(mostAlike, mostShards/len(p.Ranks))}
	if p.Base != nil {
		k.base = p.Base.Step.Time.Mid
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
	k.kinds[kind] = alike[:min(len(alike), mostAlike)]
	if k.kept() > k.most {
		k.drop()
	}
}

func (k *runners) kept() (n int) {
	for _, alike := range k.kinds {
		n += len(alike)
	}
	return n
}

// drop drops the slowest of all.
func (k *runners) drop() {
	kind, most := "", units.Seconds(math.Inf(-1))
	for name, alike := range k.kinds {
		if t := alike[len(alike)-1].time; t > most || t == most && name < kind {
			kind, most = name, t
		}
	}
	if alike := k.kinds[kind]; len(alike) > 1 {
		k.kinds[kind] = alike[:len(alike)-1]
	} else {
		delete(k.kinds, kind)
	}
}

// kindOf is how many groups a layout has, of ranks of how many of each device type, and how
// they go through them.
func (k *runners) kindOf(l costmodel.Layout) string {
	used := make([]uint64, len(k.model.Types))
	for _, g := range l.Groups {
		for _, m := range g {
			used[k.model.TypeOf[m.Rank]]++
		}
	}
	b := binary.AppendUvarint(nil, l.Bits())
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
