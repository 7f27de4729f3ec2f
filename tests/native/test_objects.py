"""What the linker may do with the kernel's variants. Looks at compiled files; runs none of them.

An inline function that several files emit is linked once, from whichever comes first. Emitted by the AVX-512 file, it
would be what an older processor runs, too, and dies of.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

OBJECTS = Path(os.environ.get("STEADYSUM_TRAPS_BUILD", "build/traps")) / "CMakeFiles/steadysum_kernel.dir/native"


def weak_functions(objects: Path) -> list[str]:
    """Names of the functions in an object file that the linker may take for another file's."""
    listing = subprocess.run(["nm", "-C", str(objects)], capture_output=True, text=True, check=True).stdout
    fields = (line.split(maxsplit=2) for line in listing.splitlines())
    return [rest[2] for rest in fields if len(rest) == 3 and rest[1] == "W"]


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm (binutils)")
@pytest.mark.parametrize("variant", ["avx2", "avx512"])
def test_no_function_compiled_for_an_instruction_set_can_stand_in_for_another(variant: str) -> None:
    compiled = OBJECTS / f"tiles_{variant}.cpp.o"
    if not compiled.exists():
        pytest.skip(
            f"{compiled} isn't built (`make traps` builds it, where there is a compiler and an x86-64 processor)"
        )
    shared = [name for name in weak_functions(compiled) if f"isa_{variant}::" not in name]
    assert shared == []
