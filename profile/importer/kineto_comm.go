package importer

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// commArgs is a collective as one rank's trace describes it. Equal ones share
// one.
type commArgs struct {
	kind      op.Kind
	in, out   int64 // elements of this rank's tensors; out -1 where it is not told
	dtype     op.DType
	group     int    // ranks; 0 where it is not told
	key       string // of the process group
	inSplit   []int64
	uneven    bool  // all_to_allv, or with split sizes that cannot be read
	seq       int64 // of the group's collectives; -1 where it is not told
	rank      int64 // in the group; -1 where it is not told
	annotated bool  // from a user annotation of 2023, which tells no group
	reason    string
}

// collectiveKernel tells kernels of NCCL and RCCL by their name. Which
// collective they are it does not tell: all_to_all is called SendRecv, and RCCL
// calls every one Generic.
func collectiveKernel(name []byte) bool {
	return bytes.HasPrefix(name, []byte("nccl")) || bytes.Contains(name, []byte("ncclDevKernel")) ||
		bytes.Contains(name, []byte("ncclKernel")) || bytes.Contains(name, []byte("rcclGenericKernel"))
}

// commOf reads what an op tells of a collective; nil for another op.
func (t *trace) commOf(e *traceEvent) *commArgs {
	name := string(e.text(fieldName))
	switch {
	case name == "record_param_comms" && len(e.raw[fieldCollective]) > 0:
		return t.commArgs(e)
	case name == "c10d::alltoall_base_" && len(e.raw[fieldCollective]) == 0, strings.HasPrefix(name, "nccl:"):
		return t.annotation(e, name)
	}
	return nil
}

// commArgs reads the metadata that builds since 2024 write.
func (t *trace) commArgs(e *traceEvent) *commArgs {
	key := brief(bytes.Join(e.raw[fieldCollective:fields], []byte{'\n'}))
	if a, ok := t.args[key]; ok {
		return a
	}
	a := &commArgs{out: -1, seq: -1, rank: -1}
	a.kind, a.uneven = collective(string(e.text(fieldCollective)))
	a.in, _ = e.whole(fieldIn)
	if n, ok := e.whole(fieldOut); ok {
		a.out = n
	}
	group, _ := e.whole(fieldGroupSize)
	a.group = int(min(max(0, group), 1<<20))
	a.dtype = messageType(string(e.text(fieldDType)))
	var inOK, outOK bool
	a.inSplit, inOK = splits(e.text(fieldInSplit))
	_, outOK = splits(e.text(fieldOutSplit))
	a.uneven = a.uneven || !inOK || !outOK
	a.key = brief(bytes.Join([][]byte{e.text(fieldGroupName), e.text(fieldGroupDesc), e.raw[fieldGroupRanks]}, []byte{'|'}))
	if n, ok := e.whole(fieldSeq); ok {
		a.seq = n
	}
	if n, ok := e.whole(fieldRank); ok {
		a.rank = n
	}
	a.check()
	if len(t.args) < maxCalls {
		t.args[key] = a
	}
	return a
}

// annotation reads what builds of 2022 and 2023 tell: the collective's name and
// the dims of its input; an all_to_all's output too.
func (t *trace) annotation(e *traceEvent, name string) *commArgs {
	key := brief(bytes.Join([][]byte{[]byte(name), e.raw[fieldDims], e.raw[fieldTypes]}, []byte{'\n'}))
	if a, ok := t.args[key]; ok {
		return a
	}
	in := inputsOf(e)
	a := &commArgs{out: -1, seq: -1, rank: -1, annotated: true, dtype: messageType(at(in.types, 0))}
	a.kind, _ = collective(strings.TrimPrefix(name, "nccl:"))
	switch {
	case len(in.dims) == 0:
		a.reason = "no Input Dims: record the trace with record_shapes=True"
	case name == "c10d::alltoall_base_":
		a.kind, a.in, a.out = op.KindAllToAll, elementsOf(in.dim(1)), elementsOf(in.dim(0))
	default:
		a.tensors(in.dims)
	}
	a.check()
	if len(t.args) < maxCalls {
		t.args[key] = a
	}
	return a
}

// tensors takes the sizes of the tensors that a rank sends: one, or in a list
// that is exchanged one to each rank.
func (a *commArgs) tensors(all [][]int64) {
	for _, dims := range all {
		a.in += elementsOf(dims)
		a.inSplit = append(a.inSplit, elementsOf(dims))
	}
	switch {
	case len(all) == 1:
		a.inSplit = nil
	case a.kind != op.KindAllToAll:
		a.reason = "a collective of several tensors: how many kernels share it is not in the trace"
	}
}

// elementsOf is the number of elements of a tensor; 0 where it is not told.
func elementsOf(dims []int64) int64 {
	if len(dims) == 0 {
		return 0
	}
	n := int64(1)
	for _, d := range dims {
		if d < 0 || d > 0 && n > 1<<50/d {
			return 0
		}
		n *= d
	}
	return n
}

// check says why a collective cannot be a point, whatever the other ranks say.
func (a *commArgs) check() {
	switch {
	case a.reason != "":
	case a.kind == "":
		a.reason = "broadcasts, reductions to one rank, single sends, barriers and coalesced calls: no such op"
	case a.in <= 0:
		a.reason = "a collective without elements"
	case a.in > 1<<50:
		a.reason = "more elements than any memory holds"
	case a.dtype == "":
		a.reason = "a collective of an unknown element type"
	case a.group == 1:
		a.reason = "a collective of one rank"
	}
}

// collective is the op that PyTorch's name for a collective stands for; "" for
// those that are no op of ours. Coalesced calls are several messages in one
// kernel.
func collective(name string) (kind op.Kind, uneven bool) {
	switch strings.Trim(strings.ToLower(name), "_") {
	case "allreduce", "all_reduce":
		return op.KindAllReduce, false
	case "allgather", "all_gather", "allgather_base", "all_gather_base", "allgather_into_tensor", "all_gather_into_tensor":
		return op.KindAllGather, false
	case "reduce_scatter", "reducescatter", "reduce_scatter_base", "reduce_scatter_tensor":
		return op.KindReduceScatter, false
	case "all_to_all", "alltoall", "alltoall_base", "all_to_all_single":
		return op.KindAllToAll, false
	case "all_to_allv", "alltoallv", "all_to_all_v":
		return op.KindAllToAll, true
	}
	return "", false
}

// messageType is the element type of a message, as the metadata or the C++ type
// of the tensor names it.
func messageType(name string) op.DType {
	name = strings.TrimPrefix(strings.TrimPrefix(name, "c10::"), "at::")
	switch name {
	case "Float", "float":
		return op.F32
	case "Half":
		return op.F16
	case "BFloat16":
		return op.BF16
	case "Double", "double":
		return op.F64
	case "Long", "long", "long int":
		return op.I64
	case "Int", "int":
		return op.I32
	case "Char", "Byte", "Bool", "signed char", "unsigned char", "char", "bool":
		return op.I8
	}
	if strings.HasPrefix(name, "Float8_") {
		return op.FP8
	}
	return ""
}

// splits reads split sizes, which are text: "[1, 2, 3]". Lists of more than 30
// are cut off, which makes them unreadable.
func splits(text []byte) (all []int64, readable bool) {
	for _, element := range elements(text) {
		n, err := strconv.ParseInt(string(element), 10, 64)
		if err != nil {
			return nil, false
		}
		all = append(all, n)
	}
	return all, len(all) > 0 || len(bytes.Trim(text, " []")) == 0
}

// collective keeps a kernel of a collective. Its metadata is its own, else that
// of the op that launched it.
func (t *trace) collective(e *traceEvent, i int, byID bool) {
	if len(t.comms) == maxOps {
		t.full = true
		return
	}
	start, timed := e.float(fieldTs)
	took, ok := e.float(fieldDur)
	k := commKernel{event: e.number, device: kernelDevice(e), start: start, took: took / 1e6}
	switch {
	case len(e.raw[fieldCollective]) > 0:
		k.args, k.link = t.commArgs(e), "kernel args"
		if i >= 0 {
			k.args = k.args.with(t.ops[i].comm)
		}
	case i >= 0:
		k.args, k.link = t.around2023(i), "enclosing nccl:* annotation"
		if byID {
			k.link = "External id"
		}
	case i == opNone && !byID:
		k.link = "no runtime event"
	}
	if !ok || !timed || took <= 0 {
		k.flaw("a kernel without a positive duration")
	}
	if id, told := e.whole(fieldExternal); told && id != 0 && !t.ids.legacy() {
		if first, twice := t.commByID[id]; twice {
			t.comms[first].flaw(severalKernels)
			k.flaw(severalKernels)
		} else {
			t.commByID[id] = len(t.comms)
		}
	}
	t.comms = append(t.comms, k)
}

// with adds what the op of a kernel tells beyond the kernel's metadata: no build
// copies the rank there, and not all the number of the collective.
func (a *commArgs) with(op *commArgs) *commArgs {
	if op == nil || op.annotated || op.kind != a.kind || a.seq >= 0 && a.rank >= 0 {
		return a
	}
	more := *a
	if more.seq < 0 {
		more.seq = op.seq
	}
	if more.rank < 0 {
		more.rank = op.rank
	}
	return &more
}

const severalKernels = "several kernels of one collective: which part each is of is not in the trace"

// flaw keeps a kernel from being a point.
func (k *commKernel) flaw(reason string) {
	if k.args != nil && k.args.reason == "" {
		args := *k.args
		args.reason = reason
		k.args = &args
	}
}

// around2023 is the metadata around a launch: of the innermost op, or, if that
// is an annotation, of an op around it that tells more.
func (t *trace) around2023(i int) *commArgs {
	var found *commArgs
	for ; i >= 0; i = t.ops[i].parent {
		switch a := t.ops[i].comm; {
		case a == nil:
		case !a.annotated, found == nil, found.out < 0 && a.out >= 0 && a.kind == found.kind:
			found = a
		}
		if found != nil && !found.annotated {
			break
		}
	}
	return found
}

// bytes is the size that the op means: what a rank holds before an all_reduce,
// a reduce_scatter or an all_to_all, and after an all_gather.
func (a *commArgs) bytes(group int) units.Bytes {
	n := a.in
	if a.kind == op.KindAllGather {
		n *= int64(group)
	}
	return units.Bytes(n) * a.dtype.Size()
}

// contradicts says that a rank's input and output do not make the collective.
func (a *commArgs) contradicts(group int) bool {
	n := int64(group)
	switch {
	case a.out < 0 || a.kind == op.KindAllToAll:
		return false
	case a.kind == op.KindAllGather:
		return a.out != a.in*n
	case a.kind == op.KindReduceScatter:
		return a.in != a.out*n
	}
	return a.out != a.in
}

// alike says that two ranks describe one collective. What an uneven exchange
// sends differs from rank to rank.
func (a *commArgs) alike(b *commArgs) bool {
	sizes := a.kind == op.KindAllToAll || a.in == b.in && a.out == b.out
	return a.kind == b.kind && a.dtype == b.dtype && sizes
}

// exchange makes the op of an all_to_all from what every rank sends to each.
// Ranks that name no split sizes split evenly; so they do in traces of 2023,
// which never name them, if all send and receive the same amount.
func exchange(ranks []*commArgs) (op.Shape, string) {
	n, first := len(ranks), ranks[0]
	matrix := make([][]units.Bytes, n)
	even := first.in%int64(n) == 0
	for i, a := range ranks {
		row, ok := a.sent(n)
		if !ok {
			return nil, "an uneven all_to_all whose split sizes are not in the trace"
		}
		matrix[i] = row
		even = even && !slices.ContainsFunc(row, func(b units.Bytes) bool { return b != matrix[0][0] })
	}
	if even {
		return op.AllToAll{Message: op.Message{Group: n, Bytes: first.bytes(n), DType: first.dtype}}, ""
	}
	return op.AllToAllV{Matrix: matrix}, ""
}

// sent is what a rank sends to each, in bytes. Split sizes count rows of the
// tensor.
func (a *commArgs) sent(n int) ([]units.Bytes, bool) {
	sizes := a.inSplit
	if len(sizes) == 0 {
		if a.uneven || a.out != a.in || a.in%int64(n) != 0 {
			return nil, false
		}
		sizes = slices.Repeat([]int64{1}, n)
	}
	var rows int64
	for _, s := range sizes {
		if s < 0 || s > a.in {
			return nil, false
		}
		rows += s
	}
	if len(sizes) != n || rows == 0 || a.in%rows != 0 {
		return nil, false
	}
	row := make([]units.Bytes, n)
	for i, s := range sizes {
		row[i] = units.Bytes(s*(a.in/rows)) * a.dtype.Size()
	}
	return row, true
}
