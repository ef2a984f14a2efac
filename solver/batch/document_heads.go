package batch

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
)

// heads says which class's heads or all-to-alls cannot be. Without the model it is not known
// how many query heads there are, but that they are as many in every all-to-all.
func (d *Document) heads() error {
	all, of := 0, ""
	for i, e := range d.Classes {
		c := Class(e)
		at := fmt.Sprintf("classes[%d] (%s)", i, c.Name)
		groups, err := statedGroups(c)
		if err != nil {
			return fmt.Errorf("%s.%w", at, err)
		}
		for j, g := range groups {
			sum := 0
			for _, m := range g {
				sum += m.QHeads
			}
			if all == 0 {
				all, of = sum, fmt.Sprintf("%s.groups[%d]", at, j)
			}
			if sum != all || sum < 1 {
				return fmt.Errorf("%s.groups[%d]: %d q_heads in all, and %s has %d: all have the model's", at, j, sum, of, all)
			}
		}
		if groups == nil {
			continue
		}
		c.Groups = groups
		if err := validGroups(c, all); err != nil {
			return fmt.Errorf("%s.%w", at, err)
		}
	}
	return nil
}

// statedGroups are the all-to-alls of a class as far as it states heads, nil where it does not.
func statedGroups(c Class) ([]costmodel.Group, error) {
	if c.Heads < 0 || c.Heads > c.Degree() {
		return nil, fmt.Errorf("head_ranks: %d: want 0 to the group's %d devices", c.Heads, c.Degree())
	}
	for pool, n := range c.QHeads {
		if n < 0 {
			return nil, fmt.Errorf("q_heads[%d]: %d: want 0 or more", pool, n)
		}
	}
	for i, g := range c.Groups {
		for k, m := range g {
			if m.QHeads < 0 {
				return nil, fmt.Errorf("groups[%d][%d].q_heads: %d: want 0 or more", i, k, m.QHeads)
			}
		}
	}
	switch size := max(1, c.Heads); {
	case c.QHeads != nil && len(c.QHeads) != len(c.Uses):
		return nil, fmt.Errorf("q_heads: %d numbers: the fleet has %d pools", len(c.QHeads), len(c.Uses))
	case c.Groups != nil && len(c.Groups) == 0:
		return nil, fmt.Errorf("groups: none: want the all-to-alls of the group's %d devices, or leave them out", c.Degree())
	case c.Groups != nil:
		return c.Groups, nil
	case c.Degree()%size != 0:
		return nil, fmt.Errorf("head_ranks: %d: want a divisor of the group's %d devices", size, c.Degree())
	case c.QHeads == nil:
		return nil, nil
	default:
		return neighbours(c, 0, size)
	}
}
