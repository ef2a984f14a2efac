package profiles

import (
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

const gpu = "h100_sxm"

// ownOf is a profile of one's own with some of the reference's laws, 3 times as slow.
func ownOf(t *testing.T, device string, mine func(costmodel.Law) bool) (own, ref *costmodel.Profile) {
	t.Helper()
	r, err := Lookup(gpu)
	if err != nil {
		t.Fatal(err)
	}
	from, err := r.Profile.DeviceFor(gpu)
	if err != nil {
		t.Fatal(err)
	}
	own = &costmodel.Profile{Devices: []op.DeviceType{{Name: device, Fingerprint: "00", Parallel: 1}}}
	for _, l := range r.Profile.Laws {
		if !mine(l) || l.Device != "" && l.Device != from {
			continue
		}
		if l = l.Slowed(3); l.Device != "" {
			l.Device = device
		} else {
			g := groupOf(r.Profile, l.Group)
			g = op.NewGroupType([]op.Member{{Device: device, Count: g.Ranks()}}, g.Nodes, g.Link)
			l.Group = g.Name
			if !slices.ContainsFunc(own.Groups, func(o op.GroupType) bool { return o.Name == g.Name }) {
				own.Groups = append(own.Groups, g)
			}
		}
		own.Laws = append(own.Laws, l)
	}
	return own, r.Profile
}

// Collectives of one's own go with the kernels of the reference; a collective that is one's
// own has no law of the reference's, in no size of group.
func TestFillInBesideCollectives(t *testing.T) {
	own, ref := ownOf(t, gpu+"/nccl", func(l costmodel.Law) bool { return l.Op == op.KindAllReduce })
	filled, beside, ops := FillIn(own, ref, gpu)
	if len(filled.Laws) != len(own.Laws) || slices.Contains(ops, op.KindAllReduce) || !slices.Contains(ops, op.KindAllGather) || !slices.Contains(ops, op.KindAttnFwd) {
		t.Errorf("%d laws for %d; of the reference's %v", len(filled.Laws), len(own.Laws), ops)
	}
	both := Merge([]Reference{{Profile: filled}, {Profile: beside}})
	if err := both.Validate(); err != nil {
		t.Error(err)
	}
	name, err := both.DeviceFor(gpu)
	if err != nil {
		t.Fatal(err)
	}
	q := costmodel.NewCallPredictor(both)
	for _, ranks := range []int{2, 4, 8} {
		law, _, err := q.Over("nvlink", op.KindAllReduce, []op.Member{{Device: name, Count: ranks}})
		if err != nil || groupOf(own, law.Group).Link != "nvlink" {
			t.Errorf("all_reduce of %d: %v", ranks, err)
		}
		if _, _, err := q.Over("nvlink", op.KindAllGather, []op.Member{{Device: name, Count: ranks}}); err != nil {
			t.Error(err)
		}
	}
}

// Kernels of one's own borrow what they lack: all of an op is one's own or the
// reference's, and what is borrowed says so.
func TestFillInKernels(t *testing.T) {
	mine := func(l costmodel.Law) bool {
		return l.Op == op.KindAttnFwd && l.Variant.Mask == op.Diag || l.Op == op.KindGEMM && l.Variant.Pass == op.Forward
	}
	own, ref := ownOf(t, gpu+"/mine", mine)
	filled, beside, ops := FillIn(own, ref, gpu)
	if slices.Contains(ops, op.KindAttnFwd) || !slices.Contains(ops, op.KindAttnBwd) || !slices.Contains(ops, op.KindGEMM) || !slices.Contains(ops, op.KindAllGather) {
		t.Errorf("of the reference's %v", ops)
	}
	both := Merge([]Reference{{Profile: filled}, {Profile: beside}})
	if err := both.Validate(); err != nil {
		t.Error(err)
	}
	if name, err := both.DeviceFor(gpu); err != nil || name != gpu+"/mine" {
		t.Errorf("the GPU is %s: %v", name, err)
	}
	for _, l := range both.Laws {
		own := mine(l)
		if l.Device != "" && (l.Device != gpu+"/mine" || own != (l.From == "")) {
			t.Errorf("%s %s on %s from %q", l.Op, l.Variant, l.Device, l.From)
		}
	}
	if d := filled.Devices[0]; d.Memory == 0 || d.Sheet == (op.Sheet{}) || own.Devices[0].Memory != 0 {
		t.Errorf("%+v", d)
	}
}

// Nothing is added to a profile that has laws of every op.
func TestFillInNothing(t *testing.T) {
	own, ref := ownOf(t, gpu+"/mine", func(costmodel.Law) bool { return true })
	if filled, beside, ops := FillIn(own, ref, gpu); len(filled.Laws) != len(own.Laws) || len(beside.Laws) != 0 || len(ops) != 0 {
		t.Errorf("%d laws for %d, beside them %d of %v", len(filled.Laws), len(own.Laws), len(beside.Laws), ops)
	}
}
