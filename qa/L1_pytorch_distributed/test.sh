#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The tests of several processes, started by torchrun as a user's training is: two ranks, then four.
# NCCL carries CUDA tensors where there are as many GPUs, gloo the others. Needs torch, pytest and
# the package: installed, or built in the source tree. Arguments go to pytest. Settings: see
# qa/support.sh; RANKS: numbers of ranks (default: "2 4").
set -u
. "$(dirname "$0")/../support.sh"

need_module torch "Install torch."
for module in pytest hypothesis numpy; do
  need_module "$module" "Run: $PYTHON -m pip install -r $TE_PATH/requirements-dev.txt"
done
if ! has_module transformer_engine; then
  export PYTHONPATH=$TE_PATH${PYTHONPATH:+:$PYTHONPATH} # a tree that was built in place
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # each rank's

# Tests of another number of ranks are skipped, see tests/pytorch/helpers/ranks.py. The first
# failure ends all ranks.
tests=(
  "$TE_PATH/tests/pytorch/distributed"
  "$TE_PATH/tests/pytorch/tensor/test_fsdp_tensor.py"
)
cd "$XML_LOG_DIR" || exit 1
for count in ${RANKS:-2 4}; do
  run_case "$count ranks" "$PYTHON" -m torch.distributed.run --standalone \
    --nproc-per-node "$count" --local-ranks-filter 0 -m pytest -c "$TE_PATH/pyproject.toml" \
    --rootdir "$TE_PATH" -p no:cacheprovider -q -x -m slow -W ignore \
    --junitxml="$XML_LOG_DIR/distributed_$count.xml" "${tests[@]}" "$@"
done
finish
