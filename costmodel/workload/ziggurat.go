package workload

import "math"

// layers of the ziggurat: boxes of equal area under the normal density.
const layers = 256

// tailStart is where the tail begins, the right edge of the last box, for 256
// layers (Marsaglia and Tsang, "The Ziggurat Method for Generating Random
// Variables", 2000).
const tailStart = 3.6541528853610087963519472518

// normals draws standard normal numbers by the ziggurat method with 256 layers
// and 52 bits, draw for draw as NumPy's Generator does. The tables are made here
// and not printed there, so a number may differ in its last three digits of
// sixteen, and a length that is drawn from it, once in a thousand million.
type normals struct {
	g      *pcg64
	inside [layers]uint64  // below: surely under the curve
	width  [layers]float64 // of a layer, per unit of the 52-bit number
	height [layers]float64 // the density at a layer's right edge
}

// newNormals makes the tables. With f(x) = exp(-x²/2), x_255 the start of the
// tail and v = x_255 f(x_255) + the integral of f beyond it the area of a box:
// f(x_i) = f(x_i+1) + v/x_i+1, and the base layer counts as a box of width
// v/f(x_255).
func newNormals(g *pcg64) *normals {
	n := &normals{g: g}
	x := tailStart
	f := math.Exp(-x * x / 2)
	v := x*f + math.Sqrt(math.Pi/2)*math.Erfc(x/math.Sqrt2)
	n.layer(0, v/f, x)
	for i := layers - 1; i > 0; i-- {
		n.height[i] = f
		f += v / x
		above := 0.0
		if i > 1 {
			above = math.Sqrt(-2 * math.Log(f))
		}
		n.layer(i, x, above)
		x = above
	}
	n.height[0] = 1
	return n
}

// layer enters a layer of a width, whose part up to `inner` is surely inside.
func (n *normals) layer(i int, width, inner float64) {
	const unit = 1 << 52
	n.width[i] = width / unit
	n.inside[i] = uint64(inner / width * unit)
}

// next draws one number.
func (n *normals) next() float64 {
	for {
		r := n.g.uint64()
		i := r & (layers - 1)
		whole := r >> 9 & (1<<52 - 1)
		x := float64(whole) * n.width[i]
		if r>>8&1 == 1 {
			x = -x
		}
		if whole < n.inside[i] {
			return x
		}
		if i == 0 {
			return n.tail(whole>>8&1 == 1)
		}
		if (n.height[i-1]-n.height[i])*n.g.float64()+n.height[i] < math.Exp(-0.5*x*x) {
			return x
		}
	}
}

// tail draws beyond the last box (Marsaglia, "Generating a Variable from the
// Tail of the Normal Distribution", 1964).
func (n *normals) tail(negative bool) float64 {
	for {
		x := -math.Log1p(-n.g.float64()) / tailStart
		y := -math.Log1p(-n.g.float64())
		if y+y > x*x {
			if negative {
				return -(tailStart + x)
			}
			return tailStart + x
		}
	}
}
