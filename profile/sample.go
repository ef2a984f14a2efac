package profile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Protocol says how a point is sampled. It is stored in the recording.
type Protocol struct {
	MinSamples     int           `json:"min_samples"`
	MinSamplesLong int           `json:"min_samples_long"` // for calls longer than Long
	Long           units.Seconds `json:"long_s"`
	MaxSamples     int           `json:"max_samples"`
	Noise          float64       `json:"noise"`        // target half width of the median's notch, as a share of the median
	MinSample      units.Seconds `json:"min_sample_s"` // shorter calls are repeated within a sample until it lasts this long
	PointTime      units.Seconds `json:"point_time_s"` // time limit for the samples of one visit
	WaitLimit      float64       `json:"wait_limit"`   // a batch is discarded if its threads waited for a core for a larger share of it
	MaxDiscards    int           `json:"max_discards"` // throttled batches after which the point counts as throttled
}

// defaultProtocol samples a point for about `point` seconds per visit.
//
// The noise target and the numbers of samples are nvbench's, with its 10 samples split
// over two visits. The smaller minimum for long calls keeps one point from using up a
// small budget.
func defaultProtocol(point units.Seconds) Protocol {
	return Protocol{
		MinSamples: 5, MinSamplesLong: 3, Long: point / 4, MaxSamples: 200,
		Noise: 0.005, MinSample: 500e-6, PointTime: point,
		WaitLimit: 0.10, MaxDiscards: 20,
	}
}

// Validate reports the first rule out of range.
func (p Protocol) Validate() error {
	switch {
	case p.MinSamples < 1 || p.MinSamplesLong < 1 || p.MaxSamples < p.MinSamples:
		return fmt.Errorf("protocol: %d to %d samples (%d for long calls): want 1 <= min <= max", p.MinSamples, p.MaxSamples, p.MinSamplesLong)
	case !(p.Noise > 0) || !(p.PointTime > 0) || !(p.MinSample >= 0) || !(p.Long >= 0) || !(p.WaitLimit >= 0):
		return fmt.Errorf("protocol: noise, point_time must be positive, the other limits not negative")
	}
	return nil
}

// Stop is the reason why sampling of a point ended.
type Stop string

// The stopping rules, in the order in which they are tried.
const (
	StopNoise  Stop = "noise"  // the notch of the median is within the noise target
	StopSteady Stop = "steady" // the noise no longer changes (nvbench's rule)
	StopCount  Stop = "count"  // the maximum number of samples was taken
	StopTime   Stop = "time"   // the time for one point was up; its noise may be above the target
)

// sampling is the state of one point while it is sampled.
type sampling struct {
	times     []float64   // slowest rank, one entry a kept sample
	ranks     [][]float64 // [rank][sample]
	inner     int
	discarded int
	drops     int // throttled batches
	disturbed bool
	guard     Guard
	peak      units.Bytes
	stop      Stop

	size  units.Bytes // instead of times, of an op that measures bytes
	ratio float64     // and of one that measures a ratio
}

// gaugePoint measures an op whose quantity is not a time, once.
func gaugePoint(ctx context.Context, x Executor, s op.Shape, seed uint64, measures op.Quantity) (*sampling, error) {
	g, ok := x.(Gauge)
	if !ok {
		return nil, &OpError{Class: Unsupported, Err: fmt.Errorf("this backend measures no %s", measures)}
	}
	if err := x.Prepare(ctx, s, seed); err != nil {
		return nil, err
	}
	v, err := g.Gauge(ctx)
	if err != nil {
		return nil, err
	}
	if !(v > 0) || math.IsInf(v, 0) {
		return nil, &OpError{Class: Failed, Err: fmt.Errorf("the worker measured %v: want a positive number", v)}
	}
	if measures == op.Size {
		return &sampling{size: units.Bytes(v)}, nil
	}
	return &sampling{ratio: v}, nil
}

// longestPause is how long a throttled device is let cool at a time.
const longestPause = 2 * time.Second

// samplePoint warms a point up, samples it by the protocol, and says why it stopped.
// Without an error the set of samples is never empty.
func samplePoint(ctx context.Context, c Clock, x Executor, s op.Shape, seed uint64, p Protocol) (*sampling, error) {
	if err := x.Prepare(ctx, s, seed); err != nil {
		return nil, err
	}
	one, warm, err := warmUp(ctx, x)
	if err != nil {
		return nil, err
	}
	m := &sampling{inner: innerCalls(one, p)}
	if m.inner == 1 && !warm.Guard.Throttled && warm.Guard.WaitShare <= p.WaitLimit {
		m.keep(warm)
	}
	least := p.MinSamples
	if one > p.Long {
		least = p.MinSamplesLong
	}
	start := c.Now()
	pause := 50 * time.Millisecond
	for m.stop == "" {
		b, err := x.Run(ctx, m.inner, m.next(one, least, p))
		if err != nil {
			return nil, err
		}
		spent := units.Seconds(c.Now().Sub(start).Seconds())
		switch {
		case b.Guard.Throttled:
			if err := m.throttled(b, p); err != nil {
				return nil, err
			}
			if err := c.Sleep(ctx, pause); err != nil {
				return nil, err
			}
			pause = min(pause*3/2, longestPause)
		case b.Guard.WaitShare > p.WaitLimit && spent < p.PointTime:
			// Somebody else held the cores. Pausing does not make them leave, and a
			// budget spent on waiting measures nothing: samples are dropped for as
			// long as the point has time, then kept and marked.
			m.discarded += len(b.Slowest())
		default:
			m.disturbed = m.disturbed || b.Guard.WaitShare > p.WaitLimit
			m.keep(b)
			m.stop = m.finished(least, spent, p)
		}
	}
	return m, nil
}

// callsToWarm is how many calls warmUp makes.
const callsToWarm = 3

// warmUp makes three calls. The first pays for page faults and cold
// instructions and is not believed; the other two are returned, and estimate
// one call's time.
func warmUp(ctx context.Context, x Executor) (one units.Seconds, warm Batch, err error) {
	if _, err := x.Run(ctx, 1, 1); err != nil {
		return 0, warm, err
	}
	if warm, err = x.Run(ctx, 1, 2); err != nil {
		return 0, warm, err
	}
	t := warm.Slowest()
	if len(t) == 0 {
		return 0, warm, &OpError{Class: Crashed, Lost: true, Err: errors.New("the worker returned no samples")}
	}
	one = min(t[0], t[len(t)-1])
	if !(one > 0) || math.IsInf(float64(one), 0) {
		return 0, warm, &OpError{Class: Crashed, Lost: true, Err: fmt.Errorf("the worker returned a time of %v s", float64(one))}
	}
	return one, warm, nil
}

// innerCalls is how many calls make a sample long enough for the clock and the
// scheduler not to matter.
func innerCalls(one units.Seconds, p Protocol) int {
	return int(min(10000, max(1, math.Ceil(float64(p.MinSample/one)))))
}

// next is the size of the next batch: small enough that guards are read every
// 25 ms or so, never beyond what is still wanted.
func (m *sampling) next(one units.Seconds, least int, p Protocol) int {
	perBatch := int(max(1, 0.025/(float64(one)*float64(m.inner))))
	want := p.MaxSamples - len(m.times)
	if len(m.times) < least {
		want = least - len(m.times)
	}
	return max(1, min(perBatch, want, 32))
}

// throttled drops a batch that was taken while the hardware slowed itself
// down. Such samples are never kept: a point without others fails.
func (m *sampling) throttled(b Batch, p Protocol) error {
	m.discarded += len(b.Slowest())
	if m.drops++; m.drops > p.MaxDiscards {
		return &OpError{Class: Throttled, Err: fmt.Errorf("%d samples in a row were taken while the hardware slowed itself down; let it cool and run the same command again", m.discarded)}
	}
	return nil
}

func (m *sampling) keep(b Batch) {
	for _, t := range b.Slowest() {
		m.times = append(m.times, float64(t))
	}
	if m.ranks == nil {
		m.ranks = make([][]float64, len(b.Ranks))
	}
	for r, times := range b.Ranks {
		for _, t := range times {
			m.ranks[r] = append(m.ranks[r], float64(t))
		}
	}
	m.guard = m.guard.With(b.Guard)
	m.peak = max(m.peak, b.Peak)
}

// fewestSamples make a median; one call of a point may take longer than the
// whole time for it.
const fewestSamples = 3

func (m *sampling) finished(least int, spent units.Seconds, p Protocol) Stop {
	n := len(m.times)
	switch {
	case n < fewestSamples || n < least && spent < 4*p.PointTime:
		return ""
	case noise(m.times) <= p.Noise && n >= least:
		return StopNoise
	case steady(m.times):
		return StopSteady
	case n >= p.MaxSamples:
		return StopCount
	case spent >= p.PointTime:
		return StopTime
	}
	return ""
}

// noise is the half width of the median's notch relative to the median.
func noise(times []float64) float64 {
	if len(times) < 2 {
		return math.Inf(1)
	}
	return stats.NotchHalfWidth(times) / stats.Median(times)
}

// steady is nvbench's second rule in small: the noise of the last 64 samples,
// looked at every 16, varies by less than 5 %.
func steady(times []float64) bool {
	n := len(times)
	if n < 64 || n%16 != 0 {
		return false
	}
	var history []float64
	for k := n - 48; k <= n; k += 16 {
		history = append(history, stats.IQR(times[:k])/stats.Median(times[:k]))
	}
	mean, sq := 0.0, 0.0
	for _, h := range history {
		mean += h / float64(len(history))
	}
	for _, h := range history {
		sq += (h - mean) * (h - mean) / float64(len(history))
	}
	return mean > 0 && math.Sqrt(sq)/mean < 0.05
}
