#!/usr/bin/env bash
# Trains on several machines. Run it on each of them, in a folder that they share, with the same options:
#
#   HOST=first-machine NODES=4 deploy/several_nodes.sh gpt2-124m [OPTIONS of tenfold train]
#
# HOST is the machine where the others meet, and must live; PORT a free one there. NODES is how many machines there are,
# or least and most, as 1:4: then training goes on with those that are left. PROCESSES is how many on this machine, one
# for each GPU if left out. Not run on a cluster; two of them were on one machine, on CPUs.
set -euo pipefail
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # else, with torch 2.13, a node that comes back may wait in vain for the others' address
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=180 # seconds until torchrun kills what it told to end; by default 30
exec torchrun --nnodes "${NODES:?how many machines, such as 4 or 1:4}" --nproc-per-node "${PROCESSES:-gpu}" \
  --rdzv-backend c10d --rdzv-endpoint "${HOST:?the machine where all meet}:${PORT:-29500}" --rdzv-id tenfold \
  --max-restarts 3 -m tenfold train "$@"
