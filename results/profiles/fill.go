package profiles

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// FillIn is a profile with what a reference of a GPU model adds to it, and what of the
// reference is to stand beside it: laws of the ops that the profile has none of. An op that
// it has laws of is its own altogether, in whatever variants and sizes, so that no law rests
// on two sources; ops lists the others. Neither argument is changed.
//
// Where the profile has device types of the model with laws of computing, these borrow the
// reference's, as laws say of themselves (costmodel.Law.From), and the reference's own
// device types compute nothing. Else the reference's stand beside the profile's collectives, which
// are of the model whatever its software is called.
func FillIn(own, ref *costmodel.Profile, model string) (filled, beside *costmodel.Profile, ops []op.Kind) {
	f := filler{own: own, ref: ref, model: model}
	out, rest := *own, *ref
	to := f.borrowers()
	rest.Laws = nil
	for _, l := range ref.Laws {
		if l.Group != "" && !f.wired(l) || l.Device != "" && len(to) == 0 {
			rest.Laws = append(rest.Laws, l)
			ops = append(ops, l.Op)
		}
	}
	from, err := ref.DeviceFor(model)
	if len(to) == 0 || err != nil {
		return &out, &rest, distinct(ops)
	}
	out.Devices, out.Laws = slices.Clone(own.Devices), slices.Clone(own.Laws)
	rest.Devices = slices.DeleteFunc(slices.Clone(ref.Devices), func(d op.DeviceType) bool { return !f.inGroup(d.Name) })
	rest.Training = slices.DeleteFunc(slices.Clone(ref.Training), func(t costmodel.TrainingFact) bool { return !f.inGroup(t.Device) })
	for _, name := range to {
		lent := f.lend(from, name)
		for _, l := range lent {
			ops = append(ops, l.Op)
		}
		out.Laws = append(out.Laws, lent...)
		describe(out.Devices, name, ref.Devices, from)
	}
	return &out, &rest, distinct(ops)
}

// distinct lists ops, each once, sorted.
func distinct(ops []op.Kind) []op.Kind {
	slices.Sort(ops)
	return slices.Compact(ops)
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

// lend is the reference's laws of what a device type of the profile has none of. Products
// forward and backward are ops of their own here: many measure the first alone.
func (f *filler) lend(from, to string) []costmodel.Law {
	has := func(of costmodel.Law) bool {
		return slices.ContainsFunc(f.own.Laws, func(l costmodel.Law) bool {
			return l.Device == to && l.Op == of.Op && l.Variant.Pass == of.Variant.Pass
		})
	}
	var lent []costmodel.Law
	for _, l := range f.ref.Laws {
		if l.Device != from || has(l) {
			continue
		}
		l.Device = to
		if l.From == "" {
			l.From = from
		}
		lent = append(lent, l)
	}
	return lent
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
