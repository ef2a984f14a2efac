package topology

import (
	_ "embed"
	"strings"
	"sync"
)

// modelsCSV names the GPU models of PCI devices as the PCI ID repository
// (pci-ids.ucw.cz) does, for those that clusters have a name for. Devices that
// are sold as several models are left out.
//
//go:embed models.csv
var modelsCSV string

// models reads the embedded table once; nothing changes it afterwards.
var models = sync.OnceValue(func() map[string]string {
	byID := map[string]string{}
	for line := range strings.Lines(modelsCSV) {
		row := strings.Split(strings.TrimSpace(line), ",")
		byID[row[0]+","+row[1]] = row[2]
	}
	return byID
})

// modelOf is the GPU model of a PCI device; "" where none is known.
func modelOf(vendor, device string) string {
	return models()[strings.ToLower(vendor)+","+strings.ToLower(device)]
}
