package importer

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// computeCall is an attention or a GEMM as an op's arguments describe it. Equal
// calls share one.
type computeCall struct {
	gemm      bool
	product   op.GEMM
	attention op.Attention
	backward  bool
	family    string // of kernels, where their names tell nothing
	prefix    string // of the kernel's name, for libraries with a copy of their own
	suffix    string // of it, for the variant over packed documents
	reason    string // why this is no point; "" if it is one

	counts map[int]int // calls by their number of kernels
	most   int         // the number that most of them have
}

// saw counts a call with a number of kernels.
func (c *computeCall) saw(kernels int) {
	if c.counts == nil {
		c.counts = map[int]int{}
	}
	c.counts[kernels]++
	if c.counts[kernels] >= c.counts[c.most] {
		c.most = kernels
	}
}

// shape is the op that was measured, or the reason why there is none. kernel is
// what the longest kernel is an implementation of, as far as its name tells.
func (c *computeCall) shape(kernel string) (op.Shape, string) {
	switch {
	case c.reason != "":
		return nil, c.reason
	case c.gemm && kernel != "" && c.product.DType == op.F32:
		return nil, kernel
	case c.gemm:
		return c.product, ""
	}
	if kernel == "" {
		kernel = c.family
	}
	a := c.attention
	if c.prefix != kernel+"_" {
		kernel = c.prefix + kernel
	}
	a.Kernel = kernel + c.suffix
	if c.backward {
		return op.AttnBwd{Attention: a}, ""
	}
	return op.AttnFwd{Attention: a}, ""
}

// note says what the times include.
func (c *computeCall) note() string {
	if c.gemm {
		return "gemm: the kernels of aten::mm, aten::addmm and aten::linear in the layout of a linear layer's forward, without launch; " +
			"addmm and linear add a bias"
	}
	return "attention: the summed time of an op's kernels, without launch and without copies that are ops of their own"
}

// attentionOp says at which position an op takes what. A position of 0 means
// that it has no such argument, as the first is always a tensor.
type attentionOp struct {
	q          int  // k and v follow
	headsFirst bool // [batch, heads, tokens, dim] instead of [batch, tokens, heads, dim]
	cu         int  // cumulated lengths of packed queries; those of keys follow
	most       int  // longest query sequence; that of keys follows
	dropout    int
	causal     int
	maskType   int   // of efficient attention: 0 none, 1 and 2 causal
	window     int   // keys to the left; those to the right follow, or both are a list here
	windowList bool  // one list of both; a tuple, as flash-attention passes by default, leaves an empty text as nothing does
	none       []int // tensors that change the work: biases, ALiBi slopes, block tables
	zero       []int // numbers that do, unless 0: softcap
	backward   bool
	family     string
	prefix     string
}

// attentionOps are the ops with known arguments, from the schemas of PyTorch
// (native_functions.yaml, 2.1 to 2.9), flash-attention 2 (flash_attn_interface)
// and aiter (mha). Where versions differ, afterDropout finds the causal flag. A
// position that is wrong for some version makes the call unusable, not wrong:
// the flag must be True or False, lengths must agree with the dims, a window
// must be a number.
//
// The ops that pass their work on to others of the list have no kernels of their
// own. Ops of engines (vLLM, TensorRT-LLM) are missing: they take lengths and
// pages from the device's memory, which no trace shows.
func attentionOps(name string) (attentionOp, bool) {
	torch := func(o attentionOp) (attentionOp, bool) { return o, true }
	switch name {
	case "aten::_flash_attention_forward":
		return torch(attentionOp{cu: 3, most: 5, dropout: 7, causal: 8, window: 11, none: []int{13, 14}, family: "flash"})
	case "aten::_scaled_dot_product_flash_attention":
		return torch(attentionOp{headsFirst: true, dropout: 3, causal: 4, family: "flash"})
	case "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_efficient_attention":
		return torch(attentionOp{headsFirst: true, dropout: 5, causal: 6, none: []int{3}, family: family(name)})
	case "aten::_scaled_dot_product_fused_attention_overrideable":
		return torch(attentionOp{headsFirst: true, dropout: 4, causal: 5, none: []int{3}, family: "fused"})
	case "aten::_efficient_attention_forward":
		return torch(attentionOp{cu: 4, most: 6, dropout: 8, maskType: 9, none: []int{3, 12}, zero: []int{13}, family: "efficient"})
	case "aten::_cudnn_attention_forward":
		return torch(attentionOp{headsFirst: true, cu: 4, most: 6, dropout: 9, causal: 10, none: []int{3}, family: "cudnn"})
	case "aten::_flash_attention_backward":
		return torch(attentionOp{q: 1, cu: 6, most: 8, dropout: 10, causal: 11, window: 15, backward: true, family: "flash"})
	case "aten::_scaled_dot_product_flash_attention_backward":
		return torch(attentionOp{q: 1, headsFirst: true, cu: 6, most: 8, dropout: 10, causal: 11, backward: true, family: "flash"})
	case "aten::_scaled_dot_product_cudnn_attention_backward", "aten::_cudnn_attention_backward":
		return torch(attentionOp{q: 1, headsFirst: true, cu: 9, most: 11, dropout: 13, causal: 14, none: []int{8}, backward: true, family: "cudnn"})
	case "aten::_scaled_dot_product_efficient_attention_backward":
		return torch(attentionOp{q: 1, headsFirst: true, dropout: 9, causal: 11, none: []int{4}, backward: true, family: "efficient"})
	case "aten::_efficient_attention_backward":
		return torch(attentionOp{q: 1, cu: 6, most: 8, dropout: 11, maskType: 14, none: []int{4}, zero: []int{18}, backward: true, family: "efficient"})
	}
	return libraryAttention(name)
}

// libraryAttention is attentionOps for libraries beside PyTorch.
func libraryAttention(name string) (o attentionOp, known bool) {
	switch name {
	case "flash_attn::_flash_attn_forward":
		o = attentionOp{dropout: 3, causal: 5, window: 6, none: []int{9}, zero: []int{8}}
	case "flash_attn::_flash_attn_varlen_forward":
		o = attentionOp{cu: 3, most: 5, dropout: 7, causal: 9, window: 10, none: []int{13, 15, 16, 17}, zero: []int{12}}
	case "flash_attn::_flash_attn_backward":
		o = attentionOp{q: 1, dropout: 9, causal: 11, window: 12, none: []int{15}, zero: []int{14}, backward: true}
	case "flash_attn::_flash_attn_varlen_backward":
		o = attentionOp{q: 1, cu: 9, most: 11, dropout: 13, causal: 15, window: 16, none: []int{19}, zero: []int{18}, backward: true}
	case "FlashAttnFunc":
		o = attentionOp{dropout: 3, causal: 5, window: 6, windowList: true, none: []int{7, 8}, zero: []int{7}} // before 2.6 without a soft cap
	case "aiter::_flash_attn_forward":
		o = attentionOp{dropout: 3, causal: 5, window: 6, none: []int{8, 9}}
	case "aiter::mha_fwd", "aiter::fmha_v3_fwd":
		o = attentionOp{dropout: 3, causal: 5, window: 6}
	case "aiter::mha_bwd":
		o = attentionOp{q: 1, dropout: 6, causal: 8, window: 9, backward: true}
	default:
		return o, false
	}
	o.family = "flash"
	o.prefix, _, _ = strings.Cut(name, "::")
	if name == "FlashAttnFunc" {
		o.prefix = "flash_attn"
	}
	o.prefix += "_"
	return o, true
}

// callOf reads an attention or a GEMM; nil for another op.
func (t *trace) callOf(e *traceEvent) *computeCall {
	name := e.text(fieldName)
	spec, attention := attentionOps(string(name))
	if !attention && !gemmOp(string(name)) {
		return nil
	}
	key := brief(bytes.Join([][]byte{name, e.raw[fieldDims], e.raw[fieldTypes], e.raw[fieldStrides], e.raw[fieldConcrete]}, []byte{'\n'}))
	if c, ok := t.calls[key]; ok {
		return c
	}
	in := inputsOf(e)
	c := gemmCall(string(name), &in)
	if attention {
		c = spec.call(&in)
	}
	if len(t.calls) < maxCalls {
		t.calls[key] = c
	}
	return c
}

// maxCalls bounds the table of equal calls; beyond it they are read anew.
const maxCalls = 1 << 14

// call makes an attention of an op's arguments.
func (o attentionOp) call(in *opInputs) *computeCall {
	c := &computeCall{backward: o.backward, family: o.family, prefix: o.prefix}
	if c.reason = o.shape(in, c); c.reason == "" {
		c.reason = o.mask(in, &c.attention)
	}
	if c.reason == "" {
		c.reason = o.extras(in)
	}
	return c
}

// shape takes lengths, heads and precision. Fewer key heads than query heads are
// GQA.
func (o attentionOp) shape(in *opInputs, c *computeCall) (reason string) {
	if len(in.dims) == 0 {
		return "no Input Dims: record the trace with record_shapes=True"
	}
	q, k, v := in.dim(o.q), in.dim(o.q+1), in.dim(o.q+2)
	if o.cu > 0 && len(in.dim(o.cu)) > 0 {
		if q, k, v, reason = o.packed(in, q, k, v); reason != "" {
			return reason
		}
		c.suffix = "_varlen"
	}
	if len(q) != 4 || len(k) != 4 || len(v) != 4 {
		return "query, key and value are no batches of heads with known lengths"
	}
	token, head := 1, 2
	if o.headsFirst {
		token, head = 2, 1
	}
	dtype := operandType(at(in.types, o.q))
	switch {
	case slices.Min(slices.Concat(q, k, v)) < 1 || slices.Max(slices.Concat(q, k, v)) > 1<<31:
		return "a dimension out of range"
	case k[0] != q[0] || v[0] != k[0] || k[3] != q[3] || v[token] != k[token] || v[head] != k[head]:
		return "query, key and value do not fit together"
	case v[3] != k[3]:
		return "values of another width than keys: no such op"
	case q[head]%k[head] != 0:
		return unevenHeads
	case dtype == "" || operandType(at(in.types, o.q+1)) != dtype || operandType(at(in.types, o.q+2)) != dtype:
		return "element types other than bf16, f16, f32 or fp8 for all of query, key and value"
	case o.most > 0 && c.suffix == "" && !agrees(in.value(o.most), q[token], in.value(o.most+1), k[token]):
		return "the op's longest lengths contradict its dims"
	}
	c.attention = op.Attention{
		Mask: op.Full, QLen: units.Tokens(q[token]), KVLen: units.Tokens(k[token]),
		QHeads: int(q[head]), KVHeads: int(k[head]), HeadDim: int(q[3]), DType: dtype,
	}
	if q[0] > 1 {
		c.attention.Batch = int(q[0])
	}
	return ""
}

// agrees compares lengths that an op states with those of its tensors, where it
// states them.
func agrees(q string, qLen int64, k string, kLen int64) bool {
	same := func(text string, n int64) bool {
		v, err := strconv.ParseInt(text, 10, 64)
		return err != nil || v <= 0 || v == n
	}
	return same(q, qLen) && same(k, kLen)
}

// packed makes batches of packed documents, whose lengths are in the device's
// memory: only their number, their sum and the longest are in the trace. If the
// sum is number times longest, all are equal.
func (o attentionOp) packed(in *opInputs, q, k, v []int64) (_, _, _ []int64, reason string) {
	const unknown = "packed documents: their lengths are not in the trace"
	cuQ, cuK := in.dim(o.cu), in.dim(o.cu+1)
	if len(cuQ) != 1 || len(cuK) != 1 || cuQ[0] < 2 || cuK[0] != cuQ[0] {
		return nil, nil, nil, unknown
	}
	documents := cuQ[0] - 1
	unpack := func(dims []int64, most string) []int64 {
		if len(dims) == 4 && dims[0] == 1 {
			dims = dims[1:]
		}
		n, err := strconv.ParseInt(most, 10, 64)
		if len(dims) != 3 || dims[0]%documents != 0 || documents > 1 && (err != nil || n != dims[0]/documents) {
			return nil
		}
		return []int64{documents, dims[0] / documents, dims[1], dims[2]}
	}
	q, k, v = unpack(q, in.value(o.most)), unpack(k, in.value(o.most+1)), unpack(v, in.value(o.most+1))
	if q == nil || k == nil || v == nil || o.headsFirst {
		return nil, nil, nil, unknown
	}
	return q, k, v, ""
}

// mask takes what hides keys. Causal rectangles exist in no op: where the
// diagonal lies in them differs from library to library.
func (o attentionOp) mask(in *opInputs, a *op.Attention) (reason string) {
	causal, told := o.isCausal(in)
	if !told {
		return "whether the attention is causal is not in the trace (Concrete Inputs)"
	}
	left, right, told := o.windowOf(in)
	switch {
	case !told:
		return "a window that is not in the trace"
	case causal && a.QLen != a.KVLen:
		return "causal with another number of queries than of keys: no such op"
	case causal:
		a.Mask = op.Diag
		if left >= 0 && units.Tokens(left) < a.KVLen-1 {
			a.Window = units.Tokens(left) + 1 // keys i-left to i, the own included
		}
	case left >= 0 && units.Tokens(left) < a.QLen-1 || right >= 0 && units.Tokens(right) < a.KVLen-1:
		return "a window without a causal mask: no such op"
	}
	return ""
}

func (o attentionOp) isCausal(in *opInputs) (causal, told bool) {
	if o.maskType > 0 {
		switch in.value(o.maskType) {
		case "0":
			return false, true
		case "1", "2":
			return true, true
		}
		return false, false
	}
	i := o.causal
	if in.value(i) != "True" && in.value(i) != "False" && o.cu == 0 && o.headsFirst {
		i = in.afterDropout(o.q + 3)
	}
	return in.value(i) == "True", in.value(i) == "True" || in.value(i) == "False"
}

// afterDropout finds the argument behind the dropout rate, which is the first
// number: versions of PyTorch put a bias and a flag before it, or not.
func (in *opInputs) afterDropout(from int) int {
	for i := from; i < len(in.values); i++ {
		if _, err := strconv.ParseFloat(in.values[i], 64); err == nil {
			return i + 1
		}
	}
	return opNone
}

// windowOf is how many keys to the left and right of its own a query sees; -1
// all of them.
func (o attentionOp) windowOf(in *opInputs) (left, right int64, told bool) {
	if o.window == 0 {
		return -1, -1, true
	}
	l, r := in.value(o.window), in.value(o.window+1)
	if o.windowList {
		if l == "" {
			return 0, 0, false
		}
		l, r, _ = strings.Cut(strings.Trim(l, "[]()"), ",")
	}
	left, okL := windowSide(l)
	right, okR := windowSide(r)
	return left, right, okL && okR
}

func windowSide(text string) (int64, bool) {
	text = strings.TrimSpace(text)
	if text == "" || text == "None" {
		return -1, true
	}
	v, err := strconv.ParseInt(text, 10, 64)
	return max(-1, v), err == nil
}

// extras refuses what changes the work and is no axis of the op, such as
// dropout, which draws a random number for every pair.
func (o attentionOp) extras(in *opInputs) (reason string) {
	i := o.dropout
	if o.cu == 0 && o.headsFirst {
		i = max(0, in.afterDropout(o.q+3)-1)
	}
	if rate, err := strconv.ParseFloat(in.value(i), 64); err == nil && rate != 0 {
		return "with dropout: no such op"
	}
	for _, i := range o.none {
		if len(in.dim(i)) > 0 {
			return "with a bias, slopes, a mask or a block table: no such op"
		}
	}
	for _, i := range o.zero {
		if v, err := strconv.ParseFloat(in.value(i), 64); err == nil && v != 0 {
			return "with a soft cap or a window of another kind: no such op"
		}
	}
	return ""
}

// family is the kernels that an op of PyTorch is named after.
func family(name string) string {
	if strings.Contains(name, "cudnn") {
		return "cudnn"
	}
	return "efficient"
}

// attentionKernel names the implementation that a kernel belongs to; "" for a
// kernel that is no attention by its name. Fused element-wise kernels are called
// after the attention they follow (triton_poi_fused__scaled_dot_product_..).
func attentionKernel(name []byte) string {
	if bytes.HasPrefix(name, []byte("triton_")) {
		return ""
	}
	for _, k := range []struct{ part, also, word string }{
		{"compute_attn_ws", "", "fa3"},
		{"FlashAttnFwdSm90", "", "fa3"},
		{"FlashAttnBwdSm90", "", "fa3"},
		{"FlashAttentionForwardSm", "", "fa4"},
		{"FlashAttentionBackwardSm", "", "fa4"},
		{"sdpa", "cudnn", "cudnn"},
		{"sdpa", "", "sdpa"},
		{"flash_fwd", "", "fa2"},
		{"flash_bwd", "", "fa2"},
		{"Flash_fwd", "", "fa2"},
		{"Flash_bwd", "", "fa2"},
		{"fmha_cutlass", "", "efficient"},
		{"PyTorchMemEffAttention", "", "efficient"},
		{"AttentionBackwardKernel", "", "efficient"},
		{"fmha", "aiter", "aiter"},
		{"FmhaFwd", "", "ck"},
		{"FmhaBwd", "", "ck"},
		{"fmha", "ck_tile", "ck"},
		{"fmha", "", "fmha"},
		{"attn_fwd", "", "aotriton"},
		{"attn_bwd", "", "aotriton"},
		{"bwd_kernel_dk_dv", "", "aotriton"},
		{"bwd_kernel_dq", "", "aotriton"},
	} {
		if bytes.Contains(name, []byte(k.part)) && bytes.Contains(name, []byte(k.also)) {
			return k.word
		}
	}
	return ""
}
