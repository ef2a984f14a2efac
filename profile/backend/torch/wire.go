package torch

import (
	"os/exec"
	"sync"
	"time"

	"github.com/evenkeel/evenkeel/profile/backend/child"
)

// wire carries lines to and from one worker, wherever it runs.
type wire interface {
	// send hands a line over; a worker that is gone shows in events.
	send(line []byte) error
	// events delivers every line in order and then the end, after which it is
	// closed. It must be drained.
	events() <-chan event
	// kill ends the worker at once; the end follows in events.
	kill()
	// bye asks the worker to leave and kills it if it does not.
	bye()
}

// event is a line from a worker, or its end.
type event struct {
	line []byte
	end  error
}

// childWire is a worker that is a child of this process: lines go to its
// standard input and come from its file descriptor 3, so that whatever
// libraries print to standard output is never taken for an answer.
type childWire struct {
	*child.Process
	out  chan event
	done chan struct{} // closed at its end
	once sync.Once
}

// startChild runs a worker command.
func startChild(cmd *exec.Cmd) (*childWire, error) {
	c := &childWire{out: make(chan event, 16), done: make(chan struct{})}
	p, err := child.Talk(cmd, maxFrame, c.hear)
	if err != nil {
		return nil, err
	}
	c.Process = p
	return c, nil
}

func (c *childWire) hear(line []byte, end error) {
	if end != nil {
		close(c.done)
	}
	c.out <- event{line: line, end: end}
	if end != nil {
		close(c.out)
	}
}

func (c *childWire) send(line []byte) error { return c.Send(line) }

func (c *childWire) events() <-chan event { return c.out }

func (c *childWire) kill() { c.Kill() }

// goodbye is how long a worker gets to leave by itself.
const goodbye = 2 * time.Second

func (c *childWire) bye() {
	c.once.Do(func() {
		_ = c.In.Close() // workers leave when their input ends
		select {
		case <-c.done:
		case <-time.After(goodbye):
			c.Kill()
		}
	})
}
