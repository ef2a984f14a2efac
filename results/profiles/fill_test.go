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
	if len(filled.Laws) != len(own.Laws) || adds(ops, op.KindAllReduce) || !adds(ops, op.KindAllGather) || !adds(ops, op.KindAttnFwd) {
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

// adds says whether something of an op is added.
func adds(all []Addition, k op.Kind) bool {
	return slices.ContainsFunc(all, func(a Addition) bool { return a.Op == k })
}

// merged is a profile as solve has it, and the reference's laws that it added.
func merged(t *testing.T, own, ref *costmodel.Profile) (*costmodel.Profile, map[op.Kind]string) {
	t.Helper()
	filled, beside, all := FillIn(own, ref, gpu)
	both := Merge([]Reference{{Profile: filled}, {Profile: beside}})
	if err := both.Validate(); err != nil {
		t.Error(err)
	}
	said := map[op.Kind]string{}
	for _, a := range all {
		said[a.Op] = a.String()
	}
	return both, said
}

// Kernels of one's own borrow what they lack, variant by variant, and what is borrowed says so.
func TestFillInKernels(t *testing.T) {
	mine := func(l costmodel.Law) bool {
		return l.Op == op.KindAttnFwd && l.Variant.Mask == op.Diag || l.Op == op.KindGEMM && l.Variant.Pass == op.Forward
	}
	own, ref := ownOf(t, gpu+"/mine", mine)
	both, said := merged(t, own, ref)
	for k, want := range map[op.Kind]string{
		op.KindAttnFwd:   "attn_fwd (full d64 bf16, full d128 bf16; at 3.00 times the reference's time, as one's own kernels are where both were measured)",
		op.KindAttnBwd:   "attn_bwd",
		op.KindGEMM:      "gemm (dgrad bf16, wgrad bf16)",
		op.KindAllGather: "all_gather",
	} {
		if said[k] != want {
			t.Errorf("%s: added %q, want %q", k, said[k], want)
		}
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
	if filled, _, _ := FillIn(own, ref, gpu); filled.Devices[0].Memory == 0 || filled.Devices[0].Sheet == (op.Sheet{}) || own.Devices[0].Memory != 0 {
		t.Errorf("%+v", filled.Devices[0])
	}
}

// A kernel of one's own is taken for what it was measured for, though the reference's be a
// third of it, and what is lent beside it is as slow as it is and as doubtful.
func TestFillInTakesOwnKernels(t *testing.T) {
	diag := op.Variant{Mask: op.Diag, HeadDim: 128, DType: op.BF16}
	own, ref := ownOf(t, gpu+"/mine", func(l costmodel.Law) bool { return l.Op == op.KindAttnFwd && asked(l) == diag })
	own.Laws[0].Variant.Kernel = "own_kernel"
	both, _ := merged(t, own, ref)
	q, theirs := costmodel.NewCallPredictor(both), costmodel.NewCallPredictor(ref)
	from, err := ref.DeviceFor(gpu)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mask    op.Mask
		dim     int
		kernel  string
		by      float64
		doubted bool
	}{{op.Diag, 128, "own_kernel", 3, false}, {op.Full, 128, "", 3, true}, {op.Full, 64, "torch_flow", 3, true}, {op.Diag, 64, "torch_flow", 3, true}} {
		s := op.AttnFwd{Attention: op.Attention{Mask: c.mask, QLen: 8192, KVLen: 8192, QHeads: 16, KVHeads: 4, HeadDim: c.dim, DType: op.BF16}}
		law, err := q.Law(gpu+"/mine", s.Kind(), s.Variant())
		if err != nil {
			t.Fatal(err)
		}
		was, err := theirs.Law(from, s.Kind(), s.Variant())
		if err != nil {
			t.Fatal(err)
		}
		if by := float64(law.Seconds(s) / was.Seconds(s)); law.Variant.Kernel != c.kernel || by < 0.999*c.by || by > 1.001*c.by {
			t.Errorf("%s: kernel %q takes %.3f times the reference's time, want %q, %v times", s.Variant(), law.Variant.Kernel, by, c.kernel, c.by)
		}
		e, least := law.Predict(s), was.Predict(s).Mid
		if c.doubted != (law.From != "") || c.doubted != (len(law.Doubts) > len(was.Doubts)) || c.doubted && e.Lo > least {
			t.Errorf("%s: from %q, %+v, at least %v where the reference says %v", s.Variant(), law.From, law.Doubts, e.Lo, least)
		}
	}
}

// What the reference itself guesses does not replace wider heads of one's own, and what it
// measured does.
func TestFillInLendsNoGuessForWiderHeads(t *testing.T) {
	wide := func(l costmodel.Law) bool {
		return l.Op == op.KindAttnFwd && l.Variant.HeadDim == 128 || l.Op == op.KindAttnBwd && l.Variant.HeadDim == 128
	}
	own, ref := ownOf(t, gpu+"/mine", wide)
	_, said := merged(t, own, ref)
	if said[op.KindAttnFwd] == "" || said[op.KindAttnBwd] != "" {
		t.Errorf("added %q and %q: want the measured heads of 64, and none of those guessed", said[op.KindAttnFwd], said[op.KindAttnBwd])
	}
}

// Nothing is added to a profile that has laws of every op.
func TestFillInNothing(t *testing.T) {
	own, ref := ownOf(t, gpu+"/mine", func(costmodel.Law) bool { return true })
	if filled, beside, ops := FillIn(own, ref, gpu); len(filled.Laws) != len(own.Laws) || len(beside.Laws) != 0 || len(ops) != 0 {
		t.Errorf("%d laws for %d, beside them %d of %v", len(filled.Laws), len(own.Laws), len(beside.Laws), ops)
	}
}
