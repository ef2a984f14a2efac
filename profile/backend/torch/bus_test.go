package torch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/torch/launch"
)

func TestTheMeetingPoint(t *testing.T) {
	for _, c := range []struct {
		world launch.World
		host  string
		port  int
		err   string
	}{
		{launch.World{Host: "127.0.0.1", Port: 5}, "127.0.0.1", 5, ""},
		{launch.World{Host: "no-such-node.invalid", Port: 5, LaunchHost: "10.0.0.1"}, "10.0.0.1", 5, ""},
		{launch.World{Host: "no-such-node.invalid", Port: 5, Source: "slurm"}, "", 0, "set MASTER_ADDR"},
		{launch.World{Task: 0}, "here", 0, ""},
		{launch.World{Task: 1}, "far", 77, ""},
	} {
		path := filepath.Join(t.TempDir(), "rendezvous")
		b := fakeBackend(t, "none", Config{World: &c.world, Rendezvous: path})
		if c.host == "far" {
			time.AfterFunc(200*time.Millisecond, func() {
				if err := b.writeRendezvous("far", 77); err != nil {
					t.Error(err)
				}
			})
		}
		host, port, err := b.meetingPoint(t.Context())
		if host != c.host || port != c.port || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: %s:%d, %v", c.world, host, port, err)
		}
	}
}

func TestARendezvousNeedsASharedFolder(t *testing.T) {
	b := fakeBackend(t, "none", Config{World: &launch.World{}})
	if err := b.writeRendezvous("here", 1); err == nil || !strings.Contains(err.Error(), "MASTER_ADDR") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	b.config.Rendezvous = filepath.Join(t.TempDir(), "never")
	if _, _, err := b.awaitRendezvous(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// What a remote worker's predecessor still says is ignored; an end closes it.
func TestRemoteWorkersEnd(t *testing.T) {
	x := &bus{remotes: map[[2]int]*remoteWire{}, gone: map[int]bool{}, offers: make(chan offered, 1)}
	r := &remoteWire{bus: x, task: 1, worker: 0, age: 2, out: make(chan event, 1)}
	x.remotes[[2]int{1, 0}] = r
	r.deliver(message{Do: doLine, Line: "a"})
	r.deliver(message{Do: doLine, Line: "more than anybody listens to"})
	if e := <-r.out; string(e.line) != "a" {
		t.Errorf("%+v", e)
	}
	x.stop(errors.New("gone"))
	if e := <-r.out; e.end == nil || e.end.Error() != "gone" {
		t.Errorf("%+v", e)
	}
	if _, open := <-r.out; open {
		t.Error("a worker that ended is still open")
	}
	r.deliver(message{Do: doEnded, End: "twice"})
	if err := x.tell(1, message{Do: doKill}); err == nil {
		t.Error("a bus that is gone takes messages")
	}
}

// freePort is a port of the loopback interface that was free a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// job starts the tasks of a job in this process, that are told where task 0 is
// or find a file that says so: the leader is returned, the others follow until
// it closes or their context ends.
func job(t *testing.T, tasks int, rendezvous string) (*Backend, []context.CancelFunc, *sync.WaitGroup) {
	t.Helper()
	pythonWithTorch(t) // skips where there is none
	host, port := "", 0
	if rendezvous == "" {
		host, port = "127.0.0.1", freePort(t)
	}
	world := func(i int) Config {
		return Config{
			Machine: profile.Machine{Host: "localhost", CPU: "a processor", Cores: 8}, Device: "cpu", CollectiveTimeout: 3 * time.Second, Rendezvous: rendezvous,
			World: &launch.World{Source: "test", Task: i, Tasks: tasks, LocalTasks: 1, Node: fmt.Sprintf("node%d", i), Host: host, Port: port},
		}
	}
	var stops []context.CancelFunc
	following := &sync.WaitGroup{}
	for i := 1; i < tasks; i++ {
		b, err := New(world(i))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stops = append(stops, stop)
		following.Go(func() {
			defer b.Close()
			if err := b.Follow(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("task %d: %v", i, err)
			}
		})
	}
	leader, err := New(world(0))
	if err != nil {
		t.Fatal(err)
	}
	return leader, stops, following
}

// Three tasks come together: devices of all nodes, groups across them, and when
// the leader ends the job, all leave.
func TestTorchTasksOfAJob(t *testing.T) {
	leader, _, following := job(t, 3, "")
	inv := discover(t, leader)
	var groups []string
	for _, g := range inv.Groups {
		groups = append(groups, g.Name)
	}
	if want := "[2 torch_cpu:1 over gloo_tcp on 2 nodes 3 torch_cpu:1 over gloo_tcp on 3 nodes]"; fmt.Sprint(groups) != want {
		t.Errorf("%v", groups)
	}
	if len(leader.ranks) != 3 || leader.ranks[2].place != "n2/r0" {
		t.Errorf("%d ranks", len(leader.ranks))
	}
	batch, err := run(t.Context(), leader, "3 torch_cpu:1 over gloo_tcp on 3 nodes", op.AllReduce{Message: op.Message{Group: 3, Bytes: 1 << 16}})
	if err != nil || len(batch.Ranks) != 3 {
		t.Errorf("%+v, %v", batch, err)
	}
	x, err := leader.Open(t.Context(), "torch_cpu:1", "n2/r0")
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Prepare(t.Context(), gemm, 1); err != nil {
		t.Errorf("a device of another task: %v", err)
	}
	if err := leader.Close(); err != nil {
		t.Error(err)
	}
	following.Wait()
}

// Open MPI does not say where task 0 is: a file does, and is gone afterwards.
func TestTorchTasksMeetByAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rendezvous")
	leader, _, following := job(t, 2, path)
	inv := discover(t, leader)
	if len(inv.Groups) != 1 || inv.Groups[0].Ranks() != 2 {
		t.Errorf("%+v", inv.Groups)
	}
	if err := leader.Close(); err != nil {
		t.Error(err)
	}
	following.Wait()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file stays behind: %v", err)
	}
}

// A task that is lost in the middle is named, and the leader does not wait for
// it for ever.
func TestTorchALostTaskIsNamed(t *testing.T) {
	leader, stops, following := job(t, 2, "")
	inv := discover(t, leader)
	stops[0]()
	following.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	_, err := run(ctx, leader, inv.Groups[0].Name, op.AllReduce{Message: op.Message{Group: 2, Bytes: 1 << 16}})
	if err == nil || !strings.Contains(err.Error(), "n1/r0") && !strings.Contains(err.Error(), "rank 0 (n0/r0)") {
		t.Errorf("%v", err)
	}
	t.Log(err)
	start := time.Now()
	if _, err = run(t.Context(), leader, inv.Groups[0].Name, op.AllReduce{Message: op.Message{Group: 2, Bytes: 1 << 16}}); err == nil || !strings.Contains(err.Error(), "task 1 left the job") || time.Since(start) > 20*time.Second {
		t.Errorf("the next try: %v after %s", err, time.Since(start))
	}
	if err := leader.Close(); err != nil {
		t.Error(err)
	}
}

func TestMissingTasksAreListed(t *testing.T) {
	if got := missing(map[int]bool{0: true, 2: true}, 4); fmt.Sprint(got) != "[1 3]" {
		t.Error(got)
	}
}
