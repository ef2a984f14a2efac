package op

// KindCEChunk is chunked cross-entropy.
const KindCEChunk Kind = "ce_chunk"

// CEChunk is chunked cross-entropy:
// loss and in-place gradient of a chunk of tokens x width (vocabulary) logits.
type CEChunk struct{ Rowwise }

var ceChunkSpec = Spec{
	Kind: KindCEChunk, Class: Bandwidth, Measures: Time,
	Doc:     "chunked cross-entropy: loss and in-place gradient of a chunk of tokens x width (vocabulary) logits",
	Example: CEChunk{Rowwise{1024, 32000, F32}},
}

// Kind implements Shape.
func (CEChunk) Kind() Kind { return KindCEChunk }

// Validate implements Shape.
func (r CEChunk) Validate() error { return r.validate(KindCEChunk) }

// Work implements Shape: one pass for the log-sum-exp and one that turns
// logits into their gradient, so two reads and one write.
func (r CEChunk) Work() Work { return r.rowwiseWork(4, 2) }

// Features implements Featured.
func (r CEChunk) Features(parallel int) Features { return rowFeatures(r.Work(), r.Tokens, parallel) }
