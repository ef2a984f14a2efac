package costmodel

import (
	"cmp"
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Layers predicts what one layer of a model takes on single devices that each have whole
// sequences, and collectives among devices of a cluster. Planners of models that train side
// by side put steps of their own together from them. It is not safe for concurrent use.
type Layers struct {
	c     *coster // shared by those of several models
	model Model
	ranks []Rank
}

// NewLayers is of the model, the precision, the recomputation and the cluster of a job; all
// else of it is ignored. Errors: an invalid model or cluster, a device that the profile lacks.
func NewLayers(q *Predictor, j Job) (*Layers, error) {
	if err := j.Model.Validate(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err := j.Cluster.Validate(); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	l := &Layers{c: newCoster(q, j), model: j.Model, ranks: j.Cluster.Ranks()}
	for _, r := range l.ranks {
		if _, err := q.Device(r.Device); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Of is the same of another model, with one account of what laws are in use. Errors: an
// invalid model.
func (l *Layers) Of(m Model) (*Layers, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	return &Layers{c: l.c, model: m, ranks: l.ranks}, nil
}

// begin forgets what laws the call before lacked.
func (l *Layers) begin(timeOnly bool) {
	l.c.timeOnly, l.c.err, l.c.job.Model = timeOnly, nil, l.model
}

// Passes are the seconds that one layer's forward and backward pass take on a device, under
// full recomputation with the forward pass once more in the backward one, for sequences that
// one call of attention computes: each by itself, causal (op.Diag) or not (op.Full).
//
// Errors: what laws are missing, as of Simulate.
func (l *Layers) Passes(device string, mask op.Mask, of Documents) (forward, backward units.Seconds, err error) {
	l.begin(true)
	forward, backward = l.pass(device, mask, of, false, nil), l.pass(device, mask, of, true, nil)
	return forward, backward, l.c.err
}

// Exchange is the seconds that a collective over a layer's gradients takes among ranks of
// the cluster, at the slowest class of links that it crosses; 0 of one rank.
//
// Errors: a link class that the cluster does not name, a missing law.
func (l *Layers) Exchange(kind op.Kind, ranks []int) (units.Seconds, error) {
	l.begin(true)
	t, err := l.message(kind, ranks, l.c.job.LayerBytes(), nil)
	return t, cmp.Or(err, l.c.err)
}

// ExchangeOf is the seconds that a collective over so many bytes takes among ranks, as
// Exchange has it of a layer's gradients.
//
// Errors: as of Exchange.
func (l *Layers) ExchangeOf(kind op.Kind, ranks []int, bytes units.Bytes) (units.Seconds, error) {
	l.begin(true)
	t, err := l.message(kind, ranks, bytes, nil)
	return t, cmp.Or(err, l.c.err)
}

// Update is the seconds that the optimizer takes for so many parameters on a device.
//
// Errors: what laws are missing, as of Simulate.
func (l *Layers) Update(device string, params int64) (units.Seconds, error) {
	l.begin(true)
	t := l.c.rows(device, op.AdamW{Params: params}, 1, nil)
	return t, l.c.err
}

// Send is the seconds that bytes take from one rank of the cluster to another.
//
// Errors: as of Exchange.
func (l *Layers) Send(from, to int, bytes units.Bytes) (units.Seconds, error) {
	l.begin(true)
	t, err := l.message(op.KindSendRecv, []int{from, to}, bytes, nil)
	return t, cmp.Or(err, l.c.err)
}

// Brief is the account of so many layers' passes on a device, one after the other, with
// the exchange of the gradients among ranks as far as the backward pass does not hide it.
//
// Errors: as of Passes and Exchange.
func (l *Layers) Brief(device string, mask op.Mask, of Documents, ranks []int, layers int) (*Step, error) {
	l.begin(false)
	var acc, sent account
	l.pass(device, mask, of, false, &acc)
	backward := l.pass(device, mask, of, true, &acc)
	exchange, err := l.message(op.KindAllReduce, ranks, l.c.job.LayerBytes(), &sent)
	if err = cmp.Or(err, l.c.err); err != nil {
		return nil, err
	}
	if open := exchange - backward; open > 0 {
		acc.merge(sent, float64(open/exchange))
	}
	step := acc.step()
	return step.Scaled(step.Time.Mid * units.Seconds(layers)), nil
}

// BriefExchange is the account of what ExchangeOf says.
//
// Errors: as of Exchange.
func (l *Layers) BriefExchange(kind op.Kind, ranks []int, bytes units.Bytes) (*Step, error) {
	l.begin(false)
	var acc account
	if _, err := l.message(kind, ranks, bytes, &acc); cmp.Or(err, l.c.err) != nil {
		return nil, cmp.Or(err, l.c.err)
	}
	return acc.step(), nil
}

// step is all that an account has, one after the other.
func (a *account) step() *Step {
	sides := []side{{laws: a.byLaw(1)}}
	return &Step{Time: interval(a.mid(), a.total().Source, sides), sides: sides}
}

// Warnings are what a user has to know of the laws that were used so far.
func (l *Layers) Warnings() []string {
	l.c.job.Model = l.model
	return l.c.warnings()
}

func (l *Layers) pass(device string, mask op.Mask, of Documents, back bool, acc *account) units.Seconds {
	p := l.parts(device, mask, of, back, acc)
	if !back {
		return p.LinearIn + p.Attention + p.LinearOut
	}
	t := p.LinearOut + p.Attention + p.LinearIn
	if l.c.job.Recompute == RecomputeFull {
		t += l.pass(device, mask, of, false, acc)
	}
	return t
}

// alone is the attention of sequences that no other device has a part of.
func (l *Layers) alone(device string, mask op.Mask, of Documents, back bool, acc *account) units.Seconds {
	m := l.c.job.Model
	a := op.Attention{Mask: mask, QLen: of.Tokens, KVLen: of.Tokens, QHeads: m.QHeads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, DType: l.c.job.DType}
	if of.Count > 1 { // a shape has one way to be written
		a.Batch = of.Count
	}
	var s op.Shape = op.AttnFwd{Attention: a}
	if back {
		s = op.AttnBwd{Attention: a}
	}
	return l.c.charge(l.c.on(device, s.Kind(), s.Variant()), s, 1, acc)
}

// message is a collective among ranks.
func (l *Layers) message(kind op.Kind, ranks []int, bytes units.Bytes, acc *account) (units.Seconds, error) {
	if len(ranks) < 2 {
		return 0, nil
	}
	var members []op.Member
	cluster, node := l.c.job.Cluster, l.ranks[ranks[0]].Node
	for _, r := range ranks {
		members = addMember(members, l.ranks[r].Device)
		if l.ranks[r].Node != node {
			node = -1
		}
	}
	link, field := cluster.Network, "network"
	if node >= 0 {
		link, field = cluster.Nodes[node].Link, fmt.Sprintf("nodes[%d].link", node)
	}
	if link == "" {
		return 0, fmt.Errorf("cluster.%s: empty, but ranks exchange bytes over it; name a link class of the profile", field)
	}
	law := 0
	if node >= 0 {
		law = l.c.over(link, kind, members)
	} else {
		law = l.c.across(kind, members, func(yield func(int) bool) {
			for _, r := range ranks {
				if !yield(l.ranks[r].Node) {
					return
				}
			}
		})
	}
	return l.c.charge(law, op.OfMessage(kind, op.Message{Group: len(ranks), Bytes: bytes}), 1, acc), nil
}
