#!/usr/bin/env bash
# Checks Tenfold on this machine's GPU, in at most five minutes, and leaves the results in OUT. Installs nothing.
#
#   scripts/gpu_check.sh OUT [--device cuda] [--tiny] [--seconds 280] [--parts facts,parity]
#
# PYTHON names the interpreter, python3 by default; TENFOLD_WHEELS a folder with wheels of what that one lacks. What is
# checked stands in gpu_check.py.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "gpu_check: $python is no Python of 3.11 or later; name one in PYTHON" >&2
  exit 2
fi
export PYTHONPATH="$root/src:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$root/scripts/gpu_check.py" "$@"
