#!/bin/bash
# Run this on every node, all within ten minutes, with the node's number:
#   MASTER=node0 ./job.sh 0        on the first node
#   MASTER=node0 ./job.sh 3        on the last
# The first task writes the recording to '/shared/it'\''s here', on its own node.
set -euo pipefail

# The name or address of node 0, as the other nodes see it.
MASTER="${MASTER:?set MASTER to the host name of node 0}"
# This node's number: as the argument, or in NODE_RANK.
NODE="${1:-${NODE_RANK:?give the number of this node, 0 to 3, as the argument}}"
if ! [[ "$NODE" =~ ^[0-9]{1,5}$ ]] || ((10#$NODE > 3)); then
  echo "node $NODE: want 0 to 3" >&2
  exit 2
fi

# Unequal network cards shall be an error and not a hang:
export NCCL_IGNORE_NET_MISMATCH=0

# One agent a node (nproc_per_node): it starts one worker for each of the
# 8 GPUs. No restarts: one would join a world that is half gone; the same
# command goes on where the recording ends. Options are spelt with underscores,
# which every version of torchrun takes.
exec torchrun --nnodes=4 --node_rank="$NODE" --nproc_per_node=1 --max_restarts=0 \
  --master_addr="$MASTER" --master_port=29500 --no_python \
  evenkeel calibrate --backend torch --budget 10m0s --out '/shared/it'\''s here' --only attn_fwd,gemm --model 'a b"$HOME` $(HOME)'
