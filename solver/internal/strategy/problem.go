package strategy

import (
	"context"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Problem is a job on the devices of a profile, as strategies solve it. Its simulator
// caches prices, so it is not safe for concurrent use.
type Problem struct {
	Job       costmodel.Job
	Profile   *costmodel.Profile
	Predictor *costmodel.Predictor
	// Block is the granularity of splits in a search, in tokens. One shard may get the
	// remainder.
	Block units.Tokens
	// Effort above 1 adds a second search with Effort times the usual work. It starts
	// afresh, and the better result of the two counts, so that no plan gets slower by it.
	Effort float64

	Ranks []costmodel.Rank
	Sim   *costmodel.Simulator // the judge of all strategies
	Seeds []Result             // of the strategies solved before, with their accounts, for one that starts from their plans
	Base  *Result              // the strongest baseline of these
}

// MostEffort bounds the effort of a search.
const MostEffort = 100

// New checks that a job can be planned on the devices of a valid
// profile. The job's cluster must be resolved (costmodel.Cluster.Resolve).
//
// Errors: an invalid job, a device type the profile lacks or whose capacity it
// does not know, fewer tokens than ranks, or the laws that any plan on
// this cluster would need and nobody measured, as *costmodel.MissingLawError.
func New(profile *costmodel.Profile, job costmodel.Job) (*Problem, error) {
	if err := job.Validate(); err != nil {
		return nil, err
	}
	p := &Problem{Job: job, Profile: profile, Predictor: costmodel.NewPredictor(profile), Ranks: job.Cluster.Ranks()}
	for _, r := range p.Ranks {
		d, err := p.Predictor.Device(r.Device)
		if err != nil {
			return nil, fmt.Errorf("cluster: node %s: %w", r.NodeName, err)
		}
		if d.Memory == 0 {
			return nil, fmt.Errorf("device type %q has no memory_bytes in the profile, so no plan can be said to fit; measure it: evenkeel calibrate --fresh", d.Name)
		}
	}
	if n := len(p.Ranks); job.SeqLen < units.Tokens(n) {
		return nil, fmt.Errorf("seq_len_tokens: %d: fewer tokens than the cluster's %d ranks; take a longer sequence or fewer devices", int64(job.SeqLen), n)
	}
	p.Block = blockFor(job.SeqLen, len(p.Ranks))
	var err error
	if p.Sim, err = costmodel.NewSimulator(p.Predictor, job); err != nil {
		return nil, err
	}
	if err := p.missing(); err != nil {
		return nil, err
	}
	return p, nil
}

// On is the problem on a cluster of the same nodes in another order.
func (p *Problem) On(c costmodel.Cluster) (*Problem, error) {
	job := p.Job
	job.Cluster = c
	sim, err := costmodel.NewSimulator(p.Predictor, job)
	if err != nil {
		return nil, err
	}
	return &Problem{Job: job, Profile: p.Profile, Predictor: p.Predictor, Block: p.Block, Ranks: c.Ranks(), Sim: sim}, nil
}

// missing is what laws any plan needs and nobody measured, before a search begins.
// With an equal split every device type runs every op and the ring crosses every link
// class that any ring of this cluster crosses, so one simulation finds them. It takes
// seconds of ten thousand ranks; then that of a few is asked (see sample), and what all
// exchange by itself.
func (p *Problem) missing() error {
	l := p.EqualRing()
	if !Costly(l) {
		_, err := p.Sim.Time(l)
		return err
	}
	few := p.Job
	few.Cluster = sample(few.Cluster)
	q, err := New(p.Profile, few)
	if err != nil {
		return err
	}
	if Costly(q.EqualRing()) { // nodes that are all unlike
		_, err = p.Sim.Time(l)
		return err
	}
	return p.Alone(p.AllRanks())
}

// sample is the first two nodes of each kind, and of each type in them two devices at most:
// the device types and links of a cluster, and few ranks.
func sample(c costmodel.Cluster) costmodel.Cluster {
	type kind struct {
		link, devices string
		cards         bool
	}
	met, all := map[kind]int{}, c.Nodes
	c.Nodes = nil
	for _, n := range all {
		k := kind{link: n.Link, cards: n.NICs > 0}
		n.Devices = slices.Clone(n.Devices)
		for i := range n.Devices {
			m := &n.Devices[i]
			m.Count = min(m.Count, 2)
			k.devices += fmt.Sprintf("%d %s,", m.Count, m.Device)
		}
		n.NICs = min(n.NICs, len(n.Devices)) // no more cards than devices
		if met[k]++; met[k] <= 2 {
			c.Nodes = append(c.Nodes, n)
		}
	}
	return c
}

// blockFor is 128 tokens, a kernel's tile twice, or on short sequences the
// largest power of two that leaves every rank 64 blocks on average: coarser
// steps than 1/64 of a share would themselves be what makes ranks wait.
func blockFor(seq units.Tokens, ranks int) units.Tokens {
	b := units.Tokens(128)
	for b > 1 && b*64*units.Tokens(ranks) > seq {
		b /= 2
	}
	return b
}

// EqualRing is ring attention over all ranks in equal shares.
func (p *Problem) EqualRing() costmodel.Layout {
	split := EqualSplit(p.Job.SeqLen, len(p.Ranks))
	return costmodel.ZigZag(split, costmodel.Singles(split, p.Job.Model.QHeads))
}

// Simulate is the full account of a layout, however long it takes, unless somebody ends ctx:
// then it may go on for a second (see whenLeft).
func (p *Problem) Simulate(ctx context.Context, l costmodel.Layout) (*costmodel.Step, error) {
	return p.Sim.Step(l, costmodel.SimOptions{Until: whenLeft(ctx, lastQuestions)})
}

// costlySteps is how many steps of a rank make a simulation costly: some
// milliseconds. A mesh of 256 ranks or fewer never has as many.
const costlySteps = 200_000

// Costly says whether simulating a layout takes so long that it is worth a thought.
func Costly(l costmodel.Layout) bool {
	seats := 0
	for _, g := range l.Groups {
		seats += len(g)
	}
	return seats*len(l.Groups) > costlySteps
}

// Place names a rank as people find it: "rank 3 (cpu:1 on n0)".
func (p *Problem) Place(r int) string {
	return fmt.Sprintf("rank %d (%s on %s)", r, p.Ranks[r].Device, p.Ranks[r].NodeName)
}

// EqualSplit gives every rank the same tokens, the first ones one more where
// they do not divide.
func EqualSplit(total units.Tokens, ranks int) []units.Tokens {
	n := units.Tokens(ranks)
	split := make([]units.Tokens, ranks)
	for r := range split {
		split[r] = total / n
		if units.Tokens(r) < total%n {
			split[r]++
		}
	}
	return split
}
