package importer

import (
	"regexp"
	"slices"
	"strings"
)

var (
	// settings that take a choice from the library; one that asks for its own, as
	// NVLS_ENABLE=2 does, is none
	ncclForced = seek(`\bNCCL_(?:(?:ALGO|PROTO)`+ncclSet+`\^?[A-Za-z]\w{0,15}|(?:P2P|SHM|IB)_DISABLE`+ncclSet+`1\b|(?:NVLS_ENABLE|CUMEM_ENABLE|NET_GDR_READ)`+ncclSet+`[01]\b|(?:MIN|MAX)_(?:NCHANNELS|CTAS)`+ncclSet+`[1-9]\d{0,3}\b|(?:(?:NET|IB)_GDR|P2P)_LEVEL`+ncclSet+`(?:[A-Z]{3}|\d)\b)`, "NCCL_")
	// those that keep the GPUs of a node from reading each other's memory (level 0 is LOC)
	ncclApart = regexp.MustCompile(`^NCCL_P2P_(?:DISABLE` + ncclSet + `1|LEVEL` + ncclSet + `(?:LOC|0))$`)
)

// ncclSet stands between a setting and its value, in a command and in what the library says.
const (
	ncclSet  = `(?:=|` + ncclSays + `)`
	ncclSays = ` set by environment to `
)

// mostForced is more than the settings that there are: every rank of a job may tell them, and
// an odd log any number of values.
const mostForced = 20

// forcing adds the settings of a line that are new. The library repeats those of the command.
func forcing(have []string, text string) []string {
	command := func(setting string) string { return strings.Replace(setting, ncclSays, "=", 1) }
	for _, setting := range ncclForced.FindAllString(text, mostForced) {
		told := slices.ContainsFunc(have, func(h string) bool { return command(h) == command(setting) })
		if !told && len(have) < mostForced {
			have = append(have, setting)
		}
	}
	return have
}

// apart is the setting that keeps the GPUs of a node from talking over their own links; "" for
// none. The library then copies through the memory of the host, or over the network.
func (t *ncclTable) apart() string {
	at := slices.IndexFunc(t.forced, ncclApart.MatchString)
	if at < 0 {
		return ""
	}
	return t.forced[at]
}

// forces notes what settings chose. Who told them: the lines of a log, or the list of the
// environment in a -J file.
func (t *ncclTable) forces() string {
	who := "a line above the table"
	if t.schema > 0 {
		who = "env"
	}
	return who + " says " + strings.Join(t.forced, ", ") + ": the times are of that setting"
}
