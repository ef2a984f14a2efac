package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/profile/backend/child"
	"github.com/go-json-experiment/json"
)

// run is the ranks of this task while they work.
type run struct {
	config  *Config
	backend string
	mode    string
	folder  string
	host    string
	port    int
	ranks   []*member
	heard   chan word
	failed  []failure // in order of time
}

// member is one rank and what it has said.
type member struct {
	seat
	process *child.Process
	begun   time.Time
	spoke   time.Time
	moved   time.Time
	at      position
	hello   *frame
	result  *frame
	refused bool // it said an error
	ended   bool
}

// word is a line from a rank, or its end.
type word struct {
	from int // index into ranks
	line []byte
	end  error
}

// failure is why a rank cannot go on.
type failure struct {
	of     int // index into ranks
	weight int // of how much it explains, least first
	text   string
}

// The weights of failures: a process that ended and a reasoned refusal explain
// why others lost their peer or waited for it.
const (
	weightEnded = iota
	weightError
	weightStill
	weightPeer
)

func newRun(c *Config, seats []seat, backend, mode, folder string) *run {
	r := &run{config: c, backend: backend, mode: mode, folder: folder, heard: make(chan word, 64)}
	for _, s := range seats {
		r.ranks = append(r.ranks, &member{seat: s})
	}
	return r
}

// do starts the ranks and returns when all of them have ended.
func (r *run) do(ctx context.Context) error {
	if err := r.meetingPoint(ctx); err != nil {
		return err
	}
	defer r.stop()
	if r.doubtful() {
		if err := r.startFrom(0, 1); err != nil {
			return err
		}
		if err := r.watch(ctx, func() bool { return len(r.failed) == 0 && r.ranks[0].hello != nil }); err != nil {
			return err
		}
		if err := r.startFrom(1, len(r.ranks)); err != nil {
			return err
		}
	} else if err := r.startFrom(0, len(r.ranks)); err != nil {
		return err
	}
	return r.watch(ctx, r.done)
}

// doubtful says that the ranks want GPUs and nobody knows of any here. There may be some
// that NVML does not list, so the first rank finds out for all: as many as a plan has take
// minutes to start, and each then says that there is none.
func (r *run) doubtful() bool { return r.mode != ModeCPU && r.config.Machine.GPUs == 0 }

func (r *run) startFrom(from, to int) error {
	for i := from; i < to; i++ {
		if err := r.start(i); err != nil {
			return fmt.Errorf("%s does not start: %w", r.name(i), err)
		}
	}
	return nil
}

func (r *run) start(i int) error {
	m := r.ranks[i]
	line, err := json.Marshal(r.request(m.seat))
	if err != nil {
		return err
	}
	m.process, err = child.Talk(r.command(m.seat), maxFrame, func(line []byte, end error) { r.heard <- word{i, line, end} })
	if err != nil {
		m.process = nil
		return err
	}
	m.begun = time.Now()
	m.spoke, m.moved = m.begun, m.begun
	go m.process.Send(line) //nolint:errcheck // a rank that does not read it shows in what is heard
	return nil
}

func (r *run) name(i int) string {
	return fmt.Sprintf("rank %d (%s)", r.ranks[i].rank, r.ranks[i].device)
}

// glance is how often the clock is looked at.
const glance = 100 * time.Millisecond

// watch hears the ranks that were started until enough of them have said what they had to.
func (r *run) watch(ctx context.Context, enough func() bool) error {
	clock := time.NewTicker(glance)
	defer clock.Stop()
	var over <-chan time.Time
	for !enough() {
		select {
		case w := <-r.heard:
			r.hear(w)
		case now := <-clock.C:
			r.standing(now)
		case <-over:
			return r.cause()
		case <-ctx.Done():
			return fmt.Errorf("interrupted; all ranks were stopped and no trace was written: %w", context.Cause(ctx))
		}
		if len(r.failed) > 0 && over == nil {
			over = time.After(r.config.grace)
		}
		if len(r.failed) > 0 && r.settled() {
			return r.cause()
		}
	}
	return nil
}

// done: every rank has given its result.
func (r *run) done() bool {
	return len(r.failed) == 0 && !slices.ContainsFunc(r.ranks, func(m *member) bool { return m.result == nil })
}

// settled: nobody has anything left to say.
func (r *run) settled() bool {
	return !slices.ContainsFunc(r.ranks, func(m *member) bool { return m.process != nil && !m.ended && m.result == nil && !m.refused })
}

// hear takes in what a rank said.
func (r *run) hear(w word) {
	m := r.ranks[w.from]
	if w.end != nil {
		m.ended = true
		if m.result == nil && !m.refused {
			r.fail(w.from, weightEnded, ending(w.end))
		}
		return
	}
	f, err := decodeFrame(w.line)
	if err != nil {
		m.refused = true
		r.fail(w.from, weightError, err.Error())
		return
	}
	m.spoke = time.Now()
	switch f.T {
	case "hello":
		m.hello = f
		r.move(w.from, position{Phase: phaseMeet})
		if err := m.unlike(f); err != nil {
			m.refused = true
			r.fail(w.from, weightError, "is no device of its type: "+err.Error()+";")
		}
	case "at":
		r.move(w.from, f.position)
	case "result":
		if m.hello == nil { // which the trace tells of
			m.refused = true
			r.fail(w.from, weightError, "gave a result and did not say hello before,")
			return
		}
		m.result = f
	case "error":
		m.refused = true
		r.complain(w.from, f)
	}
}

// unlike says why a rank is not the device that its plan is for: what it did
// would be timed under another's name.
func (m *member) unlike(hello *frame) error {
	if hello.SMs != m.sms {
		return fmt.Errorf("it computes on %d multiprocessors (0: all), not on %d", hello.SMs, m.sms)
	}
	return hello.Vectors.Obey(m.device)
}

func (r *run) move(i int, to position) {
	m := r.ranks[i]
	if to == m.at {
		return
	}
	news := to.Phase != m.at.Phase || to.Block != m.at.Block
	m.at, m.moved = to, time.Now()
	if i == 0 && news && r.config.Progress != nil {
		r.config.Progress(to.Phase, to.Block)
	}
}

// ending says how a process ended.
func ending(end error) string {
	text := end.Error()
	if strings.HasPrefix(text, "signal: ") {
		return "was killed (" + text + ")"
	}
	if strings.HasPrefix(text, "exit status") {
		return "ended (" + text + ")"
	}
	return "failed: " + text
}

func (r *run) complain(i int, f *frame) {
	weight := weightError
	if f.Class == "peer" {
		weight = weightPeer
	}
	if f.Class == "usage" && f.At == "start" { // of what is asked for, or of where it is run: the rank did nothing wrong
		r.failed = append(r.failed, failure{i, weight, r.name(i) + ": " + firstLine(f.Msg)})
		return
	}
	text := "reports: " + firstLine(f.Msg)
	if f.Class != "" && f.Class != "internal" && f.Class != "peer" {
		text = "reports an error of " + f.Class + ": " + firstLine(f.Msg)
	}
	if f.At != "" {
		r.failed = append(r.failed, failure{i, weight, fmt.Sprintf("%s %s, at %s", r.name(i), text, f.At)})
		return
	}
	r.fail(i, weight, text)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}

// fail notes a failure, where the rank was last heard of.
func (r *run) fail(i, weight int, text string) {
	r.failed = append(r.failed, failure{i, weight, fmt.Sprintf("%s %s at %s", r.name(i), text, r.ranks[i].at)})
}

// standing finds ranks that say nothing or do not move. Of those that do not
// move, one is waited for by the others: the one that is behind.
func (r *run) standing(now time.Time) {
	if len(r.failed) > 0 {
		return
	}
	behind := -1
	for i, m := range r.ranks {
		switch quiet := now.Sub(m.spoke); {
		case m.result != nil, m.process == nil:
		case m.hello == nil && now.Sub(m.begun) > r.config.greet:
			r.fail(i, weightStill, fmt.Sprintf("did not say hello within %s,", r.config.greet))
		case m.hello != nil && quiet > r.config.silence:
			r.fail(i, weightStill, fmt.Sprintf("said nothing for %s,", quiet.Round(100*time.Millisecond)))
		case m.hello != nil && now.Sub(m.moved) > r.patience(m.at.Phase) && (behind < 0 || m.behind(r.ranks[behind])):
			behind = i
		}
	}
	if behind >= 0 && len(r.failed) == 0 {
		// A rank that still moves now and then is not to blame, but one that has
		// not moved for nearly as long may be the one that is waited for.
		for i, m := range r.ranks {
			if m.process != nil && m.result == nil && now.Sub(m.moved) > r.patience(m.at.Phase)/2 && m.behind(r.ranks[behind]) {
				behind = i
			}
		}
		r.fail(behind, weightStill, fmt.Sprintf("stood still for %s", now.Sub(r.ranks[behind].moved).Round(100*time.Millisecond)))
	}
}

// patience is how long a rank may stay where it is. Ranks meet when the slowest
// has imported torch, and the comparison with one device is made by one rank
// while the others wait.
func (r *run) patience(phase string) time.Duration {
	switch phase {
	case phaseStart, phaseMeet, "":
		return r.config.greet + r.config.Timeout
	case phaseNumerics, phaseGather:
		return 10 * r.config.Timeout
	}
	return r.config.Timeout
}

// behind says whether m is where n has been already. In a block the order of
// plans is not known here, and the one that moved last is ahead.
func (m *member) behind(n *member) bool {
	a, b := m.at, n.at
	if x, y := slices.Index(phases(), a.Phase), slices.Index(phases(), b.Phase); x != y {
		return x < y
	}
	if a.Block != b.Block {
		return a.Block < b.Block
	}
	if a.Plan == b.Plan && a.Dir != b.Dir {
		return b.Dir == Backward
	}
	if a.Plan == b.Plan && a.Layer != b.Layer {
		return (a.Layer < b.Layer) == (a.Dir == Forward)
	}
	// Backward the own block of step 0 is the first or the last.
	if a.Plan == b.Plan && a.Step != b.Step && (a.Dir == Forward || a.Step > 0 && b.Step > 0) {
		return a.Step < b.Step
	}
	// Behind the last layer's backward pass, of a whole step.
	if x, y := slices.Index(atTheEnd(), a.Op), slices.Index(atTheEnd(), b.Op); a.Plan == b.Plan && a.Dir == Backward && x != y && a.Op != ParamWait && b.Op != ParamWait {
		return x < y
	}
	return m.moved.Before(n.moved)
}

// atTheEnd are the ops that follow the layers, in order. Parameters are waited for before them
// too.
func atTheEnd() []SpanOp { return []SpanOp{Embed, GradWait, Optimizer} }

// cause is the failure that explains the others. Where there are only ranks that
// lost their peers, the one that did not say so is the one they waited for.
func (r *run) cause() error {
	worst := slices.MinFunc(r.failed, func(a, b failure) int { return a.weight - b.weight }) // the first of equals
	text := worst.text
	if worst.weight == weightPeer {
		if i := r.silent(); i >= 0 {
			text = fmt.Sprintf("%s stood still at %s while its peers gave up (%s)", r.name(i), r.ranks[i].at, worst.text)
		}
	}
	return errors.New(text + "; all ranks were stopped and no trace was written")
}

// silent is the rank farthest behind of those that work on without a word of
// failure, -1 if there is none.
func (r *run) silent() int {
	found := -1
	for i, m := range r.ranks {
		if m.result == nil && !m.refused && !m.ended && (found < 0 || m.behind(r.ranks[found])) {
			found = i
		}
	}
	return found
}

// dying is how long killed ranks are waited for. A process that the driver does
// not let go of never ends.
const dying = 5 * time.Second

// goodbye is how long ranks that gave their result get to leave by themselves.
const goodbye = 2 * time.Second

// stop ends all ranks, with all that they started: at once, or when they have
// all given their results after a moment to leave.
func (r *run) stop() {
	if r.done() {
		for _, m := range r.ranks {
			_ = m.process.In.Close() // they leave when their input ends
		}
		r.drain(goodbye)
	}
	for _, m := range r.ranks {
		if m.process != nil {
			m.process.Kill()
		}
	}
	r.drain(dying)
}

// drain lets the ranks come to their ends.
func (r *run) drain(limit time.Duration) {
	late := time.After(limit)
	for slices.ContainsFunc(r.ranks, func(m *member) bool { return m.process != nil && !m.ended }) {
		select {
		case w := <-r.heard:
			r.ranks[w.from].ended = r.ranks[w.from].ended || w.end != nil
		case <-late:
			return
		}
	}
}
