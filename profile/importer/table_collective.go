package importer

import (
	"strconv"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// collective reads a row of a collective. message_bytes counts what the size of
// nccl-tests counts, which is what the ops count too: the buffer of a rank of
// all_reduce and alltoall, the whole gathered buffer of all_gather and the whole
// input of reduce_scatter.
func (t *table) collective(r *tableRow) {
	m := op.Message{Group: r.count("num_gpus"), Bytes: units.Bytes(r.count("message_bytes")), DType: r.dtype("dtype")}
	if t.has("latency_min_us") {
		t.Note("times that come with a least and a most are the median of a few launches, as fine as the source wrote them")
	}
	t.exchange(r, r.text("collective"), timedCollective{message: m, perNode: r.perNode("gpus_per_node"), fills: true, stack: r.stack()})
}

// exchange hands a row of a collective on.
func (t *table) exchange(r *tableRow, name string, c timedCollective) {
	kind, oneWay, known := collectiveOf(name)
	if !known {
		r.fail(noSuchCollective, quoted(name))
	}
	c.kind, c.gpu, c.seconds = kind, r.gpu(), r.seconds()
	r.ordered()
	if oneWay {
		c.way = "oneway"
		t.Note(oneWayNote)
	}
	if r.fault != "" {
		return
	}
	if fault := t.onGroup(r.where, c); fault != "" {
		r.fail(fault, units.Count(c.message.Group, "GPU"))
	}
}

// perNode is the GPUs of a node, 0 where the row does not tell.
func (r *tableRow) perNode(column string) int {
	n := r.optional(column)
	if r.text(column) != "" && n < 1 {
		r.fail(column+" is less than one", strconv.Itoa(n))
	}
	return n
}

// stack is the software a collective ran on: a library or an engine, and how the
// engine called it.
func (r *tableRow) stack() string {
	if lib := r.text("library"); lib != "" {
		return stackOf(lib, r.text("library_version"))
	}
	return stackOf(r.text("framework"), r.text("version"), r.text("mode"))
}
