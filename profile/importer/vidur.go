package importer

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// vidurFormat reads what microsoft/vidur profiled, under data/profiling.
func vidurFormat() Format {
	return Format{
		Name: "vidur",
		Doc:  "Vidur's profiles: network/*/all_reduce.csv and send_recv.csv, and the linear layers of compute/*/mlp.csv; they name no GPU (--device)",
		Read: func(s *Sink, sources []Source) error {
			return eachSource(sources, func(src Source, f File) error {
				t := newTable(s, src, vidurKinds())
				return readCSV(src.Name, f, t.visitor())
			})
		},
	}
}

// vidurKinds are told by their columns. Times are in milliseconds, as fine as
// the microseconds of the profiler that wrote them.
func vidurKinds() []tableKind {
	const inMs = -3
	return []tableKind{
		{"network", []string{"rank", "num_workers", "size", "collective", "devices_per_node"}, (*table).network, "size", inMs},
		{"old network", []string{"rank", "num_workers", "n_embd", "num_tokens"}, (*table).oldNetwork, "rank", inMs},
		{"linear layers", []string{"n_head", "n_kv_head", "n_embd", "n_expanded_embd", "use_gated_mlp", "num_tokens", "num_tensor_parallel_workers"}, (*table).layers, "num_tokens", inMs},
	}
}

// vidurStack is the software of a profile whose files name none: times of
// kernels as torch's profiler saw them, whatever version launched them.
const vidurStack = "vidur"

// network reads the time of a collective's kernel on one rank, the median of a
// few launches.
func (t *table) network(r *tableRow) {
	name := r.text("collective")
	column := vidurTime(name).time
	if !t.has(column) {
		r.fail("the table has no median of the row's collective", quoted(name))
		return
	}
	if rank := r.count("rank"); rank != 0 {
		r.fail("another rank's view of a collective that rank 0 has too", "rank "+strconv.Itoa(rank))
	}
	t.time, t.beside = t.columns[column], vidurTime(name)
	t.Note("Vidur's times of collectives are kernel times on rank 0, the median of three launches, with a resolution of 1 us")
	if node, most := r.count("devices_per_node"), r.optional("max_devices_per_node"); most > 0 && node > most {
		what := fmt.Sprintf("devices_per_node is %d, max_devices_per_node %d", node, most)
		t.Flag(r.where, what+": on how many nodes the ranks sat is not told; correct the row")
		r.fail(contradictoryRow, what)
	}
	c := timedCollective{
		message: op.Message{Group: r.count("num_workers"), Bytes: r.whole(name), DType: t.DType},
		perNode: r.perNode("devices_per_node"), stack: cmp.Or(stackOf(t.Options.Stack), vidurStack),
	}
	t.exchange(r, name, c)
}

// whole is the size that the op means. Vidur's counts one rank's buffer: what it
// sends to an all_gather and receives from a reduce_scatter.
func (r *tableRow) whole(collective string) units.Bytes {
	size, ranks := r.count("size"), r.count("num_workers")
	if collective != "all_gather" && collective != "reduce_scatter" {
		return units.Bytes(size)
	}
	if size < 0 || size > 1<<45 || ranks < 0 || ranks > 1<<16 {
		r.fail("the size or the number of ranks is out of range", strconv.Itoa(size)+" bytes, "+strconv.Itoa(ranks)+" ranks")
		return 0
	}
	return units.Bytes(size) * units.Bytes(ranks)
}

// oldNetwork refuses the layout of Vidur's first versions.
func (t *table) oldNetwork(*tableRow) {
	t.fatal = errors.New("a layout of Vidur's first versions: the bytes of a message follow from a width and a number of tokens in a way that is not written down; use network/*/*.csv of a later version")
}

// layers reads one row of linear layers: four matrix products of one model under
// tensor parallelism, every one with a time of its own. What a rank multiplies
// is what Vidur's layers allocate: the outputs of the first layer of a pair and
// the inputs of the second are divided among the ranks.
func (t *table) layers(r *tableRow) {
	tokens, width, inner := r.count("num_tokens"), r.count("n_embd"), r.count("n_expanded_embd")
	heads, kv, ranks := r.count("n_head"), r.count("n_kv_head"), r.count("num_tensor_parallel_workers")
	gated := r.flag("use_gated_mlp")
	switch {
	case r.fault != "":
		return
	case heads < 1 || kv < 1 || ranks < 1 || width < 1 || inner < 1 || width > 1<<20 || inner > 1<<20 || kv > heads:
		r.fail("widths, heads or ranks are out of range", "")
		return
	case width%heads != 0 || heads%ranks != 0 || kv%ranks != 0 || inner%ranks != 0:
		r.fail("the heads or widths do not divide among the ranks", strconv.Itoa(ranks)+" ranks")
		return
	}
	up := inner
	if gated {
		up = 2 * inner // gate and up in one product
	}
	dtype := t.DType
	if dtype == "" {
		dtype = op.F16
		t.Note("the files do not name the precision; Vidur's profiler runs fp16")
	}
	t.Note("of Vidur's layer profiles only matrix products are read: norms, rotary embedding, activations and additions are left aside")
	for _, l := range []struct {
		name string
		n, k int
	}{
		{"attn_pre_proj", (heads + 2*kv) * (width / heads) / ranks, width},
		{"attn_post_proj", width, width / ranks},
		{"mlp_up_proj", up / ranks, width},
		{"mlp_down_proj", width, inner / ranks},
	} {
		t.layer(r, l.name, op.GEMM{Pass: op.Forward, M: units.Tokens(tokens), N: l.n, K: l.k, DType: dtype})
	}
}

// layer hands on one product of a row; a cell without a time drops that alone.
func (t *table) layer(r *tableRow, name string, g op.GEMM) {
	i, ok := t.columns[vidurTime(name).time]
	if !ok {
		return
	}
	t.time, t.beside = i, vidurTime(name)
	one := *r
	t.compute(&one, g, cmp.Or(stackOf(t.Options.Stack), vidurStack))
	if one.fault != "" && t.fatal == nil {
		t.Drop(one.where+": "+name+" "+one.value, one.fault)
	}
}
