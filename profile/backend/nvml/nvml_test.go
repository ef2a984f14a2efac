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

type found struct {
	First, Second       []profile.NVIDIADevice
	WhyFirst, WhySecond string
}

// TestMain takes the inventory of one library in a child process, twice as a
// program might. A process each is needed because a fault ends it, and because
// the functions of the first library loaded stay bound for good.
func TestMain(m *testing.M) {
	path := os.Getenv(childLibrary)
	if path == "" {
		os.Exit(m.Run())
	}
	var f found
	f.First, f.WhyFirst = inventory(path)
	f.Second, f.WhySecond = inventory(path)
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func inChild(t *testing.T, path string) ([]profile.NVIDIADevice, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childLibrary+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the inventory ended its process: %v\n%s", err, out)
	}
	var f found
	if err := json.Unmarshal(out, &f); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if diff := cmp.Diff(f.First, f.Second); diff != "" || f.WhyFirst != f.WhySecond {
		t.Errorf("a second inventory differs: %q, %q\n%s", f.WhyFirst, f.WhySecond, diff)
	}
	return f.First, f.WhyFirst
}

// The source is embedded because the go command, which caches test results,
// does not see what a compiler reads.
//
//go:embed testdata/fake.c
var fake string

// build compiles the fake library with the macros that spoil it.
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

// Return values are those of nvml.h: 9 driver not loaded, 15 GPU lost, 18
// version mismatch, 3 not supported, 4 no permission.
func TestInventory(t *testing.T) {
	h200 := profile.NVIDIADevice{Name: "NVIDIA H200", UUID: "GPU-0000-0", Memory: 141 * units.GiB, Driver: "580.95.05"}
	l4 := profile.NVIDIADevice{Name: "NVIDIA L4", UUID: "GPU-0000-1", Memory: 24 * units.GiB, Driver: "580.95.05"}
	nameless := l4
	nameless.UUID = ""
	bare := []profile.NVIDIADevice{{UUID: h200.UUID}, {UUID: l4.UUID}}
	const library = "the NVIDIA driver library (LIB) "
	for _, tt := range []struct {
		name   string
		macros []string
		want   []profile.NVIDIADevice
		why    string
	}{
		{"two GPUs", nil, []profile.NVIDIADevice{h200, l4}, ""},
		{"first versions only", []string{"V1"}, []profile.NVIDIADevice{h200, l4}, ""},
		{"no UUID", []string{"UUID=3"}, []profile.NVIDIADevice{h200, nameless}, "the UUID of GPU 1 could not be read: fake error 3"},
		{"GPU lost", []string{"HANDLE=15"}, []profile.NVIDIADevice{l4}, "GPU 0 could not be read: fake error 15"},
		{"refusals", []string{"REST=4"}, bare, "the driver version could not be read: fake error 4; " +
			"the name of GPU 0 could not be read: fake error 4; the memory of GPU 0 could not be read: fake error 4; " +
			"the name of GPU 1 could not be read: fake error 4; the memory of GPU 1 could not be read: fake error 4"},
		{"no GPU", []string{"COUNT=0"}, nil, "the NVIDIA driver is there but shows no GPU to this process"},
		{"old library", []string{"OLD"}, nil, library + "lacks nvmlDeviceGetUUID: install a newer driver for an inventory"},
		{"no init", []string{"NO_INIT"}, nil, library + "lacks nvmlInit_v2: install a newer driver for an inventory"},
		{"driver not loaded", []string{"INIT=9"}, nil, library + "did not start: fake error 9 " +
			"(the kernel module is not loaded, or this container was not given the GPUs)"},
		{"version mismatch", []string{"INIT=18"}, nil, library + "did not start: fake error 18 " +
			"(the driver was updated since the machine started: reboot it)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := build(t, tt.macros...)
			got, why := inChild(t, path)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if want := strings.ReplaceAll(tt.why, "LIB", path); why != want {
				t.Errorf("why = %q, want %q", why, want)
			}
		})
	}
}

func TestNoLibrary(t *testing.T) {
	got, why := inChild(t, "libevenkeel-absent.so.1")
	if want := "no NVIDIA driver library (libevenkeel-absent.so.1) on this machine"; len(got) != 0 || why != want {
		t.Errorf("inventory = %v, %q, want %q", got, why, want)
	}
}

func TestBrokenLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if err := os.WriteFile(path, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, why := inChild(t, path)
	want := "the NVIDIA driver library (" + path + ") cannot be loaded: "
	if len(got) != 0 || !strings.HasPrefix(why, want) || why == want {
		t.Errorf("inventory = %v, %q, want %q and a reason", got, why, want)
	}
}
