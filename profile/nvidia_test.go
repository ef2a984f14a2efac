package profile

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

func h200() NVIDIADevice {
	celsius, errors, violated := 31, uint64(0), units.Seconds(0)
	return NVIDIADevice{
		Index: 3, Name: "NVIDIA H200", UUID: "GPU-1", Memory: 150754820096, Driver: "580.95.05", PCIBus: "00000000:3B:00.0",
		Compute: "9.0", Cores: 16896, SMs: 132, SMClock: 345e6, MaxSMClock: 1980e6, MemoryClock: 3201e6, MaxMemoryClock: 3201e6,
		Power: 75.3, PowerLimit: 700, Temperature: &celsius, ClockReasons: []string{"gpu_idle"},
		PowerViolation: &violated, ThermalViolation: &violated, Persistence: SwitchOn, ECC: SwitchOn, ECCErrors: &errors, MIG: SwitchOff,
		PCIe:    PCIe{Generation: 5, MaxGeneration: 5, Width: 16, MaxWidth: 16},
		NVLinks: []NVLink{{Link: 2, Remote: "00000000:C0:00.0", Kind: RemoteSwitch, Version: "4.0"}}, NUMANodes: []int{1}, CPUAffinity: "48-95", Processes: []int{4711},
	}
}

func divided() NVIDIADevice {
	d := h200()
	d.MIG = SwitchOn
	d.MIGDevices = []MIGDevice{{UUID: "MIG-1", Profile: "1g.18gb", Memory: 16 * units.GiB, SMs: 16}, {UUID: "MIG-2", Profile: "3g.71gb", Memory: 69 * units.GiB, SMs: 60}}
	return d
}

func TestIdentity(t *testing.T) {
	for want, d := range map[string]NVIDIADevice{
		"NVIDIA H200, 132 multiprocessors, 150754820096 bytes, whole, 700 W, driver 580.95.05":             h200(),
		"NVIDIA H200, 132 multiprocessors, 150754820096 bytes, in MIG mode, 700 W, driver 580.95.05":       divided(),
		"NVIDIA H200, 60 multiprocessors, 74088185856 bytes, 3g.71gb, 700 W, driver 580.95.05":             divided().Instances()[1],
		"unknown name, unknown multiprocessors, unknown bytes, whole, unknown power limit, unknown driver": {},
		"NVIDIA L4, unknown multiprocessors, 25769803776 bytes, whole, 72 W, driver 1":                     {Name: "NVIDIA L4", Memory: 24 * units.GiB, PowerLimit: 71.999, Driver: "1"},
	} {
		if got := d.Identity(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestIdentityIsThatOfAKind changes every field in turn: those that move times
// and are alike on all cards of a kind change the identity, all others do not.
func TestIdentityIsThatOfAKind(t *testing.T) {
	counts := map[string]bool{"Name": true, "SMs": true, "Memory": true, "PowerLimit": true, "MIGProfile": true, "Driver": true, "MIG": true}
	typ := reflect.TypeFor[NVIDIADevice]()
	for i := range typ.NumField() {
		d, f := h200(), typ.Field(i)
		switch v := reflect.ValueOf(&d).Elem().Field(i); v.Kind() {
		case reflect.String:
			v.SetString("on")
			if f.Name == "ECC" || f.Name == "Persistence" {
				v.SetString("off")
			}
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Float64:
			v.SetFloat(v.Float() + 50)
		default:
			v.SetZero()
		}
		if reflect.DeepEqual(d, h200()) && f.Name != "MIGDevices" {
			t.Errorf("%s was not changed", f.Name)
		}
		if changed := d.Identity() != h200().Identity(); changed != counts[f.Name] {
			t.Errorf("%s changes the identity: %v, want %v", f.Name, changed, counts[f.Name])
		}
	}
}

func TestInstances(t *testing.T) {
	if diff := cmp.Diff([]NVIDIADevice{h200()}, h200().Instances()); diff != "" {
		t.Errorf("a whole GPU is its only instance, -want +got:\n%s", diff)
	}
	unknown := h200()
	unknown.MIG = ""
	if n := len(unknown.Instances()); n != 1 {
		t.Errorf("%d instances of a GPU that knows no MIG mode", n)
	}
	parts := divided().Instances()
	want := divided()
	want.UUID, want.MIGProfile, want.Memory, want.SMs = "MIG-1", "1g.18gb", 16*units.GiB, 16
	want.Cores, want.MIGDevices, want.NVLinks, want.Processes = 0, nil, nil, nil
	if diff := cmp.Diff(want, parts[0]); len(parts) != 2 || diff != "" {
		t.Errorf("%d parts, -want +got:\n%s", len(parts), diff)
	}
	empty := divided()
	empty.MIGDevices = nil
	if n := len(empty.Instances()); n != 0 {
		t.Errorf("%d instances of a GPU in MIG mode without parts", n)
	}
}

// The numbers of cores and multiprocessors are those of NVIDIA's data sheets.
func TestMultiprocessorsOf(t *testing.T) {
	for _, tt := range []struct {
		name       string
		cores      int
		capability string
		want       int
	}{
		{"P100", 3584, "6.0", 56},
		{"V100", 5120, "7.0", 80},
		{"T4", 2560, "7.5", 40},
		{"A100", 6912, "8.0", 108},
		{"A10", 9216, "8.6", 72},
		{"L4", 7424, "8.9", 58},
		{"H100 SXM", 16896, "9.0", 132},
		{"H100 PCIe", 14592, "9.0", 114},
		{"B200", 18944, "10.0", 148},
		{"to come", 18944, "99.0", 0},
		{"unread capability", 18944, "", 0},
		{"not whole", 16897, "9.0", 0},
		{"unread cores", 0, "9.0", 0},
	} {
		if got := MultiprocessorsOf(tt.cores, tt.capability); got != tt.want {
			t.Errorf("%s has %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestAGPUSurvivesItsDocument: what is not known stays absent, and what is known
// to be none stays known, through the reader that recordings go through.
func TestAGPUSurvivesItsDocument(t *testing.T) {
	bare := NVIDIADevice{Name: "NVIDIA L4"}
	none := NVIDIADevice{ClockReasons: []string{}, MIGDevices: []MIGDevice{}, NVLinks: []NVLink{}, NUMANodes: []int{}, Processes: []int{}}
	want := Machine{NVIDIA: []NVIDIADevice{h200(), divided(), bare, none}, NVIDIALinks: []NVIDIALink{{A: 0, B: 1, Link: "NV18"}}, Missing: "x"}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Machine
	if err := doc.DecodeStrict("x.json", 0, data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	data, err = json.Marshal(bare)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"index":0,"name":"NVIDIA L4","uuid":"","memory_bytes":0,"driver":""}`; string(data) != want {
		t.Errorf("a GPU that tells nothing is %s", data)
	}
}

// TestKeysOfGPUsEndInTheirUnit covers what has no type of its own in package units.
func TestKeysOfGPUsEndInTheirUnit(t *testing.T) {
	typ := reflect.TypeFor[NVIDIADevice]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		unit := ""
		switch {
		case strings.Contains(f.Name, "Clock") && f.Type.Kind() == reflect.Float64:
			unit = "_hz"
		case f.Type.Kind() == reflect.Float64:
			unit = "_w"
		case f.Name == "Temperature":
			unit = "_c"
		}
		if !strings.HasSuffix(key, unit) {
			t.Errorf("%s: key %q does not end in %s", f.Name, key, unit)
		}
	}
}
