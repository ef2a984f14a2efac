package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progress shows how far a calibration is: a bar on a terminal, a plain line
// every few seconds elsewhere, nothing when quiet.
type progress struct {
	out     io.Writer
	quiet   bool
	bars    *mpb.Progress
	bar     *mpb.Bar
	status  string
	done    int
	failed  int
	last    time.Time
	data    *fit.Data // the points of this run
	error   string    // of a fit to them, on those set aside
	learnt  time.Time // when the last fit was done
	took    time.Duration
	fitted  int  // points that it was of
	untimed bool // what is left of the budget is no news
}

// plainEvery is the time between two lines where there is no terminal.
const plainEvery = 5 * time.Second

// lawsDone says every few seconds how many laws are done.
func (a *app) lawsDone() func(done, all int) {
	last := time.Now()
	return func(done, all int) {
		if now := time.Now(); now.Sub(last) >= plainEvery {
			last = now
			a.note("%d of %d laws are done", done, all)
		}
	}
}

func newProgress(out io.Writer, quiet bool, inv *profile.Inventory) *progress {
	p := &progress{out: out, quiet: quiet, data: fit.NewData()}
	p.data.Devices, p.data.Groups = inv.Devices, inv.Groups
	if f, ok := out.(*os.File); ok && !quiet && term.IsTerminal(int(f.Fd())) {
		p.bars = mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	}
	return p
}

// step takes one report of a calibration.
func (p *progress) step(r profile.Progress) {
	if r.Point != nil {
		if r.Point.OK() {
			p.done++
		} else {
			p.failed++
		}
	}
	if p.quiet {
		return
	}
	if r.Point != nil && r.Point.OK() {
		p.learn(r)
	}
	if p.untimed {
		r.Left = 0
	}
	p.status = status(r, p.failed) + p.error
	if p.bars != nil {
		p.draw(r)
		return
	}
	if now := time.Now(); now.Sub(p.last) >= plainEvery {
		p.last = now
		fmt.Fprintln(p.out, p.status)
	}
}

// learnEvery is the number of points between two fits, which take place between two
// points, so that they disturb none.
const learnEvery = 100

// learnShare is the most of the time that goes into them, for it is the budget's. A fit of
// a processor's laws takes 0.1 s; of a GPU's, with dozens of laws, seconds to a minute.
const learnShare = 0.05

// mayLearn says whether a fit takes little of the time since the last one and of what is
// left, going by the last one's time and the square of the points.
func (p *progress) mayLearn(now time.Time, left time.Duration) bool {
	if p.fitted == 0 {
		return true
	}
	more := float64(p.done) / float64(p.fitted)
	return p.took.Seconds()*more*more <= learnShare*min(now.Sub(p.learnt), left).Seconds()
}

// learn fits the points so far and notes the error on those set aside.
func (p *progress) learn(r profile.Progress) {
	p.data.Observe(r.Point)
	if p.done%learnEvery != 0 || !p.mayLearn(time.Now(), r.Left) {
		return
	}
	defer func(began time.Time) {
		p.learnt, p.took, p.fitted = time.Now(), time.Since(began), p.done
	}(time.Now())
	o := fit.Defaults()
	laws, err := fit.Fit(p.data, o)
	if err != nil {
		return // too few points yet
	}
	if r, err := fit.Check(laws, p.data, p.data.Held(o.Seed, o.Share), fit.DefaultLimits()); err == nil {
		p.error = fmt.Sprintf(", median error so far %s", units.Percent(r.MedianError()))
	}
}

func status(r profile.Progress, failed int) string {
	switch r.Phase {
	case "discovering":
		return "discovering this machine"
	case "piloting":
		return fmt.Sprintf("verifying and timing kernels %d/%d: %s on %s", r.Done+1, r.Total, r.Now.Op, r.Now.On)
	}
	s := fmt.Sprintf("measuring %d/%d: %s on %s", r.Done, r.Total, r.Now.Op, r.Now.On)
	if r.Left > 0 {
		s += fmt.Sprintf(", at most %s left", r.Left.Round(time.Second))
	}
	if failed > 0 {
		s += fmt.Sprintf(", %d failed", failed)
	}
	return s
}

// draw makes the bar when the number of points is known and moves it.
func (p *progress) draw(r profile.Progress) {
	if r.Phase != "measuring" || r.Total == 0 {
		return
	}
	if p.bar == nil {
		p.bar = p.bars.AddBar(int64(r.Total),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return p.status })),
			mpb.BarRemoveOnComplete())
	}
	p.bar.SetTotal(int64(r.Total), false) // it grows where points are chosen in rounds
	p.bar.SetCurrent(int64(r.Done))
}

func (p *progress) close() { closeBar(p.bars, p.bar) }

// closeBar removes a bar, if there is one yet, and waits until the terminal is clear. bars
// is nil where nothing is drawn.
func closeBar(bars *mpb.Progress, bar *mpb.Bar) {
	if bars == nil {
		return
	}
	if bar != nil {
		bar.Abort(true)
	}
	bars.Wait()
}
