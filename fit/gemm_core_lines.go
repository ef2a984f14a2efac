package fit

import "math"

// lineAxes are the first features, along which the leaves of trees may have lines.
const lineAxes = 3

// leafPlace is where a row lies along them, in octaves.
type leafPlace [lineAxes]float64

// placesInLeaves are those of rows; of features that are fewer, or not positive, 0.
func placesInLeaves(rows [][]float64) []leafPlace {
	all := make([]leafPlace, len(rows))
	for i, x := range rows {
		for a, v := range x[:min(lineAxes, len(x))] {
			if v > 0 {
				all[i][a] = math.Log2(v)
			}
		}
	}
	return all
}

// fewestInLine is the number of rows below which a leaf is level.
const fewestInLine = 8

// leafLine is what a leaf adds to its value: a linear function of a row's place, and
// beyond the rows that it was fitted to that at their edge.
type leafLine struct{ slope, mean, least, most leafPlace }

func (l *leafLine) at(x leafPlace) float64 {
	sum := 0.0
	for a, v := range x {
		sum += l.slope[a] * (max(l.least[a], min(l.most[a], v)) - l.mean[a])
	}
	return sum
}

// line fits a leaf's line to what its rows ask for beyond their mean, by least squares
// with doubt (ridge regression, Hoerl and Kennard 1970; in the leaves of boosted trees:
// Shi et al. 2019, "Gradient Boosting with Piece-Wise Linear Regression Trees").
func (g *grower) line(l *leaf) leafLine {
	var line leafLine
	line.least, line.most = g.at[l.rows[0]], g.at[l.rows[0]]
	for _, i := range l.rows {
		for a, v := range g.at[i] {
			line.mean[a] += v / float64(len(l.rows))
			line.least[a], line.most[a] = min(line.least[a], v), max(line.most[a], v)
		}
	}
	var squares [lineAxes][lineAxes]float64
	var pulls leafPlace
	mean := l.total.pull() / g.parts / float64(l.total.count())
	for _, i := range l.rows {
		pull, x := g.pull[i]-mean, g.at[i]
		for a := range x {
			x[a] -= line.mean[a]
		}
		for a := range x {
			pulls[a] += pull * x[a]
			for b := range a + 1 {
				squares[a][b] += x[a] * x[b]
			}
		}
	}
	for a := range squares {
		squares[a][a] += g.size.doubt
	}
	line.slope = solved(squares, pulls)
	for a := range line.slope {
		line.slope[a] *= g.size.rate
	}
	return line
}

// solved is the solution of positive definite equations, of which the lower half is
// given, by Cholesky's decomposition. gonum's takes several times longer for three.
func solved(a [lineAxes][lineAxes]float64, b leafPlace) leafPlace {
	for i := range b {
		for j := range i + 1 {
			for k := range j {
				a[i][j] -= a[i][k] * a[j][k]
			}
			if i == j {
				a[i][i] = math.Sqrt(a[i][i])
			} else {
				a[i][j] /= a[j][j]
			}
		}
		for k := range i {
			b[i] -= a[i][k] * b[k]
		}
		b[i] /= a[i][i]
	}
	for i := len(b) - 1; i >= 0; i-- {
		for k := i + 1; k < len(b); k++ {
			b[i] -= a[k][i] * b[k]
		}
		b[i] /= a[i][i]
	}
	return b
}
