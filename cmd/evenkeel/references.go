package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/spelling"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// showReferences lists the embedded profiles, or shows one in full.
func (a *app) showReferences(given []string, o view) error {
	if len(given) == 0 {
		s := results.SummariseReferences(profiles.All())
		return a.print(s, func(w io.Writer) error { return results.References(w, s, datasheets()) })
	}
	r, err := referenceOf(speltModel(given[0], datasheets()))
	if err != nil {
		return usagef("show --references: %w", err)
	}
	return a.print(r.Profile, func(w io.Writer) error {
		if o.coefs {
			return results.Coefficients(w, r.Profile)
		}
		return results.Profile(w, r.Profile)
	})
}

// known is the laws that a plan rests on: of profiles, references among them or not.
type known struct {
	profile    *costmodel.Profile
	references bool
	inputs     []doc.Input
	cluster    costmodel.Cluster // resolved
	remarks    []string          // for the plan's warnings
	notes      []string          // for who waits; see tell
}

// acrossMakers warns of a plan on GPUs of several makers, as of one sequence its planner does.
func acrossMakers(p *costmodel.Profile, devices []string) []string {
	if p == nil {
		return nil
	}
	return costmodel.NewPredictor(p).AcrossMakers(devices)
}

// tell says what the plan rests on, once nothing is wrong with what was asked: above an
// error these lines would hide it.
func (a *app) tell(k known) {
	for _, n := range k.notes {
		a.note("%s", n)
	}
}

// laws reads the profiles that --profile names and resolves the cluster against them.
// Where the references are among these, they stand for the GPU models that the files
// lack and for ops of the others, and links that nobody measured are assumed.
func (o problem) laws() (known, error) {
	cluster, err := readCluster(o.cluster)
	if err != nil {
		return known{}, err
	}
	return o.lawsOf(cluster)
}

// lawsOf is laws of a cluster that is known.
func (o problem) lawsOf(cluster costmodel.Cluster) (known, error) {
	if o.network != "" && len(cluster.Nodes) == 1 {
		return known{}, usagef("--network %s: the cluster is one node, which has no links to others: leave it out", o.network)
	}
	if o.link != "" && !slices.ContainsFunc(cluster.Nodes, func(n costmodel.Node) bool { return n.Size() > 1 }) {
		return known{}, usagef("--link %s: no node of the cluster has two devices, between which it would be: leave it out", o.link)
	}
	if err := o.stateRates(&cluster); err != nil {
		return known{}, err
	}
	paths, references, err := o.profiles()
	if err != nil {
		return known{}, err
	}
	own, err := loadProfiles(o.out, paths)
	if err != nil {
		return known{}, err
	}
	if cluster, err = spelt(cluster, own); err != nil {
		return known{}, o.ofCluster(err)
	}
	if references {
		return o.referenced(cluster, own)
	}
	k := known{profile: own[0].Profile}
	if len(own) > 1 {
		k.profile = profiles.Merge(own)
	}
	for _, r := range own {
		k.inputs = append(k.inputs, r.Input)
	}
	if k.cluster, err = cluster.Resolve(k.profile, o.link, o.network); err != nil {
		if what := standIn(err, cluster, k.profile, own); what != "" {
			err = fmt.Errorf("%w; or let the embedded profiles stand for %s: --profile %s,%s", err, what, o.profile, borrowReferences)
		}
		return known{}, o.ofCluster(err)
	}
	k.assumeStated()
	k.tellSoftware()
	return k, nil
}

// speltModel is a device type in the spelling of the one among known models that it is of, or that
// a GPU's own name means: a100_sxm_40gb of A100-SXM4-40GB. Of none, or several, it stays as it is.
func speltModel(given string, models []string) string {
	spelt := profiles.Spelt(given, models)
	model := costmodel.ModelOf(spelt)
	if named := modelNamed(model); !slices.Contains(models, model) && slices.Contains(models, named) {
		return named + spelt[len(model):]
	}
	return spelt
}

// spelt is a cluster whose device types of GPU models that are known, or that the given profiles
// have, are spelt as these are: H100-SXM is h100_sxm. What a profile has by its own name stays.
func spelt(c costmodel.Cluster, own []profiles.Reference) (costmodel.Cluster, error) {
	models := datasheets()
	for _, r := range own {
		for _, d := range r.Profile.Devices {
			models = append(models, costmodel.ModelOf(d.Name))
		}
	}
	c.Nodes = slices.Clone(c.Nodes)
	for i := range c.Nodes {
		c.Nodes[i].Devices = slices.Clone(c.Nodes[i].Devices)
		for k := range c.Nodes[i].Devices {
			d := &c.Nodes[i].Devices[k]
			d.Device = speltModel(d.Device, models)
		}
	}
	return c, c.Validate() // one model in two spellings
}

// unassumed is a plan's cluster as it was asked for: without the links that were assumed
// because nothing was said of them and the laws that were borrowed because nobody had any, which
// are assumed and borrowed anew.
func unassumed(c costmodel.Cluster) costmodel.Cluster {
	made := func(link string) bool {
		return link == fit.NetworkLink || link == fit.DeviceLink || link == fit.HostBusLink
	}
	if made(c.Network) {
		c.Network = ""
	}
	c.Nodes = slices.Clone(c.Nodes)
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if made(n.Link) {
			n.Link = ""
		}
		n.Devices = slices.Clone(n.Devices)
		for k := range n.Devices {
			n.Devices[k].Device = strings.TrimSuffix(n.Devices[k].Device, "/"+costmodel.BorrowedStack)
		}
	}
	c.Links = slices.DeleteFunc(slices.Clone(c.Links), func(l costmodel.Link) bool { return made(l.Name) })
	return c
}

// stateRates takes the rates out of --link and --network: net=25GB/s names a class and
// states its rate, as the links of a cluster.yaml do.
func (o *problem) stateRates(c *costmodel.Cluster) error {
	for _, f := range []struct {
		name  string
		class *string
	}{{"link", &o.link}, {"network", &o.network}} {
		class, rate, stated := strings.Cut(*f.class, "=")
		if !stated {
			continue
		}
		r, err := units.ParseRate(rate)
		if err != nil {
			return usagef("--%s %s: %v", f.name, *f.class, err)
		}
		l := costmodel.Link{Name: class, Rate: r}
		if err := l.Validate(); err != nil {
			return usagef("--%s %s: %v", f.name, *f.class, err)
		}
		if slices.ContainsFunc(c.Links, func(x costmodel.Link) bool { return x.Name == class && x != l }) {
			return usagef("--%s %s: %s has another rate already; leave one of them out, or give them two names", f.name, *f.class, class)
		}
		*f.class = class
		if !slices.Contains(c.Links, l) {
			c.Links = append(c.Links, l)
		}
	}
	return nil
}

// standIn is what the embedded profiles have of a cluster that given ones lack: a GPU model
// or, as of one that was measured alone, links.
func standIn(err error, c costmodel.Cluster, p *costmodel.Profile, own []profiles.Reference) string {
	if refs, no := lacking(c, own); no == nil && len(refs) > 0 {
		return refs[0].Name
	}
	var of *costmodel.FieldError
	_, unknown := lacking(c, nil)
	if errors.As(err, &of) && !strings.HasSuffix(of.Field, "device") && unknown == nil && len(p.Groups) == 0 {
		return "the links"
	}
	return ""
}

// ofCluster is the error of a cluster that is wrong for its profile, with the file that
// describes it.
func (o problem) ofCluster(err error) error {
	if !isClusterFile(o.cluster) {
		return usageError{err}
	}
	data, _ := os.ReadFile(o.cluster) // again; of a pipe the line is lost
	return usageError{costmodel.InClusterFile(o.cluster, data, err)}
}

// assumeStated adds laws of the links that the cluster states, and says of which none came. Of
// GPUs beside such as have no bf16 it adds laws in f16.
func (k *known) assumeStated() {
	k.profile = costmodel.AssumeLinks(k.profile, k.cluster)
	if of := fit.AssumeF16(k.profile, k.types()); len(of) > 0 {
		k.notes = append(k.notes, fmt.Sprintf("%s: f16, which another GPU of the cluster computes in alone, is taken to cost what bf16 does", strings.Join(of, ", ")))
	}
	k.notes = append(k.notes, k.cluster.Unheeded(k.profile)...)
}

// tellSoftware says whose collectives are used where several were measured.
func (k *known) tellSoftware() {
	of := costmodel.NewPredictor(k.profile).Software(k.cluster)
	k.remarks, k.notes = append(k.remarks, of...), append(k.notes, of...)
}

// profiles reads --profile: files, and whether references fill in what these lack.
func (o problem) profiles() (paths []string, references bool, err error) {
	if o.profile == "" {
		return nil, true, nil
	}
	for name := range strings.SplitSeq(o.profile, ",") {
		switch name = strings.TrimSpace(name); {
		case name == "":
			return nil, false, usagef("--profile %s: a name is empty; want files separated by commas, with %s for the embedded profiles", o.profile, borrowReferences)
		case name == borrowReferences:
			references = true
		case !exists(name) && spelling.Nearest(name, []string{borrowReferences}) != "":
			return nil, false, usagef("--profile %s: there is no file %q%s; %s stands for the embedded profiles", o.profile, name, spelling.Suggest(borrowReferences), borrowReferences)
		default:
			paths = append(paths, name)
		}
	}
	return paths, references, nil
}

// namesModel has the error of a missing law say which model to measure for.
func (o problem) namesModel(err error) error {
	costmodel.ForModel(err, o.model)
	return err
}

// loadProfiles reads files of a plan that is written to a path. No device type may have
// laws in two of them.
func loadProfiles(to string, paths []string) ([]profiles.Reference, error) {
	in, err := inputs(to, paths)
	if err != nil {
		return nil, err
	}
	var all []profiles.Reference
	from := map[string]string{} // of device types
	for i, path := range paths {
		p, err := loadProfile(path)
		if err != nil {
			return nil, err
		}
		for _, d := range p.Devices {
			if before, twice := from[d.Name]; twice {
				return nil, usagef("--profile: device type %s is in both %s and %s; leave one out, or fit their recordings to one profile: evenkeel fit", d.Name, before, path)
			}
			from[d.Name] = path
		}
		all = append(all, profiles.Reference{Name: path, Input: in[i], Profile: p})
	}
	return all, nil
}

// referenced adds the references of a cluster's devices to the profiles that are given,
// of the models and ops that these lack, and assumes the links that nobody measured.
func (o problem) referenced(cluster costmodel.Cluster, own []profiles.Reference) (known, error) {
	refs, err := lacking(cluster, own)
	if err != nil {
		return known{}, o.ofCluster(err)
	}
	merged, added := filledIn(cluster, own)
	k := known{profile: profiles.Merge(slices.Concat(merged, added.references, refs)), references: true}
	fit.AssumeTraining(k.profile) // as the references have it, so that none seems faster beside the others
	for _, r := range own {
		k.inputs = append(k.inputs, r.Input)
	}
	for _, r := range slices.Concat(added.references, refs) {
		k.inputs = append(k.inputs, inputsOf(r)...)
	}
	k.inputs = each(k.inputs)
	k.profile.Inputs = k.inputs
	if cluster, err = ownNamed(cluster, merged).Named(k.profile); err != nil {
		return known{}, o.ofCluster(err)
	}
	if err := cluster.Contradicts(o.link, o.network); err != nil {
		return known{}, o.ofCluster(err)
	}
	if cluster, err = fit.AssumeLinks(k.profile, ofUser(merged), chosenLinks(cluster, o)); err != nil {
		return known{}, o.ofCluster(err)
	}
	if k.cluster, err = cluster.Resolve(k.profile, "", ""); err != nil {
		return known{}, o.ofCluster(err)
	}
	k.assumeStated()
	k.remarks = added.remarks
	for _, r := range refs {
		k.remarks = append(k.remarks, remark(r))
	}
	k.notes = append(k.notes, k.remarks...)
	k.tellSoftware()
	if all := slices.Concat(added.references, refs); len(all) > 0 && o.batch { // of which no account is shown
		var ways []string
		for _, r := range all {
			ways = append(ways, "evenkeel show --references "+r.Name)
		}
		k.notes = append(k.notes, fmt.Sprintf("which of these laws are assumed is told by %s; measure your own: evenkeel calibrate", strings.Join(ways, ", ")))
	} else if len(all) > 0 {
		k.notes = append(k.notes, "what is assumed, and how the plan rests on it, is said below it; measure your own: evenkeel calibrate")
	}
	return k, nil
}

// ofUser is the profile of the given ones; an empty one where there are none.
func ofUser(merged []profiles.Reference) *costmodel.Profile {
	if len(merged) == 0 {
		return &costmodel.Profile{}
	}
	return merged[0].Profile
}

// filling is what references add to profiles that know their GPU models.
type filling struct {
	references []profiles.Reference
	remarks    []string
}

// filledIn is the given profiles as one, or none, with the laws that references of the
// cluster's devices have of ops that these lack. A model without a reference is left as it is.
func filledIn(cluster costmodel.Cluster, own []profiles.Reference) ([]profiles.Reference, filling) {
	var added filling
	if len(own) == 0 {
		return nil, added
	}
	all := profiles.Reference{Input: own[0].Input, Profile: profiles.Merge(own)}
	met := map[string]bool{}
	for _, d := range all.Profile.Devices {
		met[costmodel.ModelOf(d.Name)] = true
	}
	for _, n := range cluster.Nodes {
		for _, m := range n.Devices {
			model := costmodel.ModelOf(m.Device)
			if !met[model] {
				continue
			}
			met[model] = false // once
			r, err := referenceOf(model)
			if err != nil {
				continue
			}
			filled, beside, adds := profiles.FillIn(all.Profile, r.Profile, model)
			if len(adds) == 0 {
				continue
			}
			text := fmt.Sprintf("%s; only of what --profile has no law of: %s", remark(r), words(adds))
			all.Profile, r.Profile = filled, beside
			added.references, added.remarks = append(added.references, r), append(added.remarks, text)
		}
	}
	return []profiles.Reference{all}, added
}

// ownNamed is the cluster with the names of the given profiles' own device types for the GPU
// models that these compute on: a reference's device type may be called as the model is, and
// stands beside them for its links.
func ownNamed(c costmodel.Cluster, own []profiles.Reference) costmodel.Cluster {
	if len(own) == 0 {
		return c
	}
	p := own[0].Profile
	c.Nodes = slices.Clone(c.Nodes)
	for i := range c.Nodes {
		c.Nodes[i].Devices = slices.Clone(c.Nodes[i].Devices)
		for k := range c.Nodes[i].Devices {
			d := &c.Nodes[i].Devices[k]
			name, err := p.DeviceFor(d.Device)
			if err == nil && slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool { return l.Device == name }) {
				d.Device = name
			}
		}
	}
	return c
}

func words(adds []profiles.Addition) string {
	var names []string
	for _, a := range adds {
		names = append(names, a.String())
	}
	return strings.Join(names, ", ")
}

// lacking are the references of the devices whose GPU model none of the given profiles
// knows, each once.
func lacking(cluster costmodel.Cluster, own []profiles.Reference) ([]profiles.Reference, error) {
	have := map[string]bool{}
	for _, r := range own {
		for _, d := range r.Profile.Devices {
			have[costmodel.ModelOf(d.Name)] = true
		}
	}
	var refs []profiles.Reference
	for at, n := range cluster.Nodes {
		for i, m := range n.Devices {
			model := costmodel.ModelOf(m.Device)
			if have[model] {
				continue
			}
			r, err := referenceOf(m.Device)
			if err != nil {
				return nil, &costmodel.FieldError{Field: fmt.Sprintf("nodes[%d].devices[%d].device", at, i), Err: fmt.Errorf("node %s: %w", n.Name, err)}
			}
			have[model] = true
			refs = append(refs, r)
		}
	}
	return refs, nil
}

// referenceOf is a GPU model's reference profile or, where nobody measured the model but
// its datasheet is known, what the most similar reference lends it by that.
func referenceOf(name string) (profiles.Reference, error) {
	r, err := profiles.LookupOr(name, datasheets())
	if err == nil || !slices.Contains(datasheets(), name) {
		return r, err
	}
	m, err := sheetFor(name, "", nil)
	if err != nil {
		return r, err
	}
	p, err := lent(m, references())
	if err != nil {
		return r, err
	}
	lender, err := profiles.Lookup(lenderOf(p))
	if err != nil {
		return r, err
	}
	from := []profiles.Reference{lender}
	if links := linksOf(p); links != nil && links.Name != lender.Name {
		from = append(from, *links)
	}
	p.Header = profiles.Merge(from).Header
	return profiles.Reference{Name: name, Input: lender.Input, Profile: p}, nil
}

// inputsOf are the files that a reference's laws are from: of a borrowed one its lenders'.
func inputsOf(r profiles.Reference) []doc.Input {
	if lenderOf(r.Profile) != "" {
		return r.Profile.Inputs
	}
	return []doc.Input{r.Input}
}

// each leaves every file once, where it is first.
func each(files []doc.Input) (once []doc.Input) {
	for _, in := range files {
		if !slices.Contains(once, in) {
			once = append(once, in)
		}
	}
	return once
}

// linksOf is the reference whose collectives a profile was lent; nil where none were.
func linksOf(p *costmodel.Profile) *profiles.Reference {
	for _, r := range profiles.All() {
		if slices.ContainsFunc(p.Laws, func(l costmodel.Law) bool { return borrowsLinks(&l, r.Profile) }) {
			return &r
		}
	}
	return nil
}

// lenderOf is the device type whose laws of computing a profile borrowed; "" where it has
// its own.
func lenderOf(p *costmodel.Profile) string {
	for i := range p.Laws {
		if l := &p.Laws[i]; l.Device != "" && l.From != "" {
			return l.From
		}
	}
	return ""
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

// remark says which references a plan rests on.
func remark(r profiles.Reference) string {
	links := ""
	if from := linksOf(r.Profile); from != nil {
		links = fmt.Sprintf("; collectives are those of %s, whose links have the same datasheet rate", from.Name)
	}
	if lender := lenderOf(r.Profile); lender != "" {
		return fmt.Sprintf("%s: nobody measured it: laws of the reference profile of %s by the ratios of their datasheets%s", r.Name, lender, links)
	}
	var stacks, titles []string
	for _, d := range r.Profile.Devices {
		stacks = append(stacks, d.Stack)
	}
	for _, origin := range r.Profile.Origins {
		titles = append(titles, origin.Title)
	}
	by := fmt.Sprintf("others' measurements (%s)", strings.Join(titles, "; "))
	if results.MeasuredHere(r.Profile) {
		by = "this project's measurements"
	}
	return fmt.Sprintf("%s: laws of the reference profile (%s), fitted to %s, not to this cluster%s", r.Name, strings.Join(stacks, ", "), by, links)
}
