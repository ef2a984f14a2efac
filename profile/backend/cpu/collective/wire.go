package collective

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"
)

// operation is one collective call in progress.
type operation struct {
	*Mesh
	ctx context.Context
}

// run makes one operation of do. The context ends it by interrupting the data connections, which costs the fast path no
// system call and no timer of its own.
func (m *Mesh) run(ctx context.Context, name string, do func(operation) error) error {
	m.ops.Lock()
	defer m.ops.Unlock()
	if culprit, err := m.failure(); err != nil {
		return &PeerError{Rank: m.rank, Peer: culprit, Op: name, Err: err}
	}
	if err := ctx.Err(); err != nil { // nothing was sent: the mesh stays whole
		return fmt.Errorf("rank %d: %s: %w", m.rank, name, err)
	}
	stop := context.AfterFunc(ctx, m.interrupt)
	err := do(operation{m, ctx})
	if !stop() { // the context ended meanwhile: the connections are unusable even if all data had arrived
		m.fail(m.rank, ctx.Err())
	}
	if err == nil {
		_, err = m.failure()
	}
	if err != nil {
		culprit, first := m.failure()
		return &PeerError{Rank: m.rank, Peer: culprit, Op: name, Err: first}
	}
	return nil
}

// exchange sends out to rank `to` while calling receive, which reads from other peers: side by side, because both ends
// may be writing more than the sockets hold. The first error breaks the mesh and so ends the other direction.
func (o operation) exchange(to int, out []byte, receive func() error) error {
	if len(out) == 0 {
		return receive()
	}
	sent := make(chan error, 1)
	go func() { sent <- o.send(to, out) }()
	err := receive()
	return errors.Join(err, <-sent)
}

// swap is the exchange of whole buffers: out to rank `to`, in from rank `from`.
func (o operation) swap(to int, out []byte, from int, in []byte) error {
	return o.exchange(to, out, func() error { return o.receive(from, in) })
}

func (o operation) send(to int, out []byte) error {
	p, start := o.peers[to], time.Now()
	n, err := p.write(out)
	p.sent.Add(int64(n))
	if err != nil {
		return o.lost(p, fmt.Sprintf("rank %d takes no data", to), start, err)
	}
	return nil
}

func (o operation) receive(from int, in []byte) error {
	if len(in) == 0 {
		return nil
	}
	p, start := o.peers[from], time.Now()
	if err := p.read(in); err != nil {
		return o.lost(p, fmt.Sprintf("no data from rank %d", from), start, err)
	}
	return nil
}

// lost breaks the mesh because of a failed read or write on p's data connection. If the connection ended, p's last word
// follows on the other one and says more: who it was that died first.
func (o operation) lost(p *peer, hang string, since time.Time, err error) error {
	culprit := p.rank
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		select {
		case <-p.ended:
			culprit, err = p.blame()
		case <-time.After(time.Second):
			err = fmt.Errorf("connection to rank %d: %w", p.rank, err)
		case <-o.ctx.Done():
			err = fmt.Errorf("connection to rank %d: %w", p.rank, err)
		}
	} else if cause := o.ctx.Err(); cause != nil {
		err = &stall{fmt.Sprintf("%s for %v", hang, rounded(time.Since(since))), cause}
	}
	o.fail(culprit, err)
	return err
}

// stall is a wait that the context ended. Its text leaves out "context deadline exceeded", which the time waited says
// better, but errors.Is still finds it.
type stall struct {
	text  string
	cause error
}

func (s *stall) Unwrap() error { return s.cause }

func (s *stall) Error() string {
	if errors.Is(s.cause, context.DeadlineExceeded) {
		return s.text
	}
	return s.text + ": " + s.cause.Error()
}

// rounded keeps a waiting time readable: 5s, not 5.000817211s.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

// asBytes is the memory of x, not a copy. The bytes are in the host's order, which both ends of a Unix socket share.
func asBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
