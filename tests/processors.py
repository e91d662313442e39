"""One machine imitating several: `python tests/processors.py` runs the tests marked `processor` on each of them.

Before that, once, `test_every_machine.py`, which itself compiles on all of them and compares.

Instructions can be taken away from the libraries that choose by them (OpenBLAS, MKL, torch, NumPy, the C library), not
added: a setting asks for no more than this machine has.
"""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

OLDER, MIDDLE, NEWER = "older", "middle", "newer"
SETTINGS = (OLDER, MIDDLE, NEWER)


def environment(setting: str) -> dict[str, str]:
    """This process's environment, with what makes the libraries believe in another processor."""
    has = {name for name, present in __cpu_features__.items() if present}
    wide = [name for name in __cpu_dispatch__ if name in has and ("512" in name or name == "X86_V4")]
    newest = NEWER if "AVX512F" in has else MIDDLE if "AVX2" in has else OLDER
    level = min(SETTINGS.index(setting), SETTINGS.index(newest))
    core, capability, instructions = (
        ("Prescott", "default", "SSE4_2"),
        ("Haswell", "avx2", "AVX2"),
        ("SkylakeX", "avx512", "AVX512"),
    )[level]
    switched_off = ([name for name in __cpu_dispatch__ if name in has], wide, [])[level]
    found = {
        **os.environ,
        "OPENBLAS_CORETYPE": core,
        "ATEN_CPU_CAPABILITY": capability,
        "MKL_ENABLE_INSTRUCTIONS": instructions,
        "NPY_DISABLE_CPU_FEATURES": " ".join(switched_off),
        "OMP_NUM_THREADS": "1" if setting == OLDER else "2",
        "PYTHONHASHSEED": str(SETTINGS.index(setting)),
        # torch's cache of compiled loops does not know which processor they are for (model/activation.py)
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}_{setting}"),
    }
    found.pop("GLIBC_TUNABLES", None)
    if level == 0:
        found["GLIBC_TUNABLES"] = "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F"
    return found


def main() -> None:
    """Every setting, also after one of them failed; the status says whether all passed."""
    pytest = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal"]
    failed = []
    if subprocess.run([*pytest, "tests/test_every_machine.py"], check=False).returncode:
        failed.append("between processors")
    for setting in SETTINGS:
        print(f"As on an imitated processor: {setting}", flush=True)
        if subprocess.run([*pytest, "-m", "processor"], env=environment(setting), check=False).returncode:
            failed.append(setting)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
