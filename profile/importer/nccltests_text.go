package importer

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ncclText reads the tables that nccl-tests prints.
type ncclText struct {
	name  string
	lines logLines
	table *ncclTable
	heard string // a collective on a command line amid the last table's rows
	// several such lines name different ones
	several bool
	force   []string // what such lines set of algorithm, protocol, transport or channels
	found   bool     // a table was handed out
	// What to say if there is no table: of column names behind something else, of
	// a test that failed before it measured anything.
	stray, failed string
}

func newNCCLText(name string, in *bufio.Reader) *ncclText {
	return &ncclText{name: name, lines: logLines{in: in}}
}

// The lines of a log that are read (the writer's src/common.cu and src/util.cu
// of all generations; rccl-tests adds lines without '#').
var (
	ncclVersionLine = seek(`^#?\s*(nccl|rccl)-tests version (\S+).*?-headers=\d+ \w+-library=(\d+)`, "-tests version ")
	ncclProgramLine = seek(`^#?\s*Collective test (starting|concluded): (\w+)`, "Collective test ")
	ncclParamsLine  = seek(`(?:^|#)\s*nThreads?:? (\d+) nGpus:? (\d+) (?:nRanks:? (\d+) )?minBytes:? (\d+) maxBytes:? (\d+)\b`, "nThread")
	ncclRankLine    = seek(`^#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+(\d+)\s+)?(?:on\s+(\S+)\s+device|uses device)\s+(\d+)\s+\[([^\]]+)\]\s*(.*)$`, "Rank")
	// what a line has that was meant to be one of the two above
	ncclLikeHeader  = seek(`\bnThreads?:?\s+\d+\s+nGpus:?\s+\d|\bRank\s+\d+\s.*\bdevice\s+\d`, "nThread", "Rank")
	ncclRuntimeLine = seek(`\b(NCCL|RCCL) version\s*:?\s*(\d+\.\d+(?:\.\d+)?)`, "CCL version")
	ncclAverageLine = seek(`Avg bus bandwidth\s*:\s*(\S+)`, "Avg bus bandwidth")
	ncclBoundsLine  = seek(`Out of bounds values\s*:\s*(\d+)`, "Out of bounds values")
	ncclCommand     = regexp.MustCompile(`\b(\w+)_perf(?:_mpi)?\b`)
	ncclSetting     = regexp.MustCompile(`\b(agg iters|graph|side_work|unalign): (\d+)`)
	ncclFailure     = regexp.MustCompile(`Test (?:NCCL |CUDA |HIP |RCCL )?failure|(?i:segmentation fault|core dumped|srun: error|mpirun noticed|prterun noticed|mpi_abort|job terminated|cancelled at|out of memory)`)
	ncclTestFailure = regexp.MustCompile(`Test (?:NCCL |CUDA |HIP |RCCL )?failure`)
	ncclElision     = seek(`^(?:#\s*)?(?:\.\.\.+|…|\[(?:\.\.\.|…)\]|<snip>|\[snip\])$`, "...", "…", "snip")
	// column names after something else, with or without the sign of a comment
	ncclStrayColumns = regexp.MustCompile(`#?\s*\bsize\s+count\s+type\s.*\btime\s+algbw\s+busbw`)
	// column names that commas part, or that have units beside them
	ncclNamesLike = regexp.MustCompile(`\bsize\b.*\bcount\b.*\btype\b.*\btime\b.*\balgbw\b.*\bbusbw\b`)
	ncclStamp     = regexp.MustCompile(`^\d{4}-\d\d-\d\d$`)
)

// next implements ncclReader.
func (r *ncclText) next(visit func(*ncclRow)) (*ncclTable, error) {
	r.table = &ncclTable{command: r.heard, commands: r.several, forced: r.force}
	r.heard, r.several, r.force = "", false, nil
	for {
		text, err := r.lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", r.name, r.lines.line+1, err)
		}
		text = uncelled(text)
		if r.begins(text) {
			r.lines.back()
			break
		}
		r.read(strings.TrimSpace(text), visit)
	}
	if t := r.table; t.layout != nil || t.rows > 0 {
		r.found = true
		return t, nil
	}
	if why := cmp.Or(r.stray, r.failed); why != "" && !r.found {
		return nil, errors.New(why)
	}
	return nil, io.EOF
}

// uncelled takes the bars off a line of a table of Markdown.
func uncelled(text string) string {
	bare := strings.TrimSpace(text)
	if len(bare) < 2 || bare[0] != '|' || bare[len(bare)-1] != '|' {
		return text
	}
	return strings.ReplaceAll(bare, "|", " ")
}

// lookBehind notes column names that do not begin their line: the log is one of
// nccl-tests, and what stands before its lines is a label that is not known.
func (r *ncclText) lookBehind(text string) {
	if r.found || r.stray != "" || !strings.Contains(text, "algbw") {
		return
	}
	at := ncclStrayColumns.FindStringIndex(text)
	if at == nil || at[0] == 0 {
		if ncclNamesLike.MatchString(text) {
			r.stray = fmt.Sprintf("%s:%d: column names of nccl-tests, but not as it prints them: %s; part them and the cells below by blanks or |, and leave out units", r.name, r.lines.line, excerpt(text))
		}
		return
	}
	r.stray = fmt.Sprintf("%s:%d: column names of nccl-tests behind %s, which is no launcher's label that is known; let the lines of the log begin with its own text", r.name, r.lines.line, excerpt(text[:at[0]]))
}

// excerpt quotes the first part of a line.
func excerpt(text string) string {
	const most = 80
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + ".."
	}
	return strconv.Quote(text)
}

// begins says whether a line belongs to another table than the one being read:
// a header after rows, or a second start of a header after column names.
func (r *ncclText) begins(text string) bool {
	t := r.table
	if first := strings.TrimLeft(text, " \t"); t.layout == nil && t.rows == 0 || first == "" || first[0] >= '0' && first[0] <= '9' {
		return false // a row, mostly
	}
	start := ncclVersionLine.MatchString(text) || ncclParamsLine.MatchString(text)
	if ncclColumns(strings.Fields(text)) != nil {
		// Processes that run side by side print their heads into each other; the
		// same head is meant until a row or a footer follows.
		start = t.rows > 0 || t.ended || t.aborted
	}
	if m := ncclProgramLine.FindStringSubmatch(text); m != nil {
		start = m[1] == "starting"
	}
	if start || t.rows == 0 {
		return start
	}
	return strings.HasSuffix(strings.TrimSpace(text), "# Using devices") || ncclRankLine.MatchString(text) ||
		!ncclProgramLine.MatchString(text) && t.ended && (knownCommand(text) != "" || ncclRuntimeLine.MatchString(text))
}

func (r *ncclText) read(text string, visit func(*ncclRow)) {
	t := r.table
	if text == "" {
		return
	}
	tokens := strings.Fields(text)
	if isCount(tokens[0]) && rowStart(tokens) == 0 {
		r.row(tokens, 0, visit)
		return
	}
	if l := ncclColumns(tokens); l != nil {
		l.halfNames(t.halves)
		l.measure(t.units.of)
		t.layout, t.line = l, r.lines.line
		return
	}
	if of := ncclUnits(tokens); of != nil && t.rows == 0 {
		t.units = ncclUnitLine{r.lines.line, of}
		if t.layout != nil {
			t.layout.measure(of)
		}
		return
	}
	r.lookBehind(text)
	if r.header(text) {
		return
	}
	if t.unread == "" && ncclLikeHeader.MatchString(text) && !strings.Contains(text, "NCCL INFO") {
		t.unread = fmt.Sprintf("line %d looks like settings or a rank of the test, and cannot be read: %s; what it says is not known, so write it as the test prints it", r.lines.line, excerpt(text))
	}
	if r.footer(text) {
		return
	}
	if at := rowStart(tokens); at >= 0 {
		r.row(tokens, at, visit)
	} else if t.layout.fits(tokens) {
		r.row(tokens, 1, visit) // which counts it as torn
	}
}

// fits says whether a line below column names has their type where it belongs, and as many
// columns: a row whose size or count is no plain number, such as 1,048,576 or 1M.
func (l *ncclLayout) fits(tokens []string) bool {
	if l == nil {
		return false
	}
	n, width := len(tokens), len(l.id)+l.halves*len(l.half)
	if l.stamp {
		width += 2
	}
	return (n == width || n == width-1) && ncclElement(tokens[2]) != "" // see ncclColumns
}

// header reads a line that stands before a table, if it is one.
func (r *ncclText) header(text string) bool {
	t := r.table
	if m := ncclRankLine.FindStringSubmatch(text); m != nil {
		rank, _ := strconv.Atoi(m[1])
		group, _ := strconv.Atoi(m[2])
		t.ranks.add(ncclSeat{rank: rank, group: group, pid: m[3], host: m[4], device: m[5], bus: m[6], model: strings.TrimSpace(m[7])})
		return true
	}
	if m := ncclVersionLine.FindStringSubmatch(text); m != nil {
		code, _ := strconv.Atoi(m[3])
		t.library, t.version = m[1], libraryVersion(code)
		return true
	}
	if m := ncclProgramLine.FindStringSubmatch(text); m != nil {
		t.program, t.ended = programOf(m[2]), t.ended || m[1] == "concluded"
		return true
	}
	if ncclParamsLine.MatchString(text) {
		t.settings(text)
		return true
	}
	switch {
	case strings.Contains(text, "out-of-place") || strings.Contains(text, "in-place"):
		t.halves = text
	case strings.HasPrefix(text, "# Blocking Enabled"):
		t.blocking = true
	case strings.HasPrefix(text, "rccl-tests"), strings.HasPrefix(text, "HIP version"), strings.HasPrefix(text, "ROCm version"), strings.HasPrefix(text, "Librccl path"):
		t.library = "rccl"
	default:
		return r.mentions(text)
	}
	return true
}

// mentions reads the version of the library and the command from lines that
// are not the tests' own.
func (r *ncclText) mentions(text string) bool {
	t := r.table
	if m := ncclRuntimeLine.FindStringSubmatch(text); m != nil {
		t.runtime(strings.ToLower(m[1]), m[2])
		return !strings.Contains(text, "NCCL INFO")
	}
	c := knownCommand(text)
	if other := cmp.Or(t.command, c); c != "" && t.rows == 0 && (c != other || severalCommands(text)) {
		t.commands = true
	}
	if t.rows > 0 {
		r.several = r.several || c != "" && (c != cmp.Or(r.heard, c) || severalCommands(text))
		r.heard, r.force = cmp.Or(c, r.heard), forcing(r.force, text)
	} else {
		t.command, t.forced = cmp.Or(c, t.command), forcing(t.forced, text)
	}
	return c != ""
}

// footer reads a line that stands after a table, if it is one.
func (r *ncclText) footer(text string) bool {
	t := r.table
	if m := ncclAverageLine.FindStringSubmatch(text); m != nil {
		if v, ok := printed(m[1]); ok && !t.averaged {
			t.average, t.averaged = v.value*t.rateUnit()/1e9, true
		}
		t.ended = true
		return true
	}
	if m := ncclBoundsLine.FindStringSubmatch(text); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 64)
		t.outOfBounds = max(t.outOfBounds, n)
		return true
	}
	switch {
	case ncclElision.MatchString(text):
		t.elided = true
	case !strings.Contains(text, "NCCL INFO") && ncclFailure.MatchString(text):
		t.aborted = t.aborted || !t.ended && (t.layout != nil || t.rows > 0)
		if r.failed == "" && ncclTestFailure.MatchString(text) {
			r.failed = fmt.Sprintf("%s:%d: the test failed before it measured anything: %s", r.name, r.lines.line, excerpt(text))
		}
	default:
		return strings.HasPrefix(text, "#")
	}
	return true
}

// ncclLayout is what the line of column names says of the rows.
type ncclLayout struct {
	id     []string // the columns before the halves
	half   []string // those of one half
	halves int
	single string // "in-place" or "out-of-place" where there is one half
	stamp  bool   // a date and a time end the row
	// units are those of each half's time, algbw and busbw in s and bytes a second.
	units [2][3]float64
	odd   string // a column's unit that is not known
}

// ncclColumns reads a line of column names; nil if it is none. Times are in us,
// until 2019 in ms, which the names of the first columns tell apart; a line of units
// below says it better (see measure).
func ncclColumns(tokens []string) *ncclLayout {
	switch {
	case len(tokens) == 0:
		return nil
	case tokens[0] == "#":
		tokens = tokens[1:]
	case tokens[0][0] == '#': // where blanks were taken out, as pages do
		tokens = append([]string{tokens[0][1:]}, tokens[1:]...)
	}
	if len(tokens) < 7 || tokens[2] != "type" || !(tokens[0] == "size" && tokens[1] == "count" || tokens[0] == "bytes" && tokens[1] == "N") {
		return nil
	}
	l := &ncclLayout{units: usualNCCLUnits(1e-6)}
	if tokens[0] == "bytes" {
		l.units = usualNCCLUnits(1e-3)
	}
	if slices.Contains(tokens, "timestamp") {
		tokens, l.stamp = slices.DeleteFunc(tokens, func(s string) bool { return s == "timestamp" }), true
	}
	first := slices.IndexFunc(tokens, isTimeColumn)
	if first < 0 {
		return nil
	}
	l.id, l.halves = tokens[:first], 1
	l.half = tokens[first:]
	if second := slices.IndexFunc(l.half[1:], isTimeColumn); second >= 0 {
		l.half, l.halves = l.half[:second+1], 2
	}
	if len(l.half) < 4 {
		return nil
	}
	return l
}

func isTimeColumn(s string) bool { return s == "time" || s == "cputime" }

// halfNames notes which half a table with one of them has. rccl-tests leaves
// out the first with -O 0.
func (l *ncclLayout) halfNames(above string) {
	l.single = "in-place"
	if strings.Contains(above, "out-of-place") {
		l.single = "out-of-place"
	}
}

// rowStart finds where in a line a row begins: a size, a count and a type; or a
// size and a count alone at the start of the line, a row that was torn. -1 if
// there is none.
func rowStart(tokens []string) int {
	for i := 0; i+2 < len(tokens); i++ {
		if isCount(tokens[i]) && isCount(tokens[i+1]) && ncclElement(tokens[i+2]) != "" {
			return i
		}
	}
	if len(tokens) > 0 && isCount(tokens[0]) && (len(tokens) == 1 || isCount(tokens[1])) {
		return 0
	}
	return -1
}

func isCount(s string) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}

const tornRow = "the row lacks columns or holds foreign text"

// row reads a row by its tokens from the right: the halves, and before them
// what identifies it.
func (r *ncclText) row(tokens []string, start int, visit func(*ncclRow)) {
	t := r.table
	row := &ncclRow{where: r.name + ":" + strconv.Itoa(r.lines.line)}
	l := t.layout
	if l == nil {
		l = guessLayout(tokens)
		if l == nil && t.rows == 0 {
			return // numbers in a line before any table
		}
		if l != nil {
			l.measure(t.units.of)
		}
		t.line = max(t.line, r.lines.line)
		t.headless = true
	}
	if l == nil || start > 0 || !row.parse(tokens, l) {
		*row = ncclRow{where: row.where, bad: tornRow}
	}
	t.count(row)
	visit(row)
}

// guessLayout is the layout of a row without column names above it: two halves
// of four, and three to five columns before. That the time is in us shows in
// the bandwidth, which is checked against it.
func guessLayout(tokens []string) *ncclLayout {
	id := [][]string{{"size", "count", "type"}, {"size", "count", "type", "redop"}, {"size", "count", "type", "redop", "root"}}
	n := len(tokens) - 8 - 3
	if n < 0 || n >= len(id) {
		return nil
	}
	last := "error"
	if n == 2 {
		last = "#wrong"
	}
	return &ncclLayout{id: id[n], half: []string{"time", "algbw", "busbw", last}, halves: 2, units: usualNCCLUnits(1e-6)}
}

func (row *ncclRow) parse(tokens []string, l *ncclLayout) bool {
	if n := len(tokens); n > 2 && ncclStamp.MatchString(tokens[n-2]) {
		tokens = tokens[:n-2]
	} else if l.stamp {
		return false
	}
	width := len(l.half)
	cut := len(tokens) - width*l.halves
	if cut < 3 || !row.identify(tokens[:cut], l.id) {
		return false
	}
	for i := range l.halves {
		h, ok := parseHalf(tokens[cut+i*width:cut+(i+1)*width], l.half, l.units[i])
		if !ok {
			return false
		}
		if i == 1 || l.halves == 1 && l.single == "in-place" {
			row.inPlace = h
		} else {
			row.outOfPlace = h
		}
	}
	return true
}

// identify reads the columns before the halves.
func (row *ncclRow) identify(tokens, names []string) bool {
	if len(tokens) == len(names)-1 && (slices.Contains(names, "redop") || slices.Contains(names, "op")) {
		names = slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "redop" || s == "op" })
		row.blank = true
	}
	if len(tokens) != len(names) {
		return false
	}
	var err error
	for i, name := range names {
		switch name {
		case "size", "bytes":
			row.size, err = strconv.ParseInt(tokens[i], 10, 64)
		case "count", "N":
			row.count, err = strconv.ParseInt(tokens[i], 10, 64)
		case "type":
			row.dtype = tokens[i]
		case "redop", "op":
			row.redop = tokens[i]
		case "root":
			var root int
			root, err = strconv.Atoi(tokens[i])
			row.rooted = root >= 0
		}
		if err != nil {
			return false
		}
	}
	return row.size >= 0 && row.count >= 0
}

// parseHalf reads time, bandwidths and the check of a half; columns of other
// names must be numbers.
func parseHalf(tokens, names []string, units [3]float64) (*ncclHalf, bool) {
	h := &ncclHalf{}
	for i, name := range names {
		text := tokens[i]
		if starred := strings.TrimSuffix(text, "*"); starred != text {
			text, h.starred = starred, true
		}
		v, ok := printed(text)
		switch name {
		case "time", "cputime":
			h.time, h.cpu = v.times(units[0]), name == "cputime"
		case "algbw":
			h.alg = v.times(units[1])
		case "busbw":
			h.bus = v.times(units[2])
		case "#wrong", "wrong", "error", "res", "delta":
			h.errors, h.checked, h.count = v.value, ok, strings.HasSuffix(name, "wrong")
			ok = ok || text == "N/A"
		}
		if !ok {
			return nil, false
		}
	}
	return h, true
}
