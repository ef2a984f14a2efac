package costmodel

import "github.com/evenkeel/evenkeel/costmodel/op"

// TimeIn predicts a collective in a group by the group's own law or, where such
// a group on one node was never measured, by those of its devices in groups of
// other sizes over the same links, marked as transferred (see Over).
//
// Errors: *MissingLawError.
func (q *Predictor) TimeIn(g op.GroupType, s op.Shape) (Estimate, error) {
	l, err := q.Law(g.Name, s.Kind(), s.Variant())
	if err != nil && g.Nodes == 1 {
		l = q.unmeasured(g.Link, s.Kind(), s.Variant(), g.Members)
	}
	if l == nil {
		return Estimate{}, err
	}
	return l.Predict(s), nil
}
