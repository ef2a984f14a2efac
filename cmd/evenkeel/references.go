package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// showReferences lists the embedded profiles, or shows one in full.
func (a *app) showReferences(given []string, o view) error {
	if len(given) == 0 {
		s := results.SummariseReferences(profiles.All())
		return a.print(s, func(w io.Writer) error { return results.References(w, s) })
	}
	r, err := profiles.Lookup(given[0])
	if err != nil {
		return err
	}
	return a.print(r.Profile, func(w io.Writer) error {
		if o.coefs {
			return results.Coefficients(w, r.Profile)
		}
		return results.Profile(w, r.Profile)
	})
}

// known is the laws that a plan rests on: a profile's, or those of references.
type known struct {
	profile *costmodel.Profile
	inputs  []doc.Input
	cluster costmodel.Cluster // resolved
	remarks []string          // for the plan's warnings
}

// laws reads the profile and resolves the cluster against it; without a profile
// the reference profiles of the cluster's GPU models take its place.
func (a *app) laws(o problem) (known, error) {
	cluster, err := readCluster(o.cluster)
	if err != nil {
		return known{}, err
	}
	if o.network != "" && len(cluster.Nodes) == 1 {
		return known{}, usagef("--network %s: the cluster is one node, which has no links to others: leave it out", o.network)
	}
	if o.profile == "" {
		return a.referenced(cluster, o)
	}
	p, err := loadProfile(o.profile)
	if err != nil {
		return known{}, err
	}
	k := known{profile: p}
	if k.inputs, err = inputs(o.out, []string{o.profile}); err != nil {
		return known{}, err
	}
	if k.cluster, err = cluster.Resolve(p, o.link, o.network); err != nil {
		return known{}, usageError{err}
	}
	k.profile = costmodel.AssumeLinks(p, k.cluster)
	return k, nil
}

// referenced merges the references of a cluster's devices and assumes the links
// that nobody measured.
func (a *app) referenced(cluster costmodel.Cluster, o problem) (known, error) {
	var refs []profiles.Reference
	for _, n := range cluster.Nodes {
		for _, m := range n.Devices {
			r, err := profiles.Lookup(m.Device)
			if err != nil {
				return known{}, usagef("node %s: %w", n.Name, err)
			}
			if !slices.ContainsFunc(refs, func(have profiles.Reference) bool { return have.Name == r.Name }) {
				refs = append(refs, r)
			}
		}
	}
	k := known{profile: profiles.Merge(refs)}
	k.inputs = k.profile.Inputs
	cluster, err := cluster.Named(k.profile)
	if err != nil {
		return known{}, usageError{err}
	}
	if cluster, err = fit.AssumeLinks(k.profile, chosenLinks(cluster, o)); err != nil {
		return known{}, usageError{err}
	}
	if k.cluster, err = cluster.Resolve(k.profile, "", ""); err != nil {
		return known{}, usageError{err}
	}
	k.profile = costmodel.AssumeLinks(k.profile, k.cluster)
	for _, r := range refs {
		k.remarks = append(k.remarks, remark(r))
		a.note("%s", remark(r))
	}
	a.note("what is assumed, and how the plan rests on it, is said below it; measure your own: evenkeel calibrate")
	return k, nil
}

// chosenLinks fills in the classes that the flags name, before any is assumed.
func chosenLinks(c costmodel.Cluster, o problem) costmodel.Cluster {
	for i := range c.Nodes {
		if n := &c.Nodes[i]; n.Link == "" && (op.GroupType{Members: n.Devices}).Ranks() > 1 {
			n.Link = o.link
		}
	}
	if c.Network == "" && len(c.Nodes) > 1 {
		c.Network = o.network
	}
	return c
}

// remark says which reference a plan rests on.
func remark(r profiles.Reference) string {
	var stacks, titles []string
	for _, d := range r.Profile.Devices {
		stacks = append(stacks, d.Stack)
	}
	for _, origin := range r.Profile.Origins {
		titles = append(titles, origin.Title)
	}
	return fmt.Sprintf("%s: laws of the reference profile (%s), fitted to others' measurements (%s), not to this cluster", r.Name, strings.Join(stacks, ", "), strings.Join(titles, "; "))
}
