package replay

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/profile/backend/torch"
	"golang.org/x/sys/unix"
)

// seat is what one rank of this host runs on.
type seat struct {
	rank    int
	local   int // among the ranks of this host
	device  string
	threads int      // of a processor; 0 on a GPU
	env     []string // that the device type asks for
	cores   []int    // to be pinned to; nil: none
	sms     int      // multiprocessors of a GPU to be confined to; 0: all
}

// Machine is what a host has for ranks.
type Machine struct {
	Cores int // that this process may use
	GPUs  int
}

// place decides on the seats of the ranks first to first+n-1 of a plan, which
// run on this host, and on the backend and mode that the devices allow.
func (c *Config) place(first, n int) (seats []seat, backend, mode string, err error) {
	p := c.Plans[0]
	processors := 0
	for i := range p.Ranks {
		s := seat{rank: i, local: i - first, device: p.Ranks[i].Device, sms: torch.Multiprocessors(p.Ranks[i].Device)}
		var ok bool
		if s.threads, s.env, ok = torch.Processor(s.device); ok {
			processors++
		} else if strings.HasPrefix(s.device, "cpu:") || strings.HasPrefix(s.device, "sim:") {
			return nil, "", "", fmt.Errorf("%s: ranks[%d].device: %q: replay runs torch, and this device type is no torch's; calibrate with --backend torch and plan on that profile", p.Path, i, s.device)
		}
		if i >= first && i < first+n {
			seats = append(seats, s)
		}
	}
	if processors > 0 && processors < len(p.Ranks) {
		return nil, "", "", fmt.Errorf("%s: ranks: %d of %d are processors: they and GPUs have no backend in common", p.Path, processors, len(p.Ranks))
	}
	if processors > 0 {
		backend, mode = "gloo", ModeCPU
		err = c.pin(seats)
	} else {
		backend, mode, err = c.onGPUs(seats)
	}
	if err == nil && c.Backend != "" && c.Backend != backend {
		err = fmt.Errorf("%s: ranks[0].device: %q: runs over %s, not %s", p.Path, p.Ranks[0].Device, backend, c.Backend)
	}
	return seats, backend, mode, err
}

// onGPUs: NCCL takes one rank a GPU. Ranks that are confined to multiprocessors
// are on one, all of them.
func (c *Config) onGPUs(seats []seat) (backend, mode string, err error) {
	p := c.Plans[0]
	parts := 0
	for i := range p.Ranks {
		if torch.Multiprocessors(p.Ranks[i].Device) > 0 {
			parts++
		}
	}
	switch {
	case parts > 0 && parts < len(p.Ranks):
		return "", "", fmt.Errorf("%s: ranks: %d of %d are confined to multiprocessors of a GPU, the others have whole ones: replay runs the one or the other", p.Path, parts, len(p.Ranks))
	case parts > 0 && len(seats) < len(p.Ranks):
		return "", "", fmt.Errorf("%s: ranks[0].device: %q: ranks that share a GPU are run by one process, and this job has several tasks: replay without a launcher", p.Path, p.Ranks[0].Device)
	case parts > 0 || c.Backend == "gloo":
		return "gloo", ModeOneGPU, nil
	}
	if c.Machine.GPUs > 0 && c.Machine.GPUs < len(seats) {
		last := seats[c.Machine.GPUs]
		return "", "", fmt.Errorf("%s: ranks[%d].device: %q: more ranks than this host's %d GPUs; --comm gloo runs them in turns on one, for numerics and compute times only", p.Path, last.rank, last.device, c.Machine.GPUs)
	}
	return "nccl", ModeNCCL, nil
}

// pin gives every rank the next free cores. More threads than cores are refused,
// or run without being pinned when that is wanted.
func (c *Config) pin(seats []seat) error {
	free := allowedCores(c.Machine.Cores)
	have, next := len(free), 0
	for i := range seats {
		s := &seats[i]
		if next += s.threads; next > have && !c.Oversubscribe {
			return fmt.Errorf("%s: ranks[%d].device: %q: with it the ranks of this host have %d threads or more, and may use %d of its cores; plan for fewer ranks, or --oversubscribe runs them all the same, and times then mean nothing", c.Plans[0].Path, s.rank, s.device, next, have)
		}
	}
	c.crowded = next > have
	if c.crowded || c.World != nil && c.World.Tasks > 1 { // a launcher has its own ways of placing tasks
		return nil
	}
	for i := range seats {
		seats[i].cores, free = free[:seats[i].threads:seats[i].threads], free[seats[i].threads:]
	}
	return nil
}

// allowedCores lists cores that this process may use, at most so many, since a
// cgroup may grant less time than there are cores.
func allowedCores(most int) []int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var cores []int
	for i := 0; len(cores) < min(set.Count(), most); i++ {
		if set.IsSet(i) {
			cores = append(cores, i)
		}
	}
	return cores
}
