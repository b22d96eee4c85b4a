"""Programs that stand in for `hpd` and `kubectl`: they do as a file says, and write down how they were called."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

#: A command `hpd` that does as the file `orders.json` beside it says, {command: [exit code, object]}, and writes down
#: how it was called. `wait`: until SIGTERM; it writes down each, and when it has ended its job half a second later.
HPD = """#!{python}
import json, pathlib, signal, sys, time
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + chr(10))
def ended(*_):
    with open(here / "terminated", "a") as signals:
        signals.write("x")
    time.sleep(0.5)
    (here / "ended").touch()
    sys.exit(4)
signal.signal(signal.SIGTERM, ended)
orders = json.loads((here / "orders.json").read_text())
if sys.argv[1] not in orders:
    sys.exit(2)
code, facts = orders[sys.argv[1]]
print("some progress", file=sys.stderr)
if code == "wait":
    (here / "waiting").touch()
    time.sleep(60)
print("something else on stdout")
print(json.dumps(facts))
sys.exit(code)
"""


class FakeHpd:
    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "hpd"
        self.path.write_text(HPD.format(python=sys.executable))
        self.path.chmod(0o755)
        self.orders()

    def orders(self, **commands: tuple[Any, dict]) -> None:
        (self.folder / "orders.json").write_text(json.dumps(commands))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, name
            time.sleep(0.05)


#: A `kubectl` that writes down its words, and of each `get` prints the next line of `states`, the last one for ever. A
#: line of digits is the code that it ends with instead.
KUBECTL = """#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
with open(here / "asked", "a") as asked:
    asked.write(json.dumps(sys.argv[1:]) + chr(10))
if sys.argv[1] == "get":
    states = (here / "states").read_text().split(chr(10))
    (here / "states").write_text(chr(10).join(states[1:] or states))
    if states[0].isdigit():
        sys.exit(f"no answer {{states[0]}}")
    print(states[0], end="")
"""


class FakeKubectl:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "kubectl").write_text(KUBECTL.format(python=sys.executable))
        (folder / "kubectl").chmod(0o755)

    def states(self, *states: str) -> None:
        (self.folder / "states").write_text("\n".join(states))
        (self.folder / "asked").write_text("")

    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]
