"""`import steadysum` costs little more than `import torch`: it loads nothing heavy. (The time is for `make bench`.)"""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys, torch
before = set(sys.modules)
import steadysum
x = torch.ones(1, 1)
steadysum.linear_max_sum(x, x)
print(*sorted(name for name in set(sys.modules) - before))
"""
ALLOWED = {"steadysum", "nanobind"}


def test_importing_and_calling_loads_only_the_package_itself_and_torch() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    roots = {name.split(".")[0] for name in done.stdout.split()}
    assert roots <= ALLOWED | sys.stdlib_module_names, roots - ALLOWED
    assert not any(name.startswith("steadysum.cli") for name in done.stdout.split())
