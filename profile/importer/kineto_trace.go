package importer

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// traceOp is an op of the CPU side that the importer knows, or one that runs
// inside such an op.
type traceOp struct {
	event    int // its number in the file
	call     *computeCall
	comm     *commArgs // of a collective
	thread   int
	from, to float64 // us
	parent   int     // the op around it on its thread; -1 none
	outer    bool    // runs another op of its kind, which has the kernels

	// Of its kernels:
	kernels int
	took    float64 // us, all of them
	longest float64
	kernel  string // what the longest is an implementation of
	device  int64
	flaw    string
	marks   []uint64 // of each, by which one that the file holds twice is told
}

// commKernel is one kernel of a collective.
type commKernel struct {
	args        *commArgs // nil where nothing tells
	event       int
	device      int64
	start, took float64 // us on the trace's clock, s
	link        string  // how args was found
}

// looseKernels counts attention kernels that no known op launched.
type looseKernels struct {
	reason string
	first  int // event
	rows   int
}

// trace is what one file holds of interest.
type trace struct {
	source   Source
	head     traceHead
	torn     string
	ops      []traceOp
	byID     map[int64]int // External id -> op; -1 where two ops share one
	byLaunch map[int64]int // correlation -> op
	comms    []commKernel
	commByID map[int64]int  // External id -> comms
	loose    []looseKernels // by reason
	process  string         // that ran the ops
	another  string         // one that ran some of them too
	full     bool           // more ops than maxOps
	twice    int            // kernels that the file held before
	repeated int            // event of the first of them
	coarse   bool           // every duration of a kernel is a whole number of microseconds

	threads  map[string]int
	calls    map[string]*computeCall // by everything that the op says
	args     map[string]*commArgs
	launches []launch
	moments  [][]float64 // of the launches of each thread, sorted
	lanes    [][]int     // ops of each thread by time
	ids      idCount
}

// idCount tells how kernels name their op.
type idCount struct{ kernels, named, same int }

// legacy says that External id on kernels and launches is their correlation,
// as in 2022 and 2023, and matches an op by accident only.
func (c idCount) legacy() bool { return c.named > 0 && c.same == c.named }

// maxOps bounds what one trace may take: some 200 MB.
const maxOps = 1 << 20

// readTrace finds the ops of interest, then the launches inside them where
// kernels do not name their op, then the kernels. Each is one pass over the
// file, since events come in any order: keeping all of them until their
// counterparts come would take as much memory as the file is long. Most events
// are of Python functions and small ops, which are never kept. What is kept is
// a few hundred bytes a call of attention or of a linear layer, and a few tens a
// launch in one: of a forward pass of a model, recorded with its stacks, some
// 30 KB a MB of the file; beyond maxOps nothing, which a flag says.
func readTrace(src Source) (*trace, error) {
	t := &trace{
		source: src, byID: map[int64]int{}, byLaunch: map[int64]int{}, commByID: map[int64]int{},
		threads: map[string]int{}, calls: map[string]*computeCall{}, args: map[string]*commArgs{},
	}
	var err error
	if t.head, t.torn, err = scanTrace(src, t.op); err != nil {
		return nil, err
	}
	if t.another != "" {
		const merged = "%s: the ops of several processes, %s and %s: traces of several ranks put into one, in which their ids clash; import the trace of each rank itself"
		return nil, fmt.Errorf(merged, src.Name, quoted(t.process), quoted(t.another))
	}
	t.nest()
	if t.ids.legacy() || t.ids.named < t.ids.kernels {
		if err := t.launchedBy(); err != nil {
			return nil, err
		}
	}
	t.coarse = t.ids.kernels > 0
	if _, _, err = scanTrace(src, t.kernel); err != nil {
		return nil, err
	}
	t.usual()
	return t, nil
}

// usual finds how many kernels equal calls have, so that one whose kernels were
// recorded in part only can be told.
func (t *trace) usual() {
	for i := range t.ops {
		if o := &t.ops[i]; o.kernels > 0 {
			o.call.saw(o.kernels)
		}
	}
}

// category is an event's kind; older builds have other names for it. Only
// complete events (ph X) have a duration; metadata and arrows do not count.
// Annotations on the GPU's side repeat kernels and do not either.
func category(e *traceEvent) string {
	if !bytes.Equal(e.text(fieldPhase), []byte("X")) {
		return ""
	}
	switch string(e.text(fieldCategory)) {
	case "kernel", "Kernel":
		return "kernel"
	case "cpu_op", "Operator", "user_annotation":
		return "op"
	case "cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "xpu_runtime":
		return "launch"
	}
	return ""
}

// op is the first pass.
func (t *trace) op(e *traceEvent) {
	switch category(e) {
	case "kernel":
		t.count(e)
	case "op":
		t.ran(e)
		call, comm := t.callOf(e), t.commOf(e)
		if call != nil || comm != nil {
			t.add(e, call, comm)
		}
	}
}

// ran notes the process of an op. The profiler records its own alone, some of whose
// ops it writes as of process 0; there are tools that put the traces of a job's
// ranks into one file. The ids of ops, and of launches, are then those of several.
func (t *trace) ran(e *traceEvent) {
	pid := string(bytes.Trim(e.raw[fieldPid], `"`))
	switch {
	case pid == "" || pid == "0" || bytes.Equal(e.text(fieldCategory), []byte("user_annotation")):
	case t.process == "":
		t.process = pid
	case t.another == "" && t.process != pid:
		t.another = pid
	}
}

func (t *trace) count(e *traceEvent) {
	t.ids.kernels++
	id, ok := e.whole(fieldExternal)
	if !ok || id == 0 {
		return
	}
	t.ids.named++
	if c, ok := e.whole(fieldCorrelation); ok && c == id {
		t.ids.same++
	}
}

// add keeps an op.
func (t *trace) add(e *traceEvent, call *computeCall, comm *commArgs) {
	if len(t.ops) == maxOps {
		t.full = true
		return
	}
	from, _ := e.float(fieldTs)
	took, _ := e.float(fieldDur)
	t.ops = append(t.ops, traceOp{
		event: e.number, call: call, comm: comm, thread: t.thread(e), from: from, to: from + max(0, took), parent: -1,
	})
	if id, ok := e.whole(fieldExternal); ok && id != 0 && (call != nil || comm != nil) {
		if _, taken := t.byID[id]; taken {
			t.byID[id] = -1
		} else {
			t.byID[id] = len(t.ops) - 1
		}
	}
}

func threadKey(e *traceEvent) string {
	return brief(slices.Concat(e.raw[fieldPid], []byte{' '}, e.raw[fieldTid]))
}

// brief is a key of a table that the file's longest texts must not fill.
func brief(key []byte) string {
	const most = 4 << 10 // far more than the arguments of any call take
	if len(key) <= most {
		return string(key)
	}
	sum := sha256.Sum256(key)
	return string(sum[:])
}

func (t *trace) thread(e *traceEvent) int {
	key := threadKey(e)
	n, ok := t.threads[key]
	if !ok {
		n = len(t.threads)
		t.threads[key] = n
	}
	return n
}

// nest finds the op around each op of a thread. Ops of a thread are calls, so
// that of two either one contains the other or they do not meet: sorted by their
// start, the longer first, the op around one is the last before it that has not
// ended.
func (t *trace) nest() {
	t.lanes = make([][]int, len(t.threads))
	for i, o := range t.ops {
		t.lanes[o.thread] = append(t.lanes[o.thread], i)
	}
	for _, lane := range t.lanes {
		slices.SortStableFunc(lane, func(a, b int) int {
			return cmp.Or(cmp.Compare(t.ops[a].from, t.ops[b].from), cmp.Compare(t.ops[b].to, t.ops[a].to))
		})
		around := -1
		for _, i := range lane {
			for around >= 0 && t.ops[around].to < t.ops[i].to {
				around = t.ops[around].parent
			}
			t.ops[i].parent = around
			t.markOuter(i)
			around = i
		}
	}
}

// markOuter marks the ops that pass the work of op i on to it.
func (t *trace) markOuter(i int) {
	if t.ops[i].call == nil {
		return
	}
	for p := t.ops[i].parent; p >= 0 && !t.ops[p].outer; p = t.ops[p].parent {
		t.ops[p].outer = t.ops[p].call != nil
	}
}

// around finds the innermost kept op that runs at a moment; -1 none: the last
// that began before it, or the nearest around that one which still runs.
func (t *trace) around(thread int, at float64) int {
	lane := t.lanes[thread]
	n, _ := slices.BinarySearchFunc(lane, at, func(i int, at float64) int {
		if t.ops[i].from <= at {
			return -1
		}
		return 1
	})
	if n == 0 {
		return -1
	}
	i := lane[n-1]
	for i >= 0 && t.ops[i].to < at {
		i = t.ops[i].parent
	}
	return i
}

// kernel is the last pass.
func (t *trace) kernel(e *traceEvent) {
	if category(e) != "kernel" {
		return
	}
	name := e.text(fieldName)
	t.coarse = t.coarse && bytes.IndexByte(e.raw[fieldDur], '.') < 0
	i, byID := t.opOf(e)
	switch {
	case collectiveKernel(name) || len(e.raw[fieldCollective]) > 0:
		t.collective(e, i, byID)
	case i >= 0 && t.ops[i].call != nil:
		if !t.ops[i].take(e, name) {
			t.repeated = cmp.Or(t.repeated, e.number)
			t.twice++
		}
	case i == opAmbiguous:
		t.unused(e, "two ops of the trace have its External id")
	case attentionKernel(name) != "":
		reason := "attention kernel whose op is not in the trace: launched before the recording began, or by a graph"
		if _, named := e.whole(fieldExternal); named && !t.ids.legacy() {
			reason = "attention kernel of an op whose arguments are not known: engines' own ops and graphs do not say the lengths"
		}
		t.unused(e, reason)
	}
}

// unused counts a kernel of attention that is of no known op.
func (t *trace) unused(e *traceEvent, reason string) {
	i := slices.IndexFunc(t.loose, func(l looseKernels) bool { return l.reason == reason })
	if i < 0 {
		i = len(t.loose)
		t.loose = append(t.loose, looseKernels{reason: reason, first: e.number})
	}
	t.loose[i].rows++
}

// What opOf says where there is no op to tell.
const (
	opNone      = -1
	opAmbiguous = -2
)

// opOf finds the op that launched a kernel: by its External id, else by its
// launch. byID says that it was the former.
func (t *trace) opOf(e *traceEvent) (i int, byID bool) {
	id, ok := e.whole(fieldExternal)
	if ok && id != 0 && !t.ids.legacy() {
		i, known := t.byID[id]
		switch {
		case !known:
			return opNone, true
		case i < 0:
			return opAmbiguous, true
		}
		return i, true
	}
	correlation, ok := e.whole(fieldCorrelation)
	if i, known := t.byLaunch[correlation]; ok && known {
		return i, false
	}
	return opNone, false
}

// take adds a kernel to its op. A call of attention may be several: split keys
// and their combination; the preparation, the main loop and the conversion of a
// backward pass. The longest of them says which implementation ran.
// It reports whether the kernel is another than those before.
func (o *traceOp) take(e *traceEvent, name []byte) bool {
	if o.holds(e) {
		o.flaw = kernelTwice
		return false
	}
	took, ok := e.float(fieldDur)
	device := kernelDevice(e)
	switch {
	case !ok || took <= 0:
		o.flaw = "a kernel without a positive duration"
	case o.kernels > 0 && o.device != device:
		o.flaw = "kernels on more than one device"
	}
	o.kernels++
	o.took += took
	o.device = device
	if took > o.longest || o.kernels == 1 {
		o.longest, o.kernel = took, attentionKernel(name)
		if o.call.gemm {
			o.kernel = gemmKernel(name)
		}
	}
	return true
}

// kernelDevice is the device a kernel ran on: its arg, else its pid.
func kernelDevice(e *traceEvent) int64 {
	if d, ok := e.whole(fieldDevice); ok {
		return d
	}
	d, _ := e.whole(fieldPid)
	return d
}

// where names a place in the file. Traces are one line as often as not, so it
// is the number of the event.
func (t *trace) where(event int) string { return fmt.Sprintf("%s: event %d", t.source.Name, event) }

// report hands the points of attention and GEMMs to the sink, and the reasons
// why others are none.
func (t *trace) report(s *Sink, machine *machine) error {
	if t.torn != "" {
		s.Flag(t.source.Name, t.torn)
	}
	if t.full {
		s.Flag(t.source.Name, fmt.Sprintf("more than %d ops of interest, or launches or collectives: the rest was not read; cut the trace into shorter ones", maxOps))
	}
	if t.twice > 0 {
		const flag = "%s in the file twice, with the same start, duration and stream: calls that have them are left out; record or export the trace anew"
		s.Flag(t.where(t.repeated), fmt.Sprintf(flag, units.Count(t.twice, "kernel")))
	}
	s.Note(t.idle())
	if t.coarse {
		s.Note("a trace's durations are whole microseconds: short ones are off by up to half of one")
	}
	for i := range t.ops {
		if o := &t.ops[i]; o.kernels > 0 {
			if err := t.point(s, machine, o); err != nil {
				return err
			}
		}
	}
	for _, l := range t.loose {
		for range l.rows {
			s.Drop(t.where(l.first), l.reason)
		}
	}
	return nil
}

// idle says why a trace has no rows at all; "" for one that has.
func (t *trace) idle() string {
	switch {
	case t.torn != "": // kernels stand behind the ops
		return ""
	case t.ids.kernels == 0:
		return t.source.Name + ": holds no kernels: record the trace with ProfilerActivity.CUDA, which AMD's GPUs take too"
	case len(t.loose) == 0 && len(t.comms) == 0 && !slices.ContainsFunc(t.ops, func(o traceOp) bool { return o.kernels > 0 }):
		return fmt.Sprintf("%s: holds %s, none of attention, a linear layer or a collective", t.source.Name, units.Count(t.ids.kernels, "kernel"))
	}
	return ""
}

func (t *trace) point(s *Sink, machine *machine, o *traceOp) error {
	shape, reason := o.call.shape(o.kernel)
	switch {
	case o.outer:
		reason = "kernel of an op around another of its kind, which was counted"
	case o.flaw != "":
		reason = o.flaw
	case o.kernels < o.call.most:
		reason = "fewer kernels than other calls of the same shape: the recording ends inside"
	}
	if reason != "" {
		s.Drop(t.where(o.event), reason)
		return nil
	}
	d, reason, err := machine.device(t, o.device, t.stack())
	if err != nil {
		return err
	}
	if reason != "" {
		s.Drop(t.where(o.event), reason)
		return nil
	}
	s.Device(d)
	s.Note(o.call.note())
	s.Point(t.where(o.event), d.Name, shape, o.took/1e6)
	return nil
}

// stack names what launched the kernels. A trace does not say PyTorch's version;
// the runtime's is the nearest that it has.
func (t *trace) stack() string {
	switch {
	case t.head.hip > 0: // major * 10^7 + minor * 10^5 + patch
		return fmt.Sprintf("torch-hip%d.%d", t.head.hip/1e7, t.head.hip/1e5%100)
	case t.head.cuda > 0: // major * 1000 + minor * 10
		return fmt.Sprintf("torch-cuda%d.%d", t.head.cuda/1000, t.head.cuda/10%100)
	}
	return "torch"
}
