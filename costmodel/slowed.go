package costmodel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// slowKey asks by how much attention and messages slow each other on a device
// type.
type slowKey struct {
	device  string
	compute op.Kind
	slowed  op.Slowed
}

// overlapFacts notes what was measured of attention beside messages between
// two ranks, by device type: what was measured in a group counts for its members.
func (q *Predictor) overlapFacts(p *Profile) {
	members := map[string][]op.Member{}
	for _, g := range p.Groups {
		members[g.Name] = g.Members
	}
	for _, f := range p.Overlaps {
		if f.Comm != op.KindSendRecv {
			continue
		}
		on := members[f.On]
		if on == nil {
			on = []op.Member{{Device: f.On}}
		}
		for _, m := range on {
			k := slowKey{m.Device, f.Compute, f.Slowed}
			q.overlaps[k] = max(q.overlaps[k], f.Ratio)
		}
	}
}

// slowed is the factor by which attention is slower while messages move, or
// messages while attention is computed; 1 where nobody measured it, and never
// less, for a ratio below 1 is noise.
func (q *Predictor) slowed(device string, back bool, side op.Slowed) float64 {
	kind := op.KindAttnFwd
	if back {
		kind = op.KindAttnBwd
	}
	return max(1, q.overlaps[slowKey{device, kind, side}])
}

// slowed is what messages make of a device's computing: as measured or, of one that
// nobody measured, contention where that is asked for.
func (s *sim) slowed(device string, back bool) units.Seconds {
	f := s.q.slowed(device, back, op.SlowedCompute)
	if s.contended && !s.q.measuredBeside(device, back) {
		f = contention
	}
	return units.Seconds(f)
}

// contention is how much slower computing may be while messages move, as the upper end
// of what nobody measured: of models on four A100, H100, MI210 or MI250 each, computing
// was slower beside communication by 18.9 % on average and by 40.0 % at most (Lee et al.,
// arXiv 2507.03114, abstract).
const contention = 1.4

// measuredBeside says whether anybody measured how messages slow attention.
func (q *Predictor) measuredBeside(device string, back bool) bool {
	kind := op.KindAttnFwd
	if back {
		kind = op.KindAttnBwd
	}
	_, ok := q.overlaps[slowKey{device, kind, op.SlowedCompute}]
	return ok
}

// neverBeside are the device types at work of which nobody measured that of attention
// in both passes.
func (s *sim) neverBeside() []string {
	return slices.DeleteFunc(s.deviceTypes(), func(d string) bool { return s.q.measuredBeside(d, false) && s.q.measuredBeside(d, true) })
}

// unmeasured is by how much longer the step at hand takes with contention wherever
// attention or linear work goes on beside messages. The simulation at hand is lost.
func (s *sim) unmeasured() (units.Seconds, error) {
	free, beside := s.length(), len(s.groups) > 1 || s.layout.HeadChunks > 1 || s.pairs > 0
	if !beside || len(s.neverBeside()) == 0 {
		return 0, nil
	}
	s.contended, s.lengthOnly = true, true
	defer func() { s.contended, s.lengthOnly = false, false }()
	if err := s.run(s.layout, SimOptions{}); err != nil {
		return 0, err
	}
	return max(0, s.length()-free), nil
}

// worthTelling is the share of a step from which on contention is warned of.
const worthTelling = 1e-3

func (s *sim) contentionWarning(c units.Seconds) string {
	return fmt.Sprintf("how much messages slow computing beside them was not measured on %s: the step takes %v longer if it is %.0f %%, the most that is published of GPUs; evenkeel calibrate --backend torch measures it on processors, and a replay of the plan (evenkeel replay, then check) shows it on GPUs", strings.Join(s.neverBeside(), ", "), c, 100*(contention-1))
}

// beside is how much longer a seat's attention on a block takes for the messages
// that move meanwhile.
type beside struct {
	factor units.Seconds // of computing while messages move
	most   units.Seconds // that they add to a block
}

// stretch is what w seconds of computing take. With messages for m seconds of them
// and a factor f, m/f of the work is done while they move and the rest after them:
// w + m (1 - 1/f), and f w where they outlast it. That rises with w, m and f.
func (b beside) stretch(w units.Seconds) units.Seconds {
	if b.most == 0 {
		return w
	}
	return min(w*b.factor, w+b.most)
}

// besides are the slow-downs of all seats in a pass of the ring. What moves beside a
// block is taken as a seat's messages on average over the ring, of its two ports
// the busier, so that a block's time depends on no other's.
func (s *sim) besides(back bool) []beside {
	all, slows := make([]beside, len(s.seats)), false
	for i := range s.seats {
		if i > 0 && s.seats[i].device == s.seats[i-1].device {
			all[i].factor = all[i-1].factor
			continue
		}
		all[i].factor = s.slowed(s.seats[i].device, back)
		slows = slows || all[i].factor > 1
	}
	if !slows || len(s.groups) < 2 {
		return all
	}
	out, in := s.portTimes(back)
	for i := range all {
		all[i].most = max(out[i], in[i]) * (1 - 1/all[i].factor)
	}
	return all
}

// portTimes is for how long messages occupy each seat's egress and ingress port in a step
// of the ring, on average over the steps beside which messages move.
func (s *sim) portTimes(back bool) (out, in []units.Seconds) {
	out, in = make([]units.Seconds, len(s.seats)), make([]units.Seconds, len(s.seats))
	steps := units.Seconds(len(s.groups) - 1)
	sums := map[int]units.Seconds{} // of the group at hand, by price
	dir := 0
	if back {
		dir = 1
	}
	for g := range s.groups {
		b := &s.groups[g]
		clear(sums)
		for _, h := range b.out {
			sum, ok := sums[h.price[dir]]
			if !ok {
				sum = s.passing(back, h.price[dir], g)
				sums[h.price[dir]] = sum
			}
			out[h.from] += sum / steps
			in[h.to] += sum / steps
		}
		if !back {
			continue
		}
		for _, h := range b.home {
			t := s.pricedHop(true, h.price[dir], g)
			out[h.from] += t / steps
			in[h.to] += t / steps
		}
	}
	return out, in
}

// passing is what a group takes to pass on all blocks that it does, in the backward
// pass with their gradients.
func (s *sim) passing(back bool, price, g int) units.Seconds {
	var sum units.Seconds
	for k := range s.groups {
		kv, grads := s.passes(g, k)
		if kv {
			sum += s.pricedHop(false, price, k)
		}
		if back && grads {
			sum += s.pricedHop(true, price, k)
		}
	}
	return sum
}

// pricedHop is hopTime where it is known, else what the law says.
func (s *sim) pricedHop(grad bool, price, k int) units.Seconds {
	table := &s.kv
	if grad {
		table = &s.grad
	}
	t := table.get(price, s.groups[k].form.shape)
	if unknown(t) {
		t = s.hopCost(grad, price, &s.groups[k], nil)
	}
	return t
}
