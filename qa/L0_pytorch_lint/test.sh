#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Format, lint and type checks. Needs the pinned tools of requirements-dev.txt. PYTHON_ONLY=1 or
# CPP_ONLY=1 restrict it to one language. Settings: see qa/support.sh.
set -u
. "$(dirname "$0")/../support.sh"

remedy="Run: $PYTHON -m pip install -r $TE_PATH/requirements-dev.txt"
cd "$TE_PATH" || exit 1

if [ "${CPP_ONLY:-0}" != 1 ]; then
  for module in ruff mypy; do need_module "$module" "$remedy"; done
  run_case "ruff check" "$PYTHON" -m ruff check .
  run_case "ruff format" "$PYTHON" -m ruff format --check .
  run_case mypy "$PYTHON" build_tools/run_mypy.py
fi
if [ "${PYTHON_ONLY:-0}" != 1 ]; then
  need_module clang_format "$remedy"
  run_case clang-format "$PYTHON" build_tools/format_cpp.py --check
fi
finish
