"""The scripts of ``reproductions`` are no package: their folder is where these tests import them from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "reproductions"))
