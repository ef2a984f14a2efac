// Package child runs the worker processes of backends. Each is in a process group of its
// own that is killed together with this process, and keeps the end of its standard error
// for the message when it fails.
package child

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// Process is a running child.
type Process struct {
	In     io.WriteCloser // its standard input
	cmd    *exec.Cmd
	stderr *tail
}

// Start runs a command. Its standard error is kept as a tail; standard output
// and extra files are the caller's to set before.
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{cmd: cmd, stderr: &tail{}}
	cmd.Stderr = p.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.In = in
	return p, cmd.Start()
}

// Send writes a line. A child that is gone shows when it is waited for, so
// writing to one is no error.
func (p *Process) Send(line []byte) error {
	_, err := p.In.Write(append(bytes.Clone(line), '\n'))
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Wait returns why the child ended: always an error, since a worker is asked to
// leave only when nobody listens any more. All that it wrote must have been read.
func (p *Process) Wait() error {
	err := p.cmd.Wait()
	if err == nil {
		err = errors.New("it ended without being asked to")
	}
	if last := p.stderr.last(); last != "" {
		err = fmt.Errorf("%w: %s", err, last)
	}
	return err
}

// Kill ends the child and all that it started.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may be gone already
}

// PID is the child's process id, which is that of its group too.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// tail keeps the end of what a child writes to its standard error.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > tailSize {
		t.buf = bytes.Clone(t.buf[len(t.buf)-tailSize:])
	}
	return len(p), nil
}

// last is the last line that says something; of a Go panic, its first.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.buf)), "\n")
	for _, l := range lines {
		if strings.HasPrefix(l, "panic:") || strings.HasPrefix(l, "fatal error:") || strings.HasPrefix(l, "SIG") {
			return l
		}
	}
	return lines[len(lines)-1]
}
