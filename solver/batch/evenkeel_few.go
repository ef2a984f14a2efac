package batch

import (
	"context"
	"math"
	"math/bits"
)

// few plans a batch of few sequences exactly, by dynamic programming over sets of them: what
// groups of a set take on so many devices, and what micro-batches of a set take. Only the nodes'
// room is not in it: a plan may find no place for its groups, and its time is a bound then.
type few struct {
	t     *table
	full  int       // all sequences
	rooms int       // numbers of devices, by pool, that groups may have: the last is all
	fits  [][]int32 // by class: the rooms that have its devices
	less  []int32   // by class: how many rooms below these is what it leaves
	group []float64 // by set and class: of a group, seconds; infinite where another's does as well on no more devices
	time  []float64 // by set and room: of its slowest group, at best
	with  []ofSet   // by set and room: the group of its first sequence
	micro []float64 // by set: of micro-batches
	last  []int32   // by set: the one of these with its first sequence
}

// ofSet is a group of a class with a set.
type ofSet struct{ class, set int32 }

const (
	// fewSequences bounds the sets. What is looked at is bounded too, to about what the searches
	// of an effort take: some milliseconds, less than a twentieth and less than half of a second
	// (BenchmarkFewSequences).
	fewSequences = 12
	fewQuick     = 5e6
	fewOnline    = 1e8
	fewThorough  = 1e9
	fewRooms     = 1 << 20 // of all sets, and of all classes: some 20 MB
)

// few is how much may be looked at to plan a few sequences exactly.
func (e Effort) few() float64 {
	switch e {
	case Quick:
		return fewQuick
	case Thorough:
		return fewThorough
	}
	return fewOnline
}

// newFew is nil where a batch has too many sequences, or its devices are too many for those,
// so that more than so much is to be looked at; where ctx ends; and where there is no plan.
func newFew(ctx context.Context, t *table, most float64) *few {
	n, classes := t.items(), len(t.base)
	if n > fewSequences || ctx.Err() != nil {
		return nil
	}
	f := &few{t: t, full: 1<<n - 1, rooms: 1}
	var stride []int
	for _, size := range t.size {
		stride = append(stride, f.rooms)
		f.rooms *= size + 1
		if f.rooms<<n > fewRooms || f.rooms*classes > fewRooms {
			return nil
		}
	}
	steps := 0.0 // of each way to take a group out of a set
	for _, uses := range t.uses {
		rooms := 1.0
		for i, u := range uses {
			rooms *= float64(t.size[i] + 1 - u)
		}
		steps += rooms
	}
	if math.Pow(3, float64(n))*steps+float64(f.full*classes*classes) > most {
		return nil
	}
	f.listRooms(stride)
	f.setGroups()
	if !f.setTimes(ctx) {
		return nil
	}
	f.setMicro()
	if math.IsInf(f.micro[f.full], 1) {
		return nil // infinite prices
	}
	return f
}

// listRooms finds for every class the rooms that hold a group of it.
func (f *few) listRooms(stride []int) {
	f.fits, f.less = make([][]int32, len(f.t.uses)), make([]int32, len(f.t.uses))
	for c, uses := range f.t.uses {
		for i, u := range uses {
			f.less[c] += int32(u * stride[i])
		}
		for room := range f.rooms {
			fits := true
			for i, u := range uses {
				fits = fits && room/stride[i]%(f.t.size[i]+1) >= u
			}
			if fits {
				f.fits[c] = append(f.fits[c], int32(room))
			}
		}
	}
}

// setGroups works out what a group of every class takes with every set.
func (f *few) setGroups() {
	t, classes := f.t, len(f.t.base)
	f.group = make([]float64, (f.full+1)*classes)
	for set := 1; set <= f.full; set++ {
		of := f.group[set*classes:][:classes]
		for c := range of {
			tokens := int64(0)
			of[c] = t.base[c]
			for rest := set; rest > 0; rest &= rest - 1 {
				k := bits.TrailingZeros(uint(rest))
				of[c] += t.time[c][k]
				tokens += t.tokens[k]
			}
			if tokens > t.cap[c] {
				of[c] = math.Inf(1)
			}
		}
		for c := range of {
			for by := range of {
				// One that must be within a node may find no place where c does.
				places := t.anywhere || t.p.Classes[c].One || !t.p.Classes[by].One
				if by != c && of[by] <= of[c] && fitsIn(t.uses[by], t.uses[c]) && places {
					of[c] = math.Inf(1)
					break
				}
			}
		}
	}
}

// setTimes finds the groups of all sets, unless ctx ends.
func (f *few) setTimes(ctx context.Context) bool {
	classes := len(f.t.base)
	f.time, f.with = make([]float64, (f.full+1)*f.rooms), make([]ofSet, (f.full+1)*f.rooms)
	for set := 1; set <= f.full; set++ {
		if ctx.Err() != nil {
			return false
		}
		time, with := f.time[set*f.rooms:][:f.rooms], f.with[set*f.rooms:][:f.rooms]
		for room := range time {
			time[room] = math.Inf(1)
		}
		first := set & -set
		for rest := set ^ first; ; rest = (rest - 1) & (set ^ first) {
			left := f.time[(set^first^rest)*f.rooms:][:f.rooms]
			for c, group := range f.group[(first|rest)*classes:][:classes] {
				if math.IsInf(group, 1) {
					continue
				}
				for _, room := range f.fits[c] {
					if v := max(group, left[room-f.less[c]]); v < time[room] {
						time[room], with[room] = v, ofSet{int32(c), int32(first | rest)}
					}
				}
			}
			if rest == 0 {
				break
			}
		}
	}
	return true
}

// of is the time of a micro-batch's slowest group, on all devices.
func (f *few) of(set int) float64 { return f.time[set*f.rooms+f.rooms-1] }

// setMicro finds the micro-batches of all sets.
func (f *few) setMicro() {
	f.micro, f.last = make([]float64, f.full+1), make([]int32, f.full+1)
	for set := 1; set <= f.full; set++ {
		f.micro[set] = math.Inf(1)
		first := set & -set
		for rest := set ^ first; ; rest = (rest - 1) & (set ^ first) {
			if v := f.t.cost(f.of(first|rest)) + f.micro[set^first^rest]; v < f.micro[set] {
				f.micro[set], f.last[set] = v, int32(first|rest)
			}
			if rest == 0 {
				break
			}
		}
	}
}

// least is the time of the best step, and which micro-batch is its last.
func (f *few) least() (step float64, last int) {
	step, last = f.micro[f.full], int(f.last[f.full])
	if f.t.behind > 0 {
		step = math.Inf(1)
		for set := 1; set <= f.full; set++ {
			if v := f.t.cost(f.of(set)) + f.t.open(f.of(set)) + f.micro[f.full^set]; v < step {
				step, last = v, set
			}
		}
	}
	return f.t.fixed + step, last
}

// write makes the best step a state.
func (f *few) write(s *state) {
	t := f.t
	s.bins, s.free = s.bins[:0], s.free[:0]
	_, set := f.least()
	for left := f.full; left > 0; set = int(f.last[left]) {
		left ^= set
		m := len(s.free)
		s.free = resize(s.free, m+1)
		s.free[m] = append(s.free[m][:0], t.size...)
		for room := f.rooms - 1; set > 0; {
			x := f.with[set*f.rooms+room]
			b := &s.bins[s.add(t, m, int(x.class))]
			for rest := uint(x.set); rest > 0; rest &= rest - 1 {
				b.items = append(b.items, item(bits.TrailingZeros(rest)))
			}
			t.weigh(b)
			set, room = set^int(x.set), room-int(f.less[x.class])
		}
	}
	s.settle(t)
}

// tryFew plans a batch of few sequences, and says whether that is all there is to do.
func (pl *Planner) tryFew(ctx context.Context) bool {
	f := newFew(ctx, &pl.t, pl.options.Effort.few())
	if f == nil {
		return false
	}
	step, _ := f.least()
	pl.bound = max(pl.bound, step*(1-rounding))
	f.write(&pl.found)
	if !pl.t.anywhere && !pl.found.placed(&pl.t) {
		return false
	}
	pl.keep(&pl.found)
	return true
}
