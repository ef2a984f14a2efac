package profiles

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// FillIn is a profile with what a reference of a GPU model adds to it, and what of the
// reference is to stand beside it: laws of what the profile has none of. Neither argument is
// changed.
//
// What a profile has a law of is its own: of computing, an op in a variant but for the kernel.
// So the reference's kernels are compared with one another, as everywhere, and never with
// one's own, which may be slower and are those that will run. An attention of the profile may
// then rest on two sources, one's own for some masks or head widths and the reference's for
// others, and a plan would prefer the masks of the faster kernel. So what the reference lends of
// such an op is slowed as much as one's own kernels are where both have laws, and in doubt by as
// much (see pace). Of collectives an op is one's own altogether, in whatever
// sizes and element types, for who asks for one names no element type.
//
// Where the profile has device types of the model with laws of computing, these borrow the
// reference's, as laws say of themselves (costmodel.Law.From), and the reference's own
// device types compute nothing. Else the reference's stand beside the profile's collectives, which
// are of the model whatever its software is called.
func FillIn(own, ref *costmodel.Profile, model string) (filled, beside *costmodel.Profile, adds []Addition) {
	f := filler{own: own, ref: ref, model: model}
	out, rest := *own, *ref
	to := f.borrowers()
	rest.Laws = nil
	var added []costmodel.Law
	for _, l := range ref.Laws {
		if l.Group != "" && !f.wired(l) || l.Device != "" && len(to) == 0 {
			rest.Laws, added = append(rest.Laws, l), append(added, l)
		}
	}
	from, err := ref.DeviceFor(model)
	if len(to) == 0 || err != nil {
		return &out, &rest, f.additions(added, from, nil)
	}
	out.Devices, out.Laws = slices.Clone(own.Devices), slices.Clone(own.Laws)
	rest.Devices = slices.DeleteFunc(slices.Clone(ref.Devices), func(d op.DeviceType) bool { return !f.inGroup(d.Name) })
	rest.Training = slices.DeleteFunc(slices.Clone(ref.Training), func(t costmodel.TrainingFact) bool { return !f.inGroup(t.Device) })
	for _, name := range to {
		lent := f.lend(from, name)
		out.Laws, added = append(out.Laws, lent...), append(added, lent...)
		describe(out.Devices, name, ref.Devices, from)
	}
	return &out, &rest, f.additions(added, from, to)
}

// Addition is an op that a reference adds to a profile: all of it, or, where the profile has
// laws of some variants, the others.
type Addition struct {
	Op       op.Kind
	Variants []op.Variant // without kernels; none: all that the reference has
	// Pace is how many times as long as the reference's the laws of it take, to go with one's
	// own kernels; 1 where nothing tells.
	Pace float64
}

// String is "attn_fwd (full d128 bf16, diag d64 bf16)".
func (a Addition) String() string {
	if len(a.Variants) == 0 {
		return string(a.Op)
	}
	var variants []string
	for _, v := range a.Variants {
		variants = append(variants, v.String())
	}
	pace := ""
	if a.Pace > noPace || a.Pace < 1/noPace {
		pace = fmt.Sprintf("; at %.2f times the reference's time, as one's own kernels are where both were measured", a.Pace)
	}
	return fmt.Sprintf("%s (%s%s)", a.Op, strings.Join(variants, ", "), pace)
}

// additions sorts laws that were added by their ops.
func (f *filler) additions(laws []costmodel.Law, from string, to []string) []Addition {
	var all []Addition
	for _, l := range laws {
		at := slices.IndexFunc(all, func(a Addition) bool { return a.Op == l.Op })
		if at < 0 {
			at, all = len(all), append(all, Addition{Op: l.Op, Pace: 1})
			if l.Device != "" && len(to) > 0 {
				all[at].Pace, _ = f.pace(from, l.Device, l.Op)
			}
		}
		if v := asked(l); f.computes(l.Device, l.Op) && !slices.Contains(all[at].Variants, v) {
			all[at].Variants = append(all[at].Variants, v)
		}
	}
	slices.SortFunc(all, func(a, b Addition) int { return strings.Compare(string(a.Op), string(b.Op)) })
	return all
}

// asked is the variant of a law as those ask for it who leave the kernel to the profile.
func asked(l costmodel.Law) op.Variant {
	l.Variant.Kernel = ""
	return l.Variant
}

// filler is a profile and a reference of a GPU model.
type filler struct {
	own, ref *costmodel.Profile
	model    string
}

// borrowers are the profile's device types of the model that compute: those that plans can
// be made with already, or all with any law.
func (f *filler) borrowers() []string {
	var any, able []string
	for _, d := range f.own.Devices {
		if costmodel.ModelOf(d.Name) != f.model {
			continue
		}
		if f.computes(d.Name, "") {
			any = append(any, d.Name)
		}
		if f.computes(d.Name, op.KindAttnFwd) && f.computes(d.Name, op.KindGEMM) {
			able = append(able, d.Name)
		}
	}
	if len(able) > 0 {
		return able
	}
	return any
}

// computes says whether the profile has a law of an op, or of any, on a device type.
func (f *filler) computes(device string, k op.Kind) bool {
	return slices.ContainsFunc(f.own.Laws, func(l costmodel.Law) bool { return l.Device == device && (k == "" || l.Op == k) })
}

// lend is the reference's laws of what a device type of the profile has none of.
func (f *filler) lend(from, to string) []costmodel.Law {
	var lent []costmodel.Law
	for _, l := range f.ref.Laws {
		if l.Device != from || f.has(to, l) {
			continue
		}
		if by, off := f.pace(from, to, l.Op); off > noPace {
			l = l.Slowed(by).InDoubt(fmt.Sprintf("%s of two sources on %s", l.Op, to), off)
		}
		l.Device = to
		if l.From == "" {
			l.From = from
		}
		lent = append(lent, l)
	}
	return lent
}

// has says whether a device type of the profile does itself what a law of the reference is of:
// in that variant, or in one that stands for it as well as a guess of the reference does, in
// wider heads (see costmodel.Predictor.Law).
func (f *filler) has(to string, of costmodel.Law) bool {
	want := asked(of)
	return slices.ContainsFunc(f.own.Laws, func(l costmodel.Law) bool {
		if l.Device != to || l.Op != of.Op {
			return false
		}
		v := asked(l)
		wide := v.HeadDim
		v.HeadDim = want.HeadDim
		return v == want && (wide == want.HeadDim || of.Assumed != "" && wide > want.HeadDim && wide <= 2*want.HeadDim)
	})
}

// noPace is what rounding may make of laws that are the same.
const noPace = 1 + 1e-6

// pace is how many times as long as the reference's fastest kernels those of the profile take
// over an attention, in the geometric mean of the variants that both have, and by what factor
// that may be wrong for others: as far as any of these says, or nothing is slowed at all. Both
// are 1 where they have none in common.
func (f *filler) pace(from, to string, kind op.Kind) (by, off float64) {
	var logs []float64
	for i := range f.own.Laws {
		mine := &f.own.Laws[i]
		if mine.Device != to || mine.Op != kind || !mine.IsAttention() {
			continue
		}
		var theirs []*costmodel.Law
		for k := range f.ref.Laws {
			if l := &f.ref.Laws[k]; l.Device == from && l.Op == kind && asked(*l) == asked(*mine) {
				theirs = append(theirs, l)
			}
		}
		if len(theirs) > 0 {
			logs = append(logs, math.Log(costmodel.Pace(mine, theirs)))
		}
	}
	sum, most := 0.0, 0.0
	for _, x := range logs {
		sum += x
	}
	mean := sum / float64(max(1, len(logs)))
	for _, x := range append(logs, 0) {
		most = max(most, math.Abs(x-mean))
	}
	return math.Exp(mean), math.Exp(most)
}

// describe gives a device type the memory and the datasheet that it lacks.
func describe(all []op.DeviceType, name string, like []op.DeviceType, from string) {
	at := slices.IndexFunc(all, func(d op.DeviceType) bool { return d.Name == name })
	of := slices.IndexFunc(like, func(d op.DeviceType) bool { return d.Name == from })
	if all[at].Memory == 0 {
		all[at].Memory = like[of].Memory
	}
	if all[at].Sheet == (op.Sheet{}) {
		all[at].Sheet = like[of].Sheet
	}
}

// wired says whether the profile has laws of a collective of the reference's over the same
// links among the same GPU models.
func (f *filler) wired(of costmodel.Law) bool {
	g := groupOf(f.ref, of.Group)
	return slices.ContainsFunc(f.own.Laws, func(l costmodel.Law) bool {
		if l.Group == "" || l.Op != of.Op {
			return false
		}
		o := groupOf(f.own, l.Group)
		return o.Link == g.Link && slices.Equal(modelsOf(o), modelsOf(g))
	})
}

func groupOf(p *costmodel.Profile, name string) op.GroupType {
	return p.Groups[slices.IndexFunc(p.Groups, func(g op.GroupType) bool { return g.Name == name })]
}

// modelsOf lists the GPU models of a group's members.
func modelsOf(g op.GroupType) []string {
	var names []string
	for _, m := range g.Members {
		names = append(names, costmodel.ModelOf(m.Device))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// inGroup says whether a device type of the reference is a member of one of its groups.
func (f *filler) inGroup(device string) bool {
	return slices.ContainsFunc(f.ref.Groups, func(g op.GroupType) bool {
		return slices.ContainsFunc(g.Members, func(m op.Member) bool { return m.Device == device })
	})
}
