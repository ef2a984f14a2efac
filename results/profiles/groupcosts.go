package profiles

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/doc"
)

//go:embed *.groupcost.json
var groupCostFiles embed.FS

const groupCostSuffix = ".groupcost.json"

// GroupCost is an embedded cost model of groups that others published.
type GroupCost struct {
	Name  string
	Input doc.Input
	Model *groupcost.Document
}

// readGroupCosts decodes the embedded files once; nothing changes them afterwards.
var readGroupCosts = sync.OnceValue(func() []GroupCost {
	var all []GroupCost
	for _, e := range decoded[groupcost.Document](groupCostFiles, groupCostSuffix) {
		all = append(all, GroupCost{Name: e.name, Input: e.input, Model: e.document})
	}
	return all
})

// GroupCosts lists the published cost models of groups by name. They are shared:
// clone before changing.
func GroupCosts() []GroupCost { return slices.Clone(readGroupCosts()) }

// LookupGroupCost finds a published cost model by name. The error names the nearest
// and lists all.
func LookupGroupCost(name string) (GroupCost, error) {
	var names []string
	for _, g := range readGroupCosts() {
		if g.Name == name {
			return g, nil
		}
		names = append(names, g.Name)
	}
	return GroupCost{}, fmt.Errorf("no published cost model %.60q%s; there are %s", name, Nearest(name, names), strings.Join(names, ", "))
}
