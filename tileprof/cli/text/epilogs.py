"""The text of `--help` below the options: names that an option takes."""

from __future__ import annotations


def devices() -> str:
    """Return the GPUs that --device knows."""
    from tileprof.devices import names  # noqa: PLC0415 - reads a file

    return f"Devices: {', '.join(names())}; or a .json or .toml file that describes one."


def devices_and_schedulers() -> str:
    """Return the GPUs that --device knows and the schedulers that --scheduler knows."""
    from tileprof.analysis.simulate import SCHEDULERS  # noqa: PLC0415 - heavy

    return (
        f"Schedulers: {', '.join(SCHEDULERS)}; an unknown option, as in pdl:x=1, lists all options of a scheduler. "
        f"{devices()}"
    )


def schedulers_of_run() -> str:
    """Return the schedulers that `tileprof run --scheduler` knows."""
    from tileprof.cli.running.run_acs import SCHEDULERS  # noqa: PLC0415 - not needed for other verbs
    from tileprof.runtime.schedulers import correct_names  # noqa: PLC0415 - as above

    return f"Schedulers of a policy: auto, {', '.join(correct_names())}. Of a program: {', '.join(SCHEDULERS)}."
