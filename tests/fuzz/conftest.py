"""Modules of this folder import each other by name."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

collect_ignore_glob = [] if find_spec("torch") and find_spec("google.protobuf") else ["test_*.py"]
