// Package launch finds out how this process was started as one task of a job
// on several machines, and prints the jobs that start it so.
//
// A task is one process that the launcher started. The sources, and what each
// says (PyTorch's elastic launcher, Kubeflow's training operator, Open MPI and
// Slurm document these variables):
//
//	source      task                   tasks                   master
//	explicit    EVENKEEL_TASK          EVENKEEL_TASKS          EVENKEEL_MASTER=host:port
//	torchrun    RANK                   WORLD_SIZE              MASTER_ADDR, MASTER_PORT
//	pytorchjob  RANK (of the node)     PET_NNODES, WORLD_SIZE  MASTER_ADDR, MASTER_PORT
//	openmpi     OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE    none
//	slurm       SLURM_PROCID           SLURM_STEP_NUM_TASKS    first host of SLURM_STEP_NODELIST
//
// The first source of this list that is there wins. A variable that is set but
// empty counts as absent.
package launch

import (
	"fmt"
	"strconv"
	"strings"
)

// The sources of a World.
const (
	Explicit   = "explicit"
	Torchrun   = "torchrun"
	PyTorchJob = "pytorchjob"
	OpenMPI    = "openmpi"
	Slurm      = "slurm"
)

// maxTasks bounds every count; a larger one is a misread variable.
const maxTasks = 1 << 16

// World is this process's place in a job.
type World struct {
	// Source is the launcher that the fields come from: one of the constants.
	Source string
	// Task is this process among the Tasks of the job.
	Task, Tasks int
	// LocalTask is this process among the LocalTasks of its node. LocalTasks is
	// 0 when the launcher does not say.
	LocalTask, LocalTasks int
	// Workers is the number of workers that the launcher wants each task to
	// start (NPROC_PER_NODE of a PyTorchJob); 0 when it does not say, which
	// means one a GPU.
	Workers int
	// Node is the launcher's name of this node, "" when it gives none; it need
	// not resolve to an address.
	Node string
	// Host and Port are where task 0 can be reached. Host is "" under Open MPI,
	// which has no master, and Port is 0 then: the caller must use a rendezvous
	// file on a shared file system, which task 0 writes.
	Host string
	Port int
	// LaunchHost is the address that srun was started on, "" elsewhere. Where
	// Host is a name without an address, as on a cluster whose nodes Slurm alone
	// knows by name, it is worth a try: a batch script runs on its first node.
	LaunchHost string
	// AgentStore says that the launcher itself hosts a store at Host:Port, so
	// that task 0 must join it and not open one there.
	AgentStore bool
	// RestartID differs between the starts of one job, so that what an earlier
	// start left in a store or a file is not taken for the present; "" when the
	// launcher names no job.
	RestartID string
}

// Env looks up an environment variable, as os.LookupEnv does.
type Env func(name string) (value string, ok bool)

// VariableError is an environment variable whose value makes no sense.
type VariableError struct {
	Name, Value string
	Want        string // what it should be, and the way out
}

// Error implements error.
func (e *VariableError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("%s is not set: %s", e.Name, e.Want)
	}
	return fmt.Sprintf("%s=%q: %s", e.Name, e.Value, e.Want)
}

// DisagreementError is two launchers that tell one process different places.
type DisagreementError struct {
	A, B string // source: variables with their values
}

// Error implements error.
func (e *DisagreementError) Error() string {
	return fmt.Sprintf("%s, but %s: they disagree; unset the variables of the one that did not start this process", e.A, e.B)
}

// claim is what one source says.
type claim struct {
	World
	taskVar, tasksVar string
	// assigns: the launcher hands out tasks by itself, so their order need not
	// be that of the launcher around it.
	assigns bool
}

func (c *claim) String() string {
	return fmt.Sprintf("%s: %s=%d, %s=%d", c.Source, c.taskVar, c.Task, c.tasksVar, c.Tasks)
}

// sources by precedence. Each returns nil when its variables are absent.
var sources = []func(*reader) *claim{explicit, torch, openMPI, slurm}

// Detect reads the environment. It returns nil without an error when no
// launcher started this process, a *VariableError for a malformed variable and
// a *DisagreementError when two sources contradict each other.
func Detect(env Env) (*World, error) {
	r := &reader{env: env}
	var claims []*claim
	for _, source := range sources {
		c := source(r)
		if r.err != nil {
			return nil, r.err
		}
		if c != nil {
			claims = append(claims, c)
		}
	}
	if len(claims) == 0 {
		return nil, nil
	}
	for _, outer := range claims[1:] {
		if !agree(claims[0], outer) {
			return nil, &DisagreementError{claims[0].String(), outer.String()}
		}
	}
	w := claims[0].World
	return &w, nil
}

// agree tells whether one process can have both places. A launcher may run
// inside another that started it once a node: the inner one then has more
// tasks. An inner one with fewer is left over from somewhere else, typically
// RANK=0 exported into all tasks of a step.
func agree(inner, outer *claim) bool {
	if inner.Tasks != outer.Tasks {
		return inner.Tasks > outer.Tasks
	}
	return inner.Task == outer.Task || inner.assigns
}

// reader reads variables and keeps the first error.
type reader struct {
	env Env
	err error
}

func (r *reader) text(name string) string {
	value, ok := r.env(name)
	if !ok {
		return ""
	}
	return strings.TrimSpace(value)
}

func (r *reader) fail(name, want string) {
	if r.err == nil {
		r.err = &VariableError{name, r.text(name), want}
	}
}

// count is a whole number of lo to hi.
func (r *reader) count(name string, lo, hi int) int {
	n, err := strconv.Atoi(r.text(name))
	if err != nil || n < lo || n > hi {
		r.fail(name, fmt.Sprintf("want a whole number of %d to %d; set it as the launcher does, or start through the launcher", lo, hi))
		return 0
	}
	return n
}

// optional is a count, or 0 when the variable is absent.
func (r *reader) optional(name string, lo, hi int) int {
	if r.text(name) == "" {
		return 0
	}
	return r.count(name, lo, hi)
}

// place reads a task and its number of tasks.
func (r *reader) place(task, tasks string) (int, int) {
	n := r.count(tasks, 1, maxTasks)
	if r.err != nil {
		return 0, 0
	}
	return r.count(task, 0, n-1), n
}

// localPlace reads a local task and, if it is there, the number of local tasks.
func (r *reader) localPlace(task, tasks string) (int, int) {
	n := r.optional(tasks, 1, maxTasks)
	if r.err != nil {
		return 0, 0
	}
	most := maxTasks
	if n > 0 {
		most = n
	}
	return r.count(task, 0, most-1), n
}

// master reads MASTER_ADDR and MASTER_PORT, which only one task can do without.
func (r *reader) master(w *World) {
	w.Host = r.text("MASTER_ADDR")
	w.Port = r.optional("MASTER_PORT", 1, 65535)
	if w.Tasks == 1 {
		return
	}
	if w.Host == "" {
		r.fail("MASTER_ADDR", "want the host of task 0, since there are more tasks than one")
	}
	if w.Port == 0 {
		r.fail("MASTER_PORT", "want a free port of MASTER_ADDR, the same for all tasks")
	}
}
