package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/go-json-experiment/json"
)

// memory is an open source that lies in memory.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// inMemory is a source of a text.
func inMemory(name, text string) Source {
	return Source{Name: name, Size: int64(len(text)), Open: func() (File, error) { return memory{bytes.NewReader([]byte(text))}, nil }}
}

// onDisk is a source of a file.
func onDisk(t testing.TB, path string) Source {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return Source{Name: path, Size: info.Size(), Open: func() (File, error) { return os.Open(path) }}
}

// made is a recording that an import wrote, read back by the reader of
// recordings, which checks every line.
type made struct {
	report *Report
	header profile.Header
	points []profile.Point
}

// importInto runs an import as the command does and reads its result back.
func importInto(f Format, o Options, sources ...Source) (made, error) {
	var lines bytes.Buffer
	m := made{}
	var err error
	m.report, err = Import(f, sources, o, profile.Header{Schema: profile.RecordingSchema, Tool: "test", Created: "2026-01-01T00:00:00Z"}, func(line any) error {
		data, err := json.Marshal(line)
		lines.Write(append(data, '\n'))
		return err
	})
	if err != nil {
		return m, err
	}
	_, err = profile.Read("import", &lines, profile.Visitor{
		Header: func(h *profile.Header) error { m.header = *h; return nil },
		Point:  func(p *profile.Point) error { m.points = append(m.points, *p); return nil },
	})
	return m, err
}

// mustImport is importInto where nothing may fail.
func mustImport(t testing.TB, f Format, o Options, sources ...Source) made {
	t.Helper()
	m, err := importInto(f, o, sources...)
	if err != nil {
		t.Fatalf("%v\n%+v", err, m.report)
	}
	if m.report.Points != len(m.points) {
		t.Fatalf("the report says %d points, the recording holds %d", m.report.Points, len(m.points))
	}
	dropped := 0
	for _, d := range m.report.Dropped {
		dropped += d.Rows
	}
	if m.report.Rows != m.report.Points+dropped {
		t.Fatalf("%d rows are not %d points and %d dropped", m.report.Rows, m.report.Points, dropped)
	}
	return m
}

// dataFolder finds a folder of others' files, or skips the test; with CI=true a
// missing folder fails it.
func dataFolder(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("EVENKEEL_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	dir = filepath.Join(dir, name)
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the data is missing: %v; set EVENKEEL_DATA", err)
		}
		t.Skipf("the data is missing: %v; set EVENKEEL_DATA to its folder", err)
	}
	return dir
}

// reasons lists the drops of a report as "rows reason".
func (r *Report) reasons() []string {
	var all []string
	for _, d := range r.Dropped {
		all = append(all, fmt.Sprintf("%d %s", d.Rows, d.Reason))
	}
	return all
}

// one is a format whose reader is a function.
func one(read func(*Sink) error) Format {
	return Format{Name: "test", Read: func(s *Sink, _ []Source) error { return read(s) }}
}

func h100(t testing.TB) Model {
	t.Helper()
	m, ok := Options{}.model("h100_sxm")
	if !ok {
		t.Fatal("h100_sxm is not known")
	}
	return m
}

func TestImportCountsEveryRow(t *testing.T) {
	g := op.GEMM{Pass: op.Forward, M: 1024, N: 1024, K: 1024, DType: op.BF16}
	m := mustImport(t, one(func(s *Sink) error {
		d := h100(t).Of("lib-1")
		s.Device(d)
		s.Device(d)
		s.Point("f:1", d.Name, g, 1e-3)
		s.Point("f:2", d.Name, g, 1e-3) // a repeat stays a row
		s.Point("f:3", d.Name, g, math.NaN())
		s.Point("f:4", d.Name, g, -1)
		s.Point("f:5", d.Name, g, math.Inf(1))
		s.Point("f:6", d.Name, g, 2e6)
		s.Point("f:7", d.Name, g)
		s.Point("f:8", d.Name, op.GEMM{Pass: op.Forward, N: 1, K: 1, DType: op.BF16}, 1)
		s.Point("f:9", d.Name, g, 1e-300)
		s.Drop("f:10", "mine")
		s.Note("once")
		s.Note("once")
		s.Note("")
		return nil
	}), Options{})
	want := []string{
		"3 a time that is no positive number", "1 a time of more than a day; is its unit another?", "1 no time",
		"1 the shape's m is not possible", "1 a time of less than a picosecond; is its unit another?", "1 mine",
	}
	if got := m.report.reasons(); !slices.Equal(got, want) || m.report.Rows != 10 || m.report.Points != 2 {
		t.Errorf("%d rows, %d points, %q, want %q", m.report.Rows, m.report.Points, got, want)
	}
	if first := m.report.Dropped[0].First; first != "f:3: NaN s" {
		t.Errorf("first %q", first)
	}
	if len(m.header.Devices) != 1 || len(m.header.Notes) != 1 || m.header.Backend != "import:test" {
		t.Errorf("header %+v", m.header)
	}
	if m.points[0].Key == "" || m.points[0].Key != m.points[1].Key {
		t.Errorf("keys %q and %q of one point", m.points[0].Key, m.points[1].Key)
	}
}

// A peak is what no row may beat, with a few percent for the board's clock.
func TestRatesAbovePhysicalPeaksAreDroppedAndFlagged(t *testing.T) {
	m := h100(t)
	d := m.Of("x")
	gemm := op.GEMM{Pass: op.Forward, M: 8192, N: 8192, K: 8192, DType: op.BF16}
	atPeak := float64(gemm.Work().FLOPs) / m.Sheet.BF16PerS
	group := func(model Model, n, nodes int, link string) op.GroupType {
		return op.NewGroupType([]op.Member{{Device: model.Of("x").Name, Count: n}}, nodes, link)
	}
	const size = 1 << 30
	wire := 7.0 / 8 * size / m.Sheet.LinkPerS // of an all_gather over 8 at the links' rate
	gather := op.AllGather{Message: op.Message{Group: 8, Bytes: size}}
	reduce := op.AllReduce{Message: op.Message{Group: 8, Bytes: size}}
	norm := op.Norm{Rowwise: op.Rowwise{Tokens: 1 << 16, Width: 1 << 14, DType: op.BF16}} // 4 GB read and written
	for _, c := range []struct {
		name    string
		on      op.GroupType
		shape   op.Shape
		seconds float64
		want    string
	}{
		{"at peak", op.GroupType{}, gemm, atPeak, ""},
		{"clocked 4 % beyond", op.GroupType{}, gemm, atPeak / 1.04, ""},
		{"10 % beyond", op.GroupType{}, gemm, atPeak / 1.1, tooFast},
		{"fp8 has another peak", op.GroupType{}, op.GEMM{Pass: op.Forward, M: 8192, N: 8192, K: 8192, DType: op.FP8}, atPeak / 1.9, ""},
		{"links full", group(m, 8, 1, "nvlink"), gather, wire, ""},
		{"links beyond", group(m, 8, 1, "nvlink"), gather, wire / 1.2, tooMuchLink},
		{"a switch that adds up has the buffer sent once", group(m, 8, 1, "nvlink"), reduce, size / m.Sheet.LinkPerS, ""},
		{"not even a switch", group(m, 8, 1, "nvlink"), reduce, size / m.Sheet.LinkPerS / 1.1, tooMuchLink},
		{"another link than the sheet's", group(m, 8, 1, "pcie"), gather, wire / 1.2, ""},
		{"links and a network", group(m, 8, 2, "nvlink"), gather, wire / 1.14, ""},
		{"more than links and the host's bus", group(m, 8, 2, "nvlink"), gather, wire / 1.25, tooMuchLink},
		{"another link, in another unit", group(m, 8, 1, "pcie"), gather, wire / 1000, tooMuchLink},
		{"a network, in another unit", group(m, 8, 2, "net"), gather, wire / 1000, tooMuchLink},
		{"a copy at the rate of PCIe", op.GroupType{}, op.H2D{Copy: op.Copy{Bytes: size}}, size / m.Sheet.HostPerS, ""},
		{"a copy beyond it", op.GroupType{}, op.D2H{Copy: op.Copy{Bytes: size}}, size / m.Sheet.HostPerS / 1.2, tooMuchLink},
		{"a norm half of which is cached", op.GroupType{}, norm, float64(norm.Work().Bytes()) / m.Sheet.MemoryPerS / 2, ""},
		{"a norm in another unit", op.GroupType{}, norm, float64(norm.Work().Bytes()) / m.Sheet.MemoryPerS / 500, tooMuchMemory},
		{"a small norm, all of it cached", op.GroupType{}, op.Norm{Rowwise: op.Rowwise{Tokens: 64, Width: 1024, DType: op.BF16}}, 1e-9, ""},
	} {
		f := one(func(s *Sink) error {
			s.Device(d)
			on := d.Name
			if c.on.Name != "" {
				on = s.Group(c.on)
			}
			s.Point("f:1", on, c.shape, c.seconds)
			return nil
		})
		got, err := importInto(f, Options{})
		dropped := ""
		if len(got.report.Dropped) > 0 {
			dropped = got.report.Dropped[0].Reason
		}
		if dropped != c.want || (c.want == "") != (err == nil) || c.want != "" && !errors.Is(err, ErrNothing) {
			t.Errorf("%s: dropped for %q, %v; want %q", c.name, dropped, err, c.want)
		}
		if (c.want != "") != (len(got.report.Flags) == 1) {
			t.Errorf("%s: flags %q", c.name, got.report.Flags)
		}
	}
}

// A board that is sold clocked beyond its datasheet is no contradiction.
func TestHeadroomOfBoards(t *testing.T) {
	m, _ := Options{}.model("rtx_4090")
	g := op.GEMM{Pass: op.Forward, M: 8192, N: 8192, K: 8192, DType: op.F16}
	for share, want := range map[float64]int{1.1: 1, 1.25: 1, 1.5: 0} {
		got, _ := importInto(one(func(s *Sink) error {
			s.Device(m.Of("x"))
			s.Point("f:1", m.Of("x").Name, g, float64(g.Work().FLOPs)/m.Sheet.BF16PerS/share)
			return nil
		}), Options{})
		if got.report.Points != want {
			t.Errorf("%g of the peak: %d points, want %d", share, got.report.Points, want)
		}
	}
}

// Times that are a thousand times too long show only together.
func TestTimesInAnotherUnitAreFlagged(t *testing.T) {
	m := h100(t)
	for slow, want := range map[float64]int{1.5: 0, 1500: 1} {
		got := mustImport(t, one(func(s *Sink) error {
			d := m.Of("x")
			s.Device(d)
			for n := range 5 {
				g := op.GEMM{Pass: op.Forward, M: 16384, N: 16384, K: 4096 * (n + 1), DType: op.BF16}
				s.Point("f", d.Name, g, slow*float64(g.Work().FLOPs)/m.Sheet.BF16PerS)
			}
			return nil
		}), Options{})
		if len(got.report.Flags) != want || want > 0 && !strings.Contains(got.report.Flags[0], "is the unit of its times another?") {
			t.Errorf("%g times as slow: flags %q", slow, got.report.Flags)
		}
		// So do those of collectives, where the links' rate is known.
		for link, flags := range map[string]int{m.Fabric: want, "bridge": 0} {
			got := mustImport(t, one(func(s *Sink) error {
				d := m.Of("x")
				s.Device(d)
				group := s.Group(op.NewGroupType([]op.Member{{Device: d.Name, Count: 8}}, 1, link))
				for n := range 5 {
					c := op.AllGather{Message: op.Message{Group: 8, Bytes: 256 << (20 + n), DType: op.BF16}}
					s.Point("f", group, c, slow*float64(c.Work().Wire)/m.Sheet.LinkPerS)
				}
				return nil
			}), Options{})
			if len(got.report.Flags) != flags || flags > 0 && !strings.Contains(got.report.Flags[0], "large rows of all_gather on 8 h100_sxm/x over nvlink reaches 0.067 %") {
				t.Errorf("all_gather over %s, %g times as slow: flags %q", link, slow, got.report.Flags)
			}
		}
	}
}

// Those of collectives between nodes go by the network of a usual server, which may be a
// slower one, those of copies and of ops that stream by their own links.
func TestTimesOfBytesInAnotherUnitAreFlagged(t *testing.T) {
	m := h100(t)
	d := m.Of("x")
	net := op.NewGroupType([]op.Member{{Device: d.Name, Count: 16}}, 2, "ethernet")
	for name, c := range map[string]struct {
		on    string
		shape func(n int) op.Shape
		rate  float64 // of the bytes on the wire, or in memory
	}{
		"over 10 Gbit/s": {net.Name, func(n int) op.Shape {
			return op.AllGather{Message: op.Message{Group: 16, Bytes: units.Bytes(n) << 28}}
		}, 1.25e9},
		"to the device": {d.Name, func(n int) op.Shape { return op.H2D{Copy: op.Copy{Bytes: units.Bytes(n) << 26}} }, 5e10},
		"through its memory": {d.Name, func(n int) op.Shape {
			return op.Norm{Rowwise: op.Rowwise{Tokens: units.Tokens(n) << 16, Width: 1 << 14, DType: op.BF16}}
		}, 2e12},
	} {
		for slow, want := range map[float64]int{1: 0, 1000: 1} {
			got := mustImport(t, one(func(s *Sink) error {
				s.Device(d)
				s.Group(net)
				for n := 1; n <= 4; n++ {
					s.Point("f", c.on, c.shape(n), slow*float64(op.Volume(c.shape(n)))/c.rate)
				}
				return nil
			}), Options{})
			if len(got.report.Flags) != want || want > 0 && !strings.Contains(got.report.Flags[0], "is the unit of its times another?") {
				t.Errorf("%s, %g times as slow: flags %q", name, slow, got.report.Flags)
			}
		}
	}
}

func TestReportsDoNotGrow(t *testing.T) {
	g := op.GEMM{Pass: op.Forward, M: 1024, N: 1024, K: 1024, DType: op.BF16}
	m := mustImport(t, one(func(s *Sink) error {
		d := h100(t).Of("")
		s.Device(d)
		s.Point("f:1", d.Name, g, 1)
		for i := range 100_000 {
			s.Drop("f", fmt.Sprintf("reason %d", i))
			s.Flag("f", fmt.Sprintf("flag %d", i))
			s.Note(fmt.Sprintf("note %d", i))
		}
		return nil
	}), Options{})
	if len(m.report.Dropped) > maxReasons || len(m.report.Flags) != maxFlags+1 || len(m.report.Notes) > maxFlags {
		t.Errorf("%d reasons, %d flags, %d notes", len(m.report.Dropped), len(m.report.Flags), len(m.report.Notes))
	}
	if last := m.report.Flags[maxFlags]; last != "and 99900 more, which are not listed" {
		t.Errorf("the last flag is %q", last)
	}
	if d := m.report.Dropped[0]; d.Reason != "other reasons" || d.Rows != 100_000-maxReasons+1 {
		t.Errorf("most frequent: %+v", d)
	}
}

func TestImportErrors(t *testing.T) {
	broken := errors.New("broken")
	if _, err := importInto(one(func(*Sink) error { return broken }), Options{}); err != broken {
		t.Errorf("the format's error: %v", err)
	}
	m, err := importInto(one(func(s *Sink) error { s.Drop("f:1", "no"); return nil }), Options{}, inMemory("a.csv", ""), inMemory("b.csv", ""))
	if !errors.Is(err, ErrNothing) || err.Error() != "a.csv, b.csv: no row could be used" || m.report.Rows != 1 {
		t.Errorf("nothing: %v, %+v", err, m.report)
	}
	full := errors.New("disk full")
	f := one(func(s *Sink) error {
		d := h100(t).Of("")
		s.Device(d)
		s.Point("f:1", d.Name, op.GEMM{Pass: op.Forward, M: 1, N: 1, K: 1, DType: op.BF16}, 1)
		return nil
	})
	lines := 0
	_, err = Import(f, nil, Options{}, profile.Header{}, func(any) error {
		if lines++; lines > 1 {
			return full
		}
		return nil
	})
	if err != full {
		t.Errorf("a full disk: %v", err)
	}
}

func TestFormatsAreNamedAndFound(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Formats() {
		if f.Name == "" || f.Doc == "" || f.Read == nil || seen[f.Name] {
			t.Errorf("format %q", f.Name)
		}
		seen[f.Name] = true
		if got, err := Lookup(f.Name); err != nil || got.Name != f.Name {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
	if _, err := Lookup("xlsx"); err == nil || !strings.Contains(err.Error(), `unknown format "xlsx"; the formats are table, `) {
		t.Error(err)
	}
}

// endlessTable gives a header and then n rows without ever holding them.
type endlessTable struct {
	head, row string
	rows      int
	rest      string
}

func (e *endlessTable) Read(p []byte) (int, error) {
	if e.rest == "" {
		switch {
		case e.head != "":
			e.rest, e.head = e.head, ""
		case e.rows == 0:
			return 0, io.EOF
		default:
			e.rest = e.row
			e.rows--
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func (*endlessTable) ReadAt([]byte, int64) (int, error) { return 0, errors.ErrUnsupported }
func (*endlessTable) Close() error                      { return nil }

// Memory does not grow with a file: 100,000 rows hold no more than 2,000.
func TestMemoryDoesNotGrowWithTheFile(t *testing.T) {
	peak := func(rows int) uint64 {
		src := Source{Name: "long.csv", Open: func() (File, error) {
			return &endlessTable{head: "gpu,dtype,m,n,k,latency_us\n", row: "h100_sxm,bf16,4096,4096,4096,300\n", rows: rows}, nil
		}}
		most := uint64(0)
		count := 0
		f, _ := Lookup("table")
		runtime.GC()
		report, err := Import(f, []Source{src}, Options{}, profile.Header{}, func(any) error {
			if count++; count%(rows/10) == 0 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
			return nil
		})
		if err != nil || report.Points != rows {
			t.Fatal(report, err)
		}
		return most
	}
	few, many := peak(2_000), peak(100_000)
	if many > few+1<<20 {
		t.Errorf("%d bytes in use with 2,000 rows, %d with 100,000", few, many)
	}
}

// A file that another process is still writing gives no recording whose header
// and points are of different files.
func TestSourcesThatChangeAreNoticed(t *testing.T) {
	const head = "gpu,framework,dtype,m,n,k,latency_us\n"
	for _, second := range []string{
		"l4,a,bf16,64,64,64,9\nl4,a,bf16,64,64,64,9\n", "l4,b,bf16,64,64,64,9\n", "l4,a,bf16,64,64,64,-9\n",
	} {
		opened := 0
		src := Source{Name: "a.csv", Open: func() (File, error) {
			text := head + "l4,a,bf16,64,64,64,9\n"
			if opened++; opened > 1 {
				text = head + second
			}
			return memory{bytes.NewReader([]byte(text))}, nil
		}}
		_, err := Import(tableFormat(), []Source{src}, Options{}, profile.Header{}, func(any) error { return nil })
		if err == nil || err.Error() != "a.csv: changed while it was read; import it again" {
			t.Errorf("%q: %v", second, err)
		}
	}
}

// What a source says when it is opened, read or closed is not swallowed.
func TestSourceErrors(t *testing.T) {
	torn := errors.New("input/output error")
	for name, src := range map[string]Source{
		"open":  {Name: "a", Open: func() (File, error) { return nil, torn }},
		"read":  {Name: "a", Open: func() (File, error) { return failing{read: torn}, nil }},
		"close": {Name: "a", Open: func() (File, error) { return failing{close: torn}, nil }},
	} {
		for _, f := range []Format{tableFormat(), aiconfiguratorFormat(), vidurFormat(), galvatronFormat()} {
			if _, err := importInto(f, Options{}, src); err == nil || name != "close" && !strings.Contains(err.Error(), torn.Error()) {
				t.Errorf("%s, %s: %v", f.Name, name, err)
			}
		}
	}
}

type failing struct{ read, close error }

func (f failing) Read([]byte) (int, error) {
	if f.read != nil {
		return 0, f.read
	}
	return 0, io.EOF
}

func (f failing) ReadAt([]byte, int64) (int, error) { return f.Read(nil) }
func (f failing) Close() error                      { return f.close }

// Rows that repeat a shape on the same place are points of their own; fit makes one of them.
func TestShapesAreCounted(t *testing.T) {
	m := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", "gpu,dtype,m,n,k,latency_us\n"+
		"h100_sxm,bf16,64,64,64,9\nh100_sxm,bf16,64,64,64,10\nh100_sxm,bf16,128,64,64,9\na100_sxm,bf16,64,64,64,9\n"))
	if m.report.Points != 4 || m.report.Shapes != 3 {
		t.Errorf("%+v", m.report)
	}
}

// So many shapes that counting them takes more memory than an import may are not counted, and
// not said to be as many as were kept.
func TestMoreShapesThanAreKeptAreNotCounted(t *testing.T) {
	for points, want := range map[int]int{mostShapes: mostShapes, mostShapes + 1: 0} {
		report, err := Import(one(func(s *Sink) error {
			d := h100(t).Of("")
			s.Device(d)
			for i := range points {
				s.Point("f", d.Name, op.GEMM{Pass: op.Forward, M: units.Tokens(1 + i), N: 1024, K: 1024, DType: op.BF16}, 1)
			}
			return nil
		}), nil, Options{}, profile.Header{Schema: profile.RecordingSchema, Tool: "test", Created: "2026-01-01T00:00:00Z"}, func(any) error { return nil })
		if err != nil || report.Points != points || report.Shapes != want {
			t.Fatalf("%d points: %+v, %v, want %d shapes", points, report, err, want)
		}
	}
}

func BenchmarkImportTable(b *testing.B) {
	const rows = 10_000
	src := Source{Name: "long.csv", Open: func() (File, error) {
		return &endlessTable{head: attentionHead, row: "h100_sxm,vllm,0.24.0,vllm_flash_attn_fa3,bf16,bf16,2,6144,6144,64,8,64,0,1,1531.104\n", rows: rows}, nil
	}}
	b.ReportAllocs()
	for b.Loop() {
		report, err := Import(tableFormat(), []Source{src}, Options{}, profile.Header{}, func(any) error { return nil })
		if err != nil || report.Points != rows {
			b.Fatal(report, err)
		}
	}
	b.ReportMetric(float64(b.N)*rows/b.Elapsed().Seconds(), "rows/s")
}

// A compressed file is said to be one, whole or torn, by every format that does not
// decompress it.
func TestGzipIsNamed(t *testing.T) {
	packed := gzipped(strings.Repeat("# nThread 1 nGpus 8\n", 1000))
	for _, f := range Formats() {
		for _, text := range []string{packed, packed[:40], packed[:2]} {
			_, err := importInto(f, Options{Device: "h100_sxm"}, inMemory("a.log.gz", text))
			named := err != nil && strings.HasPrefix(err.Error(), "a.log.gz: is compressed with gzip; decompress it first, such as with gunzip -k")
			if err == nil || named == (f.Name == "kineto") {
				t.Errorf("%s: %v", f.Name, err)
			}
		}
	}
}

// What a clone without Git LFS has in place of a table is not called a table of
// unknown columns.
func TestImportPointerOfLFS(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nsize 4096\n"
	for _, f := range Formats() {
		_, err := importInto(f, Options{Device: "h100_sxm"}, inMemory("a.parquet", pointer))
		if want := "a.parquet: is a pointer of Git LFS, not the file; fetch that with git lfs pull"; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}

// Files that disagree about the rows that they share are flagged by their names; repeats in
// one file are its own, and of files that agree nothing is said.
func TestFilesThatContradictAreFlagged(t *testing.T) {
	table := func(factors ...float64) string {
		text := "gpu,framework,version,dtype,m,n,k,latency_us\n"
		for _, f := range factors {
			for i := range 6 {
				text += fmt.Sprintf("b200_sxm,trtllm,1.0,bf16,%d,4096,4096,%g\n", 256<<i, f*100*float64(i+1))
			}
		}
		return text
	}
	for _, c := range []struct {
		name  string
		files []string
		want  []string
	}{
		{"twice as long", []string{table(1), table(2)}, []string{"a.csv and a.csv.b contradict each other: in the second gemm on b200_sxm/trtllm-1.0 takes typically 2 times as long (6 points): laws of both describe neither; import what holds alone"}},
		{"in one file", []string{table(1, 2), "gpu,framework,version,dtype,m,n,k,latency_us\nb200_sxm,trtllm,1.0,bf16,300,4096,4096,200\n"}, nil},
		{"a fifth slower", []string{table(1), table(1.2)}, nil},
	} {
		m := mustImport(t, tableFormat(), Options{}, inMemory("a.csv", c.files[0]), inMemory("a.csv.b", c.files[1]))
		if !slices.Equal(m.report.Flags, c.want) {
			t.Errorf("%s: %q, want %q", c.name, m.report.Flags, c.want)
		}
	}
}
