package child

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Talk starts a command that speaks in lines on its file descriptor 3, so that
// whatever libraries print to standard output is never taken for an answer.
//
// hear is called with every line in order, from a goroutine of its own, and at
// last with the reason of the end: the child's own, as Wait gives it, or that of
// a line longer than the limit, after which the child is killed. Descriptor 3
// stays open as long as any process of the group holds it.
func Talk(cmd *exec.Cmd, longest int, hear func(line []byte, end error)) (*Process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{w} // the first extra file is descriptor 3
	p, err := Start(cmd)
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	go p.listen(r, longest, hear)
	return p, nil
}

func (p *Process) listen(r *os.File, longest int, hear func(line []byte, end error)) {
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		hear(bytes.Clone(lines.Bytes()), nil)
	}
	if lines.Err() != nil {
		p.Kill() // a line beyond the limit: nothing after it can be trusted
	}
	end := p.Wait()
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		end = fmt.Errorf("sent a line of more than %d bytes", longest)
	} else if err != nil {
		end = err
	}
	hear(nil, end)
}
