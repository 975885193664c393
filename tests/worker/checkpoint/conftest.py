"""Lets child processes import the rank programs of this directory by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
