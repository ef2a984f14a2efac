package launch

import (
	"net"
	"strconv"
	"strings"
)

// explicit are this project's own variables, for launchers that it does not know.
func explicit(r *reader) *claim {
	if r.text("EVENKEEL_TASK") == "" && r.text("EVENKEEL_TASKS") == "" {
		return nil
	}
	c := &claim{taskVar: "EVENKEEL_TASK", tasksVar: "EVENKEEL_TASKS"}
	c.Source = Explicit
	c.Task, c.Tasks = r.place(c.taskVar, c.tasksVar)
	if r.text("EVENKEEL_LOCAL_TASK") != "" {
		c.LocalTask, c.LocalTasks = r.localPlace("EVENKEEL_LOCAL_TASK", "EVENKEEL_LOCAL_TASKS")
	}
	c.Node, c.RestartID = r.text("EVENKEEL_NODE"), r.text("EVENKEEL_JOB")
	c.Host, c.Port = explicitMaster(r, c.Tasks)
	return c
}

func explicitMaster(r *reader, tasks int) (string, int) {
	const name = "EVENKEEL_MASTER"
	value := r.text(name)
	if value == "" && tasks == 1 {
		return "", 0
	}
	host, digits, err := net.SplitHostPort(value)
	port, bad := strconv.Atoi(digits)
	if err != nil || bad != nil || host == "" || port < 1 || port > 65535 {
		r.fail(name, "want host:port, where task 0 can be reached, the same for all tasks")
		return "", 0
	}
	return host, port
}

// torch reads the variables that torchrun and the training operator of
// Kubernetes share. RANK is the place of a process under torchrun, but that of
// a *node* in a PyTorchJob, which is told by the absence of LOCAL_RANK.
func torch(r *reader) *claim {
	if r.text("RANK") == "" && r.text("WORLD_SIZE") == "" {
		return nil
	}
	if r.text("LOCAL_RANK") == "" {
		return pyTorchJob(r)
	}
	c := &claim{taskVar: "RANK", tasksVar: "WORLD_SIZE"}
	c.Source = Torchrun
	c.Task, c.Tasks = r.place(c.taskVar, c.tasksVar)
	c.LocalTask, c.LocalTasks = r.localPlace("LOCAL_RANK", "LOCAL_WORLD_SIZE")
	r.master(&c.World)
	c.AgentStore = r.agentStore()
	c.RestartID = joined(r.text("TORCHELASTIC_RUN_ID"), r.text("TORCHELASTIC_RESTART_COUNT"))
	c.assigns = c.RestartID != ""
	return c
}

// agentStore reads what torchrun writes as Python's str(bool).
func (r *reader) agentStore() bool {
	const name = "TORCHELASTIC_USE_AGENT_STORE"
	switch strings.ToLower(r.text(name)) {
	case "true", "1":
		return true
	case "", "false", "0":
		return false
	}
	r.fail(name, "want True or False; unset it if no torchrun started this process")
	return false
}

// pyTorchJob counts nodes. WORLD_SIZE is the number of nodes, or, by newer
// operators, that of workers; PET_NNODES, where there is one, settles it.
func pyTorchJob(r *reader) *claim {
	c := &claim{taskVar: "RANK", tasksVar: "WORLD_SIZE"}
	c.Source = PyTorchJob
	c.Workers = r.workersPerNode()
	if r.text("PET_NNODES") == "" {
		c.Task, c.Tasks = r.place(c.taskVar, c.tasksVar)
	} else {
		c.tasksVar = "PET_NNODES"
		c.Tasks = r.fixedNodes()
		if r.err != nil {
			return nil
		}
		c.Task = r.count(c.taskVar, 0, c.Tasks-1)
		r.checkWorldSize(c.Tasks, c.Workers)
	}
	c.LocalTasks = 1
	r.master(&c.World)
	c.RestartID = joined(r.text("PET_RDZV_ID"), r.text("PET_RESTART_COUNT"))
	return c
}

// workersPerNode is 0 for words such as "gpu" and "auto", which mean one a GPU.
func (r *reader) workersPerNode() int {
	for _, name := range []string{"PET_NPROC_PER_NODE", "NPROC_PER_NODE"} {
		switch r.text(name) {
		case "":
			continue
		case "auto", "gpu", "cpu":
			return 0
		}
		return r.count(name, 1, maxTasks)
	}
	return 0
}

// fixedNodes reads PET_NNODES, "4" or "4:4". A job whose size can change
// cannot be measured as one group.
func (r *reader) fixedNodes() int {
	const name = "PET_NNODES"
	low, high, isRange := strings.Cut(r.text(name), ":")
	n, err := strconv.Atoi(low)
	if err != nil || n < 1 || n > maxTasks || (isRange && high != low) {
		r.fail(name, "want one number of nodes; set minReplicas and maxReplicas of the job to the same")
		return 0
	}
	return n
}

func (r *reader) checkWorldSize(nodes, workers int) {
	size := r.optional("WORLD_SIZE", 1, maxTasks)
	if r.err == nil && size != 0 && size != nodes && size != nodes*max(1, workers) {
		r.fail("WORLD_SIZE", "want the number of nodes or of workers, but PET_NNODES="+r.text("PET_NNODES")+
			" and "+strconv.Itoa(workers)+" workers a node say otherwise; unset the one that is wrong")
	}
}

// openMPI has no master, and names the job in no stable variable.
func openMPI(r *reader) *claim {
	if r.text("OMPI_COMM_WORLD_RANK") == "" && r.text("OMPI_COMM_WORLD_SIZE") == "" {
		return nil
	}
	c := &claim{taskVar: "OMPI_COMM_WORLD_RANK", tasksVar: "OMPI_COMM_WORLD_SIZE"}
	c.Source = OpenMPI
	c.Task, c.Tasks = r.place(c.taskVar, c.tasksVar)
	c.LocalTask, c.LocalTasks = r.localPlace("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
	if r.text("MASTER_ADDR") != "" {
		r.master(&c.World)
	}
	return c
}

// joined are the parts of a restart's name that are there.
func joined(parts ...string) string {
	var there []string
	for _, p := range parts {
		if p == "" {
			break // a count without a name names nothing
		}
		there = append(there, p)
	}
	return strings.Join(there, ".")
}
