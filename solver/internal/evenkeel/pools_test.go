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

// A short sequence, whose parameters are gathered anew in every pass, is planned for the two
// ranks of a node that are the fastest, of which one has too little memory, also where there
// are many others.
func TestPartsOfANodeAreTriedBesideOthers(t *testing.T) {
	const seq = 2048
	step := func(cluster string) units.Seconds {
		profile, job := world.GPUJob(t, cluster, seq)
		job.Zero = costmodel.Zero3
		p := world.ProblemOf(t, profile, job)
		first := make([]units.Tokens, len(p.Ranks))
		first[0] = seq
		alone := costmodel.ZigZag(first, []costmodel.Group{{{Rank: 0, QHeads: job.Model.QHeads}}})
		for i := range profile.Devices {
			profile.Devices[i].Memory = p.Sim.Memory(alone)[0].Peak() * 4 / 5
		}
		return solvedAlone(t, world.ProblemOf(t, profile, job)).Step.Time.Mid
	}
	two := step("1x16 rtx_pro_6000_server")
	for _, others := range []string{" + 2x2 b60", " + 3x8 b60"} {
		if beside := step("1x16 rtx_pro_6000_server" + others); beside > two*1.01 {
			t.Errorf("%v beside%s, %v without", beside, others[2:], two)
		}
	}
}
