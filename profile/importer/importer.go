// Package importer turns what other tools wrote down (tables of kernel times,
// logs of collective benchmarks, profiler traces) into recordings. An importer
// never guesses: what a file does not say is asked for, what does not parse is
// counted with its reason, and what contradicts itself or the hardware's
// datasheet is flagged and left out.
//
// A format is one file of this package and one line in Formats. It reads its
// sources front to back, in memory that does not grow with them, and hands
// every row to a Sink.
package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// File is an open source. Formats that are not read front to back (parquet)
// use ReadAt.
type File interface {
	io.Reader
	io.ReaderAt
	io.Closer
}

// Source is one file to import. It is opened once a pass: see Import.
type Source struct {
	Name string // as messages name it
	Size int64
	Open func() (File, error)
}

// Options say what files do not. The zero value asks for nothing beyond them.
type Options struct {
	Device     string           // the device where a file names none, or names it as free text
	Ranks      int              // of a collective where a file does not tell; 0 to go by the file
	Nodes      int              // that the ranks sit on; 0 to go by the file
	Link       string           // class of the links between the ranks; "" to go by the file or the datasheet
	Collective string           // where a log does not name it
	Stack      string           // the software, where a file does not name it
	DType      op.DType         // of the operands, where a file does not name it
	Sheets     map[string]Model // of devices beyond, or instead of, the known ones; keys as files name them
}

// Model is what is known of a GPU model without measuring it: its name, its
// units that run at a time, its memory, its datasheet. How many of them a node
// has, and over what they talk, tells collectives apart.
type Model struct {
	Name     string
	Parallel int // SMs, CUs or Xe cores
	Memory   units.Bytes
	Sheet    op.Sheet
	PerNode  int     // GPUs of one node; 0 unknown
	Fabric   string  // link class inside a node: nvlink, pcie, xgmi, ...; "" unknown
	Headroom float64 // how many times the sheet's peak a board may reach that is clocked beyond it; 0 for none

	also []string // free text that drivers and tools print for it
}

// Format is one kind of file. Read reads all sources of a call in order and
// hands their rows to the sink. An error ends the import: the file is not of
// this format at all, or an option contradicts it; a bad row, or one that says
// too little, is no error but Sink.Drop.
type Format struct {
	Name string // as --from names it
	Doc  string // one sentence: which tool's files, and what is read from them
	Read func(*Sink, []Source) error

	gzipped bool // its files may be compressed
}

// Formats lists every format, in the order in which help shows them.
func Formats() []Format {
	return []Format{
		tableFormat(),
		aiconfiguratorFormat(),
		vidurFormat(),
		galvatronFormat(),
		kinetoFormat(),
		ncclTestsFormat(),
		nvbandwidthFormat(),
	}
}

// Lookup finds a format by name. The error lists the names there are.
func Lookup(name string) (Format, error) {
	var names []string
	for _, f := range Formats() {
		if f.Name == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Format{}, fmt.Errorf("unknown format %q%s; the formats are %s", name, spelling.Hint(name, names), strings.Join(names, ", "))
}

// Report says what became of every row.
type Report struct {
	Format  string   `json:"format"`
	Files   []string `json:"files"`
	Rows    int      `json:"rows"` // data rows seen
	Points  int      `json:"points"`
	Shapes  int      `json:"shapes,omitempty"`  // of the points, each with its place, of which fit makes one point; absent beyond mostShapes
	Dropped []Drop   `json:"dropped,omitempty"` // by reason, most frequent first
	Flags   []string `json:"flags,omitempty"`   // contradictions, in the order found
	Notes   []string `json:"notes,omitempty"`   // what a reader of the recording should know
	Devices []string `json:"devices"`
	Groups  []string `json:"groups"`
}

// mostShapes bounds what is kept to count shapes, to some 10 MB.
const mostShapes = 100_000

// Drop counts the rows that were left out for one reason.
type Drop struct {
	Reason string `json:"reason"`
	Rows   int    `json:"rows"`
	First  string `json:"first"` // file:line of the first of them, and its value where that helps
}

// Sink takes what a format reads. It remembers devices, groups and counts, not
// rows.
type Sink struct {
	Options
	report  Report
	devices []op.DeviceType
	groups  []op.GroupType
	best    map[string]*utilisation // of every device and op
	// products holds the kernel of the GEMM rows used, by GPU, software and precision.
	products map[string]string
	further  int                        // contradictions beyond maxFlags
	files    profile.Sources            // what several of the files say of the same points
	write    func(*profile.Point) error // nil in the first pass
	err      error
	stands   string // the name that --device stands for
	unplaced error  // the first row left out for want of an option: why there is none at all
}

// Device declares a device type; declaring it again changes nothing.
func (s *Sink) Device(d op.DeviceType) {
	if !slices.ContainsFunc(s.devices, func(o op.DeviceType) bool { return o.Name == d.Name }) {
		s.devices = append(s.devices, d)
		s.undescribed(d)
	}
}

// undescribed notes what a table of devices leaves out and readers of the recording
// rest on: a misspelt column looks like one that is not there.
func (s *Sink) undescribed(d op.DeviceType) {
	if missing := Undescribed(d); len(missing) > 0 {
		s.Note(fmt.Sprintf("%s: its description has no %s: rows are not held against what is missing, nor can laws use it; a table of --devices may have such columns", d.Name, strings.Join(missing, ", ")))
	}
}

// Undescribed lists the columns of a table of devices whose figures a device type lacks, of
// those that laws are lent by.
func Undescribed(d op.DeviceType) (missing []string) {
	for _, f := range []struct {
		column string
		known  bool
	}{{"sm_count", d.Parallel > 1}, {"bf16_tflops", d.Sheet.BF16PerS > 0}, {"memory_gbytes_per_s", d.Sheet.MemoryPerS > 0}} {
		if !f.known {
			missing = append(missing, f.column)
		}
	}
	return missing
}

// Group declares a group signature and returns its name; declaring it again
// changes nothing.
func (s *Sink) Group(g op.GroupType) string {
	if !slices.ContainsFunc(s.groups, func(o op.GroupType) bool { return o.Name == g.Name }) {
		s.groups = append(s.groups, g)
	}
	return g.Name
}

// Drop counts a row that is not used. where is "file:line", or the nearest
// thing the format has.
func (s *Sink) Drop(where, reason string) {
	s.report.Rows++
	s.dropped(where, reason)
}

// maxReasons keeps a file whose every row fails in its own words from filling
// memory with them.
const maxReasons = 100

func (s *Sink) dropped(where, reason string) {
	at := func(reason string) int {
		return slices.IndexFunc(s.report.Dropped, func(d Drop) bool { return d.Reason == reason })
	}
	i := at(reason)
	if i < 0 && len(s.report.Dropped) >= maxReasons-1 {
		reason = "other reasons"
		i = at(reason)
	}
	if i < 0 {
		s.report.Dropped = append(s.report.Dropped, Drop{Reason: reason, Rows: 1, First: where})
		return
	}
	s.report.Dropped[i].Rows++
}

// maxFlags keeps a file that contradicts itself in every row from filling
// memory with saying so.
const maxFlags = 100

// Flag reports a contradiction; the same one is reported once, and those beyond
// maxFlags by their number.
func (s *Sink) Flag(where, what string) {
	flag := where + ": " + what
	switch {
	case slices.Contains(s.report.Flags, flag):
	case len(s.report.Flags) < maxFlags:
		s.report.Flags = append(s.report.Flags, flag)
	default:
		s.further++
	}
}

// Note adds something a reader of the recording should know, once.
func (s *Sink) Note(what string) {
	if what != "" && len(s.report.Notes) < maxFlags && !slices.Contains(s.report.Notes, what) {
		s.report.Notes = append(s.report.Notes, what)
	}
}

// Point takes one measured row: the seconds of one call of a shape on a
// declared device or group. A row that repeats another stays a row of its own.
// An invalid shape, a time that is no positive number, and a rate above the
// device's physical peak are dropped with the reason.
func (s *Sink) Point(where, on string, shape op.Shape, seconds ...float64) {
	s.report.Rows++
	if reason, value := s.implausible(on, shape, seconds); reason != "" {
		s.dropped(strings.TrimSuffix(where+": "+value, ": "), reason)
		return
	}
	s.report.Points++
	if s.write == nil || s.err != nil {
		return
	}
	p := profile.Imported(on, shape, seconds)
	if len(s.report.Files) > 1 {
		s.files.Observe(s.fileOf(where), p.Spot, stats.Median(seconds))
	}
	s.err = s.write(p)
}

// fileOf is the file that a place such as "file:line" is in.
func (s *Sink) fileOf(where string) string {
	for _, name := range s.report.Files {
		if strings.HasPrefix(where, name+":") {
			return name
		}
	}
	return "" // no format names a place otherwise
}

// flagFiles reports files that contradict each other. Their points are all in the recording,
// which does not tell them apart.
func (s *Sink) flagFiles() {
	for _, c := range s.files.Contradictions() {
		s.report.Flags = append(s.report.Flags, c.String()+": laws of both describe neither; import what holds alone")
	}
}

// ErrNothing says that no row of the sources could be used.
var ErrNothing = errors.New("no row could be used")

// Import reads the sources twice, first for the devices and groups that the
// header of a recording must list and then for the points, and writes the
// recording line by line.
//
// Errors: those of the format; where no row is left, what the first lacked that an option
// would say, else ErrNothing, with the report saying why; those of write; sources that
// changed between the two passes.
func Import(f Format, sources []Source, o Options, h profile.Header, write func(line any) error) (*Report, error) {
	first, err := pass(f, sources, o, nil)
	if err != nil {
		return nil, err
	}
	switch {
	case first.report.Points == 0 && first.unplaced != nil:
		return nil, first.unplaced
	case first.report.Points == 0:
		return &first.report, fmt.Errorf("%s: %w", names(sources), ErrNothing)
	}
	h.Backend = profile.ImportPrefix + f.Name
	h.Devices, h.Groups, h.Notes = first.devices, first.groups, first.report.Notes
	h.Fingerprint = fingerprint(h)
	if err := h.Validate(); err != nil {
		return &first.report, err
	}
	if err := write(h); err != nil {
		return nil, err
	}
	shapes := map[string]bool{}
	second, err := pass(f, sources, o, func(p *profile.Point) error {
		p.Key = p.Spot.Key(h.Fingerprint)
		if len(shapes) <= mostShapes {
			shapes[p.Key] = true
		}
		return write(p)
	})
	if err != nil {
		return nil, err
	}
	if len(shapes) <= mostShapes {
		second.report.Shapes = len(shapes)
	}
	if a, b := first.report, second.report; a.Rows != b.Rows || a.Points != b.Points || !slices.Equal(a.Devices, b.Devices) || !slices.Equal(a.Groups, b.Groups) {
		return nil, fmt.Errorf("%s: changed while it was read; import it again", names(sources))
	}
	return &second.report, nil
}

func pass(f Format, sources []Source, o Options, write func(*profile.Point) error) (*Sink, error) {
	s := &Sink{Options: o, write: write, best: map[string]*utilisation{}, products: map[string]string{}}
	s.report.Format = f.Name
	sources = slices.Clone(sources)
	for i, src := range sources {
		s.report.Files = append(s.report.Files, src.Name)
		sources[i] = plain(src, f.gzipped)
	}
	if err := f.Read(s, sources); err != nil {
		return nil, err
	}
	s.flagRates()
	s.flagFiles()
	if s.further > 0 {
		s.report.Flags = append(s.report.Flags, fmt.Sprintf("and %d more, which are not listed", s.further))
	}
	slices.SortStableFunc(s.report.Dropped, func(a, b Drop) int { return b.Rows - a.Rows })
	for _, d := range s.devices {
		s.report.Devices = append(s.report.Devices, d.Name)
	}
	for _, g := range s.groups {
		s.report.Groups = append(s.report.Groups, g.Name)
	}
	return s, s.err
}

func names(sources []Source) string {
	var all []string
	for _, s := range sources {
		all = append(all, s.Name)
	}
	return strings.Join(all, ", ")
}

// plain refuses to open what is not the file itself, told by its first bytes: read
// as it is, it looks like another tool's. That is what is compressed, unless the
// format undoes it, and what a clone without Git LFS has in place of a large file.
func plain(src Source, gzipped bool) Source {
	open := src.Open
	src.Open = func() (File, error) {
		file, err := open()
		if err != nil {
			return nil, err
		}
		start := make([]byte, len(lfsPointer))
		n, _ := file.ReadAt(start, 0)
		what := ""
		switch {
		case !gzipped && bytes.HasPrefix(start[:n], gzipMagic):
			what = "is compressed with gzip; decompress it first, such as with gunzip -k; only traces of the PyTorch profiler (--from kineto) are read as they are"
		case string(start[:n]) == lfsPointer:
			what = "is a pointer of Git LFS, not the file; fetch that with git lfs pull in its repository"
		default:
			return file, nil
		}
		_ = file.Close() // read only: nothing is lost
		return nil, fmt.Errorf("%s: %s", src.Name, what)
	}
	return src
}

// lfsPointer is how the pointers of Git LFS begin.
const lfsPointer = "version https://git-lfs"
