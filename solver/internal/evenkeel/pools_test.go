package evenkeel

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// Over slow links a single rank is faster than any two of them. It need not be one of the
// fastest, whose memory is too small for all alone.
func TestOneRankOfEveryClassIsTried(t *testing.T) {
	const seq = 76
	for _, zero := range []costmodel.ZeRO{costmodel.Zero0, costmodel.Zero3} {
		job := world.Job(t, "1x(3 fast + 3 slow)", seq)
		job.Zero, job.Model.QHeads, job.Model.KVHeads = zero, 4, 4
		fast, slow := world.Fast(), world.Slow()
		wires := []world.Wire{world.Link("near", 1e-5, 1e-8), world.Far()}
		p := world.ProblemOf(t, world.Profile([]world.Device{fast, slow}, wires), job)
		alone := costmodel.ZigZag([]units.Tokens{0, 0, 0, seq, 0, 0}, []costmodel.Group{{{Rank: 3, QHeads: 4}}})
		need := p.Sim.Memory(alone)[3].Peak()
		fast.Memory, slow.Memory = need, 2*need // 0.97 of which may be used
		p = world.ProblemOf(t, world.Profile([]world.Device{fast, slow}, wires), job)
		if found, one := solvedAlone(t, p), world.Seconds(t, p, alone); found.Step.Time.Mid > one*(1+1e-9) {
			t.Errorf("%s: %v by %s; a slow rank alone takes %v", zero, found.Step.Time.Mid, found.Why, one)
		}
	}
}
