package profile_test

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// A device whose fingerprint is of its name alone was imported, a group if all of it was.
func TestImportedPlaces(t *testing.T) {
	devices := []op.DeviceType{{Name: "l40s", Fingerprint: profile.Fingerprint("l40s")}, {Name: "cpu:1", Fingerprint: profile.Fingerprint("a machine, cpu:1")}}
	groups := []op.GroupType{
		{Name: "2 l40s", Members: []op.Member{{Device: "l40s", Count: 2}}},
		{Name: "both", Members: []op.Member{{Device: "l40s", Count: 1}, {Device: "cpu:1", Count: 1}}},
	}
	got := profile.ImportedPlaces(devices, groups)
	if len(got) != 2 || !got["l40s"] || !got["2 l40s"] {
		t.Errorf("imported: %v", got)
	}
}
