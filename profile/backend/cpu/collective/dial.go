package collective

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"time"
)

// The two connections of a pair, told apart by the hello's second word.
const (
	kindData uint32 = iota + 1
	kindFate
)

// maxSocketPath is what sun_path holds on the tightest Unix (macOS: 104 bytes with the final zero).
const maxSocketPath = 103

// Dial joins the mesh of `size` processes that meet in dir, which the caller has made for this mesh alone (mode 0700: who
// can enter it can join). Each rank listens on dir/r<rank>.sock, connects to all lower ranks, waiting for them to appear,
// and accepts all higher ones. ctx bounds the whole; its end is an error that names the ranks that are missing.
func Dial(ctx context.Context, dir string, rank, size int) (*Mesh, error) {
	if rank < 0 || rank >= size {
		return nil, fmt.Errorf("rank %d of %d ranks: want 0 <= rank < size", rank, size)
	}
	d := dialer{ctx: ctx, begun: time.Now(), dir: dir, rank: rank, peers: make([]*peer, size)}
	for i := range size {
		if i != rank {
			d.peers[i] = &peer{rank: i}
		}
	}
	if err := d.connectAll(); err != nil {
		d.hangUp()
		return nil, fmt.Errorf("rank %d: %w", rank, err)
	}
	return newMesh(rank, d.peers), nil
}

type dialer struct {
	ctx   context.Context
	begun time.Time
	dir   string
	rank  int
	peers []*peer
}

// connectAll listens first, so that higher ranks can connect while this one still waits for lower ones.
func (d *dialer) connectAll() error {
	path := d.path(d.rank)
	if len(path) > maxSocketPath {
		return fmt.Errorf("socket path %q has %d bytes, at most %d work: use a shorter directory", path, len(path), maxSocketPath)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer listener.Close()
	for lower := range d.rank {
		for _, kind := range []uint32{kindData, kindFate} {
			if err := d.call(lower, kind); err != nil {
				return err
			}
		}
	}
	stop := context.AfterFunc(d.ctx, func() { _ = listener.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for range 2 * (len(d.peers) - 1 - d.rank) {
		if err := d.answer(listener); err != nil {
			return err
		}
	}
	return d.ctx.Err() // it may have ended just after the last hello and closed that connection's deadline
}

// stall is a wait for other ranks that the context ended.
func (d *dialer) stall(what string) error {
	return &stall{fmt.Sprintf("%s after %v", what, rounded(time.Since(d.begun))), d.ctx.Err()}
}

func (d *dialer) path(rank int) string { return filepath.Join(d.dir, fmt.Sprintf("r%d.sock", rank)) }

// call connects to a lower rank. Processes start in any order, so a missing socket is retried until ctx ends.
func (d *dialer) call(lower int, kind uint32) error {
	last := error(nil) // of a dial that was not cut short
	for {
		conn, err := new(net.Dialer).DialContext(d.ctx, "unix", d.path(lower))
		if err == nil {
			d.peers[lower].take(conn, kind)
			hello := binary.LittleEndian.AppendUint32(nil, uint32(d.rank))
			if _, err = conn.Write(binary.LittleEndian.AppendUint32(hello, kind)); err != nil {
				return fmt.Errorf("cannot reach rank %d: %w", lower, err)
			}
			return nil
		}
		if d.ctx.Err() == nil {
			last = err
		}
		select {
		case <-d.ctx.Done():
			return d.stall(fmt.Sprintf("cannot reach rank %d, which may not have started (%v),", lower, last))
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// answer accepts one connection of a higher rank and reads who it is.
func (d *dialer) answer(listener *net.UnixListener) error {
	conn, err := listener.Accept()
	if err != nil {
		if d.ctx.Err() != nil {
			return d.stall(fmt.Sprintf("no connection from rank %v", d.missing()))
		}
		return err
	}
	stop := context.AfterFunc(d.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var hello [8]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		conn.Close()
		return fmt.Errorf("a connection said no hello: %w", err)
	}
	rank, kind := binary.LittleEndian.Uint32(hello[:]), binary.LittleEndian.Uint32(hello[4:])
	if int64(rank) <= int64(d.rank) || int64(rank) >= int64(len(d.peers)) || !d.peers[rank].take(conn, kind) {
		conn.Close()
		return fmt.Errorf("unexpected hello from rank %d, kind %d: is another mesh using %s?", rank, kind, d.dir)
	}
	return nil
}

// take keeps conn as the pair's connection of that kind; false if the kind is unknown or already there.
func (p *peer) take(conn net.Conn, kind uint32) bool {
	switch {
	case kind == kindData && p.data == nil:
		p.data = conn
	case kind == kindFate && p.fate == nil:
		p.fate = conn
	default:
		return false
	}
	return true
}

// missing lists the higher ranks that have not connected.
func (d *dialer) missing() []int {
	var missing []int
	for _, p := range d.peers[d.rank+1:] {
		if p.data == nil || p.fate == nil {
			missing = append(missing, p.rank)
		}
	}
	return missing
}

func (d *dialer) hangUp() {
	for _, p := range d.peers {
		if p == nil {
			continue
		}
		for _, c := range []net.Conn{p.data, p.fate} {
			if c != nil {
				c.Close()
			}
		}
	}
}
