package costmodel

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Predictor answers what an op takes on a device type or over a link class,
// from the laws of one profile. It is safe for concurrent use.
type Predictor struct {
	laws     map[lawKey]*Law
	devices  map[string]op.DeviceType
	sheets   []op.DeviceType // the same, as the profile has them
	groups   []op.GroupType
	named    map[string]op.GroupType // these by name
	steps    []Steps
	types    map[wireOf][]op.Variant // element types that collectives were measured with
	wired    map[wireLaw][]wired     // the groups that collectives were measured in, in the order of the profile's
	over     sync.Map                // overKey -> overFound
	made     sync.Map                // madeOf or lawKey -> *Law of a group or of a head width that was not measured
	memory   map[string]MemoryFacts  // by device type
	overlaps map[slowKey]float64
	training map[string]TrainingFact // by device type; none of calls one by one
	rivals   map[*Law]int            // kernels that the law of attention without one was chosen from
}

// NewPredictor indexes the laws of a valid profile, which predict what calls take in training
// steps: times the ratios of whole steps, where the profile has any (TrainingFact).
func NewPredictor(p *Profile) *Predictor {
	p = p.inTraining()
	q := NewCallPredictor(p)
	for _, t := range p.Training {
		q.training[t.Device] = t
	}
	return q
}

// NewCallPredictor is NewPredictor of calls one by one, as points are measured.
func NewCallPredictor(p *Profile) *Predictor {
	q := &Predictor{laws: map[lawKey]*Law{}, devices: map[string]op.DeviceType{}, sheets: p.Devices, groups: p.Groups, named: map[string]op.GroupType{}, steps: p.Steps, types: map[wireOf][]op.Variant{}, memory: map[string]MemoryFacts{}, overlaps: map[slowKey]float64{}, training: map[string]TrainingFact{}, rivals: map[*Law]int{}}
	for i := range p.Laws {
		q.laws[p.Laws[i].key()] = &p.Laws[i]
	}
	for _, g := range p.Groups {
		q.named[g.Name] = g
	}
	q.defaultKernels(p.Laws)
	q.elementTypes(p.Laws)
	q.listWired()
	q.overlapFacts(p)
	for _, m := range p.Memory {
		q.memory[m.Device] = m
	}
	for _, d := range p.Devices {
		d.Memory = q.memory[d.Name].usable(d.Memory)
		q.devices[d.Name] = d
	}
	return q
}

// Device returns a device type of the profile, with the memory that plans may
// count on: less than its whole where a reserve was measured. The error lists
// those there are.
func (q *Predictor) Device(name string) (op.DeviceType, error) {
	d, ok := q.devices[name]
	if !ok {
		var names []string
		for n := range q.devices {
			names = append(names, n)
		}
		sort.Strings(names)
		return d, fmt.Errorf("device type %q is not in the profile; it has %s", name, strings.Join(names, ", "))
	}
	return d, nil
}

// MemoryMeasured says whether anybody measured what a device type leaves of its memory for a
// program's tensors.
func (q *Predictor) MemoryMeasured(device string) bool {
	m := q.memory[device]
	return m.Capacity > 0 || m.Reserve > 0
}

// Law returns the law of an op on a device type or group signature, or a
// *MissingLawError. For a head width that was not measured it returns a law derived from
// the next wider one (see padded). Where v names no kernel and no law without kernel
// exists, it returns that of the fastest measured kernel.
func (q *Predictor) Law(on string, kind op.Kind, v op.Variant) (*Law, error) {
	if l, ok := q.laws[lawKey{kind, v, on}]; ok {
		return l, nil
	}
	if l := q.padded(on, kind, v); l != nil {
		return l, nil
	}
	return nil, q.missing(on, kind, v)
}

// Has says whether the profile itself has the law that Law would return, with no other
// head width standing in. The fastest kernel counts for attention without a named kernel.
func (q *Predictor) Has(on string, kind op.Kind, v op.Variant) bool {
	_, ok := q.laws[lawKey{kind, v, on}]
	return ok
}

// Time predicts one call of an op on a device type, or of a collective on a group
// signature by its exact name. A composed op is predicted as the sum of its parts.
//
// Errors: *MissingLawError, or *MissingPartsError for a composed op.
func (q *Predictor) Time(on string, s op.Shape) (Estimate, error) {
	if c, ok := s.(op.Compound); ok {
		return q.sum(on, c)
	}
	l, err := q.Law(on, s.Kind(), s.Variant())
	if err != nil {
		return Estimate{}, err
	}
	return l.Predict(s), nil
}

// sum adds the parts of a composed op up, law by law (see account).
func (q *Predictor) sum(on string, c op.Compound) (Estimate, error) {
	var acc account
	var missing []*MissingLawError
	var worst Source
	number := map[lawKey]int{}
	for _, s := range c.Parts() {
		k := lawKey{s.Kind(), s.Variant(), on}
		l, ok := q.laws[k]
		id, seen := number[k]
		if !seen {
			id = len(number)
			number[k] = id
		}
		switch {
		case ok:
			e := l.Predict(s)
			worst = worst.Worse(e.Source)
			acc.add(id, l, e)
		case !seen:
			missing = append(missing, q.missing(on, k.op, k.variant))
		}
	}
	if len(missing) > 0 {
		return Estimate{}, &MissingPartsError{c.Kind(), on, missing}
	}
	total := acc.total()
	total.Source = worst
	return total, nil
}

// transferFactor slows a collective's law that is used for another group than
// it was measured on, and its square bounds the interval: a guess on the safe
// side until that group is measured, which is why the estimate is marked
// transferred.
const transferFactor = 1.15

// Over finds the law of a collective among members over a link class: that of
// the same member types and count if it was measured, on one node or else on
// however many (the link class says what lies between them). A group of one
// device type that was never measured is predicted by those around it or by the
// steps that they were fitted with (see Steps), which marks the law as
// transferred by itself. Else the nearest measured group on that link class (see
// nearest) stands in, marked as transferred by the returned factor (1 otherwise).
// Ties go to the larger group. Kinds whose variants have laws of their own
// (send_recv_pairs) are asked for by Time.
//
// A library whose collectives were measured by element type has no law without
// one; that of 16-bit floats stands for it, or else of any other type.
//
// Members are compared by their device types, and where no group of the link
// class has those, by the GPU models before the slash: kernels and collectives
// are often measured under different software (see stacks).
//
// Where a library has no reduce_scatter (gloo before torch 2.7 has none), the
// law of all_reduce stands in, marked transferred too: a ring all_reduce is a
// reduce_scatter and an all_gather, so at equal bytes on the wire it takes about
// as long.
//
// Errors: *MissingLawError when the link class has no law for the op at all.
func (q *Predictor) Over(link string, kind op.Kind, members []op.Member) (law *Law, factor float64, err error) {
	key := overKey{link, kind, membersKey(members)}
	if found, ok := q.over.Load(key); ok {
		f := found.(overFound)
		return f.law, f.factor, f.err
	}
	law, factor, err = q.findOver(link, kind, members)
	found, _ := q.over.LoadOrStore(key, overFound{law, factor, err})
	f := found.(overFound)
	return f.law, f.factor, f.err
}

// overKey is what Over was asked, overFound what it answered.
type overKey struct {
	link    string
	kind    op.Kind
	members string
}

type overFound struct {
	law    *Law
	factor float64
	err    error
}

// membersKey names members, in their order, faster than a group's name is made.
func membersKey(members []op.Member) string {
	var name []byte
	for _, m := range members {
		name = append(name, m.Device...)
		name = append(name, ' ')
		name = strconv.AppendInt(name, int64(m.Count), 10)
		name = append(name, ' ')
	}
	return string(name)
}

func (q *Predictor) findOver(link string, kind op.Kind, members []op.Member) (law *Law, factor float64, err error) {
	ways := []struct {
		find   func(string, op.Kind, op.Variant, []op.Member) *Law
		factor float64
	}{{q.same, 1}, {q.unmeasured, 1}, {q.nearest, transferFactor}}
	types, stacks := q.types[wireOf{link, kind}], q.stacks(link, kind, members)
	for _, way := range ways {
		for _, v := range types {
			for _, m := range q.having(stacks, wireLaw{wireOf{link, kind}, v}) {
				l := way.find(link, kind, v, m)
				if l == nil {
					continue
				}
				if l.Assumed != "" { // its interval is as wide as ignorance already
					return l, 1, nil
				}
				return l, way.factor, nil
			}
		}
	}
	if kind == op.KindReduceScatter {
		if law, _, err := q.Over(link, op.KindAllReduce, members); err == nil {
			return law, transferFactor, nil
		}
	}
	return nil, 0, &MissingLawError{Op: kind, On: "links of class " + link, Link: link}
}

// wireLaw is one variant of a collective over a link class.
type wireLaw struct {
	wireOf
	variant op.Variant
}

// wired is a law of a collective with its group.
type wired struct {
	group   op.GroupType
	oneNode string // name of a group of the same members on one node
	law     *Law
}

// listWired lists the groups with laws of collectives.
func (q *Predictor) listWired() {
	q.wired = map[wireLaw][]wired{}
	of := map[string][]*Law{} // by group
	for _, l := range q.laws {
		if l.Group != "" {
			of[l.Group] = append(of[l.Group], l)
		}
	}
	for _, g := range q.groups {
		oneNode := op.NewGroupType(g.Members, 1, g.Link).Name
		for _, l := range of[g.Name] {
			k := wireLaw{wireOf{g.Link, l.Op}, l.Variant}
			q.wired[k] = append(q.wired[k], wired{g, oneNode, l})
		}
	}
}

// wireOf is a collective over a link class.
type wireOf struct {
	link string
	kind op.Kind
}

// elementTypes notes the variants that collectives were measured in, in the
// order in which one stands for the others: without a type, 16-bit floats, the
// rest by name.
func (q *Predictor) elementTypes(laws []Law) {
	links := map[string]string{}
	for _, g := range q.groups {
		links[g.Name] = g.Link
	}
	for _, l := range laws {
		k := wireOf{links[l.Group], l.Op}
		only := op.Variant{DType: l.Variant.DType}
		if l.Group != "" && l.Variant == only && !slices.Contains(q.types[k], only) {
			q.types[k] = append(q.types[k], only)
		}
	}
	first := []op.DType{op.F16, op.BF16, ""}
	for _, types := range q.types {
		slices.SortFunc(types, func(a, b op.Variant) int {
			return cmp.Or(slices.Index(first, b.DType)-slices.Index(first, a.DType), strings.Compare(string(a.DType), string(b.DType)))
		})
	}
}

// same is the law of exactly these members over a link class: measured on one node, or
// else on any number of nodes.
func (q *Predictor) same(link string, kind op.Kind, v op.Variant, members []op.Member) *Law {
	want := op.NewGroupType(members, 1, link).Name
	if l, ok := q.laws[lawKey{kind, v, want}]; ok {
		return l
	}
	for _, w := range q.wired[wireLaw{wireOf{link, kind}, v}] {
		if w.oneNode == want {
			return w.law
		}
	}
	return nil
}

// nearest is the law of the measured group over a link class that is nearest in size.
// Groups of the members' own device types are preferred, then groups with further device
// types: such a group is as slow as its slowest device, while one that lacks some of the
// members' types may be faster. Of groups that are alike but for the software that of the first
// stack counts (see stacks).
func (q *Predictor) nearest(link string, kind op.Kind, v op.Variant, members []op.Member) (law *Law) {
	want, best, of := ranksOf(members), -1, op.GroupType{}
	for _, w := range q.wired[wireLaw{wireOf{link, kind}, v}] {
		ranks := w.group.Ranks()
		distance := 2 * abs(ranks-want)
		switch {
		case !typesWithin(members, w.group.Members):
			distance += 8 * MaxRanks // farther than any group that has all types
		case !typesWithin(w.group.Members, members):
			distance += 4 * MaxRanks // farther than any group of the same
		}
		if ranks < want {
			distance++
		}
		if best < 0 || distance < best || distance == best && sameModels(w.group.Members, of.Members) && compareStacks(w.group.Members, of.Members) < 0 {
			best, law, of = distance, w.law, w.group
		}
	}
	return law
}

func ranksOf(members []op.Member) int { return op.GroupType{Members: members}.Ranks() }

// Transfer predicts a shape by the law and factor that Over returned. A factor above 1
// marks the estimate as transferred: it multiplies the most likely time, and the upper
// end of the interval by its square; the lower end stays.
func Transfer(law *Law, factor float64, s op.Shape) Estimate {
	e := law.Predict(s)
	if factor == 1 {
		return e
	}
	return Estimate{e.Lo, e.Mid * units.Seconds(factor), e.Hi * units.Seconds(factor*factor), e.Source.Worse(Transferred)}
}

// transferTime is the most likely time of Transfer.
func transferTime(law *Law, factor float64, s op.Shape) units.Seconds {
	t := law.Seconds(s)
	if factor != 1 {
		t *= units.Seconds(factor)
	}
	return t
}

func abs(x int) int { return max(x, -x) }
