package host

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/units"
)

const v2Mount = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

// TestLimits puts one machine of 8 cores and 24684084 KiB into containers.
func TestLimits(t *testing.T) {
	const cg = "sys/fs/cgroup/"
	whole := 24684084 * units.KiB
	for _, tt := range []struct {
		name   string
		files  map[string]string
		cores  int
		memory units.Bytes
		notes  []string
	}{
		{"no cgroups", nil, 8, whole, nil},
		{"no mount table", map[string]string{"proc/self/cgroup": "0::/\n"}, 8, whole, []string{
			"/proc/self/mountinfo: file does not exist; cgroup limits are unknown",
		}},
		{"v2 unlimited", map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": v2Mount,
			cg + "a/cpu.max": "max 100000\n", cg + "a/memory.max": "max\n",
		}, 8, whole, nil},
		{"v2 own namespace, rounded down", map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Mount,
			cg + "cpu.max": "250000 100000\n", cg + "memory.max": "2147483648\n",
		}, 2, 2 * units.GiB, []string{
			"a cgroup quota of 2.5 cores leaves 2 of 8 usable",
			"a cgroup limits memory to 2 GiB of 23.5 GiB",
		}},
		{"v2 less than one core", map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Mount, cg + "cpu.max": "50000 100000\n",
		}, 1, whole, []string{
			"a cgroup quota of 0.5 cores leaves 1 of 8 usable",
			"with less than one core, this process is stopped while it is measured: times will be too long",
		}},
		{"v2 limits of ancestors hold", map[string]string{
			"proc/self/cgroup": "0::/pod/box\n", "proc/self/mountinfo": v2Mount,
			cg + "pod/box/cpu.max": "max 100000\n", cg + "pod/cpu.max": "300000 100000\n",
			cg + "pod/box/memory.max": "4294967296\n", cg + "pod/memory.max": "1073741824\n",
		}, 3, units.GiB, []string{
			"a cgroup quota of 3 cores leaves 3 of 8 usable",
			"a cgroup limits memory to 1 GiB of 23.5 GiB",
		}},
		{"v1, the host's path outside the mount", map[string]string{
			"proc/self/cgroup": "4:memory:/docker/f00\n2:cpu,cpuacct:/docker/f00\n",
			"proc/self/mountinfo": "32 31 0:29 /docker/f00 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n" +
				"35 31 0:32 /docker/f00 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			cg + "cpu,cpuacct/cpu.cfs_quota_us": "400000\n", cg + "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
			cg + "memory/memory.limit_in_bytes": "1073741824\n",
		}, 4, units.GiB, []string{
			"a cgroup quota of 4 cores leaves 4 of 8 usable",
			"a cgroup limits memory to 1 GiB of 23.5 GiB",
		}},
		{"v1 unlimited", map[string]string{
			"proc/self/cgroup": "4:memory:/x\n2:cpu:/\n9:name=systemd:/\n0::/\n",
			"proc/self/mountinfo": "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
				"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			cg + "cpu/cpu.cfs_quota_us": "-1\n", cg + "cpu/cpu.cfs_period_us": "100000\n",
			// The largest multiple of a page of 4096 bytes in an int64.
			cg + "memory/x/memory.limit_in_bytes": "9223372036854771712\n",
		}, 8, whole, nil},
		{"a group of other controllers does not count", map[string]string{
			"proc/self/cgroup":             "3:cpuset:/\n",
			"proc/self/mountinfo":          "32 31 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n",
			cg + "cpuset/cpu.cfs_quota_us": "100000\n", cg + "cpuset/cpu.cfs_period_us": "100000\n",
		}, 8, whole, nil},
		{"more than there is", map[string]string{
			"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": v2Mount,
			cg + "cpu.max": "6400000 100000\n", cg + "memory.max": "1099511627776\n",
		}, 8, whole, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, notes := Read(tree(x86(), tt.files), 8)
			if m.Cores != tt.cores || m.Memory != tt.memory {
				t.Errorf("cores, memory = %d, %d, want %d, %d", m.Cores, m.Memory, tt.cores, tt.memory)
			}
			if diff := cmp.Diff(tt.notes, notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMemoryLimitWithoutTotal: a limit stands in for an unknown size, unless it
// is version 1's way of saying that there is none.
func TestMemoryLimitWithoutTotal(t *testing.T) {
	for text, want := range map[string]units.Bytes{"1048576\n": units.MiB, "9223372036854771712\n": 0} {
		m, _ := Read(tree(map[string]string{
			"proc/self/cgroup":                           "4:memory:/\n",
			"proc/self/mountinfo":                        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": text,
		}), 1)
		if m.Memory != want {
			t.Errorf("memory = %d with a limit of %q and no total, want %d", m.Memory, text, want)
		}
	}
}

func TestMountDirs(t *testing.T) {
	for _, tt := range []struct {
		name, root, inside string
		want               []string
	}{
		{"whole hierarchy", "/", "/a/b", []string{"cg/a/b", "cg/a", "cg"}},
		{"its root", "/", "/", []string{"cg"}},
		{"below what is mounted", "/a", "/a/b", []string{"cg/b", "cg"}},
		{"exactly what is mounted", "/a", "/a", []string{"cg"}},
		{"elsewhere", "/a", "/ab/c", []string{"cg"}},
		// As seen from a namespace whose root is below this process's group.
		{"above the namespace", "/", "/../x", []string{"cg/x", "cg"}},
	} {
		m := mount{root: tt.root, point: "/cg", v2: true}
		if got := m.dirs(map[string]string{"": tt.inside}); !slices.Equal(got, tt.want) {
			t.Errorf("%s: dirs = %q, want %q", tt.name, got, tt.want)
		}
	}
}
