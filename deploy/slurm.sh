#!/usr/bin/env bash
# Trains as a job of Slurm, one task a GPU, from the folder that has data/ and gets runs/, which all nodes share:
#
#   sbatch deploy/slurm.sh gpt2-124m [OPTIONS of tenfold train]
#   sbatch --nodes=2 deploy/slurm.sh gpt2-124m
#   sbatch --array=0-4 deploy/slurm.sh gpt2-124m     # a run for each seed, gpt2-124m-seed-0 to -4
#
# Submit it where `tenfold` is on the PATH; add what your site wants, such as --partition and --account. Before the
# time is up, the tasks get SIGTERM, save and exit with 75, which puts the job back into the queue under its own number,
# so it lasts as many time limits as it needs. A diverged run (1) and a mistake (2) end it. Not run on a cluster; it ran
# on one machine under Slurm 22.05, on CPUs.
#SBATCH --job-name=tenfold
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=08:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail

if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
  set -- "$@" --name "$1-seed-$SLURM_ARRAY_TASK_ID" --recipe.seed "$SLURM_ARRAY_TASK_ID"
fi
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) # jobs that share a node each have their own

export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # since Slurm 22.05 srun does not take it from sbatch

# srun is the launcher, not torchrun, whose own exit code would hide tenfold's.
# shellcheck disable=SC2016  # the variables are those of each task
as_rank='export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
exec tenfold train "$@"'
code=0
srun --kill-on-bad-exit=1 bash -c "$as_rank" tenfold "$@" || code=$?
if [[ $code == 75 ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
