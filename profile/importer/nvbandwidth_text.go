package importer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
)

var (
	nvVersionLine = regexp.MustCompile(`^nvbandwidth Version:\s*(\S+)`)
	nvCUDALine    = regexp.MustCompile(`^CUDA Runtime Version:\s*(.*)$`)
	nvDeviceLine  = regexp.MustCompile(`^(?:Process\s+\d+\s+\([^)]*\):\s+)?[Dd]evice\s+(\d+):\s+(.*?)(?:\s*\([0-9a-fA-F:.]+\))?$`)
	nvRunning     = regexp.MustCompile(`^Running (?:benchmark )?(\w+)\.$`)
	nvSum         = regexp.MustCompile(`^SUM (\w+) (\S+)$`)
	nvMatrix      = regexp.MustCompile(`^(?:memcpy|memory|local) .*(?:bandwidth \(GB/s\)|latency .*\(ns\))`)
	nvStray       = regexp.MustCompile(`\bRunning (?:benchmark )?\w+_(?:memcpy|local|latency)\w*\.`) // behind something else
	nvNotRun      = regexp.MustCompile(`(?i)^(waived|error|not found)\b`)
)

// mostTests, mostColumns keep a file that repeats itself from filling memory.
const (
	mostTests   = 1 << 10
	mostColumns = 1 << 12
)

// nvbandwidthText reads the text output. What it holds of a test is handed on
// when the next line shows that the test is over.
type nvbandwidthText struct {
	*Sink
	name  string
	run   *nvRun
	test  *nvTest
	seen  int
	stray string // of a test behind something else, what to say if there is no other
	json  int    // the line where -j output begins; 0 without
	// The line being read, the file's last, has no end: if it is a row, its last cell may
	// have lost digits.
	open bool
}

func (s *Sink) nvText(name string, in *bufio.Reader) error {
	r := &nvbandwidthText{Sink: s, name: name, run: &nvRun{}}
	lines := logLines{in: in}
	for {
		text, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		r.open = lines.open
		if err == nil {
			err = r.line(strings.TrimSpace(text), lines.line)
		}
		if err != nil {
			return err
		}
	}
	if err := r.end(); err != nil {
		return err
	}
	switch {
	case r.seen == 0 && r.json > 0:
		return fmt.Errorf("%s:%d: the JSON of nvbandwidth -j stands below other lines; let the file begin with its {", name, r.json)
	case r.seen == 0 && r.stray != "":
		return errors.New(r.stray)
	case r.seen == 0:
		return fmt.Errorf("%s: no test of nvbandwidth (Running NAME.); name what nvbandwidth printed; is this another tool's file?", name)
	}
	return nil
}

// end hands the test being read on.
func (r *nvbandwidthText) end() error {
	t := r.test
	r.test = nil
	if t == nil {
		return nil
	}
	return r.nvTest(r.run, t)
}

func (r *nvbandwidthText) line(text string, at int) error {
	if m := nvRunning.FindStringSubmatch(text); m != nil {
		err := r.end()
		r.seen++
		r.run.tested = true
		r.test = &nvTest{name: m[1], where: r.name + ":" + strconv.Itoa(at)}
		return err
	}
	if m := nvVersionLine.FindStringSubmatch(text); m != nil { // another run
		err := r.end()
		r.run = r.run.next(m[1])
		return err
	}
	if r.test == nil && nvMatrix.MatchString(text) {
		r.seen++
		r.run.tested = true
		r.test = &nvTest{where: r.name + ":" + strconv.Itoa(at)}
	}
	if r.test != nil {
		return r.ofTest(text)
	}
	if r.json == 0 && strings.HasPrefix(text, `"nvbandwidth"`) {
		r.json = at
	}
	if stray := nvStray.FindStringIndex(text); stray != nil && r.stray == "" {
		r.stray = fmt.Sprintf("%s:%d: a test of nvbandwidth behind %s, which is no launcher's label that is known; let the lines begin with their own text", r.name, at, excerpt(text[:stray[0]]))
	}
	r.about(text)
	return nil
}

// next is the run of a version. What a command line or a note said of a run
// before it does not hold for it.
func (r *nvRun) next(version string) *nvRun {
	run := &nvRun{version: version}
	if r.fresh {
		run.buffer, run.small = r.buffer, r.small
	}
	return run
}

// about reads a line before the tests.
func (r *nvbandwidthText) about(text string) {
	run := r.run
	if m := nvCUDALine.FindStringSubmatch(text); m != nil {
		run.cuda = nvCUDA(m[1])
		return
	}
	if m := nvDeviceLine.FindStringSubmatch(text); m != nil {
		if len(run.devices) < mostColumns {
			run.devices = append(run.devices, m[2])
		}
		run.listed = true
		return
	}
	if strings.Contains(text, "buffer size that is smaller") {
		// The newest versions print the note above their version, others below.
		run.small, run.fresh = true, run.tested || run.version == ""
		return
	}
	run.command(text)
}

// ofTest reads a line of a test.
func (r *nvbandwidthText) ofTest(text string) error {
	t := r.test
	tokens := strings.Fields(text)
	if m := nvSum.FindStringSubmatch(text); m != nil {
		v, err := strconv.ParseFloat(m[2], 64)
		t.sum, t.summed = v, err == nil && m[1] == t.name
		return r.end()
	}
	switch {
	case nvMatrix.MatchString(text):
		t.what = text
	case nvNotRun.MatchString(text):
		if len(t.rows) == 0 {
			t.failed = strings.ToLower(strings.TrimSuffix(tokens[0], ":"))
		}
		return r.end()
	case t.what == "" || len(tokens) == 0:
		r.about(text)
	case t.columns == 0 && isHeader(tokens):
		t.columns = len(tokens)
	case isCount(tokens[0]) && len(tokens) > 1:
		t.row(tokens[1:])
		if r.open && len(tokens) > t.columns {
			t.failed = "the file ends within a row; if the row is whole, end its line"
		}
	}
	return nil
}

// isHeader says whether tokens number the columns.
func isHeader(tokens []string) bool {
	for i, w := range tokens {
		if w != strconv.Itoa(i) {
			return false
		}
	}
	return true
}

// row adds a row of cells; those that are N/A are NaN.
func (t *nvTest) row(cells []string) {
	if len(t.rows) >= mostColumns || len(cells) > mostColumns {
		t.torn = true
		return
	}
	var row []float64
	for _, text := range cells {
		v, err := strconv.ParseFloat(text, 64)
		if text == "N/A" {
			v, err = math.NaN(), nil
		} else if !(v > 0) || math.IsInf(v, 0) {
			t.torn = true
		}
		t.torn = t.torn || err != nil
		row = append(row, v)
	}
	t.rows = append(t.rows, row)
}
