"""URIs of stores: the one that names an object in full, and what one may not hold."""

from __future__ import annotations

import re

from fsspec import AbstractFileSystem

#: Where '?' belongs to a name or a pattern. Of other URIs fsspec, or the server, takes what follows for a query.
_NO_QUERIES = frozenset(["file", "local", "memory", "s3", "s3a", "gs", "gcs"])
_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.-]*"
#: Between the parts of a chained URI, as `simplecache::s3://…`.
_CHAINED = re.compile(rf"::(?={_SCHEME}://)")


def secret_fault(uri: str) -> str:
    """What of `uri` is a secret, or may be one, with the URI but not the secret: manifests, logs and messages would
    repeat it. "" where there is none.

    A password may hold a '/', and then what comes before it looks like host and port: with a '@' behind it nobody can
    tell, hence that is refused as well.
    """
    for part in _CHAINED.split(uri):
        scheme, there, rest = part.partition("://")
        authority, _, path = rest.partition("/")
        user, at, host = authority.rpartition("@")
        _, colon, port = re.sub(r"^\[.*\]", "", host).partition(":")
        is_address = not host.startswith("arn:")  # of an access point of S3
        if not there:
            continue
        if ":" in user or (is_address and colon and (not re.fullmatch("[0-9]*", port) or "@" in path)):
            return f"{shown(uri)}: manifests would repeat the password of a URI: set it and the port under `storage`"
        if at and scheme.lower() in ("http", "https"):
            return f"{shown(uri)}: manifests would repeat the user of a URI, a token perhaps: set it under `storage`"
        if "?" in rest and scheme.lower() not in _NO_QUERIES:
            return (
                f"{shown(uri)}: manifests would repeat the query of a URI, a signature perhaps: set it under "
                "`storage`. A '?' of a pattern has to be '*' or [a-z] here"
            )
    return ""


def shown(uri: str) -> str:
    """`uri` as a message may show it before it is known to hold no secret: without what one could stand in."""
    scheme, there, rest = uri.partition("://")
    if not there:
        return uri
    if "?" in rest and scheme.lower() not in _NO_QUERIES:
        rest = rest.partition("?")[0] + "?…"
    if {"@", ":"} & set(_authority(uri)):
        _, at, behind = rest.rpartition("@")
        rest = f"…@{behind}" if at else "…"
    return f"{scheme}://{rest}"


def is_utf8(name: str) -> bool:
    """Whether a name can be written down. Local ones may be any bytes, which Python shows as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def has_line_break(name: str) -> bool:
    """As readers of a text with a name on a line understand it."""
    return "\n" in name or "\r" in name


def named(fs: AbstractFileSystem, uri: str, path: str) -> str:
    """The full URI of `path` in the store of `uri`.

    fsspec takes a host, or an account, for an option of the filesystem and leaves it out of names: hdfs://one/a and
    hdfs://two/a would both be hdfs:///a, abfs://c@one.dfs.core.windows.net/a and that of `two` abfs://c/a.
    """
    name = str(fs.unstrip_protocol(path))
    authority = _authority(uri)
    if "://" not in uri or _authority(name) == authority or not type(fs)._get_kwargs_from_urls(uri):
        return name
    scheme = name.partition("://")[0]
    root = str(fs._strip_protocol(f"{scheme}://{authority}/")).rstrip("/")
    return f"{scheme}://{authority}/{path.removeprefix(root).lstrip('/')}"


def _authority(uri: str) -> str:
    return uri.partition("://")[2].partition("/")[0]
