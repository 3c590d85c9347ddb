# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes the folder benchmarks/ importable: it is not part of the installed package."""

import sys
from pathlib import Path

# At the end, so that an installed transformer_engine comes before the one of the source tree.
sys.path.append(str(Path(__file__).resolve().parents[2]))
