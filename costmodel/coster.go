package costmodel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// coster turns the parts of a step into seconds by the laws of a profile. It
// remembers the laws it used, and the first error, after which it returns
// nonsense: callers look at err once, at the end.
type coster struct {
	q   *Predictor
	job Job
	err error

	uses    []lawUse
	compute map[computeKey]int // law numbers
	wires   map[wireKey]int
	worst   Source

	// Shapes are passed by pointer, for turning a struct into an interface
	// would allocate at each of the thousands of predictions of a ring.
	fwd   op.AttnFwd
	bwd   op.AttnBwd
	merge op.LSEMerge
	hop   op.SendRecv

	blocks []Block
}

// lawUse is a law in use and how far outside its measured range.
type lawUse struct {
	law    *Law
	factor float64 // of Transfer
	beyond float64 // doublings, most of all calls
	where  string  // the collective and group a transferred law stands for
}

type computeKey struct {
	device string
	kind   op.Kind
	v      op.Variant
}

type wireKey struct {
	link string
	kind op.Kind
	node int // whose devices are the group, -1 for all
}

func newCoster(q *Predictor, j Job) *coster {
	return &coster{q: q, job: j, compute: map[computeKey]int{}, wires: map[wireKey]int{}}
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
func (c *coster) over(link string, kind op.Kind, node int, members []op.Member) int {
	k := wireKey{link, kind, node}
	if id, ok := c.wires[k]; ok {
		return id
	}
	law, factor, err := c.q.Over(link, kind, members)
	id := c.use(lawUse{law: law, factor: factor, where: fmt.Sprintf("%s among %s", kind, op.NewGroupType(members, 1, link).Name)}, err)
	c.wires[k] = id
	return id
}

func (c *coster) use(u lawUse, err error) int {
	if err != nil && c.err == nil {
		c.err = err
	}
	c.uses = append(c.uses, u)
	return len(c.uses) - 1
}

// charge predicts `times` calls of a shape by a law and books them; acc may be nil.
func (c *coster) charge(law int, s op.Shape, times float64, acc *account) units.Seconds {
	u := &c.uses[law]
	if c.err != nil {
		return 0
	}
	e := Transfer(u.law, u.factor, s).Times(times)
	if e.Source != Interpolated {
		u.beyond = max(u.beyond, u.law.Beyond(s))
	}
	c.worst = c.worst.Worse(e.Source)
	if acc != nil {
		acc.add(law, e)
	}
	return e.Mid
}

// attention is the time of one shard's queries on another's keys and values:
// the blocks, and forward the merging of every FULL block's partial result into
// what the DIAG block of the same queries began.
func (c *coster) attention(device string, q, kv Shard, back bool, acc *account) units.Seconds {
	m := c.job.Model
	var total units.Seconds
	c.blocks = appendBlocks(c.blocks[:0], q, kv)
	for _, b := range c.blocks {
		a := op.Attention{Mask: b.Mask, QLen: b.QLen, KVLen: b.KVLen, QHeads: m.QHeads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, DType: c.job.DType}
		if back {
			c.bwd.Attention = a
			total += c.charge(c.on(device, op.KindAttnBwd, a.Variant()), &c.bwd, 1, acc)
			continue
		}
		c.fwd.Attention = a
		total += c.charge(c.on(device, op.KindAttnFwd, a.Variant()), &c.fwd, 1, acc)
		if b.Mask == op.Full {
			c.merge = op.LSEMerge{Tokens: b.QLen, QHeads: m.QHeads, HeadDim: m.HeadDim}
			total += c.charge(c.on(device, op.KindLSEMerge, c.merge.Variant()), &c.merge, 1, acc)
		}
	}
	return total
}

// gemm charges one matrix product of a linear layer.
func (c *coster) gemm(device string, pass op.Pass, tokens units.Tokens, n, k int, times float64, acc *account) units.Seconds {
	g := op.GEMM{Pass: pass, M: tokens, N: n, K: k, DType: c.job.DType}
	return c.charge(c.on(device, op.KindGEMM, g.Variant()), g, times, acc)
}

// rows charges an element-wise op.
func (c *coster) rows(device string, s op.Shape, times float64, acc *account) units.Seconds {
	return c.charge(c.on(device, s.Kind(), s.Variant()), s, times, acc)
}

func (c *coster) rowwise(tokens units.Tokens, width int) op.Rowwise {
	return op.Rowwise{Tokens: tokens, Width: width, DType: c.job.DType}
}

// elementwiseBackward: nobody measures the backward pass of the element-wise
// ops; each reads and writes about twice what its forward does (input and
// gradient in, gradient out).
const elementwiseBackward = 2

// beforeAttention is the linear part of a layer up to the ring: norm, fused
// query, key and value projection, rotary positions.
func (c *coster) beforeAttention(device string, s units.Tokens, acc *account) units.Seconds {
	m := c.job.Model
	t := c.rows(device, op.Norm{Rowwise: c.rowwise(s, m.Hidden)}, 1, acc)
	t += c.gemm(device, op.Forward, s, m.qkvWidth(), m.Hidden, 1, acc)
	return t + c.rotate(device, s, 1, acc)
}

func (c *coster) rotate(device string, s units.Tokens, times float64, acc *account) units.Seconds {
	m := c.job.Model
	t := c.rows(device, op.Rope{Rowwise: c.rowwise(s, m.qWidth())}, times, acc)
	return t + c.rows(device, op.Rope{Rowwise: c.rowwise(s, m.kvWidth())}, times, acc)
}

// afterAttention is the rest: output projection, norm, gated MLP.
func (c *coster) afterAttention(device string, s units.Tokens, acc *account) units.Seconds {
	m := c.job.Model
	t := c.gemm(device, op.Forward, s, m.Hidden, m.qWidth(), 1, acc)
	t += c.rows(device, op.Norm{Rowwise: c.rowwise(s, m.Hidden)}, 1, acc)
	t += c.gemm(device, op.Forward, s, m.gateUp(), m.Hidden, 1, acc)
	t += c.rows(device, op.SwiGLU{Rowwise: c.rowwise(s, m.FFN)}, 1, acc)
	return t + c.gemm(device, op.Forward, s, m.Hidden, m.FFN, 1, acc)
}

// backToAttention is the backward pass of afterAttention.
func (c *coster) backToAttention(device string, s units.Tokens, acc *account) units.Seconds {
	m := c.job.Model
	t := c.both(device, s, m.Hidden, m.FFN, acc)
	t += c.rows(device, op.SwiGLU{Rowwise: c.rowwise(s, m.FFN)}, elementwiseBackward, acc)
	t += c.both(device, s, m.gateUp(), m.Hidden, acc)
	t += c.rows(device, op.Norm{Rowwise: c.rowwise(s, m.Hidden)}, elementwiseBackward, acc)
	return t + c.both(device, s, m.Hidden, m.qWidth(), acc)
}

// backFromAttention is the backward pass of beforeAttention.
func (c *coster) backFromAttention(device string, s units.Tokens, acc *account) units.Seconds {
	m := c.job.Model
	t := c.rotate(device, s, elementwiseBackward, acc)
	t += c.both(device, s, m.qkvWidth(), m.Hidden, acc)
	return t + c.rows(device, op.Norm{Rowwise: c.rowwise(s, m.Hidden)}, elementwiseBackward, acc)
}

// both charges a linear layer's two backward products.
func (c *coster) both(device string, s units.Tokens, n, k int, acc *account) units.Seconds {
	return c.gemm(device, op.DGrad, s, n, k, 1, acc) + c.gemm(device, op.WGrad, s, n, k, 1, acc)
}

// loss is the final norm, forward and backward, and in chunks the output
// projection, cross-entropy and the projection's two backward products.
func (c *coster) loss(device string, s units.Tokens, acc *account) units.Seconds {
	t := c.rows(device, op.Norm{Rowwise: c.rowwise(s, c.job.Model.Hidden)}, 1+elementwiseBackward, acc)
	chunk := min(s, c.job.LossChunk)
	t += c.lossChunk(device, chunk, float64(s/chunk), acc)
	if rest := s % chunk; rest > 0 {
		t += c.lossChunk(device, rest, 1, acc)
	}
	return t
}

func (c *coster) lossChunk(device string, tokens units.Tokens, times float64, acc *account) units.Seconds {
	m := c.job.Model
	// Losses are taken in float32 whatever the precision of the layers.
	t := c.rows(device, op.CEChunk{Rowwise: op.Rowwise{Tokens: tokens, Width: m.Vocab, DType: op.F32}}, times, acc)
	for _, pass := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
		t += c.gemm(device, pass, tokens, m.Vocab, m.Hidden, times, acc)
	}
	return t
}

// optimizer is AdamW on a rank's share of the parameters.
func (c *coster) optimizer(device string, ranks int, acc *account) units.Seconds {
	p := c.job.Model.Params()
	if c.job.zero() != Zero0 {
		p = (p + int64(ranks) - 1) / int64(ranks)
	}
	return c.rows(device, op.AdamW{Params: p}, 1, acc)
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
	out = append(out, c.assumptions()...)
	for _, u := range c.uses {
		if c.q.rivals[u.law] > 1 {
			out = append(out, fmt.Sprintf("%s on %s: kernel %s is the fastest of %d that were measured there and is taken; with another kernel the job takes longer", lawTitle(u.law), u.law.On(), u.law.Variant.Kernel, c.q.rivals[u.law]))
		}
		if u.factor != 1 {
			out = append(out, fmt.Sprintf("%s was not measured; the law of %s on %s stands in, slowed by %.0f %%; a calibration of that very group would replace it", u.where, u.law.Op, u.law.On(), 100*(u.factor-1)))
		}
		if u.beyond > rangeSlack && u.law.Assumed == "" { // no range of an assumed law was measured
			out = append(out, fmt.Sprintf("%s on %s is used up to %.1f doublings outside its measured range; a longer calibration reaches further: evenkeel calibrate --fresh --budget 10m", lawTitle(u.law), u.law.On(), u.beyond))
		}
	}
	return out
}

// assumptions names the laws in use that nobody measured, those of one device or
// group with one reason together.
func (c *coster) assumptions() []string {
	type ground struct{ on, why string }
	var order []ground
	titles := map[ground][]string{}
	for _, u := range c.uses {
		if u.law == nil || u.law.Assumed == "" {
			continue
		}
		g := ground{u.law.On(), u.law.Assumed}
		if len(titles[g]) == 0 {
			order = append(order, g)
		}
		if t := lawTitle(u.law); !slices.Contains(titles[g], t) {
			titles[g] = append(titles[g], t)
		}
	}
	var out []string
	for _, g := range order {
		out = append(out, fmt.Sprintf("%s on %s: assumed; %s", strings.Join(titles[g], ", "), g.on, g.why))
	}
	return out
}

func lawTitle(l *Law) string {
	if v := l.Variant.String(); v != "" {
		return string(l.Op) + " (" + v + ")"
	}
	return string(l.Op)
}
