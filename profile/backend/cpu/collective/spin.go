package collective

import (
	"errors"
	"io"
	"runtime"
	"syscall"
	"time"
)

// spinTime is how long a rank looks for data, or for room to send, before it sleeps until the kernel wakes it. Being woken
// takes tens of microseconds on a virtual machine, more than a small message; GPU collectives spin for the same reason.
// Where there are fewer cores than ranks nobody spins: the core is the one that the peer needs.
const spinTime = 200 * time.Microsecond

// lookEvery is how many looks are taken between two readings of the clock.
const lookEvery = 16

// read fills in from p's data connection.
func (p *peer) read(in []byte) error {
	for len(in) > 0 {
		n, err := p.look(p.raw.Read, syscall.Read, in)
		if errors.Is(err, syscall.EAGAIN) {
			n, err = p.data.Read(in) // sleeps
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return err
		}
		in = in[n:]
	}
	return nil
}

// write sends out on p's data connection and returns how many bytes went.
func (p *peer) write(out []byte) (sent int, err error) {
	for sent < len(out) {
		n, err := p.look(p.raw.Write, syscall.Write, out[sent:])
		if errors.Is(err, syscall.EAGAIN) {
			// Sleeps until there is room, then sends all that is left.
			n, err = p.data.Write(out[sent:])
		}
		sent += max(n, 0)
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// look tries a system call until it does something, for as long as it is worth; EAGAIN then.
func (p *peer) look(raw func(func(fd uintptr) bool) error, call func(fd int, b []byte) (int, error), b []byte) (n int, err error) {
	var start time.Time
	for i := 0; ; i++ {
		// Returning true keeps the runtime from waiting for the descriptor.
		if closed := raw(func(fd uintptr) bool { n, err = call(int(fd), b); return true }); closed != nil {
			return 0, closed
		}
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EAGAIN) || !p.spins:
			return n, err
		case i == 0:
			start = time.Now()
		case i%lookEvery == 0 && time.Since(start) > spinTime:
			return n, err
		}
		runtime.Gosched() // the other direction is another goroutine
	}
}
