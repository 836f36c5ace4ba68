"""The package's public names are one list, and every name on it is there."""

import subprocess
import sys

import splitpoint


def test_every_public_name_can_be_had_and_nothing_else_is_listed() -> None:
    assert sorted(splitpoint.__all__) == splitpoint.__all__
    assert dir(splitpoint) == sorted(splitpoint.__all__)
    for name in splitpoint.__all__:
        assert getattr(splitpoint, name) is not None
    homes = [name for names in splitpoint._HOMES.values() for name in names]
    assert sorted(homes) == splitpoint.__all__


def test_the_names_are_the_things_themselves() -> None:
    from splitpoint.inputs.traces import read
    from splitpoint.pricing.price import price

    assert splitpoint.read_trace is read
    assert splitpoint.price is price


def test_importing_the_package_loads_no_room() -> None:
    code = "import sys, splitpoint; print([m for m in sys.modules if m.startswith('splitpoint.')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
