package importer

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// single reads the rows of a benchmark of context parallelism that ran on one
// GPU: those are plain attention. The others are a step of several GPUs, in
// which computing and communicating overlap.
func (t *table) single(r *tableRow) {
	if n := r.count("n_gpus"); n != 1 && r.fault == "" {
		r.fail("a time of several GPUs that compute and communicate at once is no op's", units.Count(n, "GPU"))
	}
	if !r.flag("fwd_only") {
		r.fail("forward and backward in one time: neither alone is known", "")
	}
	dtype := r.dtype("dtype")
	if !t.knows("dtype") && r.fault == "" {
		r.fail("the table does not name the precision; say it with --dtype", "")
	}
	heads := r.count("q_heads")
	kv := heads
	if t.has("kv_heads") {
		kv = r.count("kv_heads")
	} else {
		t.Note("the table names no K/V heads: taken as many as query heads")
	}
	length := units.Tokens(r.count("seqlen_total"))
	a := op.Attention{Mask: op.Full, QLen: length, KVLen: length, QHeads: heads, KVHeads: kv, HeadDim: r.count("head_dim"), DType: dtype, Batch: r.count("batch")}
	t.sameHeads(r, &a)
	if r.flag("causal") {
		a.Mask = op.Diag
	}
	impl, _, _ := strings.Cut(r.text("impl"), " (")
	a.Kernel = kernelOf(impl)
	r.agree(op.AttnFwd{Attention: a})
	t.attend(r, a, "")
}

// agree compares what a row says more than once: its time with the calls a
// second, and its rate with what follows from both. Such columns were printed
// with three or four digits.
func (r *tableRow) agree(shape op.Shape) {
	const perSecond, rate = 0.01, 0.03
	seconds := r.seconds()
	for _, c := range []struct {
		column string
		want   float64
		off    float64
	}{
		{"iters_per_s", 1 / seconds, perSecond},
		{"tflops_total_reported", float64(shape.Work().FLOPs) / seconds / 1e12, rate},
	} {
		said, err := strconv.ParseFloat(r.text(c.column), 64)
		if r.fault != "" || !r.t.has(c.column) || err == nil && math.Abs(said/c.want-1) <= c.off {
			continue
		}
		r.t.Flag(r.where, fmt.Sprintf("%s is %s, and the time makes it %.4g", c.column, quoted(r.text(c.column)), c.want))
		r.fail(contradictoryRow, c.column+" "+quoted(r.text(c.column)))
	}
}
