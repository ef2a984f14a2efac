package torch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/evenkeel/evenkeel/profile"
	"github.com/go-json-experiment/json"
)

// silence is how long a busy worker may say nothing. It beats every second
// from a thread of its own, so a longer silence means that the whole process
// stands still; a kernel that hangs does not stop the beats, and only the
// deadline ends it.
const silence = 10 * time.Second

// client asks one worker, one request at a time.
type client struct {
	wire    wire
	silence time.Duration
	id      int
	gone    error // why the worker is no more
}

func newClient(w wire) *client { return &client{wire: w, silence: silence} }

// ask sends a request and waits for its answer. A worker that does not answer
// before ctx ends, or falls silent, is killed.
//
// Errors are *profile.OpError, and ctx's own when it was cancelled.
func (c *client) ask(ctx context.Context, q request) (frame, error) {
	if c.gone != nil {
		return frame{}, lost(profile.Crashed, c.gone)
	}
	c.id++
	q.ID = c.id
	if err := c.tell(q); err != nil {
		return frame{}, err
	}
	quiet := time.NewTimer(c.silence)
	defer quiet.Stop()
	for {
		select {
		case e, ok := <-c.wire.events():
			if !ok || e.end != nil {
				return frame{}, c.ended(e.end)
			}
			f, err := decodeFrame(e.line)
			switch {
			case err != nil:
				return frame{}, c.kill(profile.Crashed, err)
			case f.T == "beat" || f.ID != q.ID && f.ID != 0:
				quiet.Reset(c.silence) // alive; or a late answer to an earlier request
				continue
			}
			return f, c.answered(f)
		case <-quiet.C:
			return frame{}, c.kill(profile.Hung, fmt.Errorf("no sign of life for %s while it worked on %s; the worker was killed", c.silence, what(q)))
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return frame{}, c.kill(profile.Hung, fmt.Errorf("no answer to %s before the deadline; the worker was killed", what(q)))
			}
			_ = c.kill(profile.Crashed, ctx.Err())
			return frame{}, ctx.Err()
		}
	}
}

// tell sends a request that has no answer.
func (c *client) tell(q request) error {
	line, err := json.Marshal(q)
	if err != nil {
		return err
	}
	if len(line) > maxFrame {
		return &profile.OpError{Class: profile.Unsupported, Err: fmt.Errorf("the request for %s takes %d bytes, the protocol allows %d", what(q), len(line), maxFrame)}
	}
	if err := c.wire.send(line); err != nil {
		return c.kill(profile.Crashed, err)
	}
	return nil
}

func what(q request) string {
	if q.Op != "" {
		return q.T + " " + string(q.Op)
	}
	return q.T
}

func (c *client) answered(f frame) error {
	err := f.err()
	if err == nil && f.T != "result" && f.T != "hello" {
		return c.kill(profile.Crashed, fmt.Errorf("it answered with a frame of type %q", f.T))
	}
	var e *profile.OpError
	if errors.As(err, &e) && e.Lost {
		c.gone = e.Err // it leaves by itself; kill makes sure
		c.wire.kill()
		drain(c.wire)
	}
	return err
}

// ended notes that the worker is gone.
func (c *client) ended(end error) error {
	if end == nil {
		end = errors.New("the worker is gone")
	}
	c.gone = end
	return lost(profile.Crashed, fmt.Errorf("worker: %w", end))
}

// kill ends a worker that cannot be trusted any more, and says why.
func (c *client) kill(class profile.Class, why error) error {
	c.gone = why
	c.wire.kill()
	drain(c.wire)
	return lost(class, why)
}

// dying is how long a killed worker is waited for: the next one needs the memory
// that it holds. A process that the driver does not let go of never ends.
const dying = 5 * time.Second

// drain lets the reader of a killed worker come to its end.
func drain(w wire) {
	limit := time.NewTimer(dying)
	defer limit.Stop()
	for {
		select {
		case _, open := <-w.events():
			if !open {
				return
			}
		case <-limit.C:
			go func() {
				for range w.events() {
				}
			}()
			return
		}
	}
}

// close ends the worker.
func (c *client) close() {
	if c.gone != nil {
		return
	}
	c.gone = errors.New("the worker was closed")
	go drain(c.wire)
	c.wire.bye()
}

func lost(c profile.Class, err error) error { return &profile.OpError{Class: c, Lost: true, Err: err} }
