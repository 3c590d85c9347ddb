#!/usr/bin/env bash
# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Every source file begins with the copyright line and the licence identifier. Needs Python and git.
# Settings: see qa/support.sh.
set -u
. "$(dirname "$0")/../support.sh"

command -v git > /dev/null || skip "needs git, to list the files of the tree"
run_case headers "$PYTHON" "$TE_PATH/build_tools/check_headers.py"
finish
