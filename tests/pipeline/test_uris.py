"""What a URI may not hold, what messages show of it, and the one name of an object in a store of many accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from fsspec.utils import infer_storage_options

from pipeline.job import JobError
from pipeline.storage import Storage
from pipeline.uris import secret_fault
from tests.pipeline.helpers import job

SECRETS = [
    ("sftp://me:hunter2@host:22/x", "sftp://…@host:22/x: .*password"),
    ("sftp://me:hunter2@host/a@b", "sftp://…@b: .*password"),
    ("sftp://me:hunter/2@host/x", "sftp://…@host/x: .*password"),
    ("sftp://me:hunter/2@h/x@y", "sftp://…@y: .*password"),
    ("sftp://me:22/hunter@host/x", "sftp://…@host/x: .*password"),  # a password that begins like a port
    ("sftp://me:hunter", "sftp://…: .*password"),
    ("s3://key:hunter2@bucket/x", "s3://…@bucket/x: .*password"),
    ("s3://key:hunter/2@bucket/x", "s3://…@bucket/x: .*password"),
    ("abfs://box:hunter2@account.example/x", "abfs://…@account.example/x: .*password"),
    ("https://hunter2@host/x", "https://…@host/x: .*user"),
    ("HTTPS://hunter2@host/x", "HTTPS://…@host/x: .*user"),
    ("http://hunter2@host", "http://…@host: .*user"),
    ("https://host/x?sig=hunter2", r"https://host/x\?…: .*query"),
    ("https://host?sig=hunter2", r"https://host\?…: .*query"),
    ("https://host:443/x?sig=hunter/2@x", r"https://….*password"),
    ("abfs://box@account.example/x?sv=1&sig=hunter2", r"abfs://…@account.example/x\?…: .*query"),
    ("hdfs://host/x?sig=hunter2", r"hdfs://host/x\?…: .*query"),
    ("simplecache::https://hunter2@host/x", "simplecache::https://…@host/x: .*user"),
    ("simplecache::https://host/x?sig=hunter2", r"simplecache::https://host/x\?…: .*query"),
    ("zip://x.parquet::sftp://me:hunter2@host/x.zip", "zip://…@host/x.zip: .*password"),
]


@pytest.mark.parametrize(("uri", "told"), SECRETS, ids=[uri for uri, _ in SECRETS])
def test_a_uri_that_may_hold_a_secret_is_refused_without_telling_it(tmp_path: Path, uri: str, told: str) -> None:
    acts = (
        lambda: job(tmp_path, [uri]),  # type: ignore[list-item]
        lambda: job(tmp_path, [tmp_path], output=uri),
        lambda: Storage().absolute(uri),
        lambda: Storage().find(uri),
        lambda: Storage().read(uri),
        lambda: Storage().create(uri, b""),
    )
    for act in acts:
        with pytest.raises(JobError, match=f"^{told}") as caught:
            act()
        assert "hunter" not in str(caught.value) and "sig" not in str(caught.value).partition(": manifests")[0]


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/a:b@c",
        "s3://bucket/part-?.parquet",
        "s3://bucket/x?versionId=1",
        "s3://arn:aws:s3:eu-central-1:123456789012:accesspoint/mine/a@b",
        "gs://bucket/colour=?/x",
        "memory://a?b/x",
        "file:///a?b:c@d/x",
        "/a:b@c/d?e",
        "a::b@c:d",
        "abfs://box@account.example/x:y@z",
        "hdfs://one:8020/x",
        "hdfs://me@one:8020/x",
        "hdfs://[fe80::a]:8020/x",
        "hdfs://[fe80::a]/x@y",
        "sftp://me@host/x@y:z",
        "https://host:8443/x",
        "https://host/a@b",
        "simplecache::s3://bucket/a:b@c",
    ],
)
def test_other_uris_are_not_taken_for_one(tmp_path: Path, uri: str) -> None:
    assert secret_fault(uri) == ""
    job(tmp_path, [uri], output=uri)  # type: ignore[list-item]


def test_what_fsspec_cannot_read_is_told_without_user_and_host() -> None:
    with pytest.raises(JobError, match=r"^nosuch://…@host/x: ") as caught:
        Storage().absolute("nosuch://me@host/x")
    assert "me@" not in str(caught.value)


class Azure(MemoryFileSystem):
    """Names as adlfs has them: container and path, whatever the account. `protocol` is that of its times."""

    cachable, protocol = False, "memory"
    accounts: ClassVar[dict[str, tuple[dict[str, Any], list[str]]]] = {}

    def __init__(self, account_name: str = "default", **options: Any) -> None:
        super().__init__(**options)
        self.store, self.pseudo_dirs = self.accounts.setdefault(account_name, ({}, [""]))  # type: ignore[misc]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        if "://" not in path:
            return str(MemoryFileSystem._strip_protocol(path))
        told = infer_storage_options(path)
        container = told.get("username") or ("" if "." in told.get("host", "") else told.get("host", ""))
        return f"/{container}{told['path']}".rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        host = str(infer_storage_options(path).get("host", ""))
        return {"account_name": host.partition(".")[0]} if host.endswith(".core.windows.net") else {}

    def unstrip_protocol(self, name: str) -> str:
        return f"abfs://{self._strip_protocol(name).lstrip('/')}"


@pytest.mark.parametrize("path", ["x.parquet", "box.parquet", "box/deep/x.parquet", "a b/größe=1/x.parquet"])
@pytest.mark.parametrize(
    "account", ["abfs://box@{}.dfs.core.windows.net/", "abfs://{}.dfs.core.windows.net/box/"], ids=["user", "path"]
)
def test_one_path_in_two_accounts_is_two_files(monkeypatch: pytest.MonkeyPatch, account: str, path: str) -> None:
    monkeypatch.setitem(_registry, "abfs", Azure)
    monkeypatch.setattr(Azure, "accounts", {})
    storage = Storage()
    roots = [account.format(name) for name in ("one", "two")]
    for root in roots:
        uri = root + path
        assert storage.create(uri, root.encode()) and storage.absolute(uri) == uri
        assert [file.uri for file in storage.find(root)] == [file.uri for file in storage.find(uri)] == [uri]
        assert storage.stat(uri).uri == uri and storage.read(uri) == root.encode()
        assert (
            storage.absolute(root) == storage.absolute(root.rstrip("/")) and storage.absolute(f"{root}a/") == f"{root}a"
        )
    assert storage.absolute("abfs://box/x.parquet") == "abfs://box/x.parquet"  # of the account under `storage`
