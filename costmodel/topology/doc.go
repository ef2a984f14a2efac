// Package topology reads what a machine says of the paths between its GPUs and
// network cards, `nvidia-smi topo -m` and NCCL's topology XML, and drafts a
// cluster from it. What was read and what was guessed is told apart.
package topology
