package costmodel

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// SimOptions asks for more than the account of a step.
type SimOptions struct {
	// Timeline fills Step.Timeline and Step.Path.
	Timeline bool
	// Until stops a long simulation when it returns an error (see Simulator.Until); it may
	// be nil.
	Until func() error
}

// Simulate predicts one training step of a job under a layout.
//
// The step is a chain of stages: the forward pass of every layer, the loss, the backward
// pass of every layer (after its forward pass once more under full recomputation), the
// exposed part of the exchange of gradients and parameters, and the optimizer. All layers
// are alike, so one is simulated event by event (see layerRun) and counted once per layer
// and micro-batch. Ranks meet at the end of every stage and of every layer. This
// overestimates: a rank that is done early could already begin the next layer. Within a
// layer they synchronise in their all-to-alls and through the blocks they pass on around
// the ring.
//
// Residual additions and the embedding lookup are left out, since no law covers them.
//
// Time and all parts are the laws' most likely values. The interval of Time is that of
// the parts on the rank that waits least, law by law (see account); its upper end
// includes possible contention (Step.Contention).
//
// Errors: an invalid job or layout, a device that the profile lacks, or what laws are
// missing, as *MissingLawError or *MissingLawsError, which is one too.
func Simulate(q *Predictor, j Job, l Layout, opts SimOptions) (*Step, error) {
	s, err := newSim(q, j)
	if err != nil {
		return nil, err
	}
	s.until = opts.Until
	if err := s.run(l, opts); err != nil {
		return nil, err
	}
	step := s.step()
	if err := s.contend(step); err != nil {
		return nil, err
	}
	if c := step.Contention; c > worthTelling*step.Time.Mid {
		step.Warnings = append(step.Warnings, s.contentionWarning(c))
	}
	return step, nil
}

// contend allows for what nobody measured of messages beside computing. The simulation at
// hand is lost.
func (s *sim) contend(step *Step) (err error) {
	if step.Contention, err = s.unmeasured(); err != nil {
		return err
	}
	step.Time.Hi = reachingUp(step.Time, step.Contention)
	return nil
}

// Simulator simulates many layouts of one job, for searches. It caches the prices of
// tasks, so that each law is evaluated once per shape. It is not safe for concurrent use.
type Simulator struct {
	q      *Predictor
	job    Job
	fast   *sim
	memory *MemoryModel
	of     []DeviceMemory // by rank
}

// NewSimulator makes a simulator of a job. Errors: an invalid job or a device
// that the profile lacks.
func NewSimulator(q *Predictor, j Job) (*Simulator, error) {
	fast, err := newSim(q, j)
	if err != nil {
		return nil, err
	}
	fast.timeOnly, fast.lengthOnly = true, true
	s := &Simulator{q: q, job: j, fast: fast, memory: NewMemoryModel(j)}
	for _, r := range fast.ranks {
		s.of = append(s.of, q.DeviceMemory(j, r.Device))
	}
	return s, nil
}

// Until sets a function that Time, Idle and Brief call every few milliseconds; when it
// returns an error they stop and return that error. A nil function never stops them.
// Simulations of few ranks or groups finish before the first call. Prices computed so far
// stay valid.
func (s *Simulator) Until(why func() error) { s.fast.until = why }

// Time is the most likely step time, Step.Time.Mid, without the rest of the account.
//
// Errors: an invalid layout, or what laws are missing, as of Simulate.
func (s *Simulator) Time(l Layout) (units.Seconds, error) {
	if err := s.fast.run(l, SimOptions{}); err != nil {
		return 0, err
	}
	return s.fast.length(), nil
}

// Idle is the time that every rank waits for slower ranks, as in RankStep.Idle. A rank
// without a place in the layout idles for the whole step.
//
// Errors: those of Time.
func (s *Simulator) Idle(l Layout) ([]units.Seconds, error) {
	s.fast.lengthOnly = false
	defer func() { s.fast.lengthOnly = true }()
	if err := s.fast.run(l, SimOptions{}); err != nil {
		return nil, err
	}
	idle := make([]units.Seconds, len(s.fast.ranks))
	for r := range idle {
		idle[r] = s.fast.length()
	}
	for i, a := range s.fast.seats {
		idle[a.rank] = s.fast.spent(i).idle
	}
	return idle, nil
}

// Brief is of Step's account what GainError needs to compare a layout with another: the most
// likely time, without an interval, and how sure it is. It has no parts, ranks, traffic or
// source.
//
// Errors: those of Time.
func (s *Simulator) Brief(l Layout) (*Step, error) {
	s.fast.lengthOnly = false
	defer func() { s.fast.lengthOnly = true }()
	if err := s.fast.run(l, SimOptions{}); err != nil {
		return nil, err
	}
	mid, _, sides := s.fast.sidesOf(s.fast.allSpent())
	contention, err := s.fast.unmeasured()
	return &Step{Time: Estimate{Lo: mid, Mid: mid, Hi: mid}, Contention: contention, sides: sides}, err
}

// Step is Simulate for the simulator's job.
func (s *Simulator) Step(l Layout, opts SimOptions) (*Step, error) {
	return Simulate(s.q, s.job, l, opts)
}

// Memory is the predicted peak memory of every rank under a valid layout.
func (s *Simulator) Memory(l Layout) []Memory {
	return s.memory.in(l, func(r int) DeviceMemory { return s.of[r] })
}

// sim simulates one layout after the other for a job, and keeps the prices of tasks
// between them.
type sim struct {
	*coster
	prices
	job   Job
	ranks []Rank // of the cluster
	// attentionOnly leaves the linear work of layers out.
	attentionOnly bool
	// context is how many tokens lie before the sequence, whose keys and values are there: see
	// Packer.ReplayedChunk.
	context units.Tokens
	// reduced is how a replay added gradients up.
	reduced Reduction
	// contended assumes the worst published slow-down of computing beside messages where
	// nobody measured one.
	contended bool
	// lengthOnly computes the step's length without how ranks spend it, where that is
	// quicker.
	lengthOnly bool
	nodes      []nodeOfSeats
	// fewCards says that ranks of some node share its network cards.
	fewCards bool
	foldFrom int          // groups, see foldGroups
	until    func() error // see Simulator.Until
	pack     *Packer      // the packer that uses it, or nil
	unasked  int          // tasks since it was asked last
	late     error        // what it said of the run at hand

	// Of the layout at hand.
	layout         Layout
	seats          []seat
	seated         seated
	groups         []seatGroup
	cross          [exchangeKinds][][]crossing
	sent, received []int            // of messages: see abroad
	chunks         [][]headChunk    // of all seats, by chunk, and last all of their heads
	chunkSlow      [2]units.Seconds // forward, backward: what attention slows all-to-alls by that hide behind it
	pairs, alone   int              // micro-batches that go in pairs, and alone
	stages         []stage
	traffic        []Traffic
	spans          []Span
	path           []Hop
	layers         [2]layerRun // forward, backward
	twos           [2]layerRun // the same for a pair of micro-batches
}

func newSim(q *Predictor, j Job) (*sim, error) {
	if err := j.Validate(); err != nil {
		return nil, fmt.Errorf("job: %w", err)
	}
	s := &sim{coster: newCoster(q, j), prices: newPrices(), foldFrom: foldGroups, job: j, ranks: j.Cluster.Ranks()}
	s.fewCards = slices.ContainsFunc(j.Cluster.Nodes, func(n Node) bool { return n.NICs > 0 })
	for _, r := range s.ranks {
		if _, err := q.Device(r.Device); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// run simulates a layout.
func (s *sim) run(l Layout, opts SimOptions) error {
	if err := l.Validate(s.job.SeqLen, len(s.ranks), s.job.Model.QHeads); err != nil {
		return fmt.Errorf("layout: %w", err)
	}
	s.layout, s.err, s.late, s.unasked = l, nil, nil, 0
	s.stages, s.traffic, s.spans, s.path = s.stages[:0], s.traffic[:0], s.spans[:0], nil
	if err := s.seat(); err != nil {
		return err
	}
	if l.TwoBatch && s.job.Accumulate < 2 {
		return fmt.Errorf("layout: two_batch_overlap: with %d micro-batch in a step (grad_accumulation): it takes two", max(1, s.job.Accumulate))
	}
	if s.pairs, s.alone = s.job.inTwos(l.Schedule); s.pairs > 0 {
		s.slowTwos()
	}
	for back := range s.layers {
		if s.pairs > 0 {
			s.twos[back].inTwos(s, back == 1, opts.Timeline)
		}
		if s.alone > 0 {
			s.layers[back].run(s, back == 1, opts.Timeline)
		}
	}
	if s.late != nil {
		return cmp.Or(s.err, s.late)
	}
	s.addStages()
	if opts.Timeline && s.err == nil {
		s.drawTimeline()
	}
	return s.err
}

// askEvery is the number of tasks, some 20 ns each, between two questions whether to go on.
const askEvery = 1 << 20

// gaveUp says before each step of a ring, of so many tasks, whether the run is to be given up. It has an error of
// its own: one of the laws' would leave prices out that are remembered.
func (s *sim) gaveUp(tasks int) bool {
	if s.unasked += tasks; s.until != nil && s.late == nil && s.unasked >= askEvery {
		s.late, s.unasked = s.until(), 0
	}
	return s.late != nil
}

// part is a named share of a step, in order of execution.
type part int

const (
	linearForward part = iota
	attentionForward
	lossPart
	recompute
	linearBackward
	attentionBackward
	allToAll
	ringWait
	idle
	gradientSync
	optimizerPart
	partCount
)

func partNames() [partCount]string {
	return [partCount]string{
		"linear forward", "attention forward", "loss", "recompute", "linear backward", "attention backward",
		"all-to-all (exposed communication)", "ring wait (exposed communication)", "idle", "gradient sync", "optimizer",
	}
}

// stage is a stretch of the step at whose end all ranks meet.
type stage struct {
	what   part    // what its ranks do, of linear and attention parts the linear one
	times  float64 // how often it happens
	length units.Seconds
	shares []share      // by seat; nil where all ranks do what the stage is about for its whole length
	layers *[2]layerRun // of a stage of layers
}

// share is how a seat spends a stage; what is left of the length is idle.
type share struct {
	busy              [partCount]units.Seconds // without all-to-all and ring
	allToAll, exposed units.Seconds
}

func (h share) computing() units.Seconds {
	var sum units.Seconds
	for _, t := range h.busy {
		sum += t
	}
	return sum
}

// length is the time of the whole step.
func (s *sim) length() units.Seconds {
	var total units.Seconds
	for _, g := range s.stages {
		total += units.Seconds(g.times) * g.length
	}
	return total
}

// round is micro-batches that go through the layers together, and how often so many do.
type round struct {
	layers  *[2]layerRun
	batches units.Seconds
	times   float64
}

// rounds are those of the layout, in order of execution.
func (s *sim) rounds() []round {
	all := make([]round, 0, 2)
	if s.pairs > 0 {
		all = append(all, round{&s.twos, 2, float64(s.pairs)})
	}
	if s.alone > 0 {
		all = append(all, round{&s.layers, 1, float64(s.alone)})
	}
	return all
}

// addStages chains the stages of the step in order of execution. Every micro-batch has
// an exchange of its own: that two which go through a layer together could share what is
// gathered for it is left to who runs them, for micro-batches of two sequences could too,
// whatever the layout.
func (s *sim) addStages() {
	layers, behind := float64(s.job.Model.Layers), float64(s.job.Model.Layers-1)
	x, rounds := s.exchange(), s.rounds()
	for _, r := range rounds {
		forward := &r.layers[0]
		s.addLayers(r.layers, 0, layers*r.times, linearForward, attentionForward)
		s.addHidden(behind*r.times, forward.length, forward.busiest(), r.batches*x.forward)
	}
	s.addLocal(lossPart, s.job.microBatches(), func(a *seat) units.Seconds { return s.lossTime(a) })
	for i, r := range rounds {
		forward, backward := &r.layers[0], &r.layers[1]
		length, busiest := backward.length, backward.busiest()
		if s.job.Recompute == RecomputeFull {
			s.addLayers(r.layers, 0, layers*r.times, recompute, recompute)
			length, busiest = length+forward.length, busiest+forward.busiest()
		}
		s.addLayers(r.layers, 1, layers*r.times, linearBackward, attentionBackward)
		s.addHidden(behind*r.times, length, busiest, r.batches*x.backward)
		if i == len(rounds)-1 {
			s.addHidden(behind, length, busiest+r.batches*x.backward, x.last)
		}
	}
	s.stages = append(s.stages, stage{what: gradientSync, times: 1, length: x.open})
	s.addLocal(optimizerPart, 1, func(a *seat) units.Seconds { return s.optimizerTime(a.device, len(s.seats)) })
}

// addLayers books a simulated layer `times` over.
func (s *sim) addLayers(layers *[2]layerRun, dir int, times float64, linear, attention part) {
	r := &layers[dir]
	g := stage{what: linear, times: times, length: r.length, shares: s.newShares(), layers: layers}
	for i := range g.shares {
		h, a, c := &g.shares[i], &r.seats[i], &r.outside[i]
		h.busy[linear] += c.pre + c.post
		h.busy[attention] += a.attention
		h.allToAll, h.exposed = c.allToAll, a.exposed
	}
	s.stages = append(s.stages, g)
}

// addLocal books a stage in which ranks only compute.
func (s *sim) addLocal(p part, times float64, cost func(*seat) units.Seconds) {
	g := stage{what: p, times: times, shares: s.newShares()}
	var t units.Seconds
	for i := range s.seats {
		if i == 0 || !s.seats[i].worksLike(&s.seats[i-1]) {
			t = cost(&s.seats[i])
		}
		if g.shares != nil {
			g.shares[i].busy[p] = t
		}
		g.length = max(g.length, t)
	}
	s.stages = append(s.stages, g)
}

// newShares is a share of a stage for every seat; nil where nobody asks for them.
func (s *sim) newShares() []share {
	if s.lengthOnly {
		return nil
	}
	return make([]share, len(s.seats))
}
