package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// reading shows how far an import is: a bar on a terminal, a plain line every
// few seconds elsewhere, nothing when quiet.
type reading struct {
	out   io.Writer
	quiet bool
	total int64 // bytes of both passes
	done  int64
	last  time.Time
	bars  *mpb.Progress
	bar   *mpb.Bar
}

func newReading(out io.Writer, quiet bool) *reading {
	r := &reading{out: out, quiet: quiet, last: time.Now()}
	if f, ok := out.(*os.File); ok && !quiet && term.IsTerminal(int(f.Fd())) {
		r.bars = mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	}
	return r
}

// expect counts a file in, which is read twice.
func (r *reading) expect(size int64) { r.total += 2 * size }

func (r *reading) add(name string, n int) {
	r.done += int64(n)
	now := time.Now()
	switch {
	case r.quiet:
	case r.bars != nil:
		if r.bar == nil {
			r.bar = r.bars.AddBar(r.total, mpb.PrependDecorators(decor.CountersKibiByte("% .0f/% .0f")), mpb.BarRemoveOnComplete())
		}
		r.bar.SetCurrent(r.done)
	case now.Sub(r.last) >= plainEvery:
		r.last = now
		fmt.Fprintf(r.out, "reading %s, %d %% done\n", name, min(99, 100*r.done/max(1, r.total)))
	}
}

func (r *reading) close() { closeBar(r.bars, r.bar) }

// readFile is an open file that tells how far it has been read, and that ends
// when the user interrupts.
type readFile struct {
	*os.File
	ctx   context.Context
	shown *reading
}

// Read implements importer.File.
func (f *readFile) Read(p []byte) (int, error) {
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := f.File.Read(p)
	f.shown.add(f.Name(), n)
	return n, err
}

// ReadAt implements importer.File.
func (f *readFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := f.File.ReadAt(p, off)
	f.shown.add(f.Name(), n)
	return n, err
}
