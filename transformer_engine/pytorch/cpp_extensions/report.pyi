# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
from typing import Any

def backend_statuses() -> list[dict[str, Any]]: ...
