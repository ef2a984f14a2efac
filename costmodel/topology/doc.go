// Package topology drafts a cluster.yaml from what a machine reports about the paths
// between its GPUs and network cards: the output of `nvidia-smi topo -m`, or NCCL's
// topology XML. It keeps what it read apart from what it guessed.
//
// [Read] returns the [Machine] that a file describes; [Machine.Draft] makes a cluster of
// such machines, and [Draft.YAML] writes it with comments on what was read, guessed and
// left to fill in.
package topology
