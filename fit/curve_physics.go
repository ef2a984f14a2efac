package fit

import (
	"math"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// A message of s bytes among n ranks takes about
//
//	t = alpha + beta s + kappa sqrt(alpha beta s)
//
// alpha the latency of the steps, beta the time of a byte on the busiest port,
// and the root what a pipeline costs that cuts the message into the best number
// of chunks: with k chunks t = alpha k + beta s/k + ..., least at
// k = sqrt(beta s/alpha), which leaves 2 sqrt(alpha beta s) at most. The
// parameters are held as logarithms, which keeps them positive and their priors
// free of units.
const (
	logAlpha = iota
	logBeta
	logKappa
	numParams
)

// params are the logarithms of alpha in s, beta in s/B and kappa.
type params [numParams]float64

// log gives log t at u = log2(s) and its derivative by each parameter.
func (p params) log(u float64) (float64, params) {
	alpha, rate := math.Exp(p[logAlpha]), math.Exp(p[logBeta]+u*math.Ln2)
	root := math.Exp(p[logKappa]) * math.Sqrt(alpha*rate)
	t := alpha + rate + root
	return math.Log(t), params{(alpha + root/2) / t, (rate + root/2) / t, root / t}
}

// deviations are the standard deviations of a parameter's prior: of what all
// curves of a family share, of its growth with the group that all share, and of
// what one kind of collective, its growth, one group size and one variant of it
// add to that.
type deviations struct{ all, allGrowth, kind, kindGrowth, size, variant float64 }

// covariance of a parameter between two curves, g and h their places on the
// axis of its growth.
func (d deviations) covariance(a, b *sizeCurve, g, h float64) float64 {
	v := d.all*d.all + d.allGrowth*d.allGrowth*g*h
	if a.kind != b.kind {
		return v
	}
	v += d.kind*d.kind + d.kindGrowth*d.kindGrowth*g*h
	if a.ranks != b.ranks {
		return v
	}
	v += d.size * d.size
	if a.variant == b.variant {
		v += d.variant * d.variant
	}
	return v
}

// fabric is what is known of a family's links before anything is measured: the
// prior of beta. A datasheet tells the rate of a switched link to about a
// quarter; of PCIe it tells little, as transfers may be staged in the host's
// memory and share its sockets.
type fabric struct {
	perByte float64 // s a byte on the port
	sd      deviations
	growth  float64 // mean of log beta's growth from pairs to large groups
}

// busShare is the share of a link's datasheet rate that large messages reach in
// bus bandwidth. Pairs reach less than larger groups where a switch joins them.
const busShare = 0.63

func switchedFabric(perS float64) fabric {
	return fabric{1 / (busShare * perS), deviations{0.3, 0.15, 0.12, 0.1, 0.08, 0.03}, -0.15}
}

func busFabric(perS float64) fabric {
	return fabric{1 / (0.6 * perS), deviations{0.8, 0.25, 0.12, 0.1, 0.08, 0.03}, 0.15}
}

// unknownFabric starts from the best rate that any message reached.
func unknownFabric(best float64) fabric {
	return fabric{1 / best, deviations{0.8, 0.25, 0.3, 0.1, 0.08, 0.03}, 0}
}

// fabricOf chooses the prior from the datasheet of a group's devices.
func fabricOf(g op.GroupType, sheet op.Sheet, best float64) fabric {
	switch {
	case strings.HasPrefix(g.Link, "gloo"): // through sockets, whatever links the devices have
		return unknownFabric(best)
	case g.Nodes > 1 && sheet.NetPerS > 0:
		return busFabric(sheet.NetPerS)
	case g.Nodes > 1 || sheet.LinkPerS == 0:
		return unknownFabric(best)
	case strings.Contains(g.Link, "pcie") && sheet.HostPerS > 0:
		return busFabric(min(sheet.LinkPerS, sheet.HostPerS))
	case sheet.LinkPerS > sheet.HostPerS:
		return switchedFabric(sheet.LinkPerS)
	}
	return busFabric(sheet.LinkPerS)
}

var (
	alphaDeviations = deviations{1, 0.7, 0.3, 0.7, 0.05, 0.02}
	kappaDeviations = deviations{0.3, 0.1, 0.15, 0.05, 0.1, 0.03}
)

const (
	// usualKappa is the coefficient of the root; from NVLink of 600 GB/s to PCIe
	// fits lie within a factor of two of it.
	usualKappa = 1.2
	// stepShare is by what share of a pair's latency each rank more lengthens
	// it: rings and chains pass step by step. An all-to-all sends to all at
	// once, where it grows less.
	stepShare       = 0.1
	stepShareAtOnce = 0.04
)

// lengthening is log(alpha(n)/alpha(2)) of alpha(n) = alpha(2) (1 + e^r (n-2)),
// and its derivative by r.
func lengthening(r float64, ranks int) (log, slope float64) {
	x := math.Exp(r) * float64(ranks-2)
	return math.Log1p(x), x / (1 + x)
}

// usualGrowth is the prior mean of r.
func usualGrowth(k op.Kind) float64 {
	if k == op.KindAllToAll || k == op.KindAllToAllV || k == op.KindSendRecv {
		return math.Log(stepShareAtOnce)
	}
	return math.Log(stepShare)
}

// crowding is the axis along which beta grows with the group: 0 for pairs, 1
// for four ranks and little more beyond, as every rank's port is then full.
func crowding(ranks int) float64 {
	n := float64(ranks)
	return (1 - 4/(n*n)) / 0.75
}

// doublings is the axis along which kappa grows with the group.
func doublings(ranks int) float64 { return math.Log2(float64(ranks)) - 1 }

// residual is a part of what the physics leaves over: its standard deviation in
// log, how many doublings of the size it stays alike, and how alike it is for
// another kind of collective, another variant, and at twice the ranks. Chunks
// aligns curves of different groups by the bytes a rank rather than by the
// whole message: libraries choose protocols by either.
type residual struct {
	sd, octaves             float64
	rough                   bool
	chunks                  bool
	otherKind, otherVariant float64
	twiceRanks              float64
}

// residuals are smooth ones that curves of a family share, since a library
// switches protocols for all its collectives in much the same way, and a rough
// one of each curve alone. The numbers were chosen on recordings of A100, H100,
// B200 and PCIe nodes with whole sizes left out. The error is flat around them:
// half or twice the standard deviations move it by a tenth, half the octaves
// cost a fifth; without the part by chunks, messages beyond the measured ones
// are off by a fifth more.
var residuals = [...]residual{
	{sd: 0.12, octaves: 2.5, otherKind: 0.7, otherVariant: 0.97, twiceRanks: 0.5},
	{sd: 0.16, octaves: 2.5, chunks: true, otherKind: 0.7, otherVariant: 0.97, twiceRanks: 0.9},
	{sd: 0.04, octaves: 1, rough: true, otherVariant: 0.9},
}

// covariance of the residual between two curves at u and v = log2 of the bytes.
func (r residual) covariance(a *sizeCurve, u float64, b *sizeCurve, v float64) float64 {
	k := r.sd * r.sd
	if a.kind != b.kind {
		k *= r.otherKind
	}
	if a.variant != b.variant {
		k *= r.otherVariant
	}
	if apart := math.Abs(a.doublings - b.doublings); apart > 0 {
		k *= math.Pow(r.twiceRanks, apart)
		if r.chunks {
			u, v = u-a.doublings, v-b.doublings
		}
	}
	if k == 0 {
		return 0
	}
	d := math.Abs(u-v) / r.octaves
	if r.rough {
		return k * math.Exp(-d) // a random walk's
	}
	d *= math.Sqrt(3) // Matern's with one derivative
	return k * (1 + d) * math.Exp(-d)
}
