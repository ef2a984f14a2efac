package importer

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// ncclTable is what a log says around its rows: the header above, the footer
// below, and sums over the rows for the check of the footer.
type ncclTable struct {
	line   int // of the column names
	layout *ncclLayout
	halves string // the line above the column names
	units  ncclUnitLine

	program  string // collective that the log names, as nccl-tests calls it
	command  string // collective of a command line above
	commands bool   // of several, as scripts list them
	library  string // nccl or rccl
	version  string
	mismatch string // another version that the log names too
	ranks    ncclRanks

	threads, gpus       int   // of one process; a GPU counts once for each of its ranks
	maxBytes            int64 // largest size asked for
	aggregated, graphed bool
	forced              []string // what lines above set of algorithm, protocol, transport or channels
	blocking, sideWork  bool
	unaligned           bool

	averaged    bool
	average     float64 // printed, bytes a second / 1e9
	outOfBounds int64
	ended       bool // a footer was seen
	elided      bool // somebody cut lines out
	aborted     bool
	unread      string // a line that looks like one of the header's
	headless    bool   // rows without column names
	errorTexts  int    // messages in a JSON file's list of errors
	truncated   bool   // a JSON file ends in the middle
	schema      int    // version of a JSON file
	tuned       bool   // rows were measured with a forced algorithm

	rows   int // that could be read, or not
	torn   int // that could not
	busSum float64
	busN   int
}

// count adds a row to the sums.
func (t *ncclTable) count(r *ncclRow) {
	t.rows++
	if r.bad != "" {
		t.torn++
		return
	}
	for _, h := range r.halves() {
		t.busSum += h.bus.value / 1e9
		t.busN++
	}
}

// settings reads the line of parameters.
func (t *ncclTable) settings(text string) {
	m := ncclParamsLine.FindStringSubmatch(text)
	t.threads, _ = strconv.Atoi(m[1])
	t.gpus, _ = strconv.Atoi(m[2])
	if onGPU, err := strconv.Atoi(m[3]); err == nil { // rccl-tests until 2023: ranks that share a GPU
		t.gpus *= onGPU
		if onGPU > 1 {
			t.ranks.shared = fmt.Sprintf("as its nRanks of %d says", onGPU)
		}
	}
	t.maxBytes, _ = strconv.ParseInt(m[5], 10, 64)
	for _, m := range ncclSetting.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[2])
		switch m[1] {
		case "agg iters":
			t.aggregated = n > 1
		case "graph":
			t.graphed = n > 0
		case "side_work":
			t.sideWork = n > 0
		case "unalign":
			t.unaligned = n > 0
		}
	}
}

// runtime notes the version that the library printed itself.
func (t *ncclTable) runtime(library, version string) {
	if t.version != "" && t.version != version {
		t.mismatch = version
		return
	}
	t.version = version
	if t.library == "" {
		t.library = library
	}
}

// libraryVersion decodes NCCL_VERSION_CODE: 22707 is 2.27.7, and before 2.9
// 2804 was 2.8.4.
func libraryVersion(code int) string {
	switch {
	case code >= 10000:
		return fmt.Sprintf("%d.%d.%d", code/10000, code/100%100, code%100)
	case code >= 1000:
		return fmt.Sprintf("%d.%d.%d", code/1000, code/100%10, code%100)
	}
	return ""
}

// programOf is the collective of a program's name: all_reduce of
// all_reduce_perf_mpi.
func programOf(program string) string {
	return strings.TrimSuffix(strings.TrimSuffix(program, "_mpi"), "_perf")
}

// knownCommand is the collective of a program that a line names, "" without one.
func knownCommand(text string) string {
	if !strings.Contains(text, "_perf") {
		return "" // most of what the library says
	}
	for _, m := range ncclCommand.FindAllStringSubmatch(text, -1) {
		if ncclCollective(m[1]).name != "" {
			return m[1]
		}
	}
	return ""
}

// severalCommands says whether a line names programs of different collectives.
func severalCommands(text string) bool {
	first := ""
	for _, m := range ncclCommand.FindAllStringSubmatch(text, -1) {
		if k := ncclCollective(m[1]).name; k != "" && k != cmp.Or(first, k) {
			return true
		} else if k != "" {
			first = k
		}
	}
	return false
}

// ncclKind says what a collective of nccl-tests is.
type ncclKind struct {
	name  string
	kind  op.Kind // "" where no op of ours is it
	parts bool    // size is count x ranks elements, not count
	// wire is busbw/algbw of n ranks (doc/PERFORMANCE.md).
	wire func(n float64) float64
}

func ncclCollectives() []ncclKind {
	share := func(n float64) float64 { return (n - 1) / n }
	whole := func(float64) float64 { return 1 }
	return []ncclKind{
		{"all_reduce", op.KindAllReduce, false, func(n float64) float64 { return 2 * (n - 1) / n }},
		{"all_gather", op.KindAllGather, true, share},
		{"reduce_scatter", op.KindReduceScatter, true, share},
		{"alltoall", op.KindAllToAll, true, share},
		{"sendrecv", op.KindSendRecv, false, whole},
		{"alltoallv", "", true, share}, // what each pair exchanged is not printed
		{"broadcast", "", false, whole},
		{"reduce", "", false, whole},
		{"gather", "", true, share},
		{"scatter", "", true, share},
		{"hypercube", "", true, whole},
	}
}

// IsCollective says whether a log can be said to be of a collective of that name.
func IsCollective(name string) bool { return ncclCollective(name).name != "" }

// ncclCollective finds a collective by nccl-tests' name or ours; the zero kind
// if there is none.
func ncclCollective(name string) ncclKind {
	bare := strings.ReplaceAll(strings.ToLower(name), "_", "")
	for _, k := range ncclCollectives() {
		if strings.ReplaceAll(k.name, "_", "") == bare {
			return k
		}
	}
	return ncclKind{}
}

// importable says whether an op of ours is the collective.
func (k ncclKind) importable() bool { return k.kind != "" }

// reduces says whether the collective computes with what it moves. The column redop of others
// says nothing: sendrecv printed sum in some versions.
func (k ncclKind) reduces() bool {
	return k.kind == op.KindAllReduce || k.kind == op.KindReduceScatter
}

// ncclSeat is a rank and where it sits.
type ncclSeat struct {
	rank, group                   int
	pid, host, device, bus, model string
}

// ncclRanks gathers the lines that list the ranks. Authors cut them, so they
// need not be complete.
type ncclRanks struct {
	highest, lines int
	per            int // ranks that a line stands for (JSON: those of a process); 0 is 1
	lastGroup      int
	groups         map[int]*ncclMembers
	seats          map[string]int  // lines of each GPU
	processes      map[string]bool // by host and pid
	nameless       bool            // a line had no pid
	twins          string          // a GPU that several ranks name
	most           int             // ranks that name one, by a bus that says something
	vague          bool            // a line's bus says nothing
	shared         string          // what tells that ranks share a GPU, other than that they name one
}

// ncclMembers are the ranks of one communicator.
type ncclMembers struct {
	lines  int
	hosts  map[string]int // lines of each
	models map[string]int
}

const mostRanks = 1 << 16

func (r *ncclRanks) add(s ncclSeat) {
	if r.lines >= mostRanks || s.rank >= mostRanks || s.group >= mostRanks {
		return
	}
	if r.groups == nil {
		r.groups, r.seats, r.processes, r.highest = map[int]*ncclMembers{}, map[string]int{}, map[string]bool{}, -1
	}
	r.lines++
	r.processes[s.host+" "+s.pid], r.nameless = true, r.nameless || s.pid == ""
	r.highest, r.lastGroup = max(r.highest, s.rank), max(r.lastGroup, s.group)
	g := r.groups[s.group]
	if g == nil {
		g = &ncclMembers{hosts: map[string]int{}, models: map[string]int{}}
		r.groups[s.group] = g
	}
	g.lines++
	g.hosts[s.host]++
	g.models[s.model]++
	// Ranks that see one device each all call it 0, and classic logs print the
	// PCI id 0x00 for every GPU: one seat is one host, number and id that says
	// something. Without such an id it may be one.
	seat, told := s.host+" device "+s.device, !noBus.MatchString(s.bus)
	if told {
		seat += " [" + s.bus + "]"
	}
	r.seats[seat]++
	if r.seats[seat] > 1 && r.twins == "" {
		r.twins = seat
	}
	if told {
		r.most = max(r.most, r.seats[seat])
	} else {
		r.vague = true
	}
}

var noBus = regexp.MustCompile(`^(?:0[xX]0+)?$`)

// size is the number of ranks of a communicator, 0 without rank lines.
func (r *ncclRanks) size() (n int, err string) {
	if r.lines == 0 {
		return 0, ""
	}
	total, groups := r.highest+max(1, r.per), r.lastGroup+1
	if total%groups != 0 {
		return 0, fmt.Sprintf("%d ranks in %d groups", total, groups)
	}
	n = total / groups
	for _, g := range r.groups {
		if g.lines*max(1, r.per) > n {
			return 0, fmt.Sprintf("the rank lines hold %d ranks of one group, the highest number says %d; did processes run each on their own (nccl-tests built without MPI)?", g.lines*max(1, r.per), n)
		}
	}
	return n, ""
}

// first is the communicator with the lowest number.
func (r *ncclRanks) first() *ncclMembers {
	var best *ncclMembers
	lowest := mostRanks
	for id, g := range r.groups {
		if id < lowest {
			lowest, best = id, g
		}
	}
	return best
}

// complete says whether every rank of the first communicator has its line.
func (r *ncclRanks) complete(n int) bool {
	return r.lines > 0 && r.first().lines*max(1, r.per) == n
}

// tooMany says that a list of every rank names more processes than there are room for, each
// of which runs as many ranks as the header says. Fewer are no such thing: pids are often
// taken out of logs, and those of containers are alike.
func (r *ncclRanks) tooMany(process int) bool {
	listed := r.lines * max(1, r.per)
	return process > 1 && !r.nameless && r.highest+max(1, r.per) == listed && len(r.processes)*process > listed
}

// ncclEvidence is what the rows of a table say about the collective and the
// number of ranks, without a header.
type ncclEvidence struct {
	parts ncclVotes // size/(count e)
	ratio ncclVotes // busbw/algbw

	reducing, plain, blank, rooted bool // redop; none or no redop; blank; a root
	outOfPlaceChecked              bool
	inPlaceChecked, inPlace        bool
	usable, wrong                  int
	largest                        int64
}

// informativeRate is the bandwidth above which the ratio of two printed ones says
// something.
const informativeRate = 1e9

func (e *ncclEvidence) row(r *ncclRow) {
	if r.bad != "" {
		return
	}
	e.largest = max(e.largest, r.size)
	for _, h := range r.halves() {
		if h.isWrong(ncclElement(r.dtype)) {
			e.wrong++
		}
	}
	if r.size == 0 || r.count == 0 {
		return
	}
	e.usable++
	if k := r.parts(); k > 0 {
		e.parts.add(k, k)
	}
	none := r.redop == "" || r.redop == "none"
	e.blank = e.blank || r.blank
	e.plain = e.plain || none
	e.reducing = e.reducing || !none
	e.rooted = e.rooted || r.rooted
	if h := r.outOfPlace; h != nil {
		e.outOfPlaceChecked = e.outOfPlaceChecked || h.checked
	}
	if h := r.inPlace; h != nil {
		e.inPlace, e.inPlaceChecked = true, e.inPlaceChecked || h.checked
	}
	for _, h := range r.halves() {
		if h.alg.value >= informativeRate {
			e.ratio.add(h.ratio())
		}
	}
}

// ncclVotes intersects intervals that should all hold the same number. Some may be
// wrong, so several intersections are kept and the one most rows agree on
// counts.
type ncclVotes struct {
	all []ncclVote
	n   int
}

type ncclVote struct {
	lo, hi float64
	rows   int
}

const mostNCCLVotes = 16

func (v *ncclVotes) add(lo, hi float64) {
	if math.IsNaN(lo) || math.IsNaN(hi) {
		return
	}
	v.n++
	for i := range v.all {
		c := &v.all[i]
		if l, h := max(c.lo, lo), min(c.hi, hi); l <= h {
			c.lo, c.hi, c.rows = l, h, c.rows+1
			return
		}
	}
	if len(v.all) < mostNCCLVotes {
		v.all = append(v.all, ncclVote{lo, hi, 1})
	}
}

// best is the interval of most rows; ok is false without any, or where half
// the rows or more say something else.
func (v *ncclVotes) best() (best ncclVote, ok bool) {
	for _, c := range v.all {
		if c.rows > best.rows {
			best = c
		}
	}
	return best, 2*best.rows > v.n
}

// holds says whether the interval allows a value, a few in 1e9 aside.
func (v ncclVote) holds(x float64) bool { return v.lo <= x*(1+1e-9) && x <= v.hi*(1+1e-9) }
