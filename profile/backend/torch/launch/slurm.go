package launch

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// The range of ports that steps of Slurm share: below the kernel's ephemeral
// ports (32768 and up by default) for the most part, above the registered ones.
const (
	firstPort = 20000
	portCount = 20000
	// stepStride keeps the steps of one job and those of its neighbours, which
	// may run on the same nodes, on different ports.
	stepStride = 17
)

// slurm reads the variables of a step. The batch script of a job has
// SLURM_PROCID=0 and the job's SLURM_NTASKS too, yet it is one process: only
// srun sets SLURM_STEP_NUM_TASKS.
func slurm(r *reader) *claim {
	if r.text("SLURM_PROCID") == "" || r.text("SLURM_STEP_NUM_TASKS") == "" {
		return nil
	}
	c := &claim{taskVar: "SLURM_PROCID", tasksVar: "SLURM_STEP_NUM_TASKS"}
	c.Source = Slurm
	c.Task, c.Tasks = r.place(c.taskVar, c.tasksVar)
	node := r.optional("SLURM_NODEID", 0, maxTasks-1)
	c.LocalTasks = r.tasksOn(node)
	if r.err != nil {
		return nil
	}
	c.LocalTask = r.count("SLURM_LOCALID", 0, c.LocalTasks-1)
	c.Node = r.text("SLURMD_NODENAME")
	job, step := r.slurmIDs()
	c.RestartID = joined(fmt.Sprintf("%d.%d", job, step), r.text("SLURM_RESTART_COUNT"))
	r.slurmMaster(&c.World, job, step)
	return c
}

func (r *reader) slurmIDs() (job, step int) {
	const most = 1 << 32
	job = r.count("SLURM_JOB_ID", 1, most)
	name := "SLURM_STEP_ID"
	if r.text(name) == "" {
		name = "SLURM_STEPID"
	}
	return job, r.count(name, 0, most)
}

func (r *reader) slurmMaster(w *World, job, step int) {
	w.Host, w.Port = r.text("MASTER_ADDR"), r.optional("MASTER_PORT", 1, 65535)
	if w.Port == 0 {
		w.Port = StepPort(job, step)
	}
	if w.Host != "" {
		return
	}
	name := "SLURM_STEP_NODELIST"
	if r.text(name) == "" {
		name = "SLURM_JOB_NODELIST"
	}
	hosts, err := ExpandHosts(r.text(name))
	if err != nil {
		r.fail(name, err.Error()+"; set MASTER_ADDR to the host of task 0")
		return
	}
	w.Host, w.LaunchHost = hosts[0], r.text("SLURM_LAUNCH_NODE_IPADDR")
}

// StepPort is the port of the store of a Slurm step, 20000 to 39999: all tasks
// derive the same one without talking to each other. It may be taken; then
// MASTER_PORT is the way out.
func StepPort(job, step int) int {
	n := (uint64(job)*stepStride + uint64(step)) % portCount
	return firstPort + int(n)
}

// tasksOn is the number of tasks of a step on its node-th node.
func (r *reader) tasksOn(node int) int {
	const name = "SLURM_STEP_TASKS_PER_NODE"
	n, err := tasksOfNode(r.text(name), node)
	if err != nil {
		r.fail(name, err.Error()+"; want it as srun sets it: start through srun")
	}
	return n
}

// tasksOfNode reads a list such as "2(x3),1": three nodes with two tasks, then
// one with one.
func tasksOfNode(list string, node int) (int, error) {
	before := 0
	for item := range strings.SplitSeq(list, ",") {
		tasks, repeat, err := tasksItem(item)
		if err != nil {
			return 0, fmt.Errorf("%q: %w", item, err)
		}
		before += repeat
		if node < before {
			return tasks, nil
		}
	}
	return 0, fmt.Errorf("it tells of %s, and this is node %d counted from 0 (SLURM_NODEID)", units.Count(before, "node"), node)
}

func tasksItem(item string) (tasks, repeat int, err error) {
	digits, times, repeated := strings.Cut(item, "(x")
	repeat = 1
	if repeated {
		inner, closed := strings.CutSuffix(times, ")")
		if repeat, err = strconv.Atoi(inner); err != nil || !closed || repeat < 1 || repeat > maxTasks {
			return 0, 0, fmt.Errorf("want N(xM) with a whole M of 1 to %d", maxTasks)
		}
	}
	if tasks, err = strconv.Atoi(digits); err != nil || tasks < 1 || tasks > maxTasks {
		return 0, 0, fmt.Errorf("want a whole number of tasks of 1 to %d", maxTasks)
	}
	return tasks, repeat, nil
}
