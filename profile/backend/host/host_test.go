package host

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// tree makes a file tree of names and contents.
func tree(files ...map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for _, some := range files {
		for name, text := range some {
			fsys[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return fsys
}

const cache = "sys/devices/system/cpu/cpu0/cache/"

// x86 is a dual-core machine as Linux shows it; sizes as on a Zen server.
func x86() map[string]string {
	return map[string]string{
		"proc/cpuinfo": "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9354   32-Core Processor  \n\n" +
			"processor\t: 1\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9354   32-Core Processor  \n",
		"proc/meminfo":              "MemTotal:       24684084 kB\nMemFree:        23917728 kB\n",
		"proc/sys/kernel/hostname":  "node7\n",
		"proc/sys/kernel/osrelease": "6.18.44\n",
		"etc/os-release":            "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
		cache + "index0/level":      "1\n", cache + "index0/type": "Data\n", cache + "index0/size": "48K\n",
		cache + "index1/level": "1\n", cache + "index1/type": "Instruction\n", cache + "index1/size": "32K\n",
		cache + "index2/level": "2\n", cache + "index2/type": "Unified\n", cache + "index2/size": "1024K\n",
		cache + "index3/level": "3\n", cache + "index3/type": "Unified\n", cache + "index3/size": "32M\n",
	}
}

func TestReadX86(t *testing.T) {
	got, notes := Read(tree(x86()), 8)
	want := profile.Machine{
		Host: "node7", OS: "Debian GNU/Linux 12 (bookworm), Linux 6.18.44",
		CPU: "AMD EPYC 9354 32-Core Processor", Cores: 8,
		L1Data: 48 * units.KiB, L2: units.MiB, L3: 32 * units.MiB,
		Memory: 24684084 * units.KiB,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Read (-want +got):\n%s", diff)
	}
	if len(notes) != 0 {
		t.Errorf("notes on a complete machine: %q", notes)
	}
}

func TestReadNothing(t *testing.T) {
	got, notes := Read(tree(), 0)
	want := profile.Machine{OS: runtime.GOOS, CPU: "unknown " + runtime.GOARCH + " CPU", Cores: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Read of an empty tree (-want +got):\n%s", diff)
	}
	wantNotes := []string{
		"the operating system could not be identified",
		"/proc/cpuinfo: file does not exist; the CPU model is unknown",
		"/sys/devices/system/cpu/cpu0/cache: no cache sizes there; the sizes of the CPU's caches are unknown",
		"/proc/meminfo: file does not exist; the size of the memory is unknown",
	}
	if diff := cmp.Diff(wantNotes, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestReadGarbled(t *testing.T) {
	got, notes := Read(tree(x86(), map[string]string{
		"proc/cpuinfo":                 "\x00\xff::::\nmodel name\n",
		"proc/meminfo":                 "MemTotal: many kB\n",
		"proc/sys/kernel/hostname":     "no\xffde\x1b[31m\n7",
		cache + "index2/size":          "-4K",
		cache + "index3/size":          "99999999999999999999K",
		"proc/self/cgroup":             "0::/a\nnonsense\n",
		"proc/self/mountinfo":          "31 23 0:28 / /cg rw - cgroup2 cgroup2 rw\nshort\n",
		"cg/a/cpu.max":                 "lots",
		"cg/a/memory.max":              "-5",
		"cg/memory.max/is-a-directory": "",
	}), 4)
	want := profile.Machine{
		Host: "node[31m 7", OS: "Debian GNU/Linux 12 (bookworm), Linux 6.18.44",
		CPU: "unknown " + runtime.GOARCH + " CPU", Cores: 4, L1Data: 48 * units.KiB,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Read (-want +got):\n%s", diff)
	}
	wantNotes := []string{
		"/proc/cpuinfo names no CPU model",
		`/cg/a/cpu.max: want a quota and a period in microseconds, found "lots"; no limit on cores is assumed`,
		"/" + cache + `index2/size: want a size such as 32K, found "-4K"; the size of this cache is unknown`,
		"/" + cache + `index3/size: want a size such as 32K, found "99999999999999999999K"; the size of this cache is unknown`,
		`/proc/meminfo: want MemTotal in kB, found "many kB"; the size of the memory is unknown`,
		`/cg/a/memory.max: want a number of bytes or max, found "-5"; no limit on memory is assumed`,
	}
	// What reading a directory says differs between file systems.
	if len(notes) != len(wantNotes)+1 || !strings.HasPrefix(notes[len(notes)-1], "/cg/memory.max: ") {
		t.Fatalf("want %d notes, the last on /cg/memory.max, got %q", len(wantNotes)+1, notes)
	}
	if diff := cmp.Diff(wantNotes, notes[:len(wantNotes)]); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestModel(t *testing.T) {
	for _, tt := range []struct{ name, cpuinfo, want string }{
		{"x86", "model\t: 85\nmodel name\t: Intel(R) Xeon(R) CPU\n", "Intel(R) Xeon(R) CPU"},
		{"Raspberry Pi", "CPU implementer\t: 0x41\nCPU part\t: 0xd08\n\nModel\t: Raspberry Pi 4 Model B Rev 1.2\n", "Raspberry Pi 4 Model B Rev 1.2"},
		{"Grace", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\nprocessor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "ARM Neoverse-V2"},
		{"big and little", "CPU implementer : 0x41\nCPU part : 0xd05\nCPU implementer : 0x41\nCPU part : 0xd0b\n", "ARM Cortex-A55 + ARM Cortex-A76"},
		{"new part", "CPU implementer : 0xc0\nCPU part : 0xfff\n", "Ampere part 0xfff"},
		{"new maker", "CPU implementer : 0x7a\nCPU part : 0x1\n", "ARM implementer 0x7a part 0x001"},
		{"part alone", "CPU part : 0xd05\n", ""},
		{"garbled part", "CPU implementer : 0x41\nCPU part : core\n", ""},
		{"POWER", "processor : 0\ncpu : POWER9, altivec supported\n", "POWER9, altivec supported"},
		{"LoongArch", "Model Name : Loongson-3A5000\n", "Loongson-3A5000"},
		{"x86 without a name", "model : 2\n", ""},
		{"empty", "", ""},
	} {
		if got := model(tt.cpuinfo); got != tt.want {
			t.Errorf("%s: model = %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestARMTables checks that every line of the tables can be found, by a key as
// long as the codes are printed.
func TestARMTables(t *testing.T) {
	for _, table := range []string{armMakers, armParts} {
		for line := range strings.Lines(strings.TrimSpace(table)) {
			code, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			if got := lookUp(table, code); got != name || name == "" {
				t.Errorf("lookUp(%q) = %q, want %q", code, got, name)
			}
			maker, part, isPart := strings.Cut(code, "/")
			if isPart && !strings.HasSuffix(armModel("0x"+maker, "0x"+part), " "+name) {
				t.Errorf("armModel does not name %s %s", code, name)
			}
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]units.Bytes{
		"48K\n": 48 * units.KiB, "32M": 32 * units.MiB, "1G": units.GiB, "512": 512, "0": 0,
		"9007199254740991K": (1<<53 - 1) * units.KiB,
	} {
		if got, ok := parseSize(text); !ok || got != want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "K", "-1K", "1.5M", "1T", "32k", "9007199254740992K", "1 K", "0x10"} {
		if got, ok := parseSize(text); ok {
			t.Errorf("parseSize(%q) = %d, want a refusal", text, got)
		}
	}
}

// TestDiscover runs on this machine, whatever it is.
func TestDiscover(t *testing.T) {
	m, notes := Discover()
	if m.CPU == "" || m.OS == "" || m.Cores < 1 || m.Cores > runtime.NumCPU() {
		t.Errorf("Discover = %+v", m)
	}
	if m.Memory <= 0 && len(notes) == 0 {
		t.Error("no memory found, and no note says why")
	}
	if _, err := os.Stat("/proc/meminfo"); err == nil && m.Memory <= 0 {
		t.Errorf("there is a /proc/meminfo, yet memory = %d; notes %q", m.Memory, notes)
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"48K", "32M\n", "-1", "9223372036854775807", "9223372036854775807G", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, ok := parseSize(text); n < 0 || !ok && n != 0 {
			t.Errorf("parseSize(%q) = %d, %v", text, n, ok)
		}
	})
}

// FuzzRead garbles every file that is parsed; what Read promises must hold.
func FuzzRead(f *testing.F) {
	f.Add(x86()["proc/cpuinfo"], "MemTotal: 1000 kB", "48K", "0::/a\n", "1 2 0:1 / /cg rw - cgroup2 c rw\n", "150000 100000", "4096")
	f.Add("CPU implementer : 0x41\nCPU part : 0xd05", "", "", "4:cpu,memory:/a\n", "1 2 0:1 /a /cg rw - cgroup c rw,cpu,memory\n", "-1", "max")
	f.Add("\xff\x00", "MemTotal: -1 kB", "-1", ":::::", "/ - cgroup2 - /", "0 0", "9223372036854771712")
	f.Add("", "", "", "0::/../../x\n", "1 2 0:1 /../.. /../cg/. rw - cgroup2 c rw\n", "1 9999999999", "")
	f.Fuzz(func(t *testing.T, cpuinfo, meminfo, size, cgroup, mounts, quota, memory string) {
		const cores = 8
		files := x86()
		files["proc/cpuinfo"], files["proc/meminfo"], files[cache+"index3/size"] = cpuinfo, meminfo, size
		files["proc/self/cgroup"], files["proc/self/mountinfo"] = cgroup, mounts
		for _, dir := range []string{"cg/", "cg/a/"} {
			files[dir+"cpu.max"], files[dir+"memory.max"] = quota, memory
			files[dir+"cpu.cfs_quota_us"], files[dir+"cpu.cfs_period_us"] = quota, quota
			files[dir+"memory.limit_in_bytes"] = memory
		}
		m, notes := Read(tree(files), cores)
		if m.CPU == "" || !utf8.ValidString(m.CPU) || utf8.RuneCountInString(m.CPU) > longest {
			t.Errorf("CPU = %q", m.CPU)
		}
		if m.Cores < 1 || m.Cores > cores || m.Memory < 0 || m.L3 < 0 {
			t.Errorf("Read = %+v", m)
		}
		if m.Cores < cores && len(notes) == 0 {
			t.Error("cores were taken off without a note")
		}
	})
}
