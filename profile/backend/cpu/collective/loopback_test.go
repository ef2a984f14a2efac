//go:build unix

package collective

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// meshesHere makes a whole mesh inside one process, connected by socket pairs: element i is rank i's end. The operations of
// different ends must run in different goroutines.
func meshesHere(size int) ([]*Mesh, error) {
	if size < 1 {
		return nil, fmt.Errorf("a mesh of %d ranks: want at least 1", size)
	}
	table := make([][]*peer, size)
	for i := range table {
		table[i] = make([]*peer, size)
	}
	for i := range size {
		for j := range i {
			a, b := &peer{rank: j}, &peer{rank: i}
			table[i][j], table[j][i] = a, b
			if err := join(a, b); err != nil {
				for rank, peers := range table {
					(&dialer{rank: rank, peers: peers}).hangUp()
				}
				return nil, fmt.Errorf("connecting rank %d to rank %d: %w", i, j, err)
			}
		}
	}
	meshes := make([]*Mesh, size)
	for rank, peers := range table {
		meshes[rank] = newMesh(rank, peers)
	}
	return meshes, nil
}

func join(a, b *peer) (err error) {
	if a.data, b.data, err = socketPair(); err != nil {
		return err
	}
	a.fate, b.fate, err = socketPair()
	return err
}

func socketPair() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	unix.CloseOnExec(fds[0])
	unix.CloseOnExec(fds[1])
	a, errA := connOf(fds[0])
	b, errB := connOf(fds[1])
	return a, b, errors.Join(errA, errB)
}

// connOf hands fd to the network poller; FileConn duplicates it, so the original is closed.
func connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	defer f.Close()
	return net.FileConn(f)
}
