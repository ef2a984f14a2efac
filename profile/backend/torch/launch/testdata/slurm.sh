#!/bin/bash
#SBATCH --job-name=evenkeel
#SBATCH --nodes=4
# One agent a node: it starts one worker for each GPU it sees.
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
# Other jobs on a node would be measured along with this one.
#SBATCH --exclusive
# Twice the budget, for compilation and the collectives' joins, and ten minutes for the start.
#SBATCH --time=30
# The first task writes the recording to '/shared/it'\''s here', on its own node.

set -euo pipefail

# The master is the first node of the step and its port follows from the job's
# number. If that port is taken: export MASTER_PORT=29500
# Networks are chosen by the libraries. To pin one:
#   export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0
# Unequal network cards shall be an error and not a hang:
export NCCL_IGNORE_NET_MISMATCH=0

# --cpu-bind=none: the one task of a node shall use all its cores.
# --kill-on-bad-exit: an agent that is lost must not leave the others waiting.
srun --cpu-bind=none --kill-on-bad-exit=1 \
  evenkeel calibrate --backend torch --budget 10m0s --out '/shared/it'\''s here' --only attn_fwd,gemm --model 'a b"$HOME` $(HOME)'
