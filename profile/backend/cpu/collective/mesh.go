package collective

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Mesh is one rank's end of a group of ranks that are connected in pairs.
type Mesh struct {
	rank, size int
	peers      []*peer // by rank; nil at the own one
	scratch    []float32
	barriers   byte // counts barriers, so that ranks out of step notice

	ops      sync.Mutex // one operation at a time
	watchers sync.WaitGroup

	state   sync.Mutex // guards what follows
	broken  error      // the first failure
	culprit int        // the rank it is blamed on
	closed  bool
}

// peer is a pair's two connections: data for the operations, fate to learn of the other's end.
type peer struct {
	rank       int
	data, fate net.Conn
	raw        syscall.RawConn // of data
	spins      bool            // look for data before sleeping
	sent       atomic.Int64
	ended      chan struct{} // closed when the fate connection has spoken
	last       int32         // its last word, valid once ended is closed
}

// A rank's last word on its fate connections: leaving in order, or the rank it blames for a failure. A connection that
// ends without one belongs to a process that died.
const (
	wordLeft int32 = -1
	wordNone int32 = -2
)

// PeerError is the failure of an operation on Rank that is due to Peer.
type PeerError struct {
	Rank, Peer int
	Op         string
	Err        error
}

// Error reads like "rank 1: all_reduce: no data from rank 3 for 5s".
func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s: %v", e.Rank, e.Op, e.Err) }

// Unwrap gives the cause, context.DeadlineExceeded among others.
func (e *PeerError) Unwrap() error { return e.Err }

// newMesh starts watching the connections, which it owns from here on. peers[rank] is nil.
func newMesh(rank int, peers []*peer) *Mesh {
	m := &Mesh{rank: rank, size: len(peers), peers: peers, culprit: -1}
	for _, p := range m.others() {
		p.raw, p.spins = rawOf(p.data), m.size <= runtime.NumCPU()
		p.ended = make(chan struct{})
		m.watchers.Go(func() { m.watch(p) })
	}
	return m
}

// rawOf gives the descriptor of a connection, which a Unix socket has.
func rawOf(c net.Conn) syscall.RawConn {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		panic("collective: " + err.Error())
	}
	return raw
}

func (m *Mesh) others() []*peer {
	var others []*peer
	for _, p := range m.peers {
		if p != nil {
			others = append(others, p)
		}
	}
	return others
}

// Rank is this end's number, from 0.
func (m *Mesh) Rank() int { return m.rank }

// Size is the number of ranks.
func (m *Mesh) Size() int { return m.size }

// SentBytes returns the bytes this rank has written to each rank so far, barriers included, connecting excluded.
func (m *Mesh) SentBytes() []int64 {
	sent := make([]int64, m.size)
	for _, p := range m.others() {
		sent[p.rank] = p.sent.Load()
	}
	return sent
}

// Close says goodbye to all peers and closes every connection. A running operation fails. Closing again does nothing.
func (m *Mesh) Close() error {
	m.state.Lock()
	if m.closed {
		m.state.Unlock()
		return nil
	}
	m.closed = true
	word := wordLeft
	if m.culprit >= 0 {
		word = int32(m.culprit)
	}
	m.state.Unlock()
	var errs []error
	for _, p := range m.others() {
		// A peer that is gone cannot hear it: not an error of ours.
		_, _ = p.fate.Write(binary.LittleEndian.AppendUint32(nil, uint32(word)))
		errs = append(errs, p.data.Close(), p.fate.Close())
	}
	m.watchers.Wait()
	return errors.Join(errs...)
}

// watch waits for p's last word. A death, or a failure that p reports, breaks the mesh at once. An orderly goodbye does
// not: p may simply be the first to be done, with data for us still on its way.
func (m *Mesh) watch(p *peer) {
	var word [4]byte
	p.last = wordNone
	if n, _ := p.fate.Read(word[:]); n == len(word) {
		p.last = int32(binary.LittleEndian.Uint32(word[:]))
	}
	if p.last != wordLeft {
		culprit, err := p.blame()
		m.fail(culprit, err)
	}
	close(p.ended)
}

// blame turns p's last word into who is at fault and how to say it.
func (p *peer) blame() (culprit int, err error) {
	switch {
	case p.last == wordNone:
		return p.rank, fmt.Errorf("rank %d died", p.rank)
	case p.last == wordLeft:
		return p.rank, fmt.Errorf("rank %d left before the end", p.rank)
	}
	return int(p.last), fmt.Errorf("rank %d failed, says rank %d", p.last, p.rank)
}

// fail breaks the mesh for the first reason given and wakes whatever waits on a data connection.
func (m *Mesh) fail(culprit int, err error) {
	m.state.Lock()
	if m.broken == nil && !m.closed {
		m.broken, m.culprit = err, culprit
	}
	m.state.Unlock()
	m.interrupt()
}

func (m *Mesh) interrupt() {
	for _, p := range m.others() {
		_ = p.data.SetDeadline(time.Unix(1, 0)) // fails only if closed, which wakes as well
	}
}

// failure is why the mesh cannot work (any more), nil if it can.
func (m *Mesh) failure() (culprit int, err error) {
	m.state.Lock()
	defer m.state.Unlock()
	if m.broken == nil && m.closed {
		return m.rank, net.ErrClosed
	}
	return m.culprit, m.broken
}
