package importer

import (
	"io"
	"runtime"
	"strings"
	"testing"
)

// FuzzNCCLTests imports any text: the import ends, every row is counted once,
// and what comes out is valid.
func FuzzNCCLTests(f *testing.F) {
	l := written("all_reduce", 8)
	f.Add(l.sample() + "# Avg bus bandwidth    : 184.033\n")
	f.Add("[1,0]<stdout>:" + strings.ReplaceAll(written("alltoall", 8).sample(), "\n", "\n[1,0]<stdout>:"))
	f.Add("# rccl-tests version 2.17.9-develop:2596ca5f71 rccl-headers=22803 rccl-library=22707\n" + l.sample() + l.row(1<<20, 40)[:60])
	f.Add("#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n 1048576  262144   float     sum    0.040  26.21  26.21    1e-07    0.041  25.58  25.58    1e-07\n")
	f.Add("# Collective test starting: sendrecv_perf\n" + l.head() + l.row(1<<20, 1e-9, 1e30) + "x\r4 1 float 1 1 1 0 1 1 1 N/A\n...\nTest NCCL failure\n")
	f.Add(jsonLog("all_reduce_perf", jsonConfig, l.jsonRows(), jsonTail))
	f.Add(jsonLog("sendrecv_perf_mpi", jsonDevices(8, 4, 4), l.jsonRow(8, 0, -1), `,"average_bus_bandwidith":{"bandwidith":"nan"}}{`))
	f.Fuzz(func(t *testing.T, log string) {
		o := Options{Device: "h100_sxm", Ranks: 8, Collective: "all_reduce", Link: "nvlink"}
		got, err := ncclImport(ncclTestsFormat(), o, ncclLog(log))
		if got.report == nil {
			if err == nil {
				t.Fatal("neither a report nor an error")
			}
			return
		}
		dropped := 0
		for _, d := range got.report.Dropped {
			dropped += d.Rows
		}
		if got.report.Points+dropped != got.report.Rows || err == nil && len(got.points) != got.report.Points {
			t.Errorf("%d points, %d dropped of %d rows, %d written", got.report.Points, dropped, got.report.Rows, len(got.points))
		}
		for _, p := range got.points {
			if err := p.Validate(); err != nil {
				t.Errorf("%+v: %v", p, err)
			}
			if err := p.Shape.Validate(); err != nil {
				t.Errorf("%+v: %v", p, err)
			}
		}
	})
}

// endless is a file made of a head and then the same row again and again.
type endless struct {
	head, row string
	rows, at  int
	rest      string
	peak      *uint64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.at > e.rows {
		return 0, io.EOF
	}
	if e.rest != "" {
		n := copy(p, e.rest)
		e.rest = e.rest[n:]
		return n, nil
	}
	e.rest = e.row
	if e.at == 0 {
		e.rest = e.head
	}
	e.at++
	if e.at%5000 == 0 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		*e.peak = max(*e.peak, m.HeapAlloc)
	}
	return e.Read(p)
}

func (*endless) ReadAt([]byte, int64) (int, error) { return 0, io.ErrUnexpectedEOF }
func (*endless) Close() error                      { return nil }

// Memory does not grow with the file: neither with rows, nor with tables, nor
// with a line without end.
func TestNCCLMemory(t *testing.T) {
	l := written("all_reduce", 8)
	row := l.row(1<<20, 40, 41)
	for name, e := range map[string]endless{
		"rows":     {head: l.sample(), row: row, rows: 20000},
		"bad rows": {head: l.sample(), row: row[:60] + "\n", rows: 20000},
		"tables":   {head: l.sample(), row: l.sample(), rows: 5000},
		"JSON":     {head: strings.TrimSuffix(jsonLog("all_reduce_perf", jsonConfig, l.jsonRows(), ""), "]"), row: "," + l.jsonRow(1<<20, 40, 41), rows: 20000},
		"line":     {head: l.sample(), row: strings.Repeat("x", 4000), rows: 20000},
	} {
		t.Run(name, func(t *testing.T) {
			var before runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			peak := before.HeapAlloc
			src := Source{Name: "endless", Open: func() (File, error) {
				f := e
				f.peak = &peak
				return &f, nil
			}}
			s := &Sink{best: map[string]*utilisation{}}
			if err := readNCCLTests(s, []Source{src}); err != nil {
				t.Fatal(err)
			}
			if grown := int64(peak) - int64(before.HeapAlloc); grown > 8<<20 {
				t.Errorf("the heap grew by %d bytes over %d rows", grown, s.report.Rows)
			}
		})
	}
}

// Most lines of a job with NCCL_DEBUG=INFO are the library's, before the table and behind it,
// with a launcher's tag or without.
func BenchmarkNCCLInfo(b *testing.B) {
	info := "host0:100:100 [0] NCCL INFO comm 0x1 rank 3 nranks 8 cudaDev 3 busId 11000 - Init COMPLETE\n"
	table := written("all_reduce", 8).sample()
	for _, c := range []struct{ name, log string }{
		{"before", strings.Repeat(info, 10000) + table},
		{"behind", table + strings.Repeat(info, 10000)},
		{"tagged", strings.Repeat("[1,0]<stdout>:"+info, 10000) + table},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.log)))
			for b.Loop() {
				if _, err := ncclImport(ncclTestsFormat(), Options{}, ncclLog(c.log)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
