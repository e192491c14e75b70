"""Runs one scenario with one client: `run.py CLIENT SCENARIO ADDRESS PREFIX`.

Each client has a folder with a file per scenario. A scenario sees its own folder and `common`, but not this folder,
whose names would stand before those of the libraries.
"""

import pathlib
import runpy
import sys

here = pathlib.Path(__file__).resolve().parent
if len(sys.argv) != 5:
    sys.exit(__doc__)
client, scenario = sys.argv[1], sys.argv[2]
program = here / client / f"{scenario.replace('-', '_')}.py"
sys.path[0] = str(here / "common")
sys.path.insert(0, str(here / client))
sys.dont_write_bytecode = True
if not program.exists():
    sys.exit(f"{client} has no scenario {scenario}")

import bench  # noqa: E402

bench.begin()
runpy.run_path(str(program), run_name="__main__")
bench.end()
