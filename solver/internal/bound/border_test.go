package bound

import (
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// No rank of any layout has more pairs than its own keys, those that come round the
// ring and its group's other tokens let it have; and what the border says it can reach
// within the time that these take is no less.
func TestRanksReachNoMorePairs(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 1))
	tight, tightTwos, ranks := 0, 0, 0
	for range 60 {
		p := world.Random(t, r)
		p = world.ProblemOf(t, p.Profile, varied(r, p.Job))
		f := &floors{profile: p.Profile, predictor: p.Predictor, job: p.Job, size: len(p.Ranks)}
		b := f.borderOf(1, 1)
		w := &leastWork{weights: [stageCount]float64{float64(1 + r.IntN(2)), 1, 0}}
		all, heads := float64(p.Job.SeqLen), float64(p.Job.Model.QHeads)
		passes := w.weights[forwardLayer] + w.weights[backwardLayer]
		for range 30 {
			l := []costmodel.Layout{world.RandomGrouped(r, p), inStretches(r, p)}[r.IntN(2)]
			l.KeepTail = r.IntN(2) == 0
			reaches := l.Reaches()
			tail, kept := l.Tail()
			for g, group := range l.Groups {
				own, seen := 0.0, 0.0 // tokens of the group, pairs of a head
				for _, s := range l.GroupShard(g).Segments {
					own += float64(s.Len())
					seen += float64(s.Len()) * float64(s.Start+s.End+1) / 2
				}
				come := 0.0
				for k, n := range reaches {
					if at := (g - k + len(reaches)) % len(reaches); at > 0 && at <= n {
						come += float64(l.GroupShard(k).Tokens())
						if k == tail {
							come -= float64(kept)
						}
					}
				}
				for _, m := range group {
					s, share := float64(l.Shards[m.Rank].Tokens()), float64(m.QHeads)/heads
					pairs := float64(m.QHeads) * seen
					if most := float64(m.QHeads) * (s*come + s*(s+1)/2 + (own-s)*(all+1)); pairs > most*(1+1e-12) {
						t.Fatalf("rank %d of %+v: %v pairs, want at most %v", m.Rank, l, pairs, most)
					}
					if len(reaches) < 2 {
						continue
					}
					// As long as its port takes for what comes in by the ring, and its own
					// gradients' way out.
					ring := 2 * b.kvShare * share * come * b.perHop
					theta := max(passes*ring, w.weights[backwardLayer]*b.wide*ring)
					x := b.reach(w, s, theta, 0)
					exchange := passes * (2 + 2*b.kvShare) * share * (own - s) * b.perRow
					if most := x.free + x.perSecond*exchange; pairs > most*(1+1e-12) {
						t.Fatalf("rank %d of %+v: %v pairs, the border says at most %v", m.Rank, l, pairs, most)
					} else if ranks++; pairs > most/2 {
						tight++
					}
					twos := *w
					twos.twoBatch = true // all-to-alls beside computing, on the same ports
					y := b.reach(&twos, s, max(theta, passes*ring+exchange), 0)
					if got := y.pairs(1, func(float64) float64 { return pairs }); pairs > got*(1+1e-12) {
						t.Fatalf("rank %d of %+v: %v pairs, the border says at most %v by ports alone", m.Rank, l, pairs, got)
					} else if pairs > y.most/2 {
						tightTwos++
					}
				}
			}
		}
	}
	if min(tight, tightTwos) < ranks/10 {
		t.Errorf("of %d ranks only %d, and %d in twos, have half of what the border allows", ranks, tight, tightTwos)
	}
}
