package host

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

const maxBytes = units.Bytes(math.MaxInt64)

// group is one cgroup that this process is in. Limits of all groups up to the
// root of a hierarchy hold at once, so each of them is one.
type group struct {
	dir         string // in the tree
	v2          bool
	controllers []string // of version 1; in version 2 any may be there
}

func (g group) has(controller string) bool {
	return g.v2 || slices.Contains(g.controllers, controller)
}

// groups lists the cgroups this process is in, both versions: a machine may
// have both mounted with the controllers divided between them. The mount table
// is read rather than /sys/fs/cgroup assumed, since a container may have its
// own group mounted there (its root) under a path that only the host knows.
func (r *reader) groups() []group {
	mine := r.optional("proc/self/cgroup")
	if strings.TrimSpace(mine) == "" {
		return nil // a kernel without cgroups sets no limits
	}
	mounts, ok := r.text("proc/self/mountinfo", "cgroup limits are unknown")
	if !ok {
		return nil
	}
	paths := groupPaths(mine)
	var all []group
	for line := range strings.Lines(mounts) {
		m, ok := parseMount(line)
		if !ok {
			continue
		}
		for _, dir := range m.dirs(paths) {
			all = append(all, group{dir: dir, v2: m.v2, controllers: m.controllers})
		}
	}
	return all
}

// groupPaths maps each controller to the path of this process's group in its
// hierarchy; version 2 is the empty controller. Lines read "4:cpu,cpuacct:/a/b".
func groupPaths(text string) map[string]string {
	paths := map[string]string{}
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, dir, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		for controller := range strings.SplitSeq(controllers, ",") {
			paths[controller] = dir
		}
	}
	return paths
}

type mount struct {
	root, point string // what of the hierarchy is mounted, and where
	v2          bool
	controllers []string
}

// parseMount reads a line of mountinfo if it is a cgroup hierarchy:
// "id parent dev root point options [optional...] - type source superoptions".
func parseMount(line string) (mount, bool) {
	before, after, _ := strings.Cut(line, " - ")
	left, right := strings.Fields(before), strings.Fields(after)
	if len(left) < 5 || len(right) < 3 {
		return mount{}, false
	}
	m := mount{root: left[3], point: left[4], v2: right[0] == "cgroup2"}
	if !m.v2 {
		m.controllers = strings.Split(right[2], ",")
	}
	return m, m.v2 || right[0] == "cgroup"
}

// dirs is the directory of this process's group below the mount and those of
// its ancestors. A path outside of what is mounted is the host's view of a
// group: the mount's own root is then all that can be seen of it.
func (m mount) dirs(paths map[string]string) []string {
	inside, ok := paths[""]
	if !m.v2 {
		inside, ok = "", false
		for _, c := range m.controllers {
			if p, found := paths[c]; found && c != "" {
				inside, ok = p, true
			}
		}
	}
	if !ok {
		return nil
	}
	inside = path.Clean("/" + inside)
	if rest, below := strings.CutPrefix(inside, strings.TrimSuffix(m.root, "/")+"/"); below {
		inside = "/" + rest
	} else {
		inside = "/"
	}
	var dirs []string
	for ; inside != "/"; inside = path.Dir(inside) {
		dirs = append(dirs, inTree(m.point+inside))
	}
	return append(dirs, inTree(m.point))
}

// cores takes CPU quotas off the cores that the scheduler offers. A quota is
// rounded down: with 2.5 cores, three busy threads would be stopped within each
// period, and every time measured would contain the pauses.
func (r *reader) cores(groups []group, offered int) int {
	quota := math.Inf(1)
	for _, g := range groups {
		if g.has("cpu") {
			quota = min(quota, r.quota(g))
		}
	}
	if quota >= float64(offered) {
		return max(1, offered)
	}
	usable := max(1, int(quota))
	r.note("a cgroup quota of %.4g cores leaves %d of %d usable", quota, usable, offered)
	if quota < 1 {
		r.note("with less than one core, this process is stopped while it is measured: times will be too long")
	}
	return usable
}

// quota is the number of cores a group may use on average, +Inf without a limit.
func (r *reader) quota(g group) float64 {
	name := g.dir + "/cpu.max"
	if !g.v2 {
		name = g.dir + "/cpu.cfs_quota_us"
	}
	text := r.optional(name)
	if !g.v2 && text != "" {
		text += " " + r.optional(g.dir+"/cpu.cfs_period_us")
	}
	if strings.TrimSpace(text) == "" {
		return math.Inf(1)
	}
	cores, err := parseQuota(text)
	if err != nil {
		r.note("/%s: %v; no limit on cores is assumed", name, err)
		return math.Inf(1)
	}
	return cores
}

// parseQuota reads "quota period" in microseconds; "max" (version 2) and -1
// (version 1) mean no limit. Without a period, the kernel's 100 ms holds.
func parseQuota(text string) (float64, error) {
	fields := strings.Fields(text)
	if len(fields) > 0 && (fields[0] == "max" || fields[0] == "-1") {
		return math.Inf(1), nil
	}
	if len(fields) == 1 {
		fields = append(fields, "100000")
	}
	if len(fields) != 2 {
		return 0, fmt.Errorf("want a quota and a period in microseconds, found %.40q", text)
	}
	quota, errQuota := strconv.ParseInt(fields[0], 10, 64)
	period, errPeriod := strconv.ParseInt(fields[1], 10, 64)
	if errQuota != nil || errPeriod != nil || quota <= 0 || period <= 0 {
		return 0, fmt.Errorf("want a quota and a period in microseconds, found %.40q", text)
	}
	return float64(quota) / float64(period), nil
}

// memory is the machine's, or what cgroups leave of it.
func (r *reader) memory(groups []group) units.Bytes {
	total := r.memTotal()
	least := maxBytes
	for _, g := range groups {
		if g.has("memory") {
			least = min(least, r.memoryLimit(g))
		}
	}
	switch {
	case total == 0 && least < maxBytes:
		return least
	case total == 0 || least >= total:
		return total
	}
	r.note("a cgroup limits memory to %v of %v", least, total)
	return least
}

func (r *reader) memTotal() units.Bytes {
	const unknown = "the size of the memory is unknown"
	text, ok := r.text("proc/meminfo", unknown)
	if !ok {
		return 0
	}
	found := values(text, "MemTotal")
	if len(found) == 0 {
		r.note("/proc/meminfo has no MemTotal; %s", unknown)
		return 0
	}
	number, _ := strings.CutSuffix(found[0], " kB") // the kernel's kB is 1024 bytes
	size, ok := parseSize(strings.TrimSpace(number) + "K")
	if !ok {
		r.note("/proc/meminfo: want MemTotal in kB, found %.40q; %s", found[0], unknown)
	}
	return size
}

// memoryLimit is a group's limit, maxBytes without one. Version 1 has no word
// for none and gives the largest number of whole pages; whatever is beyond any
// machine counts as that.
func (r *reader) memoryLimit(g group) units.Bytes {
	name := g.dir + "/memory.limit_in_bytes"
	if g.v2 {
		name = g.dir + "/memory.max"
	}
	text := strings.TrimSpace(r.optional(name))
	if text == "" || text == "max" {
		return maxBytes
	}
	limit, ok := parseSize(text)
	switch {
	case !ok:
		r.note("/%s: want a number of bytes or max, found %.40q; no limit on memory is assumed", name, text)
		return maxBytes
	case limit > 1<<60:
		return maxBytes
	}
	return limit
}
