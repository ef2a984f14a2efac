package host

import (
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"
)

// ThrottleCount is how often cores have slowed down for their temperature since
// boot, summed over all cores whose counter can be read; two readings that
// differ mean that it happened in between. It is false where no core has one:
// in most virtual machines, and on CPUs other than Intel's.
func ThrottleCount(root fs.FS) (int64, bool) {
	const folder = "sys/devices/system/cpu"
	entries, err := fs.ReadDir(root, folder)
	if err != nil {
		return 0, false
	}
	var sum int64
	var found bool
	for _, e := range entries {
		if !isCPU(e.Name()) {
			continue
		}
		n, ok := counter(root, folder+"/"+e.Name()+"/thermal_throttle/core_throttle_count")
		if ok && sum <= math.MaxInt64-n {
			sum, found = sum+n, true
		}
	}
	return sum, found
}

// isCPU tells cpu12 from its neighbours cpufreq and cpuidle.
func isCPU(name string) bool {
	digits, ok := strings.CutPrefix(name, "cpu")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

func counter(root fs.FS, name string) (int64, bool) {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil && n >= 0
}

// RunDelay is how long the threads of this process, all together, have been
// ready to run and waited for a core, since each started. It counts cores held
// by this process's own other threads as well as by others, so a caller runs no
// more threads than cores. A thread that ends takes its share along: a reading
// may be smaller than the one before. It is false where the kernel does not
// keep the account.
func RunDelay(root fs.FS) (waited time.Duration, ok bool) {
	const folder = "proc/self/task"
	threads, err := fs.ReadDir(root, folder)
	if err != nil {
		return 0, false
	}
	for _, t := range threads {
		b, err := fs.ReadFile(root, folder+"/"+t.Name()+"/schedstat")
		if err != nil {
			continue // it ended since the folder was listed
		}
		delay, counted := parseSchedstat(string(b))
		if counted && waited <= math.MaxInt64-delay {
			waited, ok = waited+delay, true
		}
	}
	return waited, ok
}

// parseSchedstat reads "ran waited slices", times in nanoseconds, and gives the
// second. A kernel that does not keep the account prints "0 0 0": no reading,
// and no other thread looks like that, since each runs when it starts.
func parseSchedstat(text string) (time.Duration, bool) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return 0, false
	}
	var n [3]uint64
	for i, f := range fields {
		var err error
		if n[i], err = strconv.ParseUint(f, 10, 63); err != nil {
			return 0, false
		}
	}
	return time.Duration(n[1]), n != [3]uint64{}
}
