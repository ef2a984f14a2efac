package solver

import (
	"context"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
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
	// Take names the strategy whose plan Solve returns however the others compare; empty
	// leaves the choice to Solve.
	Take string
	// Effort above 1 adds a second search with Effort times the usual work. It starts
	// afresh, and the better result of the two counts, so that no plan gets slower by it. At
	// most MostEffort.
	Effort float64

	ranks   []costmodel.Rank
	devices []op.DeviceType          // by rank
	memory  []costmodel.DeviceMemory // by rank
	sim     *costmodel.Simulator
	seeds   []Result // of the strategies solved before, for one that starts from their plans
	base    *Result  // the strongest baseline of these
}

// MostEffort bounds Problem.Effort.
const MostEffort = 100

// NewProblem checks that a job can be planned on the devices of a valid
// profile. The job's cluster must be resolved (costmodel.Cluster.Resolve).
//
// Errors: an invalid job, a device type the profile lacks or whose capacity it
// does not know, fewer tokens than ranks, or the first law that any plan on
// this cluster would need and nobody measured, as *costmodel.MissingLawError.
func NewProblem(profile *costmodel.Profile, job costmodel.Job) (*Problem, error) {
	if err := job.Validate(); err != nil {
		return nil, err
	}
	p := &Problem{Job: job, Profile: profile, Predictor: costmodel.NewPredictor(profile), ranks: job.Cluster.Ranks()}
	for _, r := range p.ranks {
		d, err := p.Predictor.Device(r.Device)
		if err != nil {
			return nil, fmt.Errorf("cluster: node %s: %w", r.NodeName, err)
		}
		if d.Memory == 0 {
			return nil, fmt.Errorf("device type %q has no memory_bytes in the profile, so no plan can be said to fit; measure it: evenkeel calibrate --fresh --only %s", d.Name, op.KindMemCapacity)
		}
		p.devices = append(p.devices, d)
		p.memory = append(p.memory, p.Predictor.DeviceMemory(job, r.Device))
	}
	if n := len(p.ranks); job.SeqLen < units.Tokens(n) {
		return nil, fmt.Errorf("seq_len_tokens: %d: fewer tokens than the cluster's %d ranks; take a longer sequence or fewer devices", int64(job.SeqLen), n)
	}
	p.Block = blockFor(job.SeqLen, len(p.ranks))
	var err error
	if p.sim, err = costmodel.NewSimulator(p.Predictor, job); err != nil {
		return nil, err
	}
	if err := p.missing(); err != nil {
		return nil, err
	}
	return p, nil
}

// missing is the first law that any plan needs and nobody measured, before a search begins.
// With an equal split every device type runs every op and the ring crosses every link
// class that any ring of this cluster crosses, so one simulation finds it. It takes
// seconds of ten thousand ranks; then that of a few is asked (see sample), and what all
// exchange by itself.
func (p *Problem) missing() error {
	l := p.equalRing()
	if !costly(l) {
		_, err := p.sim.Time(l)
		return err
	}
	few := p.Job
	few.Cluster = sample(few.Cluster)
	q, err := NewProblem(p.Profile, few)
	if err != nil {
		return err
	}
	if costly(q.equalRing()) { // nodes that are all unlike
		_, err = p.sim.Time(l)
		return err
	}
	return p.alone(p.all())
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

// equalRing is ring attention over all ranks in equal shares.
func (p *Problem) equalRing() costmodel.Layout {
	split := equalSplit(p.Job.SeqLen, len(p.ranks))
	return costmodel.ZigZag(split, costmodel.Singles(split, p.Job.Model.QHeads))
}

// simulate is the full account of a layout, however long it takes, unless somebody ends ctx:
// then it may go on for a second (see whenLeft).
func (p *Problem) simulate(ctx context.Context, l costmodel.Layout) (*costmodel.Step, error) {
	return p.sim.Step(l, costmodel.SimOptions{Until: whenLeft(ctx, lastQuestions)})
}

// place names a rank as people find it: "rank 3 (cpu:1 on n0)".
func (p *Problem) place(r int) string {
	return fmt.Sprintf("rank %d (%s on %s)", r, p.ranks[r].Device, p.ranks[r].NodeName)
}

// equalSplit gives every rank the same tokens, the first ones one more where
// they do not divide.
func equalSplit(total units.Tokens, ranks int) []units.Tokens {
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
