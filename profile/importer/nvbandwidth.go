package importer

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// nvbandwidthFormat is the format of nvbandwidth's text and -j output.
func nvbandwidthFormat() Format {
	return Format{
		Name: "nvbandwidth",
		Doc:  "output of nvbandwidth, text or -j JSON: copies between host and device by the copy engine",
		Read: readNVBandwidth,
	}
}

// nvTest is one test case: a matrix of rates.
type nvTest struct {
	name, what string // what: the line that describes the matrix
	where      string
	columns    int // of the header of a text matrix
	rows       [][]float64
	torn       bool
	sum        float64 // printed
	summed     bool
	failed     string // Waived, Error, ..
}

// nvRun is one run of the tool: what it says of itself, and its tests.
type nvRun struct {
	version string
	cuda    int // 12040 is 12.4
	devices []string
	listed  bool
	small   bool        // it noted that the buffer is smaller than its default
	buffer  units.Bytes // from a command line; 0 unknown
	tested  bool        // a test was seen
	fresh   bool        // buffer or small were read for the run whose version comes next
}

func readNVBandwidth(s *Sink, sources []Source) error {
	for _, src := range sources {
		f, err := src.Open()
		if err != nil {
			return err
		}
		in := bufio.NewReaderSize(f, logBuffer)
		if beginsObject(in) {
			err = s.nvJSON(src.Name, in)
		} else {
			err = s.nvText(src.Name, in)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// nvKind says what a test case is to us: an op, or the reason why it is none.
//
// Copies by kernels (_sm) are other kernels than those that h2d and d2h mean,
// and their size is cut to a multiple of the SMs. Copies between GPUs by the
// copy engine are no collective of a library. With several GPUs, all_to_host
// and host_to_all load the host from all of them at once; with one they are the
// plain copy. A test of both directions prints a matrix of each and of their
// total under one name; without a name above it a matrix is guessed to be nothing.
func nvKind(name string, gpus int) (op.Kind, string) {
	switch {
	case name == "":
		return "", "a matrix with no line (Running NAME.) above it, or a further one of a test"
	case strings.Contains(name, "latency"):
		return "", "a latency of single accesses, not a copy"
	case strings.HasSuffix(name, "_sm"):
		return "", "copied by a kernel, not by the copy engine"
	case strings.Contains(name, "bidirectional"):
		return "", "copied while traffic ran the other way"
	case name == "host_to_device_memcpy_ce", name == "host_to_all_memcpy_ce" && gpus == 1:
		return op.KindH2D, ""
	case name == "device_to_host_memcpy_ce", name == "all_to_host_memcpy_ce" && gpus == 1:
		return op.KindD2H, ""
	case name == "host_to_all_memcpy_ce", name == "all_to_host_memcpy_ce":
		return "", "copied on all GPUs at once"
	}
	return "", "no op of this vocabulary is such a copy"
}

// sumSlack is how far the printed sum may lie from that of the cells, which
// have two decimals, or six digits in JSON.
const sumSlack = 1e-3

// nvTest hands the cells of a test to the sink, each a repeat of the same copy.
func (s *Sink) nvTest(run *nvRun, t *nvTest) error {
	drop := func(reason string) {
		for _, row := range t.rows {
			for range row {
				s.Drop(t.where, reason)
			}
		}
		if len(t.rows) == 0 {
			s.Drop(t.where, reason)
		}
	}
	kind, why := nvKind(t.name, len(run.devices))
	if t.failed != "" {
		why = "the test did not run to its end (" + t.failed + ")"
	}
	if why == "" {
		if why = cmp.Or(t.otherWay(kind), t.contradiction(run)); why != "" {
			s.Flag(t.where, t.name+": "+why)
			why = "the matrix contradicts the rest of the output"
		}
	}
	if why != "" {
		drop(why)
		return nil
	}
	return s.nvCells(run, t, kind, drop)
}

// otherWay compares what a matrix is said to hold with the test's name: "memcpy CE CPU(row)
// <- GPU(column) bandwidth (GB/s)" is of copies to the host. "" where it agrees or tells nothing.
func (t *nvTest) otherWay(kind op.Kind) string {
	host, gpu := strings.Index(t.what, "CPU"), strings.Index(t.what, "GPU")
	if host < 0 || gpu < 0 {
		return ""
	}
	want, other := "->", "<-"
	if (kind == op.KindD2H) != (gpu < host) {
		want, other = other, want
	}
	switch {
	case strings.Contains(t.what, other), strings.Contains(t.what, " SM "):
		return "described as " + quoted(t.what) + ", which is no such copy; take out the test, or correct the one of the two that is wrong"
	case strings.Contains(t.what, want) && strings.Contains(t.what, "B/s)") && !strings.Contains(t.what, "(GB/s)"):
		return "described as " + quoted(t.what) + ", and the tool writes GB/s"
	}
	return ""
}

// contradiction says what of a matrix of host copies cannot be: they have one
// row, the host's, and a column for every GPU.
func (t *nvTest) contradiction(run *nvRun) string {
	total := 0.0
	for _, row := range t.rows {
		for _, v := range row {
			if !math.IsNaN(v) {
				total += v
			}
		}
		if len(row) != len(t.rows[0]) || t.columns > 0 && len(row) != t.columns {
			return "rows of different lengths"
		}
		if run.listed && len(row) != len(run.devices) {
			return fmt.Sprintf("%s, but the list has %s", units.Count(len(row), "column"), units.Count(len(run.devices), "GPU"))
		}
	}
	switch {
	case len(t.rows) != 1:
		return fmt.Sprintf("%d rows, but the host is one", len(t.rows))
	case t.torn:
		return "a cell is no number"
	case t.summed && math.Abs(total-t.sum) > max(sumSlack*t.sum, 0.005*float64(len(t.rows[0])+1)):
		return fmt.Sprintf("the sum says %g, the cells add up to %g", t.sum, total)
	}
	return ""
}

func (s *Sink) nvCells(run *nvRun, t *nvTest, kind op.Kind, drop func(string)) error {
	size, note, err := run.size()
	if err != nil {
		s.Flag(t.where, err.Error())
		drop("the size of the copies is not known")
		return nil
	}
	s.Note(note)
	for i, rate := range t.rows[0] {
		text := ""
		if i < len(run.devices) {
			text = run.devices[i]
		}
		m, err := s.benchModel(t.where, text)
		if err != nil {
			return err
		}
		peak := m.Sheet.HostPerS
		switch {
		case math.IsNaN(rate):
			s.Drop(t.where, "N/A: not measured")
			continue
		case peak > 0 && rate*1e9 > op.PeakSlack*peak:
			s.Flag(t.where, fmt.Sprintf("%s: %g GB/s, above the %g of the link of %s to its host", t.name, rate, peak/1e9, m.Name))
			s.Drop(t.where, "faster than the link to the host")
			continue
		}
		d := m.Of(run.stack(s.Stack))
		s.Device(d)
		c := op.Copy{Bytes: size, Pinned: true} // nvbandwidth's host buffers are page-locked
		shape := op.Shape(op.H2D{Copy: c})
		if kind == op.KindD2H {
			shape = op.D2H{Copy: c}
		}
		s.Point(t.where, d.Name, shape, float64(size)/(rate*1e9))
	}
	return nil
}

// stack names the CUDA version, which the output does; else the user's words.
func (r *nvRun) stack(given string) string {
	if r.cuda > 0 {
		return fmt.Sprintf("cuda-%d.%d", r.cuda/1000, r.cuda%1000/10)
	}
	return stackOf(given)
}

var nvCUDACode = regexp.MustCompile(`^(?:\d+\.\d+\s*\(\s*)?(\d{4,6})\b`)

// nvCUDA decodes a version of CUDA as the tool prints it: 12040, or from 0.10
// "13.3 (13030)". 0 where it is neither.
func nvCUDA(text string) int {
	m := nvCUDACode.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	code, _ := strconv.Atoi(m[1])
	return code
}

var nvVersion = regexp.MustCompile(`^v?(\d+)\.(\d+)`)

// size is the bytes of one copy, and a note on where that comes from.
//
// The tool prints its rate, not its buffer. It notes when that is smaller than
// its default (64 MiB to 0.6, 512 MiB from 0.7: release notes of 0.7), so
// without the note it was the default or more, where the rate no longer depends
// on it: copies follow each other without a gap, and the launch of one is not
// in the time. The points are placed at the default.
func (r *nvRun) size() (units.Bytes, string, error) {
	if r.buffer > 0 {
		return r.buffer, "", nil
	}
	m := nvVersion.FindStringSubmatch(r.version)
	switch {
	case r.small:
		return 0, "", errors.New("the run notes that its buffer was smaller than the default, and does not say how large; keep the command line with -b in the log")
	case m == nil:
		return 0, "", errors.New("the output names no version of nvbandwidth, whose default buffer depends on it; keep that line, or the command line with -b, in the log")
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	size := 512 * units.MiB
	if major == 0 && minor < 7 {
		size = 64 * units.MiB
	}
	return size, fmt.Sprintf("the output does not state its buffer; it was at least the default of nvbandwidth %s, %s, and the points are placed there", r.version, size), nil
}

// command reads the buffer of a command line, in MiB (bytes in 0.1).
func (r *nvRun) command(text string) {
	words := strings.Fields(text)
	at := slices.IndexFunc(words, func(w string) bool { return w == "nvbandwidth" || strings.HasSuffix(w, "/nvbandwidth") })
	if at < 0 {
		return
	}
	r.buffer, r.small, r.fresh = 0, false, true
	for i, w := range words[at:] {
		value := ""
		switch key, given, ok := strings.Cut(w, "="); {
		case ok && key == "--bufferSize":
			value = given
		case (w == "-b" || w == "--bufferSize") && at+i+1 < len(words):
			value = words[at+i+1]
		case strings.HasPrefix(w, "-b") && len(w) > 2:
			value = w[2:]
		}
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && n > 0 && n < 1<<20 {
			r.buffer = units.Bytes(n) * units.MiB
		}
	}
}
