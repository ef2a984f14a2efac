package launch

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

func env(vars map[string]string) Env {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// with is a copy of vars with pairs of names and values set; "-" unsets.
func with(vars map[string]string, pairs ...string) map[string]string {
	c := maps.Clone(vars)
	for i := 0; i < len(pairs); i += 2 {
		if c[pairs[i]] = pairs[i+1]; pairs[i+1] == "-" {
			delete(c, pairs[i])
		}
	}
	return c
}

var (
	explicitVars = map[string]string{
		"EVENKEEL_TASK": "1", "EVENKEEL_TASKS": "4", "EVENKEEL_MASTER": "[fe80::1]:700", "EVENKEEL_JOB": "j1", "EVENKEEL_NODE": "n1",
		"EVENKEEL_LOCAL_TASK": "1", "EVENKEEL_LOCAL_TASKS": "2",
	}
	torchrunVars = map[string]string{
		"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "h0", "MASTER_PORT": "29500",
		"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "True",
	}
	kubeflowVars = map[string]string{"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
	ompiVars     = map[string]string{
		"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
	}
	slurmVars = map[string]string{
		"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "2",
		"SLURM_STEP_TASKS_PER_NODE": "2,1(x2)", "SLURM_STEP_NODELIST": "h[009-010,7]", "SLURMD_NODENAME": "h7",
		"SLURM_JOB_ID": "1000", "SLURM_STEP_ID": "2",
	}
)

func TestDetect(t *testing.T) {
	for name, c := range map[string]struct {
		vars map[string]string
		want World
	}{
		"explicit": {explicitVars, World{Source: Explicit, Task: 1, Tasks: 4, LocalTask: 1, LocalTasks: 2, Node: "n1", Host: "fe80::1", Port: 700, RestartID: "j1"}},
		"torchrun": {torchrunVars, World{Source: Torchrun, Task: 9, Tasks: 16, LocalTask: 1, LocalTasks: 8, Host: "h0", Port: 29500, AgentStore: true, RestartID: "none.2"}},
		"torchrun by hand": {
			map[string]string{"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
			World{Source: Torchrun, Tasks: 1},
		},
		"old operator": {kubeflowVars, World{Source: PyTorchJob, Task: 1, Tasks: 4, LocalTasks: 1, Host: "job-master-0", Port: 23456}},
		"old operator, 8 workers a node": {
			with(kubeflowVars, "NPROC_PER_NODE", "8"),
			World{Source: PyTorchJob, Task: 1, Tasks: 4, Workers: 8, LocalTasks: 1, Host: "job-master-0", Port: 23456},
		},
		"new operator counts workers": {
			with(kubeflowVars, "PET_NNODES", "2", "PET_NPROC_PER_NODE", "2", "PET_RDZV_ID", "job"),
			World{Source: PyTorchJob, Task: 1, Tasks: 2, Workers: 2, LocalTasks: 1, Host: "job-master-0", Port: 23456, RestartID: "job"},
		},
		"new operator counts nodes": {
			with(kubeflowVars, "PET_NNODES", "4:4", "PET_NPROC_PER_NODE", "auto"),
			World{Source: PyTorchJob, Task: 1, Tasks: 4, LocalTasks: 1, Host: "job-master-0", Port: 23456},
		},
		"Open MPI has no master": {ompiVars, World{Source: OpenMPI, Task: 3, Tasks: 4, LocalTask: 1, LocalTasks: 2}},
		"Open MPI, master exported": {
			with(ompiVars, "MASTER_ADDR", "h0", "MASTER_PORT", "700"),
			World{Source: OpenMPI, Task: 3, Tasks: 4, LocalTask: 1, LocalTasks: 2, Host: "h0", Port: 700},
		},
		// 17*1000 + 2 = 17002 above 20000.
		"Slurm": {slurmVars, World{Source: Slurm, Task: 3, Tasks: 4, LocalTasks: 1, Node: "h7", Host: "h009", Port: 37002, RestartID: "1000.2"}},
		"Slurm, master exported, older step number": {
			with(slurmVars, "MASTER_ADDR", "10.0.0.1", "MASTER_PORT", "700", "SLURM_STEP_ID", "-", "SLURM_STEPID", "5", "SLURM_RESTART_COUNT", "1"),
			World{Source: Slurm, Task: 3, Tasks: 4, LocalTasks: 1, Node: "h7", Host: "10.0.0.1", Port: 700, RestartID: "1000.5.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Detect(env(c.vars))
			if err != nil {
				t.Fatal(err)
			}
			if *got != c.want {
				t.Errorf("got  %+v\nwant %+v", *got, c.want)
			}
		})
	}
}

func TestNoLauncher(t *testing.T) {
	for name, vars := range map[string]map[string]string{
		"nothing":     {},
		"empty":       {"RANK": "", "WORLD_SIZE": " "},
		"only master": {"MASTER_ADDR": "h0", "MASTER_PORT": "1"},
		// What sbatch sets for the script itself: one process, though the job has four tasks.
		"batch script": {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4"},
	} {
		if w, err := Detect(env(vars)); w != nil || err != nil {
			t.Errorf("%s: got %+v, %v; want nothing", name, w, err)
		}
	}
}

// TestMalformed has one broken variable a case; the error must name it, its value and a way out.
func TestMalformed(t *testing.T) {
	for _, c := range []struct {
		vars        map[string]string
		name, value string
	}{
		{explicitVars, "EVENKEEL_TASK", "4"},
		{explicitVars, "EVENKEEL_TASKS", "0"},
		{explicitVars, "EVENKEEL_MASTER", "h0"},
		{explicitVars, "EVENKEEL_MASTER", "h0:70000"},
		{explicitVars, "EVENKEEL_MASTER", ":700"},
		{explicitVars, "EVENKEEL_LOCAL_TASK", "2"},
		{torchrunVars, "RANK", "16"},
		{torchrunVars, "RANK", "-1"},
		{torchrunVars, "RANK", ""},
		{torchrunVars, "WORLD_SIZE", "65537"},
		{torchrunVars, "WORLD_SIZE", ""},
		{torchrunVars, "LOCAL_RANK", "one"},
		{torchrunVars, "LOCAL_WORLD_SIZE", "x"},
		{torchrunVars, "MASTER_ADDR", ""},
		{torchrunVars, "MASTER_PORT", ""},
		{torchrunVars, "MASTER_PORT", "0"},
		{torchrunVars, "TORCHELASTIC_USE_AGENT_STORE", "perhaps"},
		{kubeflowVars, "MASTER_ADDR", ""},
		{kubeflowVars, "NPROC_PER_NODE", "many"},
		{kubeflowVars, "PET_NNODES", "1:4"},
		{kubeflowVars, "PET_NNODES", "x"},
		{with(kubeflowVars, "PET_NNODES", "2", "PET_NPROC_PER_NODE", "8"), "WORLD_SIZE", "4"},
		{with(kubeflowVars, "PET_NNODES", "1"), "RANK", "1"},
		{ompiVars, "OMPI_COMM_WORLD_RANK", ""},
		{ompiVars, "OMPI_COMM_WORLD_SIZE", "2"},
		{ompiVars, "OMPI_COMM_WORLD_LOCAL_RANK", "2"},
		{with(ompiVars, "MASTER_ADDR", "h0"), "MASTER_PORT", "x"},
		{slurmVars, "SLURM_PROCID", "4"},
		{slurmVars, "SLURM_NODEID", "3"},
		{slurmVars, "SLURM_LOCALID", "1"},
		{slurmVars, "SLURM_JOB_ID", "0"},
		{slurmVars, "SLURM_STEP_ID", "x"},
		{slurmVars, "SLURM_STEP_NODELIST", "h[1"},
		{slurmVars, "SLURM_STEP_TASKS_PER_NODE", ""},
		{slurmVars, "SLURM_STEP_TASKS_PER_NODE", "2(x"},
		{slurmVars, "SLURM_STEP_TASKS_PER_NODE", "2(x0)"},
		{slurmVars, "SLURM_STEP_TASKS_PER_NODE", "a(x2)"},
		{slurmVars, "MASTER_PORT", "65536"},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			w, err := Detect(env(with(c.vars, c.name, c.value)))
			var bad *VariableError
			if !errors.As(err, &bad) || w != nil {
				t.Fatalf("got %+v, %v; want a VariableError", w, err)
			}
			// A number of its range broken may show at the variable that it bounds.
			named := bad.Name == c.name && bad.Value == c.value
			bounded := strings.Contains(err.Error(), "SLURM_NODEID") || strings.HasSuffix(c.name, "SIZE") || c.name == "SLURM_STEP_ID"
			if !named && !bounded {
				t.Errorf("%v: does not name %s=%q", err, c.name, c.value)
			}
			if !strings.Contains(err.Error(), "want") && !strings.Contains(err.Error(), "set ") {
				t.Errorf("%v: names no way out", err)
			}
		})
	}
}

func TestSourcesInsideEachOther(t *testing.T) {
	both := func(a, b map[string]string, pairs ...string) map[string]string {
		c := maps.Clone(a)
		maps.Copy(c, b)
		return with(c, pairs...)
	}
	for name, c := range map[string]struct {
		vars map[string]string
		want string // source, or what the error must contain
	}{
		"torchrun once a node in a step": {both(torchrunVars, slurmVars), Torchrun},
		"torchrun assigns by itself":     {both(torchrunVars, slurmVars, "WORLD_SIZE", "4", "RANK", "0"), Torchrun},
		"equal by hand":                  {both(kubeflowVars, slurmVars, "RANK", "3"), PyTorchJob},
		"mpirun's daemons in a step":     {both(ompiVars, slurmVars, "SLURM_STEP_NUM_TASKS", "3", "SLURM_PROCID", "2"), OpenMPI},
		"explicit first":                 {both(explicitVars, slurmVars, "SLURM_PROCID", "1"), Explicit},
		"RANK exported into every task": {
			both(kubeflowVars, slurmVars, "RANK", "0", "WORLD_SIZE", "1"),
			"pytorchjob: RANK=0, WORLD_SIZE=1, but slurm: SLURM_PROCID=3, SLURM_STEP_NUM_TASKS=4: they disagree",
		},
		"another place among as many": {
			both(kubeflowVars, ompiVars, "RANK", "2"),
			"pytorchjob: RANK=2, WORLD_SIZE=4, but openmpi: OMPI_COMM_WORLD_RANK=3, OMPI_COMM_WORLD_SIZE=4: they disagree",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := Detect(env(c.vars))
			var clash *DisagreementError
			switch {
			case err == nil && w.Source != c.want:
				t.Errorf("source %s, want %s", w.Source, c.want)
			case err != nil && (!errors.As(err, &clash) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestStepPort(t *testing.T) {
	seen := map[int]bool{}
	for job := 1; job <= 1000; job++ {
		for step := range 17 {
			p := StepPort(job, step)
			if p < 20000 || p > 39999 {
				t.Fatalf("job %d step %d: port %d", job, step, p)
			}
			seen[p] = true
		}
	}
	// 1,000 jobs of 17 steps each fit without a collision.
	if len(seen) != 17000 {
		t.Errorf("%d different ports, want 17000", len(seen))
	}
	// 2^32 - 5 is the number of a batch step; 32-bit arithmetic would overflow.
	if p := StepPort(1<<31, 1<<32-5); p < 20000 || p > 39999 {
		t.Errorf("port %d", p)
	}
}

func FuzzDetect(f *testing.F) {
	names := []string{
		"RANK", "WORLD_SIZE", "LOCAL_RANK", "PET_NNODES", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
		"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID",
	}
	f.Add("0\n1")
	f.Add("1\n4\n\n2\n8\nh0\n29500")
	f.Add("\n\n\n\n\n\n\n\n\n0\n2\n0\n1(x2)\nh[1-2]\n7\n0")
	f.Fuzz(func(t *testing.T, lines string) {
		vars := map[string]string{}
		for i, line := range strings.Split(lines, "\n") {
			if i < len(names) {
				vars[names[i]] = line
			}
		}
		w, err := Detect(env(vars))
		if err != nil || w == nil {
			return
		}
		if w.Task < 0 || w.Task >= w.Tasks || w.LocalTask < 0 || (w.LocalTasks > 0 && w.LocalTask >= w.LocalTasks) {
			t.Errorf("%+v from %q", *w, vars)
		}
		if w.Port < 0 || w.Port > 65535 || (w.Tasks > 1 && w.Source != OpenMPI && (w.Host == "" || w.Port == 0)) {
			t.Errorf("%+v has no master, from %q", *w, vars)
		}
	})
}
