// Package nvml lists the NVIDIA GPUs of this machine through NVIDIA's
// management library: what they are, how they stand at the moment, and how they
// are linked. It only reads; no setting is ever changed. It needs no GPU and no
// driver to build; without cgo, or away from Linux, it says that it cannot look.
//
// The words of NVIDIADevice.ClockReasons are gpu_idle, application_clocks,
// sw_power_cap, hw_slowdown, sync_boost, sw_thermal_slowdown,
// hw_thermal_slowdown, hw_power_brake and display_clocks; a reason that this
// version does not know is its bit, bit_9.
package nvml
