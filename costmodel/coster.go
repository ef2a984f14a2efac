package costmodel

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// coster turns the parts of a step into seconds by the laws of a profile. It
// remembers the laws it used, and those that it lacked, after which it returns
// nonsense: callers look at err once, at the end.
type coster struct {
	q   *Predictor
	job Job
	err error
	// timeOnly leaves out how sure the laws are, which is quicker.
	timeOnly bool

	uses    []lawUse
	compute map[computeKey]int // law numbers
	wires   map[wireKey]int
	rings   map[ringKey]int
	rates   []units.BytesPerS // by node: see Predictor.NodeRates
	worst   Source

	// Shapes are passed by pointer, for turning a struct into an interface
	// would allocate at each of the thousands of predictions of a ring.
	fwd   op.AttnFwd
	bwd   op.AttnBwd
	merge op.LSEMerge
	hop   op.SendRecv

	kernels []kernelLaws
	blocks  []attnBlock
	batch   int       // equal documents that one attention call computes; 0 is one
	packed  []Segment // documents of the sequence, each causal on its own; none is one
}

// lawUse is a law in use and how far outside its measured range.
type lawUse struct {
	law    *Law
	factor float64 // of Transfer
	beyond float64 // doublings, most of all calls
	where  string  // the collective and group a transferred law stands for
	err    error   // instead of a law
}

// kernelLaws are the numbers, plus one, of a device type's laws of attention, for
// the map of all laws is too slow for the thousands of blocks of a ring.
type kernelLaws struct {
	device      string
	forward     [2]int // FULL, DIAG
	backward    [2]int
	accumulated int
}

type computeKey struct {
	device string
	kind   op.Kind
	v      op.Variant
}

type wireKey struct {
	link    string
	kind    op.Kind
	members string
}

// ringKey is a collective among members on nodes of which the slowest sends at such a rate.
type ringKey struct {
	wireKey
	slowest units.BytesPerS
}

func newCoster(q *Predictor, j Job) *coster {
	return &coster{q: q, job: j, compute: map[computeKey]int{}, wires: map[wireKey]int{}, rings: map[ringKey]int{}, rates: q.NodeRates(j.Cluster)}
}

// on finds the number of a compute law.
func (c *coster) on(device string, kind op.Kind, v op.Variant) int {
	k := computeKey{device, kind, v}
	if id, ok := c.compute[k]; ok {
		return id
	}
	law, err := c.q.Law(device, kind, v)
	id := c.use(lawUse{law: law, factor: 1}, err)
	c.compute[k] = id
	return id
}

// over finds the number of a collective's law among members.
func (c *coster) over(link string, kind op.Kind, members []op.Member) int {
	k := wireKey{link, kind, membersKey(members)}
	if id, ok := c.wires[k]; ok {
		return id
	}
	law, factor, err := c.q.Over(link, kind, members)
	id := c.use(lawUse{law: law, factor: factor, where: fmt.Sprintf("%s among %s", kind, op.NewGroupType(members, 1, link).Name)}, err)
	c.wires[k] = id
	return id
}

// across is over of the network among members on some nodes (Predictor.Across).
func (c *coster) across(kind op.Kind, members []op.Member, nodes iter.Seq[int]) int {
	slowest := units.BytesPerS(math.Inf(1))
	for n := range nodes {
		slowest = min(slowest, c.rates[n])
	}
	link := c.job.Cluster.Network
	k := ringKey{wireKey{link, kind, membersKey(members)}, slowest}
	if id, ok := c.rings[k]; ok {
		return id
	}
	id := c.over(link, kind, members)
	if law, factor, err := c.q.Across(link, kind, members, slowest); err == nil && law != c.uses[id].law {
		id = c.use(lawUse{law: law, factor: factor, where: c.uses[id].where}, nil)
	}
	c.rings[k] = id
	return id
}

func (c *coster) use(u lawUse, err error) int {
	u.err = err
	c.uses = append(c.uses, u)
	return len(c.uses) - 1
}

// charge predicts `times` calls of a shape by a law and books them; acc may be
// nil. Without a law it is not a number, which nobody remembers.
func (c *coster) charge(law int, s op.Shape, times float64, acc *account) units.Seconds {
	u := &c.uses[law]
	if u.err != nil {
		c.err = besides(c.err, u.err)
		return units.Seconds(math.NaN())
	}
	if c.timeOnly && acc == nil {
		return transferTime(u.law, u.factor, s) * units.Seconds(times)
	}
	e := Transfer(u.law, u.factor, s).Times(times)
	if e.Source != Interpolated {
		u.beyond = max(u.beyond, u.law.Beyond(s))
	}
	c.worst = c.worst.Worse(e.Source)
	if acc != nil {
		acc.add(law, u.law, e)
	}
	return e.Mid
}

// attention is the time of one shard's queries on another's keys and values,
// for so many query heads and the key-value heads that they need: the blocks,
// and the adding of every FULL block's result, or backward of its gradients of
// queries, keys and values, to what the blocks before it began.
func (c *coster) attention(device string, q, kv Shard, heads, kvHeads int, back bool, acc *account) units.Seconds {
	var total units.Seconds
	laws := c.kernelsOf(device)
	c.blocks = appendPacked(c.blocks[:0], q, kv, c.packed)
	for _, b := range c.blocks {
		a := op.Attention{Mask: b.Mask, QLen: b.QLen, KVLen: b.KVLen, QHeads: heads, KVHeads: kernelKV(heads, kvHeads), HeadDim: c.job.Model.HeadDim, DType: c.job.DType, Batch: c.batch}
		mask := 0
		if b.Mask == op.Diag {
			mask = 1
		}
		if back {
			c.bwd.Attention = a
			total += c.charge(c.once(&laws.backward[mask], device, &c.bwd), &c.bwd, 1, acc)
		} else {
			c.fwd.Attention = a
			total += c.charge(c.once(&laws.forward[mask], device, &c.fwd), &c.fwd, 1, acc)
		}
		if b.Mask == op.Full {
			total += c.accumulate(laws, b.QLen, heads, acc)
			if back {
				total += c.accumulate(laws, 2*b.KVLen, kvHeads, acc)
			}
		}
	}
	return total
}

// accumulate is adding a block's result to what the blocks before it left: a
// read of both and a write in float32, for outputs and for gradients alike.
func (c *coster) accumulate(laws *kernelLaws, tokens units.Tokens, heads int, acc *account) units.Seconds {
	c.merge = op.LSEMerge{Tokens: tokens * units.Tokens(max(1, c.batch)), QHeads: heads, HeadDim: c.job.Model.HeadDim}
	return c.charge(c.once(&laws.accumulated, laws.device, &c.merge), &c.merge, 1, acc)
}

func (c *coster) kernelsOf(device string) *kernelLaws {
	for i := range c.kernels {
		if c.kernels[i].device == device {
			return &c.kernels[i]
		}
	}
	c.kernels = append(c.kernels, kernelLaws{device: device})
	return &c.kernels[len(c.kernels)-1]
}

// once is the number of the law of a shape, looked up the first time.
func (c *coster) once(known *int, device string, s op.Shape) int {
	if *known == 0 {
		*known = 1 + c.on(device, s.Kind(), s.Variant())
	}
	return *known - 1
}

// kernelKV is how many key-value heads a kernel is called with: query heads cut
// out of the middle of GQA groups do not share them evenly, and then the keys
// and values are repeated until they do.
func kernelKV(heads, kv int) int {
	for heads%kv != 0 {
		kv++
	}
	return kv
}

// send is the time of one hop of n bytes by a send_recv law.
func (c *coster) send(law, group int, n units.Bytes, acc *account) units.Seconds {
	c.hop.Message = op.Message{Group: group, Bytes: n}
	return c.charge(law, &c.hop, 1, acc)
}

// warnings lists, in order of first use, the laws that were used outside what
// they were measured for.
func (c *coster) warnings() []string {
	out := []string{"element-wise backward passes are charged at twice their forward's time; they are not measured"}
	if as := c.job.Model.ChargedAs(); as != "" {
		out = append(out, as)
	}
	if odd := c.job.Model.Ragged(); odd != "" && slices.ContainsFunc(c.uses, func(u lawUse) bool { return u.law != nil && u.law.GEMM != nil }) {
		out = append(out, odd)
	}
	out = append(out, c.software()...)
	out = append(out, c.assumptions()...)
	out = append(out, c.rivals()...)
	for _, u := range c.uses {
		if u.err == nil && u.factor != 1 {
			out = append(out, fmt.Sprintf("%s was not measured; the law of %s on %s stands in, slowed by %.0f %%; a calibration of that very group would replace it", u.where, u.law.Op, u.law.On(), 100*(u.factor-1)))
		}
	}
	out = append(out, c.inTraining()...)
	return append(out, c.outOfRange()...)
}

// outOfRange names the laws that are used outside what was measured, in one sentence: of a
// short calibration of several device types they are dozens.
func (c *coster) outOfRange() []string {
	var places onPlaces
	uses, first := 0, ""
	for _, u := range c.uses {
		if u.err != nil || u.beyond <= rangeSlack || u.law.Assumed != "" { // no range of an assumed law was measured
			continue
		}
		title := lawTitle(u.law)
		if uses++; uses == 1 {
			first = fmt.Sprintf("%s on %s is used up to %.1f doublings outside its measured range", title, u.law.On(), u.beyond)
		}
		places.add(u.law.On(), fmt.Sprintf("%s %.1f", title, u.beyond))
	}
	const advice = "; a longer calibration reaches further: evenkeel calibrate --fresh --budget 10m"
	switch uses {
	case 0:
		return nil
	case 1:
		return []string{first + advice}
	}
	return []string{"laws are used outside their measured range, by up to so many doublings: " + places.String() + advice}
}

// assumptions names the laws in use that nobody measured, those with one reason together.
func (c *coster) assumptions() []string {
	var all byReason
	for _, u := range c.uses {
		if u.law != nil && u.law.Assumed != "" {
			all.add("assumed; "+u.law.Assumed, u.law)
		}
	}
	return all.lines()
}

// rivals names the kernels in use that are the fastest of several, of one device together.
func (c *coster) rivals() []string {
	var all byReason
	for _, u := range c.uses {
		if u.err != nil || c.q.rivals[u.law] < 2 {
			continue
		}
		where := "there"
		if u.law.From != "" {
			where = "on " + u.law.From
		}
		all.add(fmt.Sprintf("kernel %s is the fastest of %d that were measured %s and is taken; with another kernel the job takes longer", u.law.Variant.Kernel, c.q.rivals[u.law], where), u.law)
	}
	return all.lines()
}

// software says where the device types of the cluster were measured through different software:
// shares follow their paces, which are those of its kernels as well.
func (c *coster) software() []string {
	used := func(name string) bool {
		return slices.ContainsFunc(c.job.Cluster.members(), func(m op.Member) bool { return m.Device == name })
	}
	var of onPlaces
	families := map[string]bool{}
	byName := func(a, b op.DeviceType) int { return strings.Compare(a.Name, b.Name) }
	for _, d := range slices.SortedFunc(slices.Values(c.q.sheets), byName) {
		family, _, _ := strings.Cut(d.Stack, "-")
		if family, _, _ = strings.Cut(family, " "); family != "" && used(d.Name) {
			families[family] = true
			of.add(d.Name, family)
		}
	}
	if len(families) < 2 {
		return nil
	}
	return []string{"device types were measured through different software: " + of.String() + "; which is faster, and by how much, is in part its doing, and shares follow that: measure all with what trains, evenkeel calibrate --backend torch"}
}

// byReason are what is said of laws for the same reason, in order of first use.
type byReason struct {
	reasons []string
	places  map[string]*onPlaces
}

func (b *byReason) add(reason string, l *Law) {
	if b.places == nil {
		b.places = map[string]*onPlaces{}
	}
	if b.places[reason] == nil {
		b.reasons, b.places[reason] = append(b.reasons, reason), &onPlaces{}
	}
	b.places[reason].add(l.On(), lawTitle(l))
}

// lines are "laws on places: reason".
func (b *byReason) lines() (out []string) {
	for _, reason := range b.reasons {
		out = append(out, fmt.Sprintf("%s: %s", b.places[reason], reason))
	}
	return out
}

// onPlaces are what is said of laws on several devices or groups, in order of first use.
type onPlaces struct {
	on   []string
	said map[string][]string
}

func (p *onPlaces) add(on, what string) {
	if p.said == nil {
		p.said = map[string][]string{}
	}
	if len(p.said[on]) == 0 {
		p.on = append(p.on, on)
	}
	if !slices.Contains(p.said[on], what) {
		p.said[on] = append(p.said[on], what)
	}
}

// String is "a, b on x, y; c on z": places of which the same is said are named together.
func (p *onPlaces) String() string {
	var order []string
	where := map[string][]string{}
	for _, on := range p.on {
		what := strings.Join(p.said[on], ", ")
		if len(where[what]) == 0 {
			order = append(order, what)
		}
		where[what] = append(where[what], on)
	}
	for i, what := range order {
		order[i] = what + " on " + strings.Join(where[what], ", ")
	}
	return strings.Join(order, "; ")
}

func lawTitle(l *Law) string {
	if v := l.Variant.String(); v != "" {
		return string(l.Op) + " (" + v + ")"
	}
	return string(l.Op)
}
