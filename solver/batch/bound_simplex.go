package batch

import "math"

// cover is a small linear programme, min Σ cost y with Σ columns y ≥ need and
// y ≥ 0, grown column by column and solved anew from where it stood: the revised
// simplex method with the basis's inverse kept whole. The bound that is made of
// its prices is checked without it, so that rounding here costs tightness at
// worst, never truth.
type cover struct {
	need  []float64
	cols  [][]float64
	costs []float64
	basis []int       // by row, the column, or what dummyOf or surplusOf gives
	inv   [][]float64 // of the basis
	at    []float64   // values of the basis
	price []float64   // by row
	dummy []float64   // by row, the cost of leaving one unit uncovered
	step  []float64
}

// start makes a programme whose needs are all left to dummies.
func (c *cover) start(need, dummy []float64) {
	n := len(need)
	c.need = append(c.need[:0], need...)
	c.dummy = append(c.dummy[:0], dummy...)
	c.cols, c.costs = c.cols[:0], c.costs[:0]
	c.basis = resize(c.basis, n)
	c.inv = resize(c.inv, n)
	c.at = append(c.at[:0], need...)
	c.price = resize(c.price, n)
	c.step = resize(c.step, n)
	for i := range c.inv {
		c.basis[i] = dummyOf(i)
		c.inv[i] = resize(c.inv[i], n)
		clear(c.inv[i])
		c.inv[i][i] = 1
	}
}

// none is no column.
const none = math.MinInt

func (c *cover) add(col []float64, cost float64) {
	c.cols = append(c.cols, append([]float64(nil), col...))
	c.costs = append(c.costs, cost)
}

// dummyOf and surplusOf number the columns that are not in the list, below 0.
func dummyOf(row int) int   { return -1 - 2*row }
func surplusOf(row int) int { return -2 - 2*row }

// rowOf is the row of such a column, and whether it is a surplus.
func rowOf(j int) (row int, surplus bool) { return (-1 - j) / 2, j%2 == 0 }

func (c *cover) cost(j int) float64 {
	if j >= 0 {
		return c.costs[j]
	}
	row, surplus := rowOf(j)
	if surplus {
		return 0
	}
	return c.dummy[row]
}

// solve pivots until no column lowers the cost, or most times.
func (c *cover) solve(most int) {
	for ; most > 0; most-- {
		c.setPrices()
		j := c.entering()
		if j == none || !c.pivot(j) {
			return
		}
	}
	c.setPrices()
}

func (c *cover) setPrices() {
	clear(c.price)
	for i, j := range c.basis {
		if cost := c.cost(j); cost != 0 {
			for k, v := range c.inv[i] {
				c.price[k] += cost * v
			}
		}
	}
}

// entering is the column with the lowest reduced cost; none where there is no
// column with one below zero.
func (c *cover) entering() int {
	best, least := none, -1e-9
	for j, col := range c.cols {
		d := c.costs[j]
		for i, a := range col {
			d -= c.price[i] * a
		}
		if d < least*(1+c.costs[j]) {
			best, least = j, d
		}
	}
	for i, v := range c.price {
		if v < least {
			best, least = surplusOf(i), v
		}
	}
	return best
}

// pivot takes a column into the basis; false where nothing leaves.
func (c *cover) pivot(j int) bool {
	surplus, _ := rowOf(j)
	for i, row := range c.inv {
		c.step[i] = 0
		if j < 0 {
			c.step[i] = -row[surplus]
			continue
		}
		for k, a := range c.cols[j] {
			c.step[i] += row[k] * a
		}
	}
	out, least := -1, math.Inf(1)
	for i, d := range c.step {
		if d > 1e-9 {
			if r := max(c.at[i], 0) / d; r < least {
				out, least = i, r
			}
		}
	}
	if out < 0 {
		return false
	}
	c.swap(out, j)
	return true
}

func (c *cover) swap(out, j int) {
	pivot := c.step[out]
	row := c.inv[out]
	for k := range row {
		row[k] /= pivot
	}
	c.at[out] /= pivot
	for i, d := range c.step {
		if i == out || d == 0 {
			continue
		}
		for k, v := range row {
			c.inv[i][k] -= d * v
		}
		c.at[i] -= d * c.at[out]
	}
	c.basis[out] = j
}

// value is the cost of the solution.
func (c *cover) value() float64 {
	sum := 0.0
	for i, j := range c.basis {
		sum += c.cost(j) * c.at[i]
	}
	return sum
}
