#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Megatron-core trains small GPTs of TE layers, on CPUs over gloo: against its native layers, and
# under its FP8 options against BF16, one table of all; then host time against its native layers, on
# one rank and on two. Needs torch and the package: installed, or built in the source tree. Where
# the interpreter lacks Megatron-core, it is installed in a folder of its own. Arguments go to the
# client (tests/megatron/megatron_client). Settings: see qa/support.sh; MEGATRON_FP8: the recipes, of
# delayed, current, mxfp8, none (default: all three).
set -u
. "$(dirname "$0")/../support.sh"

need_module torch "Install torch."
if ! has_module transformer_engine; then
  export PYTHONPATH=$TE_PATH${PYTHONPATH:+:$PYTHONPATH} # a tree that was built in place
fi

packages=$TE_PATH/build/megatron_core
export PYTHONPATH=$TE_PATH/tests/megatron:$packages${PYTHONPATH:+:$PYTHONPATH}
if ! has_module megatron.core 2> /dev/null || ! has_module psutil; then
  rm -rf "$packages"
  "$PYTHON" -m pip install --disable-pip-version-check --quiet --no-deps --only-binary :all: \
    --target "$packages" -r "$TE_PATH/requirements-megatron.txt" ||
    skip "needs Megatron-core, which pip cannot install (requirements-megatron.txt)"
fi
for module in numpy packaging; do
  need_module "$module" "Run: $PYTHON -m pip install $module"
done

# From another folder: the tests are to run against the installed package where there is one.
cd "$XML_LOG_DIR" || exit 1
# shellcheck disable=SC2086  # several recipes are several words
run_case client "$PYTHON" -m megatron_client --fp8 ${MEGATRON_FP8:-delayed current mxfp8} \
  --json "$XML_LOG_DIR/megatron_core.json" "$@"
for options in "" "--ranks 2" "--ranks 2 --sequence-parallel"; do
  # shellcheck disable=SC2086
  run_case "host time $options" "$PYTHON" -m megatron_client.bench --gate --rounds 100 $options
done
finish
