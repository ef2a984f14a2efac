package topology

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Limits of a topology's tree: dumps nest eight levels deep.
const (
	maxDepth    = 64
	maxElements = 1 << 18
)

// device is a <pci> element, or the <cpu> above it.
type device struct {
	parent                     *device // nil above a CPU
	host                       string  // host_hash of its CPU: addresses are one host's
	bus, class, vendor, number string
	line                       int
	gpu, nic                   bool // it holds a <gpu>, a <net>
	placeless                  bool // a card that stands in the CPU itself
	said                       string
	dev                        string          // number of its <gpu> on the host
	rate                       units.BytesPerS // of its <net>s
	slot                       units.BytesPerS // of PCIe between it and what it stands in; 0 is unknown
	wires                      []wire
}

// wire is a <nvlink> or <xgmi> of a GPU.
type wire struct {
	fabric, target, class string
	count                 int
	line                  int
}

// tree is what is read of a file, element by element.
type tree struct {
	devices  []*device
	path     []*device // open elements; nil for those that are no device
	hosts    []string
	odd      string // the first speed that was left out
	elements int
}

// readXML reads NCCL's topology, as NCCL_TOPO_DUMP_FILE writes it and
// NCCL_TOPO_FILE reads it; RCCL's is the same with <xgmi> for <nvlink>. Any
// attribute may be missing, which means unknown.
func readXML(data []byte) (*Machine, error) {
	d := xml.NewDecoder(bytes.NewReader(data))
	var t tree
	for {
		token, err := d.Token()
		line, _ := d.InputPos()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, syntax(line, err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			if err := t.open(e, line); err != nil {
				return nil, err
			}
		case xml.EndElement:
			t.path = t.path[:len(t.path)-1]
		}
	}
	if t.elements == 0 {
		return nil, wrongf(0, "is no XML; write it by running a job with NCCL_TOPO_DUMP_FILE=topo.xml, or read nvidia-smi topo -m with --from %s", Matrix)
	}
	return t.machine()
}

func syntax(line int, err error) error {
	var s *xml.SyntaxError
	if errors.As(err, &s) && s.Msg == "unexpected EOF" {
		return wrongf(s.Line, "ends in the middle: it was cut short")
	}
	if errors.As(err, &s) {
		return wrongf(s.Line, "is no XML: %s", s.Msg)
	}
	return wrongf(line, "%s", err)
}

// open takes an element in and remembers which device it belongs to.
func (t *tree) open(e xml.StartElement, line int) error {
	t.elements++
	switch {
	case t.elements == 1:
		if err := root(e.Name.Local, line); err != nil {
			return err
		}
	case len(t.path) == 0:
		return wrongf(line, "<%s> after the end of <system>", short(e.Name.Local))
	case len(t.path) > maxDepth || t.elements > maxElements:
		return wrongf(line, "more than %d elements, or nested deeper than %d", maxElements, maxDepth)
	}
	at := t.at()
	if err := t.take(e, &at, line); err != nil {
		return err
	}
	t.path = append(t.path, at)
	return nil
}

// root refuses what is no topology.
func root(name string, line int) error {
	switch name {
	case "system":
		return nil
	case "graphs":
		return wrongf(line, "<graphs> is a file of NCCL_GRAPH_FILE: the rings and trees that NCCL chose, not the machine's topology; write that by running a job with NCCL_TOPO_DUMP_FILE=topo.xml")
	}
	return wrongf(line, "<%s> where <system> should be: no topology of NCCL; write one by running a job with NCCL_TOPO_DUMP_FILE=topo.xml", short(name))
}

// at is the device that the next element stands in; nil outside of any.
func (t *tree) at() *device {
	if len(t.path) == 0 {
		return nil
	}
	return t.path[len(t.path)-1]
}

// take reads one element; at becomes the device that its content belongs to.
// Elements with other names are of later versions and tell nothing needed here.
func (t *tree) take(e xml.StartElement, at **device, line int) error {
	in := *at
	switch name := e.Name.Local; name {
	case "cpu":
		host := attr(e, "host_hash")
		if host != "" && len(t.hosts) < maxDevices && !slices.Contains(t.hosts, host) {
			t.hosts = append(t.hosts, host)
		}
		*at = &device{host: host, line: line}
	case "pci":
		if in == nil {
			return wrongf(line, "<pci> outside of a <cpu>")
		}
		*at = &device{parent: in, host: in.host, bus: bus(attr(e, "busid")), class: attr(e, "class"), vendor: attr(e, "vendor"), number: attr(e, "device"), slot: pcieRate(e), line: line}
		if len(t.devices) >= 64*maxDevices {
			return wrongf(line, "more than %d PCI devices", 64*maxDevices)
		}
		t.devices = append(t.devices, *at)
	case "gpu":
		if in == nil || in.parent == nil {
			return wrongf(line, "<gpu> outside of a <pci>")
		}
		in.gpu, in.said, in.dev = true, said(e), attr(e, "dev")
	case "nic":
		if in != nil && in.parent == nil { // a card whose place on PCIe is unknown stands in the CPU itself
			*at = &device{parent: in, host: in.host, class: nicClass, placeless: true, line: line}
			t.devices = append(t.devices, *at)
		}
	case "net":
		return t.net(e, in, line)
	case "nvlink", "xgmi":
		return t.wire(e, in, line)
	}
	return nil
}

// said is what a <gpu> tells of its kind: sm is the compute capability, in AMD's
// files the number of compute units, and gcn names the architecture.
func said(e xml.StartElement) string {
	if gcn := attr(e, "gcn"); gcn != "" {
		return "gcn " + short(gcn)
	}
	if sm := attr(e, "sm"); sm != "" {
		return "sm " + short(sm)
	}
	return ""
}

// maxMbits is above any card's rate; plugins have written kbit/s.
const maxMbits = 1e7

// net reads a port of a network card; its speed is in Mbit/s. Several ports of
// one card add up.
func (t *tree) net(e xml.StartElement, in *device, line int) error {
	if in == nil || in.parent == nil {
		return wrongf(line, "<net> outside of a network card")
	}
	in.nic = true
	if in.bus == "" {
		in.bus = attr(e, "name")
	}
	speed := attr(e, "speed")
	if speed == "" {
		return nil
	}
	mbits, err := strconv.ParseFloat(speed, 64)
	if err != nil || mbits != mbits {
		return wrongf(line, "speed=%q: want Mbit/s", short(speed))
	}
	if mbits > maxMbits {
		if t.odd == "" {
			t.odd = fmt.Sprintf("line %d: speed=%q is more than a network card has in Mbit/s, so its rate, and that of others like it, is unknown", line, short(speed))
		}
		return nil
	}
	in.rate += units.BytesPerS(max(0, mbits) * 1e6 / 8) // unknown speeds are negative
	return nil
}

// mostLanes is above any PCIe link's: 255 is what Linux says of none.
const mostLanes = 32

// pcieRate is that of the PCIe link above a <pci>, in one direction, as datasheets count it: 16 lanes
// at 16.0 GT/s are 32 GB/s. It is 0 where the file does not tell both, or a machine did not
// know one.
func pcieRate(e xml.StartElement) units.BytesPerS {
	speed, _, ok := strings.Cut(attr(e, "link_speed"), " GT/s")
	perLane, err := strconv.ParseFloat(speed, 64)
	lanes, err2 := strconv.Atoi(attr(e, "link_width"))
	if !ok || err != nil || err2 != nil || !(perLane > 0 && perLane <= 1024) || lanes < 1 || lanes > mostLanes {
		return 0
	}
	return units.BytesPerS(perLane * float64(lanes) * 1e9 / 8)
}

func (t *tree) wire(e xml.StartElement, in *device, line int) error {
	if in == nil || !in.gpu {
		return wrongf(line, "<%s> outside of a <gpu>", e.Name.Local)
	}
	w := wire{fabric: e.Name.Local, target: bus(attr(e, "target")), class: strings.ToLower(attr(e, "tclass")), count: 1, line: line}
	if text := attr(e, "count"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 1000 {
			return wrongf(line, "count=%q: want the number of links, 1 to 1000", short(text))
		}
		w.count = n
	}
	if len(in.wires) >= maxDevices {
		return wrongf(line, "more than %d links of one GPU", maxDevices)
	}
	in.wires = append(in.wires, w)
	return nil
}

func attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return strings.TrimSpace(a.Value)
		}
	}
	return ""
}

// bus writes a PCI address in one way: some dumps have eight digits of domain.
func bus(s string) string {
	s = strings.ToLower(s)
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) > 4 {
		return fmt.Sprintf("%04s:%s", strings.TrimLeft(domain, "0"), rest)
	}
	return s
}
