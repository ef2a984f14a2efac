//go:build cgo && linux

package nvml

import (
	_ "embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// childLibrary names the library that a child process of these tests looks at.
const childLibrary = "EVENKEEL_TEST_NVML_LIBRARY"

// TestMain takes the inventory of one library in a child process, twice as a
// program might. A process each is needed because a fault ends it, and because
// the functions of the first library loaded stay bound for good.
func TestMain(m *testing.M) {
	path := os.Getenv(childLibrary)
	if path == "" {
		os.Exit(m.Run())
	}
	var found [2]profile.Machine
	for i := range found {
		describeWith(path, &found[i])
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func inChild(t *testing.T, path string) profile.Machine {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	// Under the race detector a process sleeps a second at its end unless told not to.
	cmd.Env = append(os.Environ(), childLibrary+"="+path, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the inventory ended its process: %v\n%s", err, out)
	}
	var found [2]profile.Machine
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if diff := cmp.Diff(found[0], found[1]); diff != "" {
		t.Errorf("a second inventory differs:\n%s", diff)
	}
	return found[0]
}

// The source is embedded because the go command, which caches test results,
// does not see what a compiler reads.
//
//go:embed testdata/fake.c
var fake string

// build compiles the fake library with macros that choose its machine.
func build(t *testing.T, macros ...string) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	cc, err := exec.LookPath(cc)
	if err != nil {
		t.Skipf("no C compiler for the fake library: %v", err)
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := []string{"-shared", "-fPIC", "-o", path, "-xc", "-"}
	for _, m := range macros {
		args = append(args, "-D"+m)
	}
	cmd := exec.Command(cc, args...)
	cmd.Stdin = strings.NewReader(fake)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", cc, args, err, out)
	}
	return path
}

// refuse makes functions of the fake return codes of nvml.h: "f=4", or "f@1=4"
// for GPU 1 alone.
func refuse(calls string) string { return `REFUSE="` + calls + `"` }

// without takes a function out of the fake by giving it another name.
func without(symbol string) string { return symbol + "=absent_" + symbol }

// h200 and l4 are GPUs 0 and 1 of the fake. 16896 cores of 128 each are the 132
// multiprocessors of an H200, 7424 the 58 of an L4, by NVIDIA's data sheets.
func h200() profile.NVIDIADevice {
	return profile.NVIDIADevice{
		Index: 0, Name: "NVIDIA H200", UUID: "GPU-0000-0", Memory: 141 * units.GiB, Driver: "580.95.05",
		PCIBus: "00000000:1A:00.0", Compute: "9.0", Cores: 16896, SMs: 132,
		SMClock: 345e6, MaxSMClock: 1980e6, MemoryClock: 3201e6, MaxMemoryClock: 3201e6,
		Power: 75.3, PowerLimit: 700, Temperature: known(31),
		ClockReasons: []string{"gpu_idle"}, PowerViolation: known(units.Seconds(12.5)), ThermalViolation: known(units.Seconds(0)),
		Persistence: profile.SwitchOn, ECC: profile.SwitchOn, ECCErrors: known(uint64(0)), MIG: profile.SwitchOff,
		PCIe:      profile.PCIe{Generation: 5, MaxGeneration: 5, Width: 16, MaxWidth: 16},
		NUMANodes: []int{0}, CPUAffinity: "0-2,64-65", Processes: []int{},
	}
}

func l4() profile.NVIDIADevice {
	return profile.NVIDIADevice{
		Index: 1, Name: "NVIDIA L4", UUID: "GPU-0000-1", Memory: 24 * units.GiB, Driver: "580.95.05",
		PCIBus: "00000000:2A:00.0", Compute: "8.9", Cores: 7424, SMs: 58,
		SMClock: 1410e6, MaxSMClock: 2040e6, MemoryClock: 6251e6, MaxMemoryClock: 6251e6,
		Power: 71.999, PowerLimit: 72, Temperature: known(0),
		ClockReasons: []string{"sw_power_cap", "sw_thermal_slowdown", "bit_9"}, PowerViolation: known(units.Seconds(3600)), ThermalViolation: known(units.Seconds(0.0015)),
		Persistence: profile.SwitchOff, ECC: profile.SwitchOn, ECCErrors: known(uint64(2)),
		PCIe:      profile.PCIe{Generation: 1, MaxGeneration: 4, Width: 8, MaxWidth: 16},
		NUMANodes: []int{1}, CPUAffinity: "3-63", Processes: []int{4711, 4712},
	}
}

// What the plain fake refuses: it has no NVLink, and its L4 cannot be partitioned.
const (
	noLinks  = "the NVLinks of GPUs 0-1 could not be read: fake error 3"
	ordinary = noLinks + "; the MIG mode of GPU 1 could not be read: fake error 3"
)

func TestEveryField(t *testing.T) {
	want := profile.Machine{
		NVIDIA: []profile.NVIDIADevice{h200(), l4()}, NVIDIALinks: []profile.NVIDIALink{{A: 0, B: 1, Link: "PIX"}},
		Missing: ordinary,
	}
	for name, macros := range map[string][]string{
		"newest versions":          nil,
		"first versions":           {"V1"},
		"reasons by the old name":  {"OLDNAMES"},
		"first versions, old name": {"V1", "OLDNAMES"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(want, inChild(t, build(t, macros...))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Return values are those of nvml.h: 9 driver not loaded, 15 GPU lost, 18
// version mismatch, 4 no permission.
func TestNoInventory(t *testing.T) {
	const library = "the NVIDIA driver library (LIB) "
	for _, tt := range []struct{ name, macro, why string }{
		{"no GPU", "COUNT=0", "the NVIDIA driver is there but shows no GPU to this process"},
		{"no count", refuse("nvmlDeviceGetCount_v2=4"), "the number of NVIDIA GPUs could not be read: fake error 4"},
		{"old library", without("nvmlDeviceGetUUID"), library + "lacks nvmlDeviceGetUUID: install a newer driver for an inventory"},
		{"no init", without("nvmlInit_v2"), library + "lacks nvmlInit_v2: install a newer driver for an inventory"},
		{"driver not loaded", refuse("nvmlInit_v2=9"), library + "did not start: fake error 9 " +
			"(the kernel module is not loaded, or this container was not given the GPUs)"},
		{"version mismatch", refuse("nvmlInit_v2=18"), library + "did not start: fake error 18 " +
			"(the driver was updated since the machine started: reboot it)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := build(t, tt.macro)
			got := inChild(t, path)
			if diff := cmp.Diff(profile.Machine{Missing: strings.ReplaceAll(tt.why, "LIB", path)}, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestNoLibrary(t *testing.T) {
	got := inChild(t, "libevenkeel-absent.so.1")
	want := profile.Machine{Missing: "no NVIDIA driver library (libevenkeel-absent.so.1) on this machine"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestBrokenLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if err := os.WriteFile(path, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := inChild(t, path)
	want := "the NVIDIA driver library (" + path + ") cannot be loaded: "
	if len(got.NVIDIA) != 0 || !strings.HasPrefix(got.Missing, want) || got.Missing == want {
		t.Errorf("found %v, missing %q, want %q and a reason", got.NVIDIA, got.Missing, want)
	}
}

func TestGPULost(t *testing.T) {
	got := inChild(t, build(t, refuse("nvmlDeviceGetHandleByIndex_v2@0=15 nvmlSystemGetDriverVersion=4")))
	driverless := l4()
	driverless.Driver = ""
	want := profile.Machine{
		NVIDIA: []profile.NVIDIADevice{driverless},
		Missing: "the driver version could not be read: fake error 4; GPU 0 could not be read: fake error 15; " +
			"the MIG mode and NVLinks of GPU 1 could not be read: fake error 3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The inventory of this machine is whatever it is, but describes itself.
func TestDescribeThisMachine(t *testing.T) {
	var m profile.Machine
	Describe(&m)
	if len(m.NVIDIA) == 0 && m.Missing == "" {
		t.Error("no GPU, and nothing says why")
	}
	for _, d := range m.NVIDIA {
		t.Logf("%+v: %s", d, d.Identity())
	}
	t.Logf("links %v, missing %q", m.NVIDIALinks, m.Missing)
}
