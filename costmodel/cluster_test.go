package costmodel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

func node(name string, devices ...op.Member) Node { return Node{Name: name, Devices: devices} }

func TestParseCluster(t *testing.T) {
	h, a := op.Member{Device: "h100_sxm", Count: 8}, op.Member{Device: "a100_sxm", Count: 8}
	for _, c := range []struct {
		in   string
		want []Node
	}{
		{"1x2 cpu:1", []Node{node("n0", op.Member{Device: "cpu:1", Count: 2})}},
		{"2x8 h100_sxm + 1x8 a100_sxm", []Node{node("n0", h), node("n1", h), node("n2", a)}},
		{" 2 x 8  h100_sxm ", []Node{node("n0", h), node("n1", h)}},
		{"1x(1 cpu:2 + 1 cpu:1)", []Node{node("n0", op.Member{Device: "cpu:2", Count: 1}, op.Member{Device: "cpu:1", Count: 1})}},
		{"1x(8 h100_sxm+8 a100_sxm)+1x8 xpu_max", []Node{node("n0", h, a), node("n1", op.Member{Device: "xpu_max", Count: 8})}},
	} {
		got, err := ParseCluster(c.in)
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if diff := cmp.Diff(c.want, got.Nodes); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", c.in, diff)
		}
		again, err := ParseCluster(got.String())
		if err != nil || !cmp.Equal(again, got) {
			t.Errorf("%q: String %q does not read back: %v", c.in, got.String(), err)
		}
	}
}

func TestParseClusterErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":                            "nothing where a term should be",
		"8 h100":                      "has no node count",
		"8 h100_sxm":                  `"8 h100_sxm" has no node count`,
		"2x8":                         "is not a count and a device type",
		"0x8 h100":                    "0 nodes: want 1 to 65536",
		"1x0 h100":                    "0 devices: want 1",
		"1x-3 h100":                   "-3 devices: want 1",
		"1xmany h100":                 `"many" is no number of devices`,
		"2x8 h100 +":                  "nothing where a term should be",
		"1x(1 a + 1 b":                "parentheses do not match",
		"1x(1 a + (1 b))":             "parentheses do not match",
		"1x(4 a + 4 a)":               "listed twice in node n0; add the counts",
		"1x8 h100 80GB":               "is not a count and a device type",
		"65536x65536 h100":            "a cluster has at most 65536",
		"99999999999999999999x1 h100": "is no number of nodes",
		"1x8 h100)":                   "without spaces, + or parentheses",
	} {
		if _, err := ParseCluster(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

const goodYAML = `# two kinds of node
schema: evenkeel.cluster/v1
network: roce
nodes:
  - name: a
    link: nvlink
    nics: 4
    devices:
      - {device: h100_sxm, count: 8}
  - name: b
    devices:
      - device: a100_sxm
        count: 4
      - device: cpu:2
        count: 1
`

func TestReadClusterYAML(t *testing.T) {
	got, err := ReadClusterYAML("c.yaml", []byte(goodYAML))
	if err != nil {
		t.Fatal(err)
	}
	want := Cluster{Network: "roce", Nodes: []Node{
		{Name: "a", Link: "nvlink", NICs: 4, Devices: []op.Member{{Device: "h100_sxm", Count: 8}}},
		{Name: "b", Devices: []op.Member{{Device: "a100_sxm", Count: 4}, {Device: "cpu:2", Count: 1}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestReadClusterYAMLErrors(t *testing.T) {
	swap := func(old, new string) string { return strings.Replace(goodYAML, old, new, 1) }
	for name, c := range map[string]struct{ data, want string }{
		"empty":         {"", "c.yaml: no YAML document: want one, beginning with schema: evenkeel.cluster/v1"},
		"gzip":          {"\x1f\x8b\x08\x00", "c.yaml: is compressed with gzip; decompress it first, such as with gunzip -k"},
		"order mark":    {"\ufeff" + goodYAML, "c.yaml: starts with a byte order mark; save it as UTF-8 without one"},
		"UTF-16":        {"\xff\xfes\x00", "c.yaml: is UTF-16; save it as UTF-8"},
		"no schema":     {swap("schema: evenkeel.cluster/v1\n", ""), `c.yaml:2: begins with "network"`},
		"other schema":  {swap("cluster/v1", "cluster/v9"), `schema: "evenkeel.cluster/v9": want evenkeel.cluster/v1`},
		"schema 5":      {swap("schema: evenkeel.cluster/v1", "schema: 5"), "schema: 5: want evenkeel.cluster/v1"},
		"schema list":   {swap("schema: evenkeel.cluster/v1", "schema: [a]"), "schema: a list: want evenkeel.cluster/v1"},
		"schema alone":  {"schema", "schema: empty: want evenkeel.cluster/v1"},
		"schema empty":  {swap("schema: evenkeel.cluster/v1", "schema:"), "schema: empty: want evenkeel.cluster/v1"},
		"schema later":  {swap("schema: evenkeel.cluster/v1\nnetwork: roce\n", "network: roce\nschema: evenkeel.cluster/v1\n"), "the first line must be schema"},
		"unknown key":   {swap("    link: nvlink", "    lnik: nvlink"), `c.yaml:6: nodes[0]: unknown key "lnik" (did you mean "link"?); the keys there are name, link, nics, devices`},
		"another word":  {swap("nodes:", "links: [{name: roce, rate: 25e9}]\nnodes:"), `unknown key "rate"; the keys there are name, bytes_per_s, latency_s`},
		"duplicate":     {swap("    link: nvlink", "    link: nvlink\n    link: pcie"), "c.yaml:7: link: is there twice, before in line 6: leave one out"},
		"negative":      {swap("count: 4", "count: -4"), "nodes[1].devices[0].count: -4 of a100_sxm: want at least 1"},
		"zero devices":  {swap("{device: h100_sxm, count: 8}", "{device: h100_sxm}"), "count: 0 of h100_sxm"},
		"fraction":      {swap("count: 4", "count: 4.5"), "c.yaml:13: nodes[1].devices[0].count: 4.5: want a whole number"},
		"infinite":      {swap("count: 4", "count: .inf"), "c.yaml:13: nodes[1].devices[0].count: .inf: want a whole number"},
		"truth":         {swap("count: 4", "count: true"), "c.yaml:13: nodes[1].devices[0].count: true: want a whole number"},
		"null":          {swap("count: 4", "count: null"), "count: 0"},
		"word":          {swap("count: 4", "count: four"), `c.yaml:13: nodes[1].devices[0].count: "four": want a whole number`},
		"huge":          {swap("count: 4", "count: 99999999999999999999999"), "c.yaml:13: nodes[1].devices[0].count: 99999999999999999999999: want a whole number"},
		"nics":          {swap("nics: 4", "nics: 9"), "nodes[0].nics: 9 for the 8 devices of node a: a device sends through one card; leave nics out"},
		"negative nics": {swap("nics: 4", "nics: -1"), "nodes[0].nics: -1: want the number of network cards"},
		"no card":       {swap("nics: 4", "nics: 0"), "c.yaml:7: nodes[0].nics: 0: want the number of network cards that the devices share, or leave it out"},
		"half a card":   {swap("nics: 4", "nics: 0.5"), "c.yaml:7: nodes[0].nics: 0.5: want the number of network cards"},
		"long name":     {swap("name: b", "name: "+strings.Repeat("b", 300)), "nodes[1].name:"},
		"spaced link":   {swap("link: nvlink", "link: nv link"), `nodes[0].link: "nv link": want the name of a link class`},
		"torn network":  {swap("network: roce", `network: "ro\u0000ce"`), "network:"},
		"too many":      {swap("count: 4", "count: 65536"), "a cluster may have"},
		"same name":     {swap("name: b", "name: a"), `nodes[1].name: "a": nodes[0] has this name already`},
		"same device":   {swap("device: cpu:2", "device: a100_sxm"), "listed twice in node b"},
		"alias":         {swap("name: a\n", "name: &x a\n"), "anchors, aliases and tags are not used"},
		"tag":           {swap("name: a\n", "name: !!str a\n"), "anchors, aliases and tags are not used"},
		"second":        {goodYAML + "---\n" + goodYAML, "2 YAML documents"},
		"broken":        {swap("nodes:", "nodes: ]"), `c.yaml:4: "nodes: ]": is no YAML: `},
		"names":         {swap("name: b", "name: [b]"), "c.yaml:10: nodes[1].name: a list: want a name"},
		"half a name":   {swap("name: b", "name: 4.5"), "c.yaml:10: nodes[1].name: 4.5: want a name"},
		"one device":    {swap("[", "{") + "  - name: c\n    devices: {device: cpu:2, count: 1}\n", "c.yaml:17: nodes[2].devices: keys with values: want a list of keys with values: {device: ..., count: ...}"},
		"no devices":    {swap("      - {device: h100_sxm, count: 8}", "      - h100_sxm"), `c.yaml:9: nodes[0].devices[0]: "h100_sxm": want keys with values: {device: ..., count: ...}`},
		"line of none":  {swap("count: 4", "count: 0"), "c.yaml:13: nodes[1].devices[0].count: 0 of a100_sxm: want at least 1"},
		"line of lack":  {swap("  - name: b\n    devices", "  - devices"), `c.yaml:10: nodes[1].name: "": want a word`},
		"tab":           {swap("    link: nvlink", "\tlink: nvlink"), `c.yaml:6: "\tlink: nvlink": is no YAML: `},
		"list":          {"- a\n- b\n", "the first line must be schema"},
		"deep brackets": {strings.Repeat("[", 1<<19), "nested deeper"},
		"deep dashes":   {strings.Repeat("- ", 1<<18), "nested deeper"},
		"big":           {strings.Repeat("#\n", 1<<20), "at most 1048576"},
	} {
		if _, err := ReadClusterYAML("c.yaml", []byte(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestResolve(t *testing.T) {
	p := &Profile{
		Devices: []op.DeviceType{{Name: "h100_sxm"}, {Name: "a100_sxm"}, {Name: "cpu:2"}},
		Groups:  []op.GroupType{{Name: "1", Link: "nvlink"}, {Name: "2", Link: "roce"}, {Name: "3", Link: "nvlink"}},
	}
	one := &Profile{Devices: p.Devices, Groups: p.Groups[:1]}
	two, err := ParseCluster("1x8 h100_sxm + 1x1 a100_sxm")
	if err != nil {
		t.Fatal(err)
	}
	got, err := two.Resolve(p, "nvlink", "roce")
	if err != nil || got.Nodes[0].Link != "nvlink" || got.Nodes[1].Link != "" || got.Network != "roce" || two.Nodes[0].Link != "" {
		t.Errorf("%+v (from %+v): %v", got, two, err)
	}
	if got, err := two.Resolve(one, "", ""); err != nil || got.Nodes[0].Link != "nvlink" || got.Network != "nvlink" {
		t.Errorf("the only class: %+v: %v", got, err)
	}
	cards := Cluster{Nodes: slices.Clone(two.Nodes)}
	cards.Nodes[0].NICs, cards.Nodes[1].NICs = 8, 1
	if got, err := cards.Resolve(one, "", ""); err != nil || got.Nodes[0].NICs != 0 || got.Nodes[1].NICs != 0 || cards.Nodes[0].NICs != 8 {
		t.Errorf("a card for every device: %+v (from %+v): %v", got, cards, err)
	}
	cards.Nodes[0].NICs = 4
	if got, err := cards.Resolve(one, "", ""); err != nil || got.Nodes[0].NICs != 4 {
		t.Errorf("a card for two devices: %+v: %v", got, err)
	}
	single := Cluster{Nodes: two.Nodes[1:]}
	if got, err := single.Resolve(&Profile{Devices: p.Devices}, "", ""); err != nil || !cmp.Equal(got, single) {
		t.Errorf("a single device needs no link: %+v: %v", got, err)
	}
	named := Cluster{Network: "roce", Nodes: []Node{{Name: "x", Link: "nvlink", Devices: two.Nodes[0].Devices}, two.Nodes[1]}}
	wrong := Cluster{Nodes: []Node{node("n0", op.Member{Device: "h10_sxm", Count: 1})}}
	for name, c := range map[string]struct {
		cluster       Cluster
		profile       *Profile
		link, network string
		want          string
	}{
		"device":     {wrong, p, "", "", `"h10_sxm" of node n0 is not in the profile (did you mean "h100_sxm"?); it has h100_sxm, a100_sxm, cpu:2`},
		"open link":  {two, p, "", "", "the profile has the link classes nvlink, roce; choose with --link"},
		"open net":   {two, p, "nvlink", "", "link between nodes: the profile has the link classes nvlink, roce; choose with --network"},
		"typo":       {two, p, "nvlnk", "", `link class "nvlnk" is not in the profile (did you mean "nvlink"?)`},
		"no classes": {two, &Profile{Devices: p.Devices}, "", "", "measure one: evenkeel calibrate"},
		"of gloo":    {two, p, "gloo_tcp", "", "measure one: evenkeel calibrate --fresh --only send_recv --backend torch; or plan"},
		"of torch": {
			Cluster{Nodes: []Node{node("n0", op.Member{Device: "torch_cpu:1", Count: 2})}},
			&Profile{Devices: []op.DeviceType{{Name: "torch_cpu:1"}}}, "", "",
			"no link class at all; measure one: evenkeel calibrate --fresh --only send_recv --backend torch; or plan",
		},
		"link twice": {named, p, "roce", "", "--link roce contradicts"},
		"net twice":  {named, p, "", "nvlink", "--network nvlink contradicts"},
	} {
		if _, err := c.cluster.Resolve(c.profile, c.link, c.network); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzParseCluster(f *testing.F) {
	for _, s := range []string{"2x8 h100_sxm + 2x8 a100_sxm", "1x(1 cpu:2 + 1 cpu:1)", "65536x65536 a", "1x1 a + + 1x1 b", "((", "1x1 )"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCluster(s)
		if err != nil {
			return
		}
		again, err := ParseCluster(c.String())
		if err != nil || !cmp.Equal(c, again) {
			t.Errorf("%q: String %q does not read back: %v", s, c, err)
		}
	})
}

// A file that is well-formed and says what cannot be is told from one that is malformed.
func TestReadClusterYAMLContradictions(t *testing.T) {
	swap := func(old, new string) string { return strings.Replace(goodYAML, old, new, 1) }
	links := func(rates ...string) string {
		text := "links:\n"
		for _, r := range rates {
			text += "  - {name: roce, bytes_per_s: " + r + "}\n"
		}
		return swap("nodes:", text+"nodes:")
	}
	for name, c := range map[string]struct {
		data        string
		contradicts bool
	}{
		"no devices":   {swap("count: 4", "count: 0"), true},
		"fewer":        {swap("count: 4", "count: -4"), true},
		"no nodes":     {"schema: evenkeel.cluster/v1\nnodes: []\n", true},
		"one name":     {swap("name: b", "name: a"), true},
		"two rates":    {links("25e9", "50e9"), true},
		"no rate":      {links("1"), true},
		"many cards":   {swap("nics: 4", "nics: 9"), true},
		"no card":      {swap("nics: 4", "nics: 0"), true},
		"half a card":  {swap("nics: 4", "nics: 0.5"), false},
		"word":         {swap("count: 4", "count: four"), false},
		"unknown key":  {swap("    link: nvlink", "    lnik: nvlink"), false},
		"other schema": {swap("cluster/v1", "cluster/v9"), false},
		"broken":       {swap("nodes:", "nodes: ]"), false},
	} {
		_, err := ReadClusterYAML("c.yaml", []byte(c.data))
		var of *ContradictionError
		if err == nil || errors.As(err, &of) != c.contradicts || !strings.HasPrefix(err.Error(), "c.yaml") {
			t.Errorf("%s: %v: a contradiction: %t, want %t", name, err, !c.contradicts, c.contradicts)
		}
	}
}

// What YAML allows around a document and as a key is no second document and no unknown key.
func TestReadClusterYAMLForms(t *testing.T) {
	want, err := ReadClusterYAML("c.yaml", []byte(goodYAML))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"directive":    "%YAML 1.2\n---\n" + goodYAML,
		"a start":      "---\n" + goodYAML,
		"an end":       goodYAML + "...\n",
		"a last start": goodYAML + "---\n",
		"all":          "# a cluster\n%YAML 1.2\n---\n" + goodYAML + "---\n# the end\n",
		"keys":         strings.NewReplacer("  - name: b\n", "  - ? name\n    : b\n", "network: roce", "? network\n: roce").Replace(goodYAML),
	} {
		if got, err := ReadClusterYAML("c.yaml", []byte(data)); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v\n%s", name, err, cmp.Diff(want, got))
		}
	}
	for data, want := range map[string]string{
		"%TAG ! tag:x,2000:\n---\n" + goodYAML:       "2 YAML documents",
		goodYAML + "---\nnull\n":                     "2 YAML documents",
		goodYAML + "? rate\n: 5\n":                   `unknown key "rate"`,
		goodYAML + "? network\n: roce\n":             "network: is there twice",
		"%YAML 1.2\n---\n" + goodYAML + "? [a]\n:\n": "is no YAML",
	} {
		if _, err := ReadClusterYAML("c.yaml", []byte(data)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", data, err, want)
		}
	}
}

func FuzzReadClusterYAML(f *testing.F) {
	f.Add([]byte(goodYAML))
	f.Add([]byte("schema: evenkeel.cluster/v1\nnodes: [{name: a, devices: [{device: x, count: 1}]}]"))
	f.Add([]byte(statedYAML))
	f.Add([]byte("schema: evenkeel.cluster/v1\nlinks: [{name: a, bytes_per_s: .nan}]\nnodes: [{name: yes, devices: [{device: '~', count: 1}]}]"))
	f.Add([]byte("a: &a [b]\nc: [*a, *a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ReadClusterYAML("c.yaml", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "c.yaml:") {
				t.Errorf("the error does not begin with the file: %v", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("accepted an invalid cluster: %v", err)
		}
		again, err := ReadClusterYAML("again.yaml", c.YAML(ClusterRemarks{Head: []string{string(data)}}))
		if err != nil || !cmp.Equal(c, again, cmpopts.EquateEmpty()) {
			t.Errorf("%+v does not read back: %+v, %v", c, again, err)
		}
	})
}
