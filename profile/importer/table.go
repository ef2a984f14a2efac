package importer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// tableFormat reads tables that name their columns and the unit of their times.
func tableFormat() Format {
	return Format{
		Name: "table",
		Doc: "CSV with named columns in any order: attention (batch, seq_q, seq_kv, heads, kv_heads, head_dim, causal, dtype), " +
			"GEMM (m, n, k, dtype) or collectives (collective, num_gpus, message_bytes), with latency_us, latency_ms or latency_s",
		Read: func(s *Sink, sources []Source) error {
			return eachSource(sources, func(src Source, f File) error {
				t := newTable(s, src, tableKinds())
				return readCSV(src.Name, f, t.visitor())
			})
		},
	}
}

// eachSource opens one source after the other.
func eachSource(sources []Source, read func(Source, File) error) error {
	for _, src := range sources {
		f, err := src.Open()
		if err != nil {
			return err
		}
		if err := errors.Join(read(src, f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// table reads the rows of one file. Its kind is told by its columns.
type table struct {
	placer
	source  string
	word    string // before a row's number, where rows have no lines
	kinds   []tableKind
	columns map[string]int
	time    int // the column of the latency
	power   int // of ten: its unit in seconds
	beside  timeBeside
	read    func(*table, *tableRow)
}

func newTable(s *Sink, src Source, kinds []tableKind) *table {
	return &table{placer: newPlacer(s), source: src.Name, kinds: kinds}
}

func (t *table) visitor() csvVisitor {
	return csvVisitor{
		raw:  func(first string) error { return refuse(t.source, first) },
		head: t.head,
		row:  t.row,
		bad:  func(line int, reason string) error { t.Drop(t.at(line), reason); return nil },
	}
}

func (t *table) at(line int) string { return t.source + ":" + t.word + strconv.Itoa(line) }

// tableKind is a set of columns that tells what a table holds.
type tableKind struct {
	name    string
	columns []string
	read    func(*table, *tableRow)
	time    string // the column of the times, where the format says it; else it is told by its unit
	power   int    // of ten: the unit of those in seconds
}

func tableKinds() []tableKind {
	return []tableKind{
		{"attention", []string{"dtype", "batch", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim", "causal"}, (*table).attention, "", 0},
		{"gemm", []string{"dtype", "m", "n", "k"}, (*table).gemm, "", 0},
		{"collectives", []string{"collective", "num_gpus", "message_bytes"}, (*table).collective, "", 0},
		{"single-GPU attention of a context-parallel benchmark", []string{"n_gpus", "impl", "batch", "seqlen_total", "q_heads", "head_dim", "causal", "fwd_only", "ms_per_iter"}, (*table).single, "", 0},
	}
}

// head finds the kind of the table and the unit of its times.
func (t *table) head(columns []string) error {
	if numbers(columns) > 1 {
		return fmt.Errorf("%s:1: holds numbers (%s), and no names of columns; name them in the first line", t.source, shown(columns))
	}
	t.columns = map[string]int{}
	for i, c := range columns {
		if _, twice := t.columns[c]; twice {
			return fmt.Errorf("%s:1: column %q is there twice; name one of them otherwise", t.source, c)
		}
		t.columns[c] = i
	}
	var kinds, wants, untyped []string
	var kind tableKind
	for _, k := range t.kinds {
		if !slices.ContainsFunc(k.columns, func(c string) bool { return !t.knows(c) }) {
			kinds, kind = append(kinds, k.name), k
		}
		if !slices.ContainsFunc(k.columns, func(c string) bool { return !t.has(c) && c != "dtype" }) {
			untyped = append(untyped, k.name)
		}
		wants = append(wants, fmt.Sprintf("%s %s", k.name, strings.Join(k.columns, ",")))
	}
	switch len(kinds) {
	case 1:
		t.read = kind.read
		return t.unit(kind)
	case 0:
		if what := otherTable(columns); what != "" {
			return fmt.Errorf("%s: %s", t.source, what)
		}
		if len(columns) == 1 {
			if i := strings.IndexAny(columns[0], ";\t|"); i >= 0 {
				return fmt.Errorf("%s:1: the columns seem to be separated by %q; separate them by commas, and write decimals with a point", t.source, columns[0][i])
			}
		}
		if len(untyped) > 0 {
			return fmt.Errorf("%s:1: the columns %s are those of %s but for dtype; add that column, or say --dtype", t.source, shown(columns), strings.Join(untyped, " and "))
		}
		return fmt.Errorf("%s:1: the columns %s are of no table that is known; they need to hold one of: %s", t.source, shown(columns), strings.Join(wants, "; "))
	}
	return fmt.Errorf("%s:1: the columns fit %s; split the table", t.source, strings.Join(kinds, " and "))
}

// numbers counts the columns whose name is a number, as those of a table's first row are where
// it has no names.
func numbers(columns []string) int {
	n := 0
	for _, c := range columns {
		if _, err := strconv.ParseFloat(c, 64); err == nil {
			n++
		}
	}
	return n
}

func (t *table) has(column string) bool { _, ok := t.columns[column]; return ok }

// knows says whether a column is there, or a flag that stands for it.
func (t *table) knows(column string) bool { return t.has(column) || column == "dtype" && t.DType != "" }

// timeUnits lists the columns that a time may stand in, with their units as a
// power of ten of a second. One without a unit in its name is refused: whoever
// wrote it knows the unit, and a guess is a factor of a thousand.
func timeUnits() map[string]int {
	return map[string]int{"latency_ns": -9, "latency_us": -6, "latency_ms": -3, "latency_s": 0, "ms_per_iter": -3}
}

func (t *table) unit(kind tableKind) error {
	if kind.time != "" {
		t.time, t.power = t.columns[kind.time], kind.power
		return nil
	}
	var found []string
	for column, power := range timeUnits() {
		if i, ok := t.columns[column]; ok {
			found, t.time, t.power = append(found, column), i, power
		}
	}
	slices.Sort(found)
	if len(found) == 1 {
		if unit, ok := strings.CutPrefix(found[0], "latency_"); ok {
			t.beside = timeBeside{found[0], "latency_min_" + unit, "latency_max_" + unit, "latency_mean_" + unit}
		}
	}
	switch {
	case len(found) > 1:
		return fmt.Errorf("%s:1: two times, %s; keep the one that is meant", t.source, strings.Join(found, " and "))
	case len(found) == 0 && t.has("latency"):
		return fmt.Errorf("%s:1: the column latency does not name its unit; call it latency_us, latency_ms or latency_s", t.source)
	case len(found) == 0:
		return fmt.Errorf("%s:1: no time; the table needs a column latency_us, latency_ms or latency_s", t.source)
	}
	return nil
}

// tableRow is one row. It keeps the first cell that cannot be read.
type tableRow struct {
	t     *table
	where string
	cells []string
	value string // of the cell at fault
	fault string // why the row is no point
}

func (t *table) row(line int, cells []string) error {
	r := &tableRow{t: t, where: t.at(line), cells: cells}
	t.read(t, r)
	if t.fatal != nil {
		return fmt.Errorf("%s: %w", r.where, t.fatal)
	}
	if r.fault != "" {
		t.Drop(strings.TrimSuffix(r.where+": "+r.value, ": "), r.fault)
	}
	return nil
}

// text is a cell without the blanks around it, which stay within quotes; "" where the
// table has no such column.
func (r *tableRow) text(column string) string {
	i, ok := r.t.columns[column]
	if !ok {
		return ""
	}
	return strings.TrimSpace(r.cells[i])
}

// count is a cell that holds a whole number; 0 where the column is missing. The
// limits of a shape are checked where it is made.
func (r *tableRow) count(column string) int {
	text := r.text(column)
	if text == "" && !r.t.has(column) {
		return 0
	}
	v, ok := wholeNumber(text)
	if !ok {
		r.fail(column+" is no whole number", column+" "+quoted(text))
	}
	return int(v)
}

// wholeNumber reads digits, and what other tools make of them: pandas writes 1024.0 in
// columns that lack a value somewhere, spreadsheets and printf's %g write 1e3.
func wholeNumber(text string) (int64, bool) {
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return v, true
	}
	const exact = 1 << 53 // up to which every whole number is a float64
	v, ok := decimal(text)
	if !ok || v != math.Trunc(v) || math.Abs(v) > exact {
		return 0, false
	}
	return int64(v), true
}

// optional is count for a column that tables joined of old and new ones have in
// some rows only: an empty cell is 0.
func (r *tableRow) optional(column string) int {
	if r.text(column) == "" {
		return 0
	}
	return r.count(column)
}

// flag is a cell that says yes or no.
func (r *tableRow) flag(column string) bool {
	switch text := strings.ToLower(r.text(column)); text {
	case "1", "true", "yes", "1.0": // as pandas writes columns that lack a value somewhere
		return true
	case "0", "false", "no", "0.0":
	default:
		r.fail(column+" is neither 1 nor 0", column+" "+quoted(text))
	}
	return false
}

// seconds is the row's time. The power of ten goes behind its digits, which
// rounds once, where dividing a rounded number would round again.
func (r *tableRow) seconds() float64 {
	text := strings.TrimSpace(r.cells[r.t.time])
	v, ok := decimal(text)
	if !ok || math.IsNaN(v) || math.IsInf(v, 0) || v <= 0 {
		r.fail("the time is no positive number", quoted(text))
		return 0
	}
	if exact, err := strconv.ParseFloat(text+"e"+strconv.Itoa(r.t.power), 64); err == nil {
		return exact
	}
	return v * math.Pow10(r.t.power)
}

func (r *tableRow) fail(reason, value string) {
	if r.fault == "" {
		r.fault, r.value = reason, value
	}
}

// dtype is the precision in a column, as this field's tools name it; without the column,
// or with nothing in it, that of the flag.
func (r *tableRow) dtype(column string) op.DType {
	if !r.t.has(column) || r.text(column) == "" && r.t.DType != "" {
		return r.t.DType
	}
	d, ok := dtypeOf(r.text(column))
	if !ok {
		r.fail(column+" is no precision that is known", quoted(r.text(column)))
	}
	return d
}

// attention reads a forward pass of equal sequences.
func (t *table) attention(r *tableRow) {
	a := op.Attention{
		Mask: op.Full, QLen: units.Tokens(r.count("seq_q")), KVLen: units.Tokens(r.count("seq_kv")), QHeads: r.count("heads"), KVHeads: r.count("kv_heads"),
		HeadDim: r.count("head_dim"), DType: r.dtype("dtype"), Kernel: kernelOf(r.text("kernel")),
		Batch: r.count("batch"), Window: units.Tokens(r.optional("window")),
	}
	t.sameHeads(r, &a)
	if r.flag("causal") {
		a.Mask = op.Diag
	}
	if r.text("kv_dtype") != "" {
		if kv := r.dtype("kv_dtype"); kv != a.DType {
			a.Kernel = kernelOf(a.Kernel + "_kv" + string(kv))
		}
	}
	r.forward()
	t.attend(r, a, stackOf(r.text("framework"), r.text("version")))
}

// sameHeads reads 0 K/V heads as the tables of aiconfigurator mean it: as many as query heads.
func (t *table) sameHeads(r *tableRow, a *op.Attention) {
	if a.KVHeads == 0 && r.fault == "" {
		a.KVHeads = a.QHeads
		t.Note("0 K/V heads are taken for as many as query heads, as aiconfigurator writes it")
	}
}

// forward refuses a row that names another pass than the forward one, whose times
// alone are read.
func (r *tableRow) forward() {
	for _, column := range []string{"pass", "direction"} {
		switch text := strings.ToLower(r.text(column)); text {
		case "", "fwd", "forward":
		default:
			r.fail("a time of another pass than the forward one", column+" "+quoted(text))
		}
	}
}

// Rows of attention that are no block of ours.
const (
	decodeRow = "one query under a causal mask: the decode kernel runs it, not that of prefill and training"
	prefixRow = "queries behind a cached prefix: every block here is a full rectangle or a causal square"
)

// unevenHeads is why no kernel ran an attention: each key head serves as many query
// heads as the others.
const unevenHeads = "query heads that are no multiple of the key heads"

// attend hands an attention row on. A batch of one is written as none.
func (t *table) attend(r *tableRow, a op.Attention, stack string) {
	switch {
	case a.Mask == op.Diag && a.QLen == 1:
		r.fail(decodeRow, "")
	case a.Mask == op.Diag && a.QLen != a.KVLen && a.QLen > 0 && a.KVLen > 0:
		r.fail(prefixRow, fmt.Sprintf("%d queries, %d keys", a.QLen, a.KVLen))
	case a.KVHeads > 0 && a.QHeads > a.KVHeads && a.QHeads%a.KVHeads != 0:
		r.fail(unevenHeads, fmt.Sprintf("%d query heads, %d key heads", a.QHeads, a.KVHeads))
	case a.Batch < 1:
		r.fail("batch is less than one", strconv.Itoa(a.Batch))
	case a.Batch == 1:
		a.Batch = 0
	}
	if r.fault == "" {
		t.Note(attentionIncludes(r.text("framework"), a.Mask))
	}
	t.compute(r, op.AttnFwd{Attention: a}, stack)
}

// attentionIncludes says what else is in an attention time of an engine; it
// matters below about 100 us. "" where nothing is known.
func attentionIncludes(framework string, mask op.Mask) string {
	framework = strings.ToLower(framework)
	switch {
	case mask == op.Full:
		return ""
	case framework == "vllm" || framework == "sglang":
		return "causal attention times of " + framework + " include writing K and V to the paged cache, a kernel of its own"
	case framework == "trtllm" || framework == "tensorrt-llm":
		return "causal attention times of " + framework + " include the fused preprocessing of Q, K and V: rotary embedding and the write to the cache"
	}
	return ""
}

// kernelOf makes a kernel's label a word of a-z, 0-9 and _, no longer than the
// vocabulary takes. Blanks, dashes and points are spellings: flash-attn 2.6.3 is flash_attn_2_6_3.
func kernelOf(label string) string { return worded(label, "_", " -.", 48) }

func (t *table) gemm(r *tableRow) {
	g := op.GEMM{Pass: op.Forward, M: units.Tokens(r.count("m")), N: r.count("n"), K: r.count("k"), DType: r.dtype("dtype")}
	r.forward()
	t.product(r, g)
}

func (t *table) product(r *tableRow, g op.GEMM) {
	stack := stackOf(r.text("framework"), r.text("version"))
	on := strings.Join([]string{r.gpu(), stack, string(g.DType)}, "\n")
	kernel := kernelOf(r.text("kernel_source") + r.text("kernel")) // an empty one is not told, and no other
	used := t.report.Points
	if first, seen := t.products[on]; seen && kernel != "" && first != kernel {
		t.otherKernel(r, first, kernel)
	}
	if g.DType == op.FP8 && r.text("framework") != "" {
		t.Note("fp8 GEMM times of serving engines include the kernel that quantises the activations")
	}
	t.compute(r, g, stack)
	if t.report.Points > used && kernel != "" && len(t.products) < mostTypes {
		t.products[on] = kernel
	}
}

// otherKernel refuses a product of another kernel than the one of the rows used before on the
// same GPU, under the same software and in the same precision: the op does not tell them
// apart, and one law of both would describe neither.
func (t *table) otherKernel(r *tableRow, first, kernel string) {
	if r.fault != "" {
		return
	}
	t.Flag(t.source, "GEMM rows of the kernels "+quoted(first)+" and "+quoted(kernel)+" would be of one device type: those of the first are used; import the others as a file of their own")
	r.fail("a GEMM of another kernel than the rows above it on the same GPU and software, with which it would be pooled", quoted(kernel))
}

// compute hands a row of one GPU on.
func (t *table) compute(r *tableRow, shape op.Shape, stack string) {
	seconds := r.seconds()
	r.ordered()
	if r.fault != "" {
		return
	}
	if fault := t.onDevice(r.where, r.gpu(), stack, shape, seconds); fault != "" {
		r.fail(fault, "")
	}
}

// gpu is what the row calls its GPU.
func (r *tableRow) gpu() string { return cmp.Or(r.text("gpu"), r.text("device")) }

// shown lists columns for a message, not all of a wide table.
func shown(columns []string) string {
	if len(columns) > 12 {
		columns = append(slices.Clone(columns[:12]), "...")
	}
	text := strings.Join(columns, ",")
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	return quoted(text)
}
