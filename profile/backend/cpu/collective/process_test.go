package collective

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The test binary plays a rank of a real mesh when this variable says "role rank size dir".
const rankVariable = "EVENKEEL_COLLECTIVE_TEST_RANK"

func TestMain(m *testing.M) {
	spec := os.Getenv(rankVariable)
	if spec == "" {
		os.Exit(m.Run())
	}
	if err := playRank(strings.SplitN(spec, " ", 4)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func playRank(spec []string) error {
	rank, err1 := strconv.Atoi(spec[1])
	size, err2 := strconv.Atoi(spec[2])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := Dial(ctx, spec[3], rank, size)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Barrier(ctx); err != nil {
		return err
	}
	switch {
	case spec[0] == "dies" && rank == size-1:
		time.Sleep(50 * time.Millisecond) // so that the others are likely inside the all_reduce
		os.Exit(0)                        // no Close: the kernel closes the sockets
	case spec[0] == "dies":
		return m.AllReduce(ctx, make([]float32, 1<<20))
	}
	buf := data(rank, 100003)
	if err := m.AllReduce(ctx, buf); err != nil {
		return err
	}
	return expect("all_reduce", buf, sumOfAll(size, len(buf)))
}

// processes starts size ranks of the role, highest first so that dialling has to wait, and returns what each printed.
func processes(t *testing.T, role string, size int) (outputs []string, errs []error) {
	t.Helper()
	dir := socketDir(t)
	cmds, outs := make([]*exec.Cmd, size), make([]strings.Builder, size)
	for rank := size - 1; rank >= 0; rank-- {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %s", rankVariable, role, rank, size, dir))
		cmd.Stdout, cmd.Stderr = &outs[rank], &outs[rank]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds[rank] = cmd
	}
	for rank, cmd := range cmds {
		errs = append(errs, cmd.Wait())
		outputs = append(outputs, strings.TrimSpace(outs[rank].String()))
	}
	return outputs, errs
}

// socketDir is a short-named directory: t.TempDir's names can exceed a socket path.
func socketDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "mesh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestSeparateProcesses(t *testing.T) {
	outputs, errs := processes(t, "works", 4)
	for rank, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v: %s", rank, err, outputs[rank])
		}
	}
}

func TestDeadProcessIsNamedByAll(t *testing.T) {
	outputs, errs := processes(t, "dies", 4)
	for rank := range 3 {
		// On a busy machine a rank may still be leaving the barrier. A neighbour that leaves after noticing may be heard
		// before the death itself is: it passes the blame on.
		want := regexp.MustCompile(fmt.Sprintf("^rank %d: (barrier|all_reduce): rank 3 (died|failed, says rank [012])$", rank))
		if errs[rank] == nil || !want.MatchString(outputs[rank]) {
			t.Errorf("rank %d: %v, printed %q", rank, errs[rank], outputs[rank])
		}
	}
}

func TestDialErrors(t *testing.T) {
	dir := socketDir(t)
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for _, c := range []struct {
		name       string
		dir        string
		rank, size int
		want       string
	}{
		{"nobody comes", dir, 0, 3, "rank 0: no connection from rank [1 2] after "},
		{"nobody listens", dir, 1, 2, "rank 1: cannot reach rank 0, which may not have started (dial unix "},
		{"rank outside", dir, 2, 2, "rank 2 of 2 ranks: want 0 <= rank < size"},
		{"no directory", filepath.Join(dir, "none"), 0, 1, "rank 0: listen unix"},
		{"long path", filepath.Join(dir, strings.Repeat("x", 100)), 0, 1, "rank 0: socket path"},
	} {
		m, err := Dial(short(), c.dir, c.rank, c.size)
		if m != nil || err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "context") {
			t.Errorf("%s: got %v\nwant %s", c.name, err, c.want)
		}
	}
}

func TestDialRefusesStrangers(t *testing.T) {
	dir := socketDir(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	go func() { // claims a rank beyond the mesh
		d := dialer{ctx: ctx, dir: dir, rank: 7, peers: []*peer{{rank: 0}}}
		_ = d.call(0, kindData)
	}()
	_, err := Dial(ctx, dir, 0, 2)
	if err == nil || !strings.Contains(err.Error(), "unexpected hello from rank 7, kind 1") {
		t.Errorf("got %v", err)
	}
}
