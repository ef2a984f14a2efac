package batch

import (
	"cmp"
	"math"
	"slices"
)

// starter finds initial roofs. The sequences are sorted by length and cut into consecutive
// chunks, one for each micro-batch, by dynamic programming over a relaxation in which
// groups and sequences may be divided: a chunk fits under the roof T if the least shares of
// the fleet that its sequences take, Σ min_c value[c] max(t/(T - base), s/cap), are at most
// 1 in all.
type starter struct {
	t      *table
	grain  grain
	levels []float64   // roofs, rising
	sums   [][]float64 // by level, of the first k items, shares of the fleet
	runs   []int       // first items of those about as long
	least  []float64   // by run, share
	cuts   []int       // items at which a chunk may begin, and the end
	best   [][]float64 // by number of chunks and cut: least time of the items before it
	from   [][]int32
	at     [][]float64 // roof of the last chunk
}

// grain is how finely a starter looks: at roofs that are so far apart, and at one
// length for all that are shorter by less than one part in 1 << alike.
type grain struct {
	ratio float64
	alike uint
	step  int // of the roofs, one in so many is looked at for useful classes
}

func fine() grain   { return grain{1.03, 6, 4} }
func coarse() grain { return grain{1.06, 4, 4} }

const (
	farLevels  = 1.1 // ratio beyond twice what the longest takes
	levelRange = 30  // the first level's distance to the base is less by this than what the longest takes
	farTooMuch = 1e9 // share of a sequence that does not fit under a roof
	mostCuts   = 96

	nearlyAsGood = 1.015
)

func (s *starter) load(t *table, mostMicro int, g grain) {
	s.t, s.grain = t, g
	s.setLevels()
	t.addUseful(s.levels, s.grain.step)
	s.setSums()
	s.setCuts()
	s.solve(mostMicro)
}

// setLevels lists the roofs to choose from, from little more than the least base
// to where all sequences fit one after the other.
func (s *starter) setLevels() {
	t := s.t
	low := slices.Min(t.base)
	alone, serial := 0.0, 0.0
	for k := range t.tokens {
		least, first := math.Inf(1), math.Inf(1)
		for c := range t.base {
			least = min(least, t.time[c][k])
			first = min(first, t.base[c]+t.time[c][k])
		}
		serial += least
		alone = max(alone, first)
	}
	most := max(2*alone-low, serial)
	s.levels = s.levels[:0]
	ratio := s.grain.ratio
	for x := min(alone, most/10) / levelRange; x < most*ratio; x *= ratio {
		s.levels = append(s.levels, low+x)
		if x > 2*alone {
			ratio = max(ratio, farLevels)
		}
	}
}

// setSums works out the shares of the fleet. Those of sequences of about the same
// length are taken in proportion to the tokens of the longest.
func (s *starter) setSums() {
	t := s.t
	s.setRuns()
	s.sums = resize(s.sums, len(s.levels))
	for i, roof := range s.levels {
		for r := range s.least {
			s.least[r] = farTooMuch
		}
		for _, c := range t.useful {
			s.lower(c, roof)
		}
		sums := append(s.sums[i][:0], 0)
		total := 0.0
		for r, first := range s.runs {
			end := len(t.tokens)
			if r+1 < len(s.runs) {
				end = s.runs[r+1]
			}
			share := s.least[r] / float64(t.tokens[first])
			for _, tokens := range t.tokens[first:end] {
				total += share * float64(tokens)
				sums = append(sums, total)
			}
		}
		s.sums[i] = sums
	}
}

func (s *starter) setRuns() {
	t := s.t
	s.runs = s.runs[:0]
	first := int64(0)
	for k, tokens := range t.tokens {
		if k == 0 || tokens < first-first>>s.grain.alike {
			s.runs, first = append(s.runs, k), tokens
		}
	}
	s.least = resize(s.least, len(s.runs))
}

// lower takes the shares in groups of a class under a roof, where they are less
// than those so far.
func (s *starter) lower(c int, roof float64) {
	t := s.t
	room := roof - t.base[c]
	if room <= 0 {
		return
	}
	times := t.time[c]
	perTime, perToken := t.value[c]/room, t.value[c]/float64(t.cap[c])
	for r, k := range s.runs {
		time := times[k]
		if time > room {
			continue // or beyond memory, where the time is infinite
		}
		if share := max(perTime*time, perToken*float64(t.tokens[k])); share < s.least[r] {
			s.least[r] = share
		}
	}
}

// shareOf is the share of the fleet that an item takes in a group of a class under
// a roof; infinite where it does not fit.
func (t *table) shareOf(c, k int, roof float64) float64 {
	time, room := t.time[c][k], roof-t.base[c]
	if time > room || t.tokens[k] > t.cap[c] {
		return math.Inf(1)
	}
	return t.value[c] * max(time/room, float64(t.tokens[k])/float64(t.cap[c]))
}

// aboutAsLong says whether a length is so near the longer first that both may be
// handled at once.
func aboutAsLong(first, tokens int64) bool { return tokens >= first-first>>6 }

func (s *starter) setCuts() {
	n := s.t.items()
	s.cuts = s.cuts[:0]
	at := 0
	for at < n {
		s.cuts = append(s.cuts, at)
		at += max(1, (at+8)/16, n/mostCuts/4)
	}
	s.cuts = append(s.cuts, n)
}

func (s *starter) solve(most int) {
	n := len(s.cuts)
	s.best = resize(s.best, most+1)
	s.from = resize(s.from, most+1)
	s.at = resize(s.at, most+1)
	for m := range s.best {
		s.best[m] = resize(s.best[m], n)
		s.from[m] = resize(s.from[m], n)
		s.at[m] = resize(s.at[m], n)
		for i := range s.best[m] {
			s.best[m][i] = math.Inf(1)
		}
	}
	s.best[0][0] = 0
	for a := 0; a < n-1; a++ {
		level := 0
		for b := a + 1; b < n; b++ {
			for level < len(s.levels) && s.sums[level][s.cuts[b]]-s.sums[level][s.cuts[a]] > 1 {
				level++
			}
			if level == len(s.levels) {
				break
			}
			roof := s.levels[level]
			for m := 1; m <= most; m++ {
				if v := s.best[m-1][a] + s.t.cost(roof); v < s.best[m][b] {
					s.best[m][b], s.from[m][b], s.at[m][b] = v, int32(a), roof
				}
			}
		}
	}
}

// roofs of the best m chunks; nil where there are none.
func (s *starter) roofs(m int, into []float64) []float64 {
	b := len(s.cuts) - 1
	if math.IsInf(s.best[m][b], 1) {
		return nil
	}
	into = into[:0]
	for ; m > 0; m-- {
		into = append(into, s.at[m][b])
		b = int(s.from[m][b])
	}
	return into
}

// numbers lists the numbers of chunks from least to most that take the least
// time, the best first; in the place of the last the smallest that is nearly as
// good, since groups of fewer micro-batches are filled with less left over.
func (s *starter) numbers(least, most, n int) []int {
	var list []int
	end := len(s.cuts) - 1
	for m := least; m <= most; m++ {
		if !math.IsInf(s.best[m][end], 1) {
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(s.best[a][end], s.best[b][end]) })
	if len(list) <= n {
		return list
	}
	small := list[n-1]
	for _, m := range list[n:] {
		if m < small && s.best[m][end] <= s.best[list[0]][end]*nearlyAsGood {
			small = m
		}
	}
	list[n-1] = small
	return list[:n]
}
