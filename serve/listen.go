package serve

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Listen opens a Unix socket that only its owner may use. A socket file that a dead
// server left behind is replaced; one with a living server behind it is refused.
func Listen(path string) (net.Listener, error) {
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The mode is right from the first moment, not only after a chmod.
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w; choose another path", path, errors.Unwrap(err))
	}
	return l, nil
}

// longestSocket is the longest path of a Unix socket, by unix(7).
const longestSocket = 107

// CheckSocket says, before there is anything to serve, whether Listen can make a socket of
// that path, as far as can be told without making it.
func CheckSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("socket %s: there is a file of another kind; choose another path", path)
	case len(path) > longestSocket:
		return fmt.Errorf("socket %s: a path of %d bytes, and a socket's may have at most %d; choose a shorter one", path, len(path), longestSocket)
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("socket %s: there is no folder %s to make it in: make it, or choose another path", path, dir)
	}
	return nil
}

func removeStale(path string) error {
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("socket %s: another server answers there; stop it or choose another path", path)
	}
	// Only this says that nobody listens: a living server with a full backlog gives
	// EAGAIN.
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("socket %s: %w; remove it if no server uses it, or choose another path", path, err)
	}
	return os.Remove(path)
}

// bounded lets only so many connections be open at a time; others wait to be
// accepted, in the kernel's backlog.
type bounded struct {
	net.Listener
	within time.Duration // that a request must have arrived in
	places chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newBounded(l net.Listener, limits Limits) *bounded {
	return &bounded{Listener: l, within: limits.Read, places: make(chan struct{}, limits.Connections), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.places <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &placed{Conn: c, free: b.places, within: b.within}, nil
}

// Close implements net.Listener.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

// quiet drops what net/http says of clients that vanish.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
