package importer

import (
	"cmp"
	"io"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// aiconfiguratorFormat reads the tables of ai-dynamo/aiconfigurator as they lie
// in its tree: parquet, or CSV under the name *_perf.txt in older versions.
func aiconfiguratorFormat() Format {
	return Format{
		Name: "aiconfigurator",
		Doc:  "tables of aiconfigurator (*_perf.parquet, *_perf.txt): context and encoder attention, GEMM, NCCL, oneCCL, custom all-reduce",
		Read: func(s *Sink, sources []Source) error {
			return eachSource(sources, func(src Source, f File) error {
				t := newTable(s, src, aiconfiguratorKinds())
				if isParquet(f) {
					t.word = "row "
					return readParquet(src, f, t.visitor())
				}
				return readCSV(src.Name, f, t.visitor())
			})
		},
	}
}

// aiconfiguratorKinds are the tables that hold ops of this vocabulary. Their
// latency is in milliseconds and its column does not say so (the collectors
// multiply nccl-tests' microseconds by 1e-3).
func aiconfiguratorKinds() []tableKind {
	const inMs = -3
	return []tableKind{
		{"attention", []string{"attn_dtype", "batch_size", "isl", "num_heads", "head_dim", "latency"}, (*table).servedAttention, "latency", inMs},
		{"gemm", []string{"gemm_dtype", "m", "n", "k", "latency"}, (*table).servedGEMM, "latency", inMs},
		{"nccl", []string{"nccl_dtype", "op_name", "num_gpus", "message_size", "latency"}, (*table).library, "latency", inMs},
		{"oneccl", []string{"oneccl_dtype", "op_name", "num_gpus", "message_size", "latency"}, (*table).library, "latency", inMs},
		{"custom all-reduce", []string{"allreduce_dtype", "num_gpus", "message_size", "latency"}, (*table).engineAllReduce, "latency", inMs},
	}
}

// Why a row of aiconfigurator's attention tables is no block of ours.
const latentRow = "attention over compressed keys and values: no op of this vocabulary"

// servedAttention reads attention of a serving engine. What kind it is stands in
// op_name; older tables have none, and those of encoders have no cache.
func (t *table) servedAttention(r *tableRow) {
	name := strings.ToLower(r.text("op_name"))
	a := op.Attention{
		Mask: op.Diag, QLen: units.Tokens(r.count("isl")), QHeads: r.count("num_heads"), KVHeads: r.optional("num_key_value_heads"),
		HeadDim: r.count("head_dim"), DType: r.dtype("attn_dtype"), Kernel: kernelOf(r.text("kernel_source")), Batch: r.count("batch_size"),
		Window: units.Tokens(r.optional("window_size")),
	}
	a.KVLen = a.QLen + units.Tokens(r.optional("step"))
	switch {
	case strings.Contains(name, "mla"), strings.Contains(name, "dsa"):
		r.fail(latentRow, quoted(name))
	case strings.Contains(name, "generation"), name == "" && t.has("beam_width"): // TensorRT-LLM's context tables have that column too
		r.fail(decodeRow, "")
	case strings.Contains(name, "encoder"), name == "" && !t.has("kv_cache_dtype"):
		a.Mask = op.Full
	}
	if a.KVHeads == 0 { // the source's way to say: as many as query heads
		a.KVHeads = a.QHeads
	}
	if a.Mask == op.Diag && t.has("kv_cache_dtype") {
		if kv := r.dtype("kv_cache_dtype"); kv != a.DType {
			a.Kernel = kernelOf(a.Kernel + "_kv" + string(kv))
		}
	}
	t.attend(r, a, stackOf(r.text("framework"), r.text("version")))
}

func (t *table) servedGEMM(r *tableRow) {
	t.product(r, op.GEMM{Pass: op.Forward, M: units.Tokens(r.count("m")), N: r.count("n"), K: r.count("k"), DType: r.dtype("gemm_dtype")})
}

// library reads a collective that nccl-tests, or oneCCL's benchmark, timed.
// message_size counts elements; times their size it is the size column of
// nccl-tests. The framework column names the image it was run in, the version
// column the library's version.
func (t *table) library(r *tableRow) {
	column := "nccl_dtype"
	if t.has("oneccl_dtype") {
		column = "oneccl_dtype"
	}
	lib, _, _ := strings.Cut(column, "_")
	if strings.EqualFold(r.text("kernel_source"), "oneccl") {
		lib = "oneccl"
	}
	c := timedCollective{message: r.elements(column), stack: stackOf(lib, r.text("version"))}
	t.exchange(r, r.text("op_name"), c)
}

// engineAllReduce reads the all-reduce kernels of a serving engine. Whether it
// was replayed from a graph or launched one by one stands at the end of
// kernel_source or backend; TensorRT-LLM's is always a graph.
func (t *table) engineAllReduce(r *tableRow) {
	mode := "graph"
	for _, label := range []string{r.text("kernel_source"), r.text("backend")} {
		if strings.HasSuffix(strings.ToLower(label), "_eager") {
			mode = "eager"
		}
	}
	c := timedCollective{message: r.elements("allreduce_dtype"), stack: stackOf(r.text("framework"), r.text("version"), mode)}
	t.exchange(r, cmp.Or(r.text("op_name"), "all_reduce"), c)
}

// elements reads a message whose size is counted in elements.
func (r *tableRow) elements(dtype string) op.Message {
	d := r.dtype(dtype)
	count := r.count("message_size")
	if count < 0 || count > 1<<45 {
		r.fail("message_size is out of range", strconv.Itoa(count))
		count = 1
	}
	return op.Message{Group: r.count("num_gpus"), Bytes: units.Bytes(count) * d.Size(), DType: d}
}

// isParquet looks for the four bytes that a parquet file begins with.
func isParquet(f io.ReaderAt) bool {
	head := make([]byte, 4)
	n, _ := f.ReadAt(head, 0)
	return string(head[:n]) == "PAR1"
}
