package cpu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/child"
	"github.com/go-json-experiment/json"
)

// executor implements profile.Executor with one worker process a rank.
type executor struct {
	ranks  []*process
	folder *child.Folder // of the sockets, nil for one rank; removed with the executor
}

// dir is where the sockets are.
func (x *executor) dir() string {
	if x.folder == nil {
		return ""
	}
	return x.folder.Path // short: a socket's path holds 108 bytes
}

// process is a running worker.
type process struct {
	*child.Process
	answers chan answerOrEnd
}

type answerOrEnd struct {
	response
	end error // the worker is gone
}

// start runs a worker command.
func start(cmd *exec.Cmd, threads int) (*process, error) {
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", threads))
	cmd.Env = append(cmd.Env, "GODEBUG=") // no tracing inside a sample
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c, err := child.Start(cmd)
	if err != nil {
		return nil, err
	}
	p := &process{Process: c, answers: make(chan answerOrEnd, 1)}
	go p.read(out)
	return p, nil
}

func (p *process) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxFrame)
	for lines.Scan() {
		var a answerOrEnd
		if err := json.Unmarshal(lines.Bytes(), &a.response, json.RejectUnknownMembers(true)); err != nil {
			a.end = fmt.Errorf("its answer is no frame of the protocol: %.80q", lines.Text())
		}
		p.answers <- a
	}
	p.answers <- answerOrEnd{end: p.Wait()}
	close(p.answers)
}

// ask writes a request; a worker that does not read it shows when it is awaited.
func (p *process) ask(q request) error {
	data, err := json.Marshal(q)
	if err != nil {
		return err
	}
	return p.Send(data)
}

// await waits for the answer to a request, or kills the worker at ctx's end.
func (p *process) await(ctx context.Context) (response, error) {
	select {
	case a, ok := <-p.answers:
		switch {
		case !ok:
			return response{}, lost(profile.Crashed, errors.New("the worker is gone"))
		case a.end != nil:
			return response{}, lost(profile.Crashed, fmt.Errorf("worker: %w", a.end))
		}
		return a.response, a.err()
	case <-ctx.Done():
		p.Kill()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return response{}, lost(profile.Hung, errors.New("no answer before the deadline; the worker was killed"))
		}
		return response{}, ctx.Err()
	}
}

func lost(c profile.Class, err error) error { return &profile.OpError{Class: c, Lost: true, Err: err} }

// ask sends a request to all ranks and waits for all of them. When one fails,
// the error is that of the first rank that knows more than that another is gone.
func (x *executor) ask(ctx context.Context, q request) ([]response, error) {
	for _, p := range x.ranks {
		if err := p.ask(q); err != nil {
			return nil, lost(profile.Crashed, err)
		}
	}
	answers := make([]response, len(x.ranks))
	errs := make([]error, len(x.ranks))
	var wait sync.WaitGroup
	for r, p := range x.ranks {
		wait.Go(func() {
			answers[r], errs[r] = p.await(ctx)
			// Its peers would wait for it for ever.
			if e := (*profile.OpError)(nil); errors.As(errs[r], &e) && e.Lost {
				x.kill()
			}
		})
	}
	wait.Wait()
	return answers, firstCause(errs)
}

func firstCause(errs []error) error {
	var first error
	for r, err := range errs {
		var e *profile.OpError
		if err != nil && len(errs) > 1 && errors.As(err, &e) {
			err = &profile.OpError{Class: e.Class, Lost: e.Lost, Err: fmt.Errorf("rank %d: %w", r, e.Err)}
		}
		// "signal: killed" is what this process did to the others.
		if first == nil || err != nil && strings.Contains(first.Error(), "signal: killed") {
			first = err
		}
	}
	return first
}

// Ready implements profile.Executor: an open executor has its workers.
func (x *executor) Ready(context.Context) error { return nil }

// Prepare implements profile.Executor.
func (x *executor) Prepare(ctx context.Context, s op.Shape, seed uint64) error {
	data, err := op.Encode(s)
	if err != nil {
		return err
	}
	_, err = x.ask(ctx, request{Do: doPrepare, Op: s.Kind(), Shape: data, Seed: seed})
	return err
}

// Run implements profile.Executor.
func (x *executor) Run(ctx context.Context, inner, n int) (profile.Batch, error) {
	answers, err := x.ask(ctx, request{Do: doRun, Inner: inner, N: n})
	if err != nil {
		return profile.Batch{}, err
	}
	var b profile.Batch
	for r, a := range answers {
		if len(a.Times) != n {
			return b, lost(profile.Crashed, fmt.Errorf("rank %d returned %d samples, was asked for %d", r, len(a.Times), n))
		}
		times := make([]units.Seconds, n)
		for i, t := range a.Times {
			times[i] = units.Seconds(t)
		}
		b.Ranks = append(b.Ranks, times)
		b.Guard.Throttled = b.Guard.Throttled || a.Throttled
		b.Guard.WaitShare = max(b.Guard.WaitShare, a.WaitShare)
	}
	return b, nil
}

func (x *executor) kill() {
	for _, p := range x.ranks {
		p.Kill()
	}
}

// goodbye is how long workers get to leave by themselves.
const goodbye = time.Second

// Close implements profile.Executor: workers leave when their input ends.
func (x *executor) Close() error {
	for _, p := range x.ranks {
		_ = p.In.Close()
	}
	deadline := time.After(goodbye)
	for _, p := range x.ranks {
		for open := true; open; {
			select {
			case _, open = <-p.answers:
			case <-deadline:
				x.kill()
			}
		}
	}
	if x.folder != nil {
		return x.folder.Remove()
	}
	return nil
}
