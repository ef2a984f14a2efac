//go:build cgo && linux

package nvml

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// soname is the library as drivers install it, searched like any other.
const soname = "libnvidia-ml.so.1"

// Inventory lists the GPUs of this machine, in the order of NVML's indices.
// What could not be found out is said in why, which is empty if all was: an
// entry may then lack fields, or the whole list be missing. It never fails.
// Calls must not overlap, for the binding keeps its state in globals.
func Inventory() (devices []profile.NVIDIADevice, why string) {
	return inventory(soname)
}

func inventory(path string) ([]profile.NVIDIADevice, string) {
	library := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := library.Open(); err != nil {
		return nil, unopened(path, err)
	}
	// The binding opens the library once more, so closing this handle frees nothing.
	defer library.Close()
	if lacking := missing(library); len(lacking) > 0 {
		return nil, fmt.Sprintf("the NVIDIA driver library (%s) lacks %s: install a newer driver for an inventory",
			path, strings.Join(lacking, ", "))
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Sprintf("the NVIDIA driver library (%s) did not start: %s", path, reason(ret))
	}
	defer lib.Shutdown()
	return list(lib)
}

// unopened tells a machine without the library, which is ordinary, from one
// where it is there and cannot be loaded. The dynamic loader has only words for it.
func unopened(path string, err error) string {
	if strings.Contains(err.Error(), path+": cannot open shared object file: No such file or directory") {
		return fmt.Sprintf("no NVIDIA driver library (%s) on this machine", path)
	}
	return fmt.Sprintf("the NVIDIA driver library (%s) cannot be loaded: %s", path, text(err.Error()))
}

// missing names the functions used here that the library lacks. A call of such
// a function ends the process without a panic, and Init is one of them, so all
// are looked for before the first call; the binding's own LookupSymbol works
// only after Init. Of the versions of a function the binding takes the newest.
func missing(library *dl.DynamicLibrary) []string {
	var lacking []string
	for _, versions := range [][]string{
		{"nvmlInit_v2", "nvmlInit"},
		{"nvmlShutdown"},
		{"nvmlErrorString"}, // the binding prints every error with it
		{"nvmlSystemGetDriverVersion"},
		{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
		{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
		{"nvmlDeviceGetName"},
		{"nvmlDeviceGetUUID"},
		{"nvmlDeviceGetMemoryInfo"},
	} {
		found := false
		for _, symbol := range versions {
			found = found || library.Lookup(symbol) == nil
		}
		if !found {
			lacking = append(lacking, versions[0])
		}
	}
	return lacking
}

func list(lib nvml.Interface) ([]profile.NVIDIADevice, string) {
	var problems []string
	problem := func(what string, ret nvml.Return) {
		problems = append(problems, what+" could not be read: "+reason(ret))
	}
	driver, ret := lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		problem("the driver version", ret)
		driver = ""
	}
	count, ret := lib.DeviceGetCount()
	switch {
	case ret != nvml.SUCCESS:
		problem("the number of NVIDIA GPUs", ret)
		count = 0
	case count == 0:
		problems = append(problems, "the NVIDIA driver is there but shows no GPU to this process")
	}
	var devices []profile.NVIDIADevice
	for i := range count {
		device, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			problem(fmt.Sprintf("GPU %d", i), ret)
			continue
		}
		devices = append(devices, describe(device, text(driver), func(field string, ret nvml.Return) {
			problem(fmt.Sprintf("the %s of GPU %d", field, i), ret)
		}))
	}
	return devices, strings.Join(problems, "; ")
}

// describe leaves out what a call refuses: a GPU in a partitioning mode or of a
// virtual kind refuses some, and is there nevertheless.
func describe(device nvml.Device, driver string, problem func(field string, ret nvml.Return)) profile.NVIDIADevice {
	d := profile.NVIDIADevice{Driver: driver}
	if name, ret := device.GetName(); ret == nvml.SUCCESS {
		d.Name = text(name)
	} else {
		problem("name", ret)
	}
	if uuid, ret := device.GetUUID(); ret == nvml.SUCCESS {
		d.UUID = text(uuid)
	} else {
		problem("UUID", ret)
	}
	if memory, ret := device.GetMemoryInfo(); ret == nvml.SUCCESS {
		d.Memory = units.Bytes(min(memory.Total, math.MaxInt64))
	} else {
		problem("memory", ret)
	}
	return d
}

// reason adds a way out where there is one that users meet.
func reason(ret nvml.Return) string {
	said := text(ret.Error())
	switch {
	case errors.Is(ret, nvml.ERROR_DRIVER_NOT_LOADED):
		said += " (the kernel module is not loaded, or this container was not given the GPUs)"
	case errors.Is(ret, nvml.ERROR_LIB_RM_VERSION_MISMATCH):
		said += " (the driver was updated since the machine started: reboot it)"
	}
	return said
}

// text makes what C code returned fit for documents, which must be valid UTF-8.
func text(s string) string { return strings.TrimSpace(strings.ToValidUTF8(s, "")) }
