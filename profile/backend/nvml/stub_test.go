//go:build !cgo || !linux

package nvml

import (
	"strings"
	"testing"
)

func TestInventory(t *testing.T) {
	devices, why := Inventory()
	if len(devices) != 0 || !strings.Contains(why, "no NVIDIA inventory") {
		t.Errorf("Inventory = %v, %q", devices, why)
	}
}
