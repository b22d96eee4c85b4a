"""Which cluster is meant. Ray's own variables win over what is given, as they do in every command of Ray."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.job import JobError

#: Ray's, the first before the second.
VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")


def chosen(given: str | None, environment: Mapping[str, str]) -> tuple[str, str]:
    """(address of the dashboard, what to tell people or nothing). Raises `JobError` naming option or variable."""
    where, address, notice = "--address", given, ""
    for name in VARIABLES:
        if environment.get(name):
            where, address = name, environment[name]
            if given is not None and given.rstrip("/") != address.rstrip("/"):
                notice = f"{name}={address} is set and wins over --address {given}, as in Ray's own commands"
            break
    if not address:
        raise JobError(f"no cluster: give --address http://HEAD:8265, or set {VARIABLES[1]}")
    scheme, _, host = address.partition("://")
    if scheme not in ("http", "https") or not host.strip("/"):
        raise JobError(
            f"{where} {address}: jobs are submitted to the dashboard of the head node, http://HEAD:8265; "
            "ray:// and host:6379 are other doors of it"
        )
    return address.rstrip("/"), notice
