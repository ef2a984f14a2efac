package fit

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Of another device under the same name check says what is other about it, not what is the same.
func TestCheckSaysWhatDiffersBetweenDevices(t *testing.T) {
	d := op.DeviceType{Name: "big", Model: "BIG", Stack: "engine 1", Fingerprint: strings.Repeat("0123456789abcdef", 4), Parallel: 8, Memory: units.GiB}
	for want, change := range map[string]func(*op.DeviceType){
		"BIG, the recording's BIGGER;":                                             func(d *op.DeviceType) { d.Model = "BIGGER" },
		"engine 1, the recording's engine 2; memory 1 GiB, the recording's 2 GiB;": func(d *op.DeviceType) { d.Stack, d.Memory = "engine 2", 2*units.GiB },
		"parallel tasks 8, the recording's 9;":                                     func(d *op.DeviceType) { d.Parallel = 9 },
		"model and stack are the same (BIG, engine 1), but not the fingerprint, of all else that moves times (0123456789ab, the recording's fedcba987654); fit the recor": func(*op.DeviceType) {},
	} {
		other := d
		other.Fingerprint = "fedcba9876543210"
		change(&other)
		err := sameDevices(&costmodel.Profile{Devices: []op.DeviceType{d}}, &Data{Devices: []op.DeviceType{other}})
		if err == nil || !strings.Contains(err.Error(), "the profile's big is another machine or software stack than the recording's: "+want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if was, is := apart("sim {Rate:1} noise 0.01", "sim {Rate:1} noise 0.3"); was != "noise 0.01" || is != "noise 0.3" {
		t.Errorf("%q and %q", was, is)
	}
}
