"""Where the public captures lie that some tests try things on; such a test is skipped where they are absent."""

from __future__ import annotations

import os
from pathlib import Path

PUBLIC = Path(os.environ.get("GAPSCOPE_PUBLIC", Path(__file__).resolve().parents[3] / "shared" / "public"))
