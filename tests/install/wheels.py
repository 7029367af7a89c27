"""The wheel on other Pythons, and with other versions of torch: each in a fresh environment with everything it depends on.

    python tests/install/wheels.py 3.12 3.13                    what constraints.txt has
    python tests/install/wheels.py 3.11 --torch 2.10.0          another torch, with the Triton that it wants

Needs a network, and minutes for each. A Python is a version, for which `python3.12` is looked for on the path and among pyenv's,
or a path. What isn't there is said, and fails.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from shared.wheel import ROOT, built, copied

SMOKE = Path(__file__).with_name("smoke.py")


def found(name: str) -> str | None:
    """The Python that is meant."""
    if "/" in name:
        return name if Path(name).exists() else None
    here = shutil.which(f"python{name}")
    usual = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{name}*/bin/python")))
    for python in (here, *usual):
        if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    return None


def trial(python: str, wheel: Path, folder: Path, torch: str | None) -> str:
    """What came of it, in a line."""
    env = folder / "env"
    subprocess.run([python, "-m", "venv", str(env)], check=True)
    own = env / "bin" / "python"
    wanted = [str(wheel)]
    if torch is None:
        wanted += ["-c", str(ROOT / "constraints.txt")]
    else:
        wanted.append(f"torch=={torch}")
    install = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        return f"not installed: {done.stderr.strip().splitlines()[-1]}"
    env_vars = {n: x for n, x in os.environ.items() if n != "PYTHONPATH"} | {"CHUNKFORM_CACHE": str(folder / "cache")}
    done = subprocess.run([str(own), str(SMOKE), str(ROOT)], cwd=folder, capture_output=True, text=True, env=env_vars)
    told = "import sys, torch, triton; print(sys.version.split()[0], 'torch', torch.__version__, 'triton', triton.__version__)"
    versions = subprocess.run([str(own), "-c", told], capture_output=True, text=True).stdout.strip()
    if done.returncode == 0 and done.stdout.endswith("works\n"):
        return f"works: {versions}"
    return f"fails: {versions}\n{done.stderr}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="+")
    parser.add_argument("--torch", help="a version, in the place of what constraints.txt has")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = built(copied(folder / "tree"), folder)
        for version in options.pythons:
            python = found(version)
            own = folder / version.replace("/", "_")
            own.mkdir()
            said = (
                "not tried: there is no such Python here"
                if python is None
                else trial(python, wheel, own, options.torch)
            )
            shutil.rmtree(own)
            failed |= not said.startswith("works")
            print(f"{version}: {said}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
