package pipeline

import (
	"math"
	"slices"
)

// mostTold bounds the work of telling stages of several types apart: the sets of devices, by how
// many of each type, times the stages that they may be divided into.
const mostTold = 1 << 22

// sets is how many sets of devices there are.
func (b *bounder) sets() int {
	n := 1
	for i := range b.types {
		if n *= b.types[i].count + 1; n > mostTold {
			return n
		}
	}
	return n
}

// tell lists the stages of several types.
func (b *bounder) tell() {
	most := mostTold / b.sets()
	take := make([]int, len(b.types))
	var choose func(at, i, left int) bool
	choose = func(at, i, left int) bool {
		if i == len(take) {
			if m := b.mixOf(at, take); left == 0 && m != nil {
				b.mixes = append(b.mixes, *m)
			}
			return len(b.mixes) <= most
		}
		defer func() { take[i] = 0 }()
		for take[i] = 0; take[i] <= min(left, b.types[i].count); take[i]++ {
			if !choose(at, i+1, left-take[i]) {
				return false
			}
		}
		return true
	}
	b.told = true
	for at := range b.types[0].mixed { // of as many devices for all types
		b.told = b.told && choose(at, 0, b.types[0].mixed[at].devices)
	}
}

// mixOf is a stage of so many devices of each type, nil where they are of one.
func (b *bounder) mixOf(at int, take []int) *mix {
	m, types := &mix{take: slices.Clone(take)}, 0
	for i, n := range take {
		if n > 0 {
			s := b.types[i].mixed[at]
			m.layer, m.loss = max(m.layer, s.layer), max(m.loss, s.loss)
			types++
		}
	}
	if types < 2 {
		return nil
	}
	return m
}

// suffices says that T seconds are not known to be too few.
func (b *bounder) suffices(T float64) bool {
	if T <= 0 {
		return false
	}
	if b.told {
		return b.sufficesApart(T)
	}
	return b.sufficesShared(T)
}

// sufficesApart is suffices where stages of several types are told apart: the most layers that
// each set of devices may have, by dynamic programming over the sets.
func (b *bounder) sufficesApart(T float64) bool {
	alone, stride, sets := make([][]float64, len(b.types)), make([]int, len(b.types)), 1
	for i := range b.types {
		alone[i], stride[i] = b.types[i].most(T, 0), sets
		sets *= b.types[i].count + 1
	}
	apart := func(take []int) (layers float64) { // in stages of single types
		for i, n := range take {
			layers += alone[i][n]
		}
		return layers
	}
	var worth []mix // more than that
	var more []float64
	for _, m := range b.mixes {
		if n := undivided(T / m.layer); n > apart(m.take) {
			worth, more = append(worth, m), append(more, n)
		}
	}
	place := func(take []int) (at int) {
		for i, n := range take {
			at += n * stride[i]
		}
		return at
	}
	most, left := make([]float64, sets), make([]int, len(b.types))
	for at := range most {
		for i := range left {
			left[i] = at / stride[i] % (b.types[i].count + 1)
		}
		most[at] = apart(left)
		for j := range worth {
			if within(worth[j].take, left) {
				most[at] = max(most[at], most[at-place(worth[j].take)]+more[j])
			}
		}
	}
	last := func(take []int, layer, loss float64) bool {
		n := undivided((T - loss) / layer)
		return loss < T && n > 0 && n+most[sets-1-place(take)] >= float64(b.layers)
	}
	for i := range b.types {
		for _, s := range b.types[i].alone {
			take := make([]int, len(b.types))
			if take[i] = s.devices; last(take, s.layer, s.loss) {
				return true
			}
		}
	}
	return slices.ContainsFunc(b.mixes, func(m mix) bool { return last(m.take, m.layer, m.loss) })
}

// within says whether some devices are among others, by type.
func within(take, left []int) bool {
	for i, n := range take {
		if n > left[i] {
			return false
		}
	}
	return true
}

// sufficesShared is suffices where every device of a stage of several types counts for its share
// of the layers that the slowest of them alone would have.
func (b *bounder) sufficesShared(T float64) bool {
	most, all := make([][]float64, len(b.types)), 0.0 // layers, by type and number of devices
	for i := range b.types {
		most[i] = b.types[i].most(T, b.types[i].each(T))
		all += most[i][b.types[i].count]
	}
	for i := range b.types {
		t := &b.types[i]
		others := all - most[i][t.count]
		for _, s := range t.alone {
			if s.loss > T {
				continue
			}
			if n := undivided((T - s.loss) / s.layer); n > 0 && others+most[i][t.count-s.devices]+n >= float64(b.layers) {
				return true
			}
		}
	}
	return b.mixedLast(T, all)
}

// mixedLast is sufficesShared where the last stage is of several types. Of its d devices those of a
// type count, of all layers, for at least as many as if the stage had no loss; with it they
// have their share of what the stage of this type alone would have.
func (b *bounder) mixedLast(T, all float64) bool {
	for at := range b.types[0].mixed { // of as many devices for all types
		least := math.Inf(1) // layers a device that the loss takes from a type
		for i := range b.types {
			t := &b.types[i]
			s, d := t.mixed[at], float64(t.mixed[at].devices)
			if s.loss < T {
				least = min(least, t.each(T)-undivided((T-s.loss)/s.layer)/d)
			} else {
				least = min(least, t.each(T))
			}
		}
		if all-float64(b.types[0].mixed[at].devices)*least >= float64(b.layers) {
			return true
		}
	}
	return false
}

// each is how many layers a device has at most in a stage of several types.
func (t *boundType) each(T float64) float64 {
	each := 0.0
	for _, s := range t.mixed {
		each = max(each, undivided(T/s.layer)/float64(s.devices))
	}
	return each
}

// undivided is how many layers fit, none of which is divided.
func undivided(x float64) float64 { return float64(int64(x * (1 + 1e-12))) }

// most is, by number of devices, how many layers they may have in T seconds: in stages of this
// type by itself, or each so many.
func (t *boundType) most(T, each float64) []float64 {
	value := make([]float64, t.count+1) // of one stage's devices of this type
	for _, s := range t.alone {
		value[s.devices] = max(value[s.devices], undivided(T/s.layer))
	}
	most := make([]float64, t.count+1)
	for n := 1; n <= t.count; n++ {
		most[n] = most[n-1] + each
		for d := 1; d <= n; d++ {
			most[n] = max(most[n], most[n-d]+value[d])
		}
	}
	return most
}
