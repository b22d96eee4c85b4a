"""URIs of stores: the one that names an object in full, and what one may not hold."""

from __future__ import annotations

from fsspec import AbstractFileSystem


def password_fault(uri: str) -> str:
    """What is wrong with `scheme://user:password@host/…`, without the password; "" for any other URI."""
    user, at, _ = _authority(uri).rpartition("@")
    if not at or ":" not in user:
        return ""
    shown = uri.replace(user, f"{user.partition(':')[0]}:…", 1)
    return f"{shown}: manifests would repeat the password of a URI: set it under `storage`"


def is_utf8(name: str) -> bool:
    """Whether a name can be written down. Local ones may be any bytes, which Python shows as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def has_line_break(name: str) -> bool:
    """As readers of a text with a name on a line understand it."""
    return "\n" in name or "\r" in name


def named(fs: AbstractFileSystem, uri: str, path: str) -> str:
    """The full URI of `path` in the store of `uri`.

    fsspec takes a host for an option of the filesystem and leaves it out of names: hdfs://one/a and hdfs://two/a would
    both be hdfs:///a, of whatever host the machine's own configuration has.
    """
    name = str(fs.unstrip_protocol(path))
    if "://" not in uri or "host" not in type(fs)._get_kwargs_from_urls(uri):
        return name
    scheme, _, rest = name.partition("://")
    return f"{scheme}://{_authority(uri)}/{rest.lstrip('/')}"


def _authority(uri: str) -> str:
    return uri.partition("://")[2].partition("/")[0]
