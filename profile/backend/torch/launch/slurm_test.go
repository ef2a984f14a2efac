package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// asTask makes the test binary one task of a job: it prints what it detects.
const asTask = "EVENKEEL_TEST_TASK"

func TestMain(m *testing.M) {
	if os.Getenv(asTask) == "" {
		os.Exit(m.Run())
	}
	w, err := Detect(os.LookupEnv)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(w); err != nil {
		os.Exit(1)
	}
}

// TestSlurmJob submits the printed job to a cluster of four nodes on this
// machine, with this test in place of evenkeel: every task must find its own
// place, and all of them the same master.
func TestSlurmJob(t *testing.T) {
	conf := startSlurm(t)
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "evenkeel")); err != nil {
		t.Fatal(err)
	}
	text, err := Job("slurm", JobOptions{Nodes: 4, GPUsPerNode: 8, Out: dir, Budget: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	// These nodes have no GPUs to ask for.
	text = strings.Replace(text, "#SBATCH --gpus-per-node=8\n", "", 1)
	out := filepath.Join(dir, "out")
	run(t, text, []string{"SLURM_CONF=" + conf, asTask + "=1", "PATH=" + dir + ":" + os.Getenv("PATH")}, "sbatch", "--output="+out, "--error="+out+".err")
	data := awaitLines(t, out, 4)
	checkTasks(t, data)
}

// awaitLines returns a file once it has n whole lines. (sbatch --wait asks only
// every ten seconds.)
func awaitLines(t *testing.T, name string, n int) string {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		data, _ := os.ReadFile(name) // absent until the job begins
		if strings.Count(string(data), "\n") >= n {
			return string(data)
		}
		if time.Now().After(deadline) {
			said, _ := os.ReadFile(name + ".err")
			t.Fatalf("no %d lines within a minute: %s%s", n, data, said)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func checkTasks(t *testing.T, printed string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	var tasks []int
	for _, line := range lines {
		var w World
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatalf("%v in %s", err, printed)
		}
		tasks = append(tasks, w.Task)
		// The job is the cluster's first, and srun is its step 0: 20000 + 17.
		want := World{
			Source: Slurm, Task: w.Task, Tasks: 4, LocalTasks: 1, Node: fmt.Sprintf("node%d", w.Task+1), Host: "node1", Port: 20017, LaunchHost: "127.0.0.1", RestartID: "1.0",
		}
		if w != want {
			t.Errorf("got  %+v\nwant %+v", w, want)
		}
	}
	if slices.Sort(tasks); !slices.Equal(tasks, []int{0, 1, 2, 3}) {
		t.Errorf("tasks %v, want each of 0 to 3 once", tasks)
	}
}

// startSlurm starts the loopback cluster and returns its slurm.conf; it skips
// where there is no Slurm to start.
func startSlurm(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged"} {
		if _, err := os.Stat(program); err != nil {
			t.Skip("no Slurm on this machine: apt-get install --no-install-recommends slurm-wlm munge")
		}
	}
	if os.Getuid() != 0 {
		t.Skip("slurmd needs root")
	}
	script, err := filepath.Abs("../../../../docs/slurm/loopback.sh")
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir, whose names are too long for the socket inside.
	dir, err := os.MkdirTemp("", "slurm")
	if err != nil {
		t.Fatal(err)
	}
	// Ports of this process alone: another test run may have a cluster too.
	port := fmt.Sprintf("EVENKEEL_SLURM_PORT=%d", 40000+os.Getpid()%1000*8)
	t.Cleanup(func() {
		if out, err := exec.Command(script, "stop", dir).CombinedOutput(); err != nil {
			t.Errorf("stop: %v: %s", err, out)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is still there after stop", dir)
		}
	})
	run(t, "", []string{port}, script, "start", dir)
	return filepath.Join(dir, "slurm.conf")
}

// run runs a command for at most a minute.
func run(t *testing.T, stdin string, env []string, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), env...)
	c.Stdin = strings.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}
