package fit

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// attentionCall is what the fit of a core asks of a call of attention, of blocks or of
// packed documents.
type attentionCall struct {
	mask            op.Mask
	dtype           op.DType
	qHeads, kvHeads int
	pairs           float64 // unmasked (query, key) pairs of all heads
	packed          bool
	geometry        func(c *costmodel.AttentionCore, backward bool) costmodel.AttentionGeometry
}

// calledFor is the call of a shape; false where that is no attention.
func calledFor(s op.Shape) (attentionCall, bool) {
	if v, ok := documentsOf(s); ok {
		return attentionCall{
			op.Diag, v.DType, v.QHeads, v.KVHeads, float64(v.QHeads) * v.Pairs(), true,
			func(c *costmodel.AttentionCore, backward bool) costmodel.AttentionGeometry {
				return c.PackedGeometry(&v, backward)
			},
		}, true
	}
	a, ok := blockOf(s)
	return attentionCall{
		a.Mask, a.DType, a.QHeads, a.KVHeads, float64(a.Blocks()*a.QHeads) * a.Pairs(), false,
		func(c *costmodel.AttentionCore, backward bool) costmodel.AttentionGeometry {
			return c.Geometry(a, backward)
		},
	}, ok
}

// packed says whether an op is attention over packed documents.
func packed(k op.Kind) bool { return k == op.KindAttnVarlenFwd || k == op.KindAttnVarlenBwd }

// documentsOf are the packed documents of a forward or backward shape.
func documentsOf(s op.Shape) (op.Varlen, bool) {
	switch v := s.(type) {
	case op.AttnVarlenFwd:
		return v.Varlen, true
	case op.AttnVarlenBwd:
		return v.Varlen, true
	}
	return op.Varlen{}, false
}

// packedForm is the law of packed documents on a GPU: a core fitted to them and to the
// causal blocks of the same kernel, each a pack of its own. Of 41 points a law, with 63
// lent, the laws of an H200's kernel at two head widths were off by 6 to 11 % at points
// held out in cross-validation, where linear ones were by 13 to 25 % and cores of the
// packed points alone by 7 to 11 %. A correction over lengths, documents and heads took
// off nothing, and a cost of the blocks of threads that a launch has for documents shorter
// than the longest a thirtieth, which is no more than chance.
func packedForm(dev op.DeviceType, backward bool, lent []Point) form {
	return form{"tiles", func(points []Point) (costmodel.Law, error) {
		core, err := fitAttentionCore(dev, backward, slices.Concat(points, lent), nil)
		return costmodel.Law{Attention: core}, err
	}}
}

// lentTo are the points that other strata lend to the law of one: of packed documents
// those of the causal blocks of the same kernel on the same device.
func lentTo(s Stratum, tasks []*task) []Point {
	var blocks op.Kind
	switch s.Op {
	case op.KindAttnVarlenFwd:
		blocks = op.KindAttnFwd
	case op.KindAttnVarlenBwd:
		blocks = op.KindAttnBwd
	default:
		return nil
	}
	causal := Stratum{On: s.On, Op: blocks, Variant: s.Variant}
	causal.Variant.Mask = op.Diag
	i := slices.IndexFunc(tasks, func(t *task) bool { return t.same(causal) })
	if i < 0 {
		return nil
	}
	var lent []Point
	for _, p := range tasks[i].points {
		a, _ := blockOf(p.Shape)
		v, ok := a.Documents()
		switch {
		case !ok:
			continue
		case blocks == op.KindAttnBwd:
			p.Shape = op.AttnVarlenBwd{Varlen: v}
		default:
			p.Shape = op.AttnVarlenFwd{Varlen: v}
		}
		lent = append(lent, p)
	}
	return lent
}
