package host

import (
	"io/fs"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func TestThrottleCount(t *testing.T) {
	const cpu, count = "sys/devices/system/cpu/", "/thermal_throttle/core_throttle_count"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  int64
		ok    bool
	}{
		{"two cores", map[string]string{cpu + "cpu0" + count: "3\n", cpu + "cpu11" + count: "4\n"}, 7, true},
		{"zero is a reading", map[string]string{cpu + "cpu0" + count: "0\n"}, 0, true},
		{"one garbled", map[string]string{cpu + "cpu0" + count: "x\n", cpu + "cpu1" + count: "5\n", cpu + "cpu2" + count: "-9\n"}, 5, true},
		{"neighbours", map[string]string{cpu + "cpufreq" + count: "3\n", cpu + "cpu" + count: "3\n"}, 0, false},
		{"a virtual machine", map[string]string{cpu + "cpu0/cache/x": ""}, 0, false},
		{"no /sys", nil, 0, false},
		{"overflow", map[string]string{cpu + "cpu0" + count: strconv.FormatInt(math.MaxInt64, 10), cpu + "cpu1" + count: "1"}, math.MaxInt64, true},
	} {
		if got, ok := ThrottleCount(tree(tt.files)); got != tt.want || ok != tt.ok {
			t.Errorf("%s: ThrottleCount = %d, %v, want %d, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestRunDelay(t *testing.T) {
	const task = "proc/self/task/"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  time.Duration
		ok    bool
	}{
		{"two threads", map[string]string{task + "7/schedstat": "100 20 3\n", task + "8/schedstat": "5 1000 1\n"}, 1020, true},
		{"one has ended", map[string]string{task + "7/schedstat": "100 20 3\n", task + "8/comm": "x"}, 20, true},
		{"never waited", map[string]string{task + "7/schedstat": "100 0 3\n"}, 0, true},
		{"account not kept", map[string]string{task + "7/schedstat": "0 0 0\n", task + "8/schedstat": "0 0 0\n"}, 0, false},
		{"no such file", map[string]string{task + "7/comm": "x"}, 0, false},
		{"no /proc", nil, 0, false},
		{"garbled", map[string]string{task + "7/schedstat": "1 2\n", task + "8/schedstat": "1 -2 3", task + "9/schedstat": "a b c"}, 0, false},
	} {
		if got, ok := RunDelay(tree(tt.files)); got != tt.want || ok != tt.ok {
			t.Errorf("%s: RunDelay = %v, %v, want %v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

// TestRunDelayGrows makes more busy threads than there are cores: some of them
// must wait, whatever else the machine does.
func TestRunDelayGrows(t *testing.T) {
	root := os.DirFS("/")
	before, ok := RunDelay(root)
	if !ok {
		t.Skip("this kernel keeps no account of run delays")
	}
	// GOMAXPROCS bounds the threads of goroutines, so it is what must exceed the cores.
	threads := 4 * runtime.NumCPU()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	deadline := time.Now().Add(200 * time.Millisecond)
	done := make(chan int, threads)
	for range threads {
		go func() {
			spins := 0
			for time.Now().Before(deadline) {
				spins++
			}
			done <- spins
		}()
	}
	for range threads {
		<-done
	}
	if after, ok := RunDelay(root); !ok || after <= before {
		t.Errorf("RunDelay = %v, %v after four busy threads a core, %v before", after, ok, before)
	}
}

func FuzzParseSchedstat(f *testing.F) {
	for _, s := range []string{"1 2 3\n", "0 0 0", "9223372036854775808 1 1", "1 2", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, ok := parseSchedstat(text)
		if d < 0 || ok && len(strings.Fields(text)) != 3 {
			t.Errorf("parseSchedstat(%q) = %d, %v", text, d, ok)
		}
	})
}

// BenchmarkGuards is the cost beside each batch of some 25 ms, on this machine
// and on a made-up one of 64 cores and 64 threads (without its system calls).
func BenchmarkGuards(b *testing.B) {
	big := fstest.MapFS{}
	for i := range 64 {
		n := strconv.Itoa(i)
		big["sys/devices/system/cpu/cpu"+n+"/thermal_throttle/core_throttle_count"] = &fstest.MapFile{Data: []byte("0\n")}
		big["proc/self/task/"+n+"/schedstat"] = &fstest.MapFile{Data: []byte("1 2 3\n")}
	}
	for name, root := range map[string]fs.FS{"here": os.DirFS("/"), "big": big} {
		b.Run("RunDelay/"+name, func(b *testing.B) {
			for b.Loop() {
				RunDelay(root)
			}
		})
		b.Run("ThrottleCount/"+name, func(b *testing.B) {
			for b.Loop() {
				ThrottleCount(root)
			}
		})
	}
}
