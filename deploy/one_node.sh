#!/usr/bin/env bash
# Trains on all GPUs of this machine, one process each, from the folder that has data/ and gets runs/:
#
#   deploy/one_node.sh gpt2-124m [OPTIONS of tenfold train]
#
# PROCESSES is how many, one for each GPU if left out. A process that dies takes the others with it; then all begin
# again at the newest checkpoint, three times at most. Ctrl-C and SIGTERM save first. Not run on GPUs; on two CPU cores
# it was.
set -euo pipefail
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=180 # seconds until torchrun kills what it told to end; by default 30
exec torchrun --standalone --nproc-per-node "${PROCESSES:-gpu}" --max-restarts 3 -m tenfold train "$@"
