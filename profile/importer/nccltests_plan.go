package importer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// ncclPlan is what becomes of the rows of one table.
type ncclPlan struct {
	where      string
	collective string // as nccl-tests calls it
	foreign    bool   // no op of ours is the collective
	drop       string // the reason to leave out every row; "" to use them

	kind  ncclKind
	n     int
	place *ncclPlace
	used  bool // the group was declared
	moved bool // both bandwidths are of the bytes that a rank sends, size (n-1)/n
}

// ncclPlace is the group that a table was measured on.
type ncclPlace struct {
	devices []op.DeviceType
	group   op.GroupType
	// peak bounds busbw, bytes a second; 0 unknown.
	peak float64
}

// ncclPlan decides on a table before its rows are handed out. An error is a
// question that an option answers.
func (s *Sink) ncclPlan(file string, t *ncclTable, e *ncclEvidence) (*ncclPlan, error) {
	p := &ncclPlan{where: file}
	if t.line > 0 {
		p.where += ":" + strconv.Itoa(t.line)
	}
	s.ncclFlags(p.where, t, e)
	if e.usable == 0 {
		return p, nil
	}
	if lines, odd := t.ranks.size(); odd == "" && e.alone(lines) {
		p.drop = "one rank: nothing is exchanged"
		return p, nil
	}
	if t.layout != nil && t.layout.odd != "" {
		s.Flag(file+":"+strconv.Itoa(t.units.line), t.layout.odd+"; no row is used: write the numbers and the unit anew")
		p.drop = "the unit of a column is not known"
		return p, nil
	}
	kind, err := s.ncclNamed(p.where, t, e)
	if err != nil {
		return nil, err
	}
	if given := ncclCollective(s.Collective); s.Collective != "" && given.name != kind.name {
		s.Flag(p.where, fmt.Sprintf("the log is of %s, --collective says %s; the log is taken", kind.name, s.Collective))
	}
	p.kind, p.collective, p.foreign = kind, kind.name, !kind.importable()
	if p.foreign {
		p.drop = kind.name + ": no law covers it"
		return p, nil
	}
	if p.drop = s.ncclUnusable(p.where, t, e, kind); p.drop != "" {
		return p, nil
	}
	p.n, p.drop, err = s.ncclSize(p.where, t, e, kind)
	if err != nil || p.drop != "" {
		return p, err
	}
	if s.Ranks > 0 && s.Ranks != p.n {
		s.Flag(p.where, fmt.Sprintf("the log is of %d ranks, --ranks says %d; the log is taken", p.n, s.Ranks))
	}
	if p.moved = e.moved(kind, p.n); p.moved {
		s.Note(p.where + ": algbw is of what a rank sends, size (n-1)/n, as nccl-tests printed it until June 2020; the times are used")
	}
	p.place, err = s.ncclPlace(p.where, t, kind, p.n)
	return p, err
}

// averageSlack is how far the printed average may lie from that of the rows:
// six digits of it are printed, two decimals of each row (formats: 1e-3 holds
// on every complete log).
const averageSlack = 1e-3

// ncclFlags reports what is odd about a table as a whole.
func (s *Sink) ncclFlags(where string, t *ncclTable, e *ncclEvidence) {
	mean := t.busSum / float64(max(1, t.busN))
	for _, f := range []struct {
		holds bool
		what  string
	}{
		{t.elided, "lines were cut out (...): an excerpt"},
		{t.aborted && t.rows > 0, "the run failed after the table had begun; the rows before that are used"},
		{t.truncated, "the file ends in the middle; the rows before that are used"},
		{
			t.averaged && t.busN > 0 && math.Abs(mean-t.average) > max(averageSlack*math.Abs(t.average), 0.005),
			fmt.Sprintf("the printed average bus bandwidth %g GB/s is not that of the rows, %.6g: rows are missing or were changed", t.average, mean),
		},
		{t.layout != nil && t.rows == 0, "column names and no row below: the run hung or failed there, or the log was cut off; let it end, and import it again"},
		{!t.averaged && !t.aborted && !t.truncated && t.rows > 0, "no average bus bandwidth below the rows: cut off, or an excerpt"},
		{t.outOfBounds > 0 && e.wrong > 0, fmt.Sprintf("%d results out of bounds; the rows that show them are left out", t.outOfBounds)},
		{t.maxBytes > 0 && e.largest > t.maxBytes, fmt.Sprintf("a row of %d bytes, more than the header's maxBytes %d: header and table are of different runs", e.largest, t.maxBytes)},
		{t.mismatch != "", fmt.Sprintf("two versions of the library, %s and %s; the first is taken", t.version, t.mismatch)},
		{t.unread != "", t.unread},
		{t.headless, "rows without column names; read as size count type [redop [root]] and two halves"},
		{t.errorTexts > 0, "the run reports " + units.Count(t.errorTexts, "error")},
		{t.schema > newestNCCLSchema, fmt.Sprintf("version %d of the JSON output; versions to %d are known", t.schema, newestNCCLSchema)},
	} {
		if f.holds {
			s.Flag(where, f.what)
		}
	}
}

// newestNCCLSchema is the newest version of -J files that was read in the
// writer's source (2.20.0).
const newestNCCLSchema = 4

// ncclNamed finds the collective of a table: as the log names it, as its rows
// tell, as the command line above says, as the user says, in this order.
func (s *Sink) ncclNamed(where string, t *ncclTable, e *ncclEvidence) (ncclKind, error) {
	if t.program != "" {
		k, ran := ncclCollective(t.program), ncclCollective(t.command)
		if ran.name != "" && !t.commands && ran.name != k.name {
			s.Flag(where, fmt.Sprintf("the command line above is of %s_perf, the program's own line says %s_perf, which is taken; are they of one run?", ran.name, t.program))
		}
		if k.name != "" {
			return k, nil
		}
		return ncclKind{name: t.program}, nil
	}
	lines, _ := t.ranks.size()
	fits := e.collectives(max(lines, s.Ranks))
	if len(fits) == 1 {
		return ncclCollective(fits[0]), nil
	}
	could := "any collective"
	if len(fits) > 0 {
		could = strings.Join(fits, " or ")
	}
	if k := ncclCollective(t.command); k.name != "" && (fits == nil || slices.Contains(fits, k.name)) {
		return k, nil
	}
	switch k := ncclCollective(s.Collective); {
	case s.Collective == "":
		return k, fmt.Errorf("%s: the log does not name its collective, and the table could be %s; say which with --collective", where, could)
	case k.name == "":
		return k, fmt.Errorf("%s: unknown collective %q; --collective takes all_reduce, all_gather, reduce_scatter, alltoall or sendrecv", where, s.Collective)
	case fits != nil && !slices.Contains(fits, k.name):
		return k, fmt.Errorf("%s: --collective %s: the table can be %s only", where, s.Collective, could)
	default:
		return k, nil
	}
}

// collectives lists those that the rows of a table can be (formats 1.4), given
// the number of ranks or 0. None means that the rows do not tell, or contradict
// each other.
//
// size/(count e) tells parts of a whole from whole buffers, redop and root what
// is done with them, busbw/algbw a reduction of several ranks from a transfer.
// all_gather alone among its like checks results in place. Until June 2020 both bandwidths
// of an all_gather or reduce_scatter were of size (n-1)/n, those of hypercube still are.
func (e *ncclEvidence) collectives(n int) []string {
	parts, ok := e.parts.best()
	ratio, ratioOK := e.ratio.best()
	same := ratioOK && ratio.holds(1)
	switch {
	case !ok:
		return nil
	case e.rooted && parts.lo > 1:
		return []string{"gather", "scatter"}
	case e.rooted && e.reducing:
		return []string{"reduce"}
	case e.rooted:
		return []string{"broadcast"}
	case parts.lo > 1 && e.reducing:
		return []string{"reduce_scatter"}
	case parts.lo > 1 && e.blank:
		return []string{"alltoall"}
	case parts.lo > 1 && same && !ratio.holds((parts.lo-1)/parts.lo):
		return []string{"all_gather", "hypercube"} // the former until June 2020
	case parts.lo > 1 && same:
		return []string{"all_gather", "alltoall", "hypercube"}
	case parts.lo > 1 && e.inPlaceChecked:
		return []string{"all_gather"}
	case parts.lo > 1 && e.outOfPlaceChecked && e.inPlace:
		return []string{"alltoall"}
	case parts.lo > 1:
		return []string{"all_gather", "alltoall"}
	case !e.reducing:
		return []string{"sendrecv"}
	case ratioOK && ratio.lo > 1, same && e.inPlaceChecked:
		return []string{"all_reduce"}
	case same && (n > 2 || e.outOfPlaceChecked && e.inPlace):
		return []string{"sendrecv"}
	}
	return []string{"all_reduce", "sendrecv"}
}

// ncclUnusable is the reason why no row of a table may be used, or "".
func (s *Sink) ncclUnusable(where string, t *ncclTable, e *ncclEvidence, k ncclKind) string {
	parts, ok := e.parts.best()
	switch {
	case t.sideWork:
		s.Flag(where, "measured beside other work on the GPUs (side_work)")
		return "measured beside other work"
	case t.outOfBounds > 0 && e.wrong == 0:
		s.Flag(where, fmt.Sprintf("%d results out of bounds, and no row shows which", t.outOfBounds))
		return "wrong results in unknown rows"
	case ok && (parts.lo > 1) != k.parts:
		s.Flag(where, fmt.Sprintf("called %s, but size is %g x count elements", k.name, parts.lo))
		return "the table is not of the collective that the log names"
	}
	for _, note := range []struct {
		holds bool
		what  string
	}{
		{t.aggregated, "several operations were launched together (agg iters): the cost of a launch is shared"},
		{t.graphed, "operations were launched as a CUDA graph"},
		{t.blocking, "every operation was waited for, a barrier included (-z 1)"},
		{t.unaligned, "buffers were not aligned"},
		{len(t.forced) > 0, t.forces()},
		{t.tuned, "rows name their algorithm and protocol (tuning); whether these were forced or the library chose them is not told"},
		{t.ranks.lastGroup > 0, fmt.Sprintf("%d groups were busy at the same time", t.ranks.lastGroup+1)},
	} {
		if note.holds {
			s.Note(where + ": " + note.what)
		}
	}
	return ""
}

// contradictoryRanks is the reason to leave out a table whose sources for the
// number of ranks disagree.
const contradictoryRanks = "the log contradicts itself on the number of ranks"

// ncclSize finds the number of ranks: from the rank lines, else from the table,
// else from the user (formats 1.4). Two sources that disagree are reported and
// the table is not used; but where somebody cut out rank lines, the table is
// right.
func (s *Sink) ncclSize(where string, t *ncclTable, e *ncclEvidence, k ncclKind) (n int, drop string, err error) {
	lines, odd := t.ranks.size()
	if odd != "" {
		s.Flag(where, odd)
		return 0, contradictoryRanks, nil
	}
	lo, hi, told := e.ranks(k)
	switch {
	case told && lo > hi:
		s.Flag(where, "busbw/algbw fits no whole number of ranks")
		return 0, contradictoryRanks, nil
	case lines > 0 && told && (lines < lo || lines > hi):
		s.Flag(where, fmt.Sprintf("the rank lines say %s, the table says %s", units.Count(lines, "rank"), between(lo, hi)))
		if !t.elided || lo != hi || lo < lines {
			return 0, contradictoryRanks, nil
		}
		n = lo
	case lines > 0:
		n = lines
	case told && lo == hi:
		n = lo
	case s.Ranks == 0 && told:
		return 0, "", fmt.Errorf("%s: the log has no rank lines and its table allows %s ranks; say how many with --ranks", where, between(lo, hi))
	case s.Ranks == 0:
		return 0, "", fmt.Errorf("%s: the log does not say how many ranks took part, and a table of %s cannot tell; say it with --ranks", where, k.name)
	case told && (s.Ranks < lo || s.Ranks > hi):
		return 0, "", fmt.Errorf("%s: --ranks %d: the table allows %s", where, s.Ranks, between(lo, hi))
	default:
		n = s.Ranks
	}
	process := t.threads * t.gpus
	switch {
	case process > 1 && t.ranks.lastGroup == 0 && n%process != 0:
		s.Flag(where, fmt.Sprintf("%d ranks, but every process has %d (nThread %d nGpus %d)", n, process, t.threads, t.gpus))
		return 0, contradictoryRanks, nil
	case t.ranks.tooMany(process):
		const flag = "%d ranks are listed, of %d processes (pid) that run %d each (nThread %d nGpus %d), which makes %d: list and settings are of different runs"
		s.Flag(where, fmt.Sprintf(flag, t.ranks.lines*max(1, t.ranks.per), len(t.ranks.processes), process, t.threads, t.gpus, len(t.ranks.processes)*process))
		return 0, contradictoryRanks, nil
	}
	return n, "", nil
}

func between(lo, hi int) string {
	if lo == hi {
		return strconv.Itoa(lo)
	}
	return fmt.Sprintf("%d to %d", lo, hi)
}

// leastWire is the least busbw/algbw of several ranks: (n-1)/n of two.
const leastWire = 0.5

// alone says whether a single rank was measured, given the number of ranks that
// its lines tell or 0: its busbw is 0. That of a sendrecv is not, so one line
// counts as well unless the table is plainly of several.
func (e *ncclEvidence) alone(lines int) bool {
	parts, _ := e.parts.best()
	ratio, ok := e.ratio.best()
	switch lines {
	case 0:
		return ok && ratio.hi < leastWire
	case 1:
		return !(parts.lo > 1) && !(ok && ratio.lo > 1)
	}
	return false
}

// ranks is the interval of the numbers of ranks that the rows allow. Those of a
// collective of parts give it exactly; busbw/algbw = 2(n-1)/n of an all_reduce
// up to the rounding of both, about n^2 0.0075/algbw; the others not at all.
func (e *ncclEvidence) ranks(k ncclKind) (lo, hi int, ok bool) {
	if k.parts {
		v, ok := e.parts.best()
		n := math.Round(v.lo)
		return int(n), int(n), ok && v.lo == n && n <= mostRanks
	}
	v, ok := e.ratio.best()
	if k.kind != op.KindAllReduce || !ok || v.lo >= 2 {
		return 0, 0, false
	}
	least, most := 2/(2-v.lo), float64(mostRanks)
	if v.hi < 2 {
		most = min(most, 2/(2-v.hi))
	}
	return max(2, int(math.Ceil(least*(1-1e-9)))), int(math.Floor(most * (1 + 1e-9))), true
}

// ncclPlace finds the devices, the nodes and the links of a table.
func (s *Sink) ncclPlace(where string, t *ncclTable, k ncclKind, n int) (*ncclPlace, error) {
	models, counts, err := s.ncclModels(where, t, n)
	if err != nil {
		return nil, err
	}
	nodes, err := s.ncclNodes(where, t, models, n)
	if err != nil {
		return nil, err
	}
	link, err := s.ncclLink(where, t, models, n, nodes)
	if err != nil {
		return nil, err
	}
	place := &ncclPlace{peak: ncclPeak(models, k, nodes, n, link)}
	var members []op.Member
	for i, m := range models {
		if t.library == "rccl" && strings.HasPrefix(m.Sheet.Arch, "sm") {
			return nil, fmt.Errorf("%s: the log is of RCCL, the library of AMD's GPUs, and --device says %s", where, m.Name)
		}
		d := m.Of(s.ncclStack(t, m))
		place.devices = append(place.devices, d)
		members = append(members, op.Member{Device: d.Name, Count: counts[i]})
	}
	place.group = op.NewGroupType(members, nodes, link)
	return place, nil
}

// ncclStack names the library with its version: as the log says, else as the
// user does. On AMD's devices it is RCCL where the log is silent.
func (s *Sink) ncclStack(t *ncclTable, m Model) string {
	if t.version == "" && s.Stack != "" {
		return stackOf(s.Stack)
	}
	library := t.library
	if library == "" {
		library = "nccl"
		if strings.HasPrefix(m.Sheet.Arch, "gfx") {
			library = "rccl"
		}
	}
	if t.version != "" {
		library += "-" + t.version
	}
	return stackOf(library)
}

// ncclModels finds the GPU models of a group and how many of each it has.
func (s *Sink) ncclModels(where string, t *ncclTable, n int) ([]Model, []int, error) {
	texts := map[string]int{"": n}
	if t.ranks.lines > 0 {
		texts = t.ranks.first().models
	}
	if len(texts) > 1 && !t.ranks.complete(n) {
		return nil, nil, fmt.Errorf("%s: the rank lines name several GPU models and are not complete, so the number of each is unknown; add the missing rank lines", where)
	}
	count := map[string]int{}
	var models []Model
	for _, text := range sortedKeys(texts) {
		m, err := s.benchModel(where, text)
		if err != nil {
			return nil, nil, err
		}
		if count[m.Name] == 0 {
			models = append(models, m)
		}
		count[m.Name] += texts[text] * max(1, t.ranks.per)
	}
	if len(models) == 1 {
		return models, []int{n}, nil
	}
	var counts []int
	for _, m := range models {
		counts = append(counts, count[m.Name])
	}
	return models, counts, nil
}

func sortedKeys(m map[string]int) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// benchModel is the GPU model that a log names as text, or, where it names none
// that is known, the user's, which stands for one such text alone: two are two models.
func (s *Sink) benchModel(where, text string) (Model, error) {
	if m, known := s.model(text); known && text != "" {
		s.besides(where, m)
		return m, nil
	}
	given, ok := s.model(s.Options.Device)
	switch {
	case ok && text != "" && s.stands != "" && s.stands != text:
		return given, fmt.Errorf("%s: --device %s cannot stand for both %s and %s; import them apart, or describe them in a table with --devices", where, s.Options.Device, quoted(s.stands), quoted(text))
	case ok:
		s.stands = cmp.Or(text, s.stands)
		return given, nil
	case s.Options.Device != "":
		return given, s.unknown(s.Options.Device)
	case text == "":
		return given, fmt.Errorf("%s: the log names no GPU; say which with --device", where)
	}
	return given, fmt.Errorf("%s: %w", where, s.unknown(text))
}

// inRacks says whether the models' own links join the nodes of a rack as well,
// which makes the rack one node to planners: their network is as fast.
func inRacks(models []Model) bool {
	return !slices.ContainsFunc(models, func(m Model) bool { return m.Sheet.NetPerS == 0 || m.Sheet.NetPerS != m.Sheet.LinkPerS })
}

// ncclLink finds the class of the links.
func (s *Sink) ncclLink(where string, t *ncclTable, models []Model, n, nodes int) (string, error) {
	shared := t.ranks.sharing(nodes)
	if shared != "" {
		s.Flag(where, "two ranks share a GPU, "+shared)
	}
	switch {
	case s.Link != "":
		return s.Link, nil
	case shared != "":
		return "", fmt.Errorf("%s: two ranks share a GPU, so no link of the GPU joins them; say over what they talk with --link", where)
	case nodes > 1:
		more := ""
		switch {
		case inRacks(models) && n > mostInRack:
			more = fmt.Sprintf(", and --nodes says how many racks they are, each of which %s joins", models[0].Fabric)
		case inRacks(models):
			more = fmt.Sprintf(", and --nodes 1 says that they are one rack, whose %s joins them", models[0].Fabric)
		}
		s.Note(where + ": several nodes, whose links are called net; --link names them" + more)
		return linkNet, nil
	}
	if off := t.apart(); off != "" {
		return "", fmt.Errorf("%s: the log says %s, so that the GPUs of the node do not talk to each other directly; say over what they talk with --link", where, off)
	}
	for _, m := range models {
		if m.Fabric == "" || m.Fabric != models[0].Fabric {
			return "", fmt.Errorf("%s: the links between the GPUs of a node are not known; name them with --link (nvlink, pcie, xgmi, ..)", where)
		}
	}
	return models[0].Fabric, nil
}

// mostInRack is the GPUs of the largest rack that NVLink joins (NVL72).
const mostInRack = 72

// linkNet is the class of links between nodes where nothing says more.
const linkNet = "net"

// ncclPeak is the largest busbw that the links allow: a rank sends no faster
// than its link, between nodes its link and its share of the network. An
// all_reduce inside NVSwitches of Hopper and later sends every byte once and
// receives it once, while busbw counts 2(n-1)/n of them. 0 where it is unknown.
func ncclPeak(models []Model, k ncclKind, nodes, n int, link string) float64 {
	peak := math.Inf(1)
	for _, m := range models {
		rate := m.Sheet.LinkPerS
		switch {
		case link == m.Fabric && nodes == 1, link == linkNet && m.Sheet.NetPerS > 0:
		case link == "pcie" && nodes == 1:
			rate = m.Sheet.HostPerS
		default:
			return 0
		}
		if m.Fabric == "nvlink" && m.Sheet.SwitchReduces() && k.kind == op.KindAllReduce {
			rate *= 2 * float64(n-1) / float64(n)
		}
		if nodes > 1 && rate > 0 {
			rate += m.Sheet.NetPerS
		}
		peak = min(peak, rate)
	}
	return peak
}
