#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The Python tests. Needs torch, pytest and the other test libraries of requirements-dev.txt, and
# the package: installed, or built in the source tree. Arguments go to pytest. Settings: see
# qa/support.sh; TEST_WORKERS: parallel test processes (default: one per core).
set -u
. "$(dirname "$0")/../support.sh"

need_module torch "Install torch."
for module in pytest hypothesis numpy xdist; do
  need_module "$module" "Run: $PYTHON -m pip install -r $TE_PATH/requirements-dev.txt"
done
if ! has_module transformer_engine; then
  export PYTHONPATH=$TE_PATH${PYTHONPATH:+:$PYTHONPATH} # a tree that was built in place
fi

# From another folder: `python -m` puts the current one first on the path, and the tests are to run
# against the installed package where there is one.
cd "$XML_LOG_DIR" || exit 1
run_case pytest "$PYTHON" -m pytest -c "$TE_PATH/pyproject.toml" --rootdir "$TE_PATH" \
  -n "${TEST_WORKERS:-auto}" --junitxml="$XML_LOG_DIR/pytest.xml" "$TE_PATH/tests" "$@"
finish
