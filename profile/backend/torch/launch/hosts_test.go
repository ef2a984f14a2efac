package launch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestExpandHosts(t *testing.T) {
	for list, want := range map[string]string{
		"h1":                  "h1",
		"h[001-004,7],x1":     "h001 h002 h003 h004 h7 x1",
		"h[8-11]":             "h8 h9 h10 h11",
		"h[098-101]":          "h098 h099 h100 h101",
		"r[1-2]n[01-02]":      "r1n01 r1n02 r2n01 r2n02",
		"a[1-2]-ib,b.c.d":     "a1-ib a2-ib b.c.d",
		"h[3]":                "h3",
		"gpu-a[0-1],gpu-b[5]": "gpu-a0 gpu-a1 gpu-b5",
	} {
		got, err := ExpandHosts(list)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, %v; want %s", list, got, err, want)
		}
	}
}

func TestExpandHostsRefuses(t *testing.T) {
	for list, want := range map[string]string{
		"":                      "a host without a name",
		"h1,":                   "a host without a name",
		"h[1-2":                 "not closed",
		"h1]":                   `unexpected ']' at byte 2`,
		"h[1[2]]":               `unexpected '[' at byte 3`,
		"h[]":                   "want a number or a range of numbers",
		"h[1-]":                 "want a number or a range of numbers",
		"h[a-b]":                "want a number or a range of numbers",
		"h[5-4]":                "ascending range",
		"h[0-99999]":            "ascending range of at most 65536",
		"h[1-300][1-300]":       "more than 65536 hosts",
		"a[1-65000],b[1-65000]": "more than 65536 hosts",
	} {
		if got, err := ExpandHosts(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %d hosts, %v; want an error with %q", list, len(got), err, want)
		}
	}
}

// TestExpandHostsAsSlurmDoes compares with Slurm's own tool, which knows the
// same lists without a cluster.
func TestExpandHostsAsSlurmDoes(t *testing.T) {
	scontrol, err := exec.LookPath("scontrol")
	if err != nil {
		t.Skip("no scontrol on this machine: apt-get install slurm-client")
	}
	// It wants to read a configuration, whatever that says.
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("ClusterName=c\nSlurmctldHost=h\nPartitionName=p Nodes=n\nNodeName=n\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_CONF", conf)
	for _, list := range []string{"h[001-004,7],x1", "r[1-2]n[01-02]", "h[098-101]", "h[8-11],h[1-3]"} {
		out, err := exec.Command(scontrol, "show", "hostnames", list).Output()
		if err != nil {
			t.Fatalf("scontrol: %v", err)
		}
		got, err := ExpandHosts(list)
		if want := strings.Fields(string(out)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v; scontrol says %q", list, got, err, want)
		}
	}
}

func FuzzExpandHosts(f *testing.F) {
	for _, list := range []string{"h[001-004,7],x1", "r[1-2]n[01-02]", "h[", "[1-2]", "a,b"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		hosts, err := ExpandHosts(list)
		if err != nil {
			return
		}
		if len(hosts) == 0 || len(hosts) > maxTasks {
			t.Fatalf("%q: %d hosts", list, len(hosts))
		}
		for _, h := range hosts {
			if h == "" || strings.ContainsAny(h, "[],") {
				t.Fatalf("%q: host %q", list, h)
			}
		}
		// Names without brackets expand to themselves.
		again, err := ExpandHosts(strings.Join(hosts, ","))
		if err != nil || !slices.Equal(again, hosts) {
			t.Errorf("%q: expands to %q, and that to %q, %v", list, hosts, again, err)
		}
	})
}
