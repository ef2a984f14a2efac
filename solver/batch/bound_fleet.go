package batch

// fleet is a relaxation of the devices of a micro-batch: a whole number of groups of each
// large class, and the other devices, by pool, which groups of all other classes may use in
// fractions.
//
// A micro-batch has some whole number of groups of each large class. So the most
// that it can collect is the most over these numbers, which is less than where
// groups of half the fleet could be cut in slices.
type fleet struct {
	amount []float64   // by resource: devices left of each pool, then large groups
	uses   [][]float64 // by class and resource, of one group; nil for classes not there
	worth  []float64   // by resource, to begin with
}

// mostFleets limits the ways in which large groups may be set apart; where there
// are more, only larger groups are.
const mostFleets = 24

// fleetsOf lists the ways, for the smallest groups that are not too many.
func fleetsOf(t *table) []fleet {
	for _, share := range []float64{0.2, 0.3, 0.5, 2} {
		var large []int
		for c, uses := range t.uses {
			if t.partOf(uses) >= share {
				large = append(large, c)
			}
		}
		if sets := t.setsOf(large); len(sets) <= mostFleets {
			return t.fleets(large, sets)
		}
	}
	return nil // never: without large classes there is one way
}

// partOf is the largest share of a pool that a group takes.
func (t *table) partOf(uses []int) float64 {
	part := 0.0
	for i, u := range uses {
		part = max(part, float64(u)/float64(t.size[i]))
	}
	return part
}

// setsOf lists how many groups of each large class there may be at once, up to
// one more than mostFleets.
func (t *table) setsOf(large []int) [][]int {
	var sets [][]int
	numbers := make([]int, len(large))
	left := append([]int(nil), t.size...)
	var next func(i int)
	next = func(i int) {
		if len(sets) > mostFleets {
			return
		}
		if i == len(large) {
			sets = append(sets, append([]int(nil), numbers...))
			return
		}
		uses := t.uses[large[i]]
		taken := 0
		for ok := true; ok; taken++ {
			numbers[i] = taken
			next(i + 1)
			for p, u := range uses {
				left[p] -= u
				ok = ok && left[p] >= 0
			}
		}
		for p, u := range uses {
			left[p] += taken * u
		}
		numbers[i] = 0
	}
	next(0)
	return sets
}

func (t *table) fleets(large []int, sets [][]int) []fleet {
	var list []fleet
	for _, numbers := range sets {
		list = append(list, t.fleet(large, numbers))
	}
	return list
}

// fleet makes the resources for so many groups of the large classes.
func (t *table) fleet(large, numbers []int) fleet {
	pools := len(t.size)
	f := fleet{amount: make([]float64, pools+len(large)), uses: make([][]float64, len(t.uses)), worth: make([]float64, pools+len(large))}
	for p, n := range t.size {
		f.amount[p], f.worth[p] = float64(n), 1
	}
	isLarge := make([]bool, len(t.uses))
	for i, c := range large {
		isLarge[c] = true
		for p, u := range t.uses[c] {
			f.amount[p] -= float64(numbers[i] * u)
			f.worth[pools+i] += float64(u)
		}
		f.amount[pools+i] = float64(numbers[i])
		if numbers[i] > 0 {
			f.uses[c] = make([]float64, pools+len(large))
			f.uses[c][pools+i] = 1
		}
	}
	for c, uses := range t.uses {
		if !isLarge[c] {
			f.uses[c] = f.drawn(uses, len(large))
		}
	}
	total := 0.0
	for i, n := range f.amount {
		total += n * f.worth[i]
	}
	for i := range f.worth {
		f.worth[i] /= total
	}
	return f
}

// drawn is what a group takes of the pools' rest; nil where that is too little.
func (f *fleet) drawn(uses []int, large int) []float64 {
	list := make([]float64, len(uses)+large)
	for p, u := range uses {
		if float64(u) > f.amount[p] {
			return nil
		}
		list[p] = float64(u)
	}
	return list
}
