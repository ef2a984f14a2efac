package topology

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// machine is GPUs of some models with wires between some pairs.
func machine(models []string, wires ...[2]int) *Machine {
	m := &Machine{Between: grid(len(models))}
	for i, name := range models {
		m.GPUs = append(m.GPUs, GPU{Name: "GPU" + string(rune('0'+i)), Model: name})
		for j := range models {
			m.Between[i][j] = Path{PCIe: NODE}
		}
	}
	for _, w := range wires {
		m.Between[w[0]][w[1]] = Path{Wires: 4, Fabric: nvlink}
		m.Between[w[1]][w[0]] = m.Between[w[0]][w[1]]
	}
	return m
}

func cards(m *Machine, near, far int) *Machine {
	for range near {
		m.NICs = append(m.NICs, NIC{Name: "n", Near: true})
	}
	for range far {
		m.NICs = append(m.NICs, NIC{Name: "f"})
	}
	return m
}

func TestDraft(t *testing.T) {
	none, bridged := []string{"", "", "", ""}, [][2]int{{0, 1}, {2, 3}}
	sheet := func(model string) Datasheet {
		return map[string]Datasheet{"x": {Fabric: "nvlink", LinkPerS: 3e11, NetPerS: 5e10}, "y": {Fabric: "pcie"}, "gb200": {Fabric: "nvlink", LinkPerS: 9e11, NetPerS: 9e11}}[model]
	}
	unsaid := func(models ...string) *Machine {
		m := machine(models)
		m.Between = nil
		return m
	}
	named := func(names ...string) *Machine {
		m := machine(none[:2])
		m.Named, m.NamedGPUs = names, 2
		for i := range m.GPUs {
			m.GPUs[i].Own = names[i%len(names)]
		}
		return m
	}
	partly := func(names ...string) *Machine {
		m := machine(none[:2])
		m.Named, m.NamedGPUs = names, len(names)
		return m
	}
	first := func(name string) *Machine {
		m := partly(name)
		m.GPUs[0].Own = name
		return m
	}
	known := func(name string) string { return map[string]string{"NVIDIA X": "x", "NVIDIA Y": "y"}[name] }
	for name, c := range map[string]struct {
		m       *Machine
		o       Options
		cluster string
		link    string
		nics    int
		says    string
	}{
		"placeholder":      {machine(none[:1]), Options{}, "1x1 " + FillIn, "", 0, "device: the file does not name the GPUs"},
		"a name":           {named("NVIDIA X"), Options{Model: known}, "1x2 x", "pcie", 0, "the farthest meet at NODE"},
		"a name, and more": {named("NVIDIA X"), Options{Model: known, Device: "x/cuda-12"}, "1x2 x/cuda-12", "pcie", 0, "the farthest meet at NODE"},
		"another name":     {named("NVIDIA X"), Options{Model: known, Device: "y"}, "1x2 x", "pcie", 0, "the file names x, so --device y was not used"},
		"unknown name":     {named("NVIDIA Z"), Options{Model: known}, "1x2 " + FillIn, "pcie", 0, "no one model is known that the file's names of GPUs, NVIDIA Z, mean; write"},
		"name of one":      {partly("NVIDIA X"), Options{Model: known}, "1x2 " + FillIn, "pcie", 0, "device: the file names 1 of 2 GPUs; write"},
		"not told which":   {partly("NVIDIA X", "NVIDIA Y"), Options{Model: known}, "1x2 " + FillIn, "pcie", 0, "are not told to be of which; write"},
		"that of one":      {partly("NVIDIA X"), Options{Model: known, Device: "x"}, "1x2 x", "pcie", 0, "the farthest meet at NODE"},
		"not that of one":  {partly("NVIDIA X"), Options{Model: known, Device: "y"}, "1x2 y", "pcie", 0, "device y of 2 GPUs: the file names NVIDIA X (1 of 2 GPUs), not known to be that"},
		"the first":        {first("NVIDIA X"), Options{Model: known, Device: "y"}, "1x(1 x + 1 y)", "pcie", 0, "device y of 1 GPU: the file names NVIDIA X (1 of 2 GPUs)"},
		"two names":        {named("NVIDIA X", "NVIDIA Y"), Options{Model: known}, "1x(1 x + 1 y)", "pcie", 0, "the farthest meet at NODE"},
		"one of two names": {named("NVIDIA X", "NVIDIA Y"), Options{Model: known, Device: "y"}, "1x(1 x + 1 y)", "pcie", 0, "the file names x and y and which GPU is which, so --device y was not used for all"},
		"one is unknown":   {named("NVIDIA X", "NVIDIA Z"), Options{Model: known, Device: "y"}, "1x(1 x + 1 y)", "pcie", 0, "the file names NVIDIA X, NVIDIA Z (2 of 2 GPUs), not known to be that"},
		"chain":            {machine(none, [2]int{0, 1}, [2]int{1, 2}, [2]int{2, 3}), Options{Device: "x"}, "1x4 x", "nvlink", 0, "only 3 of 6 pairs are joined"},
		"islands":          {machine(none, bridged...), Options{Device: "x"}, "1x4 x", "pcie", 0, "of each island (GPU0 GPU1) (GPU2 GPU3), so what crosses"},
		"no wires":         {machine(none), Options{Device: "x"}, "1x4 x", "pcie", 0, "the farthest meet at NODE"},
		"wires not shown":  {machine(none), Options{Device: "x", Datasheet: sheet}, "1x4 x", "pcie", 0, "though by its datasheet x has nvlink; topo -mp leaves these out, and so may a virtual machine: if they are there, write link: nvlink"},
		"none to show":     {machine(none), Options{Device: "y", Datasheet: sheet}, "1x4 y", "pcie", 0, "no two GPUs have links of their own"},
		"unsaid":           {unsaid("", ""), Options{Device: "x", Datasheet: sheet}, "1x2 x", "nvlink", 0, "as the datasheet of x has it"},
		"unsaid, unknown":  {unsaid("", ""), Options{Device: "z", Datasheet: sheet}, "1x2 z", "", 0, "link: the file does not say"},
		"unsaid, mixed":    {unsaid("x", "y"), Options{Datasheet: sheet}, "1x(1 x + 1 y)", "", 0, "link: the file does not say"},
		"mixed, one told":  {machine([]string{"x", "", "x", ""}), Options{Device: "y"}, "1x(2 x + 2 y)", "pcie", 0, "the GPU model of 2 of 4 GPUs"},
		"file knows":       {machine([]string{"x", "x"}), Options{Device: "y"}, "1x2 x", "pcie", 0, "so --device y was not used"},
		"storage cards":    {cards(machine(none), 2, 3), Options{Device: "x"}, "1x4 x", "pcie", 2, "of 5 network cards, those that share"},
		"far cards only":   {cards(machine(none), 0, 1), Options{Device: "x"}, "1x4 x", "pcie", 1, "1 network card for 4 GPUs"},
		"more than GPUs":   {cards(machine(none), 8, 0), Options{Device: "x"}, "1x4 x", "pcie", 4, "a device sends through one card"},
		"no card, 2 nodes": {machine(none), Options{Device: "x", Nodes: 2, Network: "ib"}, "2x4 x", "pcie", 1, "a node has at least one"},
		"trays of a rack":  {machine([]string{"gb200", "gb200"}), Options{Nodes: 2, Network: "ib", Datasheet: sheet}, "2x2 gb200", "pcie", 1, "write the nodes of one rack as one node"},
		"no network named": {cards(machine(none), 4, 0), Options{Device: "x", Nodes: 2}, "2x4 x", "pcie", 4, "network: no file of one machine tells"},
	} {
		d, err := c.m.Draft(c.o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if n := d.Cluster.Nodes[0]; d.Cluster.String() != c.cluster || n.Link != c.link || n.NICs != c.nics {
			t.Errorf("%s: %s over %q with %d cards, want %s over %q with %d", name, d.Cluster, n.Link, n.NICs, c.cluster, c.link, c.nics)
		}
		text := string(d.YAML("x"))
		if !strings.Contains(text, c.says) {
			t.Errorf("%s: %q is not in\n%s", name, c.says, text)
		}
		if strings.Contains(text, "rack") != strings.Contains(name, "rack") {
			t.Errorf("%s: of a rack, or not:\n%s", name, text)
		}
		readsBack(t, d)
	}
}

// Fewer NVLinks than a GPU has are told where switches join the GPUs, and their rate is what the
// draft states, under a name that no law has; where no switch does, the others may lead elsewhere.
func TestDraftDoubtsFewerNVLinks(t *testing.T) {
	sheet := Datasheet{Fabric: "nvlink", LinkPerS: 4.5e11, Links: 18, Laws: []string{"nvlink"}}
	joined := func(links ...int) *Machine {
		m := machine(make([]string, len(links)))
		for i, a := range links {
			for j, b := range links {
				if i != j {
					m.Between[i][j] = Path{Wires: min(a, b), Fabric: nvlink}
				}
			}
		}
		return m
	}
	for name, c := range map[string]struct {
		m     *Machine
		sheet Datasheet
		want  string // in the draft; "" is no doubt
	}{
		"half":       {joined(9, 9, 9, 9), sheet, "  - {name: nvlink_narrow, bytes_per_s: 2.25e+11}"},
		"why":        {joined(9, 9, 9, 9), sheet, "device h: by its datasheet it has 18 NVLinks, and the file shows 9: look which GPUs they are, or whether links are down; the rate that is stated is of 9"},
		"one less":   {joined(18, 17, 18, 18), sheet, "  - {name: nvlink_narrow, bytes_per_s: 4.25e+11}"},
		"no laws":    {joined(9, 9, 9, 9), Datasheet{Fabric: "nvlink", LinkPerS: 4.5e11, Links: 18}, "  - {name: nvlink, bytes_per_s: 2.25e+11}"},
		"all":        {joined(18, 18, 18, 18), sheet, ""},
		"a mesh":     {joined(6, 6, 6, 6), sheet, ""},
		"a bridge":   {joined(4, 4), sheet, ""},
		"no figures": {joined(9, 9, 9, 9), Datasheet{Fabric: "nvlink"}, ""},
	} {
		d, err := c.m.Draft(Options{Device: "h", Datasheet: func(string) Datasheet { return c.sheet }})
		if err != nil {
			t.Fatal(name, err)
		}
		readsBack(t, d)
		text := string(d.YAML("x"))
		if !strings.Contains(text, c.want) || strings.Contains(text, "by its datasheet") != (c.want != "") {
			t.Errorf("%s: want %q in\n%s", name, c.want, text)
		}
	}
}

// What the datasheets offer for classes that nobody measured is ready to be used:
// with its comment signs off it is a cluster.yaml.
func TestDraftOffersLinks(t *testing.T) {
	m := machine([]string{"x", "x"}, [2]int{0, 1})
	d, err := m.Draft(Options{Nodes: 2, Network: "ib", Datasheet: func(string) Datasheet {
		return Datasheet{Fabric: "nvlink", LinkPerS: 3e11, NetPerS: 5e10, Laws: []string{"nvlink"}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	text := string(d.YAML("x"))
	_, offer, ok := strings.Cut(text, "as assumed:\n")
	if !ok || offer != "# links:\n#   - {name: nvlink, bytes_per_s: 3e+11}  # datasheet of x\n#   - {name: ib, bytes_per_s: 5e+10}  # usual card of x\n" {
		t.Errorf("%q", text)
	}
}

// A class that there are no laws of is stated at the datasheet's rate, and what is offered
// beside it is an entry to add; one whose rate nobody knows says what would do.
func TestDraftStatesLinksWithoutLaws(t *testing.T) {
	sheet := Datasheet{Fabric: "nvlink", LinkPerS: 3e11, NetPerS: 5e10, HostPerS: 6e10}
	of := func(s Datasheet, pairs ...[2]int) string {
		t.Helper()
		d, err := machine([]string{"x", "x"}, pairs...).Draft(Options{Nodes: 2, Network: "ib", Datasheet: func(string) Datasheet { return s }})
		if err != nil {
			t.Fatal(err)
		}
		readsBack(t, d)
		return string(d.YAML("x"))
	}
	for name, c := range map[string]struct{ text, want string }{
		"its own":  {of(sheet, [2]int{0, 1}), "links:\n  - {name: nvlink, bytes_per_s: 3e+11}\n"},
		"why":      {of(sheet, [2]int{0, 1}), "nvlink at 300 GB/s, the datasheet's of x, which counts as assumed: nobody measured it; to measure it there: evenkeel calibrate\n"},
		"pcie":     {of(sheet), "links:\n  - {name: pcie, bytes_per_s: 6e+10}\n"},
		"beside":   {of(sheet), "beside the links above:\n#   - {name: ib, bytes_per_s: 5e+10}  # usual card of x\n"},
		"no links": {of(Datasheet{HostPerS: 6.4e10}), "links:\n  - {name: pcie, bytes_per_s: 6.4e+10}\n"},
		"a bridge": {of(Datasheet{HostPerS: 6.4e10}, [2]int{0, 1}), "links: nobody measured nvlink of x, and no datasheet has its rate; state it, "},
		"unknown":  {of(Datasheet{Fabric: "xgmi", LinkPerS: 3e11}, [2]int{0, 1}), "links: nobody measured nvlink of x, and no datasheet has its rate; state it, as in links: [{name: nvlink, bytes_per_s: 25e9}], or measure it there: evenkeel calibrate\n"},
		"of a law": {of(Datasheet{Fabric: "nvlink", LinkPerS: 3e11, Laws: []string{"nvlink"}}, [2]int{0, 1}), "schema: evenkeel.cluster/v1\nnetwork: ib\nnodes:\n"},
	} {
		if !strings.Contains(c.text, c.want) {
			t.Errorf("%s: want %q in\n%s", name, c.want, c.text)
		}
	}
}

// More NVLinks than a GPU has are told.
func TestDraftDoubtsTheDevice(t *testing.T) {
	sheet := func(model string) Datasheet { return Datasheet{Fabric: nvlink, Links: map[string]int{"x": 12}[model]} }
	for name, c := range map[string]struct {
		device string
		links  int
		fabric string
		want   string
	}{
		"its own":    {"x", 12, nvlink, ""},
		"too many":   {"x", 18, nvlink, "device x: by its datasheet it has 12 NVLinks, and the file shows 18 between two GPUs: look which"},
		"of any":     {"y", 18, nvlink, ""},
		"of none":    {"y", 99, nvlink, "the file shows 99 NVLinks between two GPUs, and no GPU that is known has more than 18"},
		"not NVLink": {"y", 99, "xgmi", ""},
	} {
		m := machine([]string{"", ""})
		m.Between[0][1] = Path{Wires: c.links, Fabric: c.fabric}
		m.Between[1][0] = m.Between[0][1]
		d, err := m.Draft(Options{Device: c.device, Datasheet: sheet})
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(d.Guessed, "\n"); !strings.Contains(text, c.want) || c.want == "" && strings.Contains(text, "NVLinks") {
			t.Errorf("%s: want %q in\n%s", name, c.want, text)
		}
		readsBack(t, d)
	}
}

// What a file says of its cards is the rate of the network, under a name of ours where none is
// given: the usual card of the GPU's datasheet may be many times as fast.
func TestDraftStatesTheCards(t *testing.T) {
	sheet := func(string) Datasheet { return Datasheet{Fabric: pcie, LinkPerS: 3.2e10, NetPerS: 25e9} }
	for name, c := range map[string]struct {
		o    Options
		rate units.BytesPerS
		want string
	}{
		"unnamed":  {Options{Nodes: 3}, 1.25e9, "network: net\nlinks:\n  - {name: net, bytes_per_s: 1.25e+09}  # slowest of its network cards\n  - {name: pcie, bytes_per_s: 3.2e+10}\n"},
		"made up":  {Options{Nodes: 3}, 2.5e9, "network net at 2.50 GB/s, which is what the file says of the slowest of the network cards and counts as assumed: nobody measured it; to measure it there: evenkeel calibrate; the name is made up: where a profile has laws of the network, write their class\n"},
		"named":    {Options{Nodes: 3, Network: "eth"}, 1.25e9, "network: eth\nlinks:\n  - {name: eth, bytes_per_s: 1.25e+09}  # slowest"},
		"a socket": {Options{Nodes: 3, Network: "eth"}, 1.25e9, "NCCL writes 10 Gbit/s of a card whose speed it cannot read, too\n"},
		"no speed": {Options{Nodes: 3, Network: "eth"}, 0, "beside the links above:\n#   - {name: eth, bytes_per_s: 2.5e+10}  # usual card of x\n"},
		"too slow": {Options{Nodes: 3}, 1e3, "network: no file of one machine tells the link class"},
		"one name": {Options{Nodes: 3, Network: "pcie"}, 1.25e9, "the file says 1.25 GB/s of the slowest of the network cards; pcie is the class inside a node, too, and one class has one rate"},
	} {
		m := machine([]string{"x", "x"})
		m.NICs = []NIC{{Name: "eth0", Rate: c.rate}}
		c.o.Datasheet = sheet
		d, err := m.Draft(c.o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text := string(d.YAML("x"))
		if !strings.Contains(text, c.want) || !strings.Contains(text, "nics: 1") || (c.rate == 1.25e9) != strings.Contains(text, "cannot read") && name != "one name" {
			t.Errorf("%s: want %q in\n%s", name, c.want, text)
		}
		readsBack(t, d)
	}
}

// Where each GPU has several cards, the offer says what they have together.
func TestDraftOffersAllCards(t *testing.T) {
	for cards, want := range map[int]string{
		2: "{name: efa, bytes_per_s: 1.25e+10}  # slowest of its network cards\n",
		3: "{name: efa, bytes_per_s: 1.25e+10}  # slowest of its network cards\n",
		8: "{name: efa, bytes_per_s: 1.25e+10}  # slowest of its network cards; 5e+10 where a GPU drives its 4\n",
	} {
		m := machine([]string{"x", "x"})
		for range cards {
			m.NICs = append(m.NICs, NIC{Near: true, Rate: 1.25e10})
		}
		m.NICs = append(m.NICs, NIC{Rate: 1e9})
		d, err := m.Draft(Options{Nodes: 2, Network: "efa"})
		if err != nil || !strings.Contains(string(d.YAML("x")), want) {
			t.Errorf("%d cards: %v\n%s", cards, err, d.YAML("x"))
		}
	}
}

func TestDraftErrors(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"negative":     {Options{Nodes: -1}, "--nodes -1: of 2 GPUs each: want 1 to 32768"},
		"too many":     {Options{Nodes: 1 << 16}, "--nodes 65536: of 2 GPUs each: want 1 to 32768"},
		"no nodes":     {Options{Network: "ib"}, "--network ib: joins nodes, and there is one: say with --nodes"},
		"device":       {Options{Device: "a b"}, `device: "a b": want the name of a device type`},
		"network name": {Options{Nodes: 2, Network: "a b"}, `--network "a b": want the name of a link class: a word`},
	} {
		if _, err := machine([]string{"", ""}).Draft(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Nodes of a draft share nothing, so that one can be changed by itself.
func TestDraftNodesAreApart(t *testing.T) {
	d, err := machine([]string{"x", "x"}).Draft(Options{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	d.Cluster.Nodes[0].Devices[0].Count = 7
	if d.Cluster.Nodes[1].Devices[0] != (op.Member{Device: "x", Count: 2}) {
		t.Error(d.Cluster)
	}
}
