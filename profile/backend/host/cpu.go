package host

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

func (r *reader) cpu() string {
	unknown := "unknown " + runtime.GOARCH + " CPU"
	text, ok := r.text("proc/cpuinfo", "the CPU model is unknown")
	if !ok {
		return unknown
	}
	if name := tidy(model(text)); name != "" {
		return name
	}
	r.note("/proc/cpuinfo names no CPU model")
	return unknown
}

// model is the CPU model by the first key that this architecture has. x86 says
// "model name" ("model" is a number there); boards with an ARM CPU may say
// "Model", other ARM machines only give codes; POWER says "cpu". Cores that
// differ (big and little ones) are all named, since times on them differ too.
func model(cpuinfo string) string {
	for _, key := range []string{"model name", "Model Name", "Model"} {
		if names := values(cpuinfo, key); len(names) > 0 {
			return strings.Join(names, " + ")
		}
	}
	if names := armModels(cpuinfo); len(names) > 0 {
		return strings.Join(names, " + ")
	}
	for _, key := range []string{"cpu model", "cpu", "uarch"} {
		if names := values(cpuinfo, key); len(names) > 0 {
			return strings.Join(names, " + ")
		}
	}
	return ""
}

// values are the distinct values that a key has in "key : value" lines.
func values(text, key string) []string {
	var all []string
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(line, ":")
		v = strings.TrimSpace(v)
		if strings.TrimSpace(k) == key && v != "" && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// armModels names the distinct pairs of implementer and part; the kernel
// prints the implementer of each core before its part.
func armModels(cpuinfo string) []string {
	var all []string
	var implementer string
	for line := range strings.Lines(cpuinfo) {
		k, v, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(k) {
		case "CPU implementer":
			implementer = strings.TrimSpace(v)
		case "CPU part":
			name := armModel(implementer, strings.TrimSpace(v))
			if name != "" && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

func armModel(implementer, part string) string {
	i, err := strconv.ParseUint(implementer, 0, 16)
	if err != nil {
		return ""
	}
	p, err := strconv.ParseUint(part, 0, 16)
	if err != nil {
		return ""
	}
	maker := lookUp(armMakers, fmt.Sprintf("%02x", i))
	if maker == "" {
		maker = fmt.Sprintf("ARM implementer 0x%02x", i)
	}
	if name := lookUp(armParts, fmt.Sprintf("%02x/%03x", i, p)); name != "" {
		return maker + " " + name
	}
	return fmt.Sprintf("%s part 0x%03x", maker, p)
}

// lookUp finds a code in a table of "code name" lines.
func lookUp(table, code string) string {
	for line := range strings.Lines(table) {
		if name, ok := strings.CutPrefix(line, code+" "); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

// The codes are those of the main ID register (MIDR_EL1): an implementer as
// listed in the Arm Architecture Reference Manual and a part number from the
// technical reference manual of each core.
const (
	armMakers = `
41 ARM
42 Broadcom
43 Cavium
46 Fujitsu
48 HiSilicon
4e NVIDIA
50 APM
51 Qualcomm
53 Samsung
56 Marvell
61 Apple
69 Intel
6d Microsoft
c0 Ampere
`
	armParts = `
41/d03 Cortex-A53
41/d04 Cortex-A35
41/d05 Cortex-A55
41/d07 Cortex-A57
41/d08 Cortex-A72
41/d09 Cortex-A73
41/d0a Cortex-A75
41/d0b Cortex-A76
41/d0c Neoverse-N1
41/d0d Cortex-A77
41/d40 Neoverse-V1
41/d41 Cortex-A78
41/d44 Cortex-X1
41/d46 Cortex-A510
41/d47 Cortex-A710
41/d48 Cortex-X2
41/d49 Neoverse-N2
41/d4a Neoverse-E1
41/d4d Cortex-A715
41/d4e Cortex-X3
41/d4f Neoverse-V2
41/d80 Cortex-A520
41/d81 Cortex-A720
41/d82 Cortex-X4
41/d84 Neoverse-V3
41/d85 Cortex-X925
41/d8e Neoverse-N3
43/0af ThunderX2
46/001 A64FX
48/d01 TaiShan v110
4e/004 Carmel
6d/d49 Azure Cobalt 100
c0/ac3 Ampere-1
c0/ac4 Ampere-1A
`
)

// caches are the sizes of the caches that the first core sees, which other
// cores may share with it.
func (r *reader) caches() (l1Data, l2, l3 units.Bytes) {
	const folder = "sys/devices/system/cpu/cpu0/cache"
	// No CPU has more than a handful; the bound keeps an odd tree from looping.
	for i := range 16 {
		index := fmt.Sprintf("%s/index%d", folder, i)
		level := strings.TrimSpace(r.optional(index + "/level"))
		if level == "" {
			break
		}
		if strings.TrimSpace(r.optional(index+"/type")) == "Instruction" {
			continue
		}
		size := r.cacheSize(index + "/size")
		switch level {
		case "1":
			l1Data = size
		case "2":
			l2 = size
		case "3":
			l3 = size
		}
	}
	if l1Data == 0 && l2 == 0 && l3 == 0 {
		r.note("/%s: no cache sizes there; the sizes of the CPU's caches are unknown", folder)
	}
	return l1Data, l2, l3
}

func (r *reader) cacheSize(name string) units.Bytes {
	text, ok := r.text(name, "the size of this cache is unknown")
	if !ok {
		return 0
	}
	size, ok := parseSize(text)
	if !ok {
		r.note("/%s: want a size such as 32K, found %.40q; the size of this cache is unknown", name, text)
	}
	return size
}

// parseSize reads a whole number of bytes, or of binary multiples with one of
// the suffixes K, M and G. Sizes that no int64 holds are refused.
func parseSize(text string) (units.Bytes, bool) {
	text = strings.TrimSpace(text)
	unit := units.Bytes(1)
	for _, multiple := range []struct {
		suffix string
		bytes  units.Bytes
	}{{"K", units.KiB}, {"M", units.MiB}, {"G", units.GiB}} {
		if number, ok := strings.CutSuffix(text, multiple.suffix); ok {
			text, unit = number, multiple.bytes
			break
		}
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || units.Bytes(n) > maxBytes/unit {
		return 0, false
	}
	return units.Bytes(n) * unit, true
}
