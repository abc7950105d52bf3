from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offgen.errors import JobError, UsageError
from offgen.readers import open_input


@pytest.fixture
def store() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def test_urls_of_files_folders_and_globs(store: Any, read: Any) -> None:
    for i in (2, 10, 1):
        store.pipe(f"/data/part-{i}.jsonl", json.dumps({"n": i}).encode())
    store.pipe("/data/_SUCCESS", b"")
    store.pipe("/z/in.jsonl.gz", gzip.compress(b'{"n": 7}\n'))
    store.pipe("/p/k=x/in.parquet", parquet(n=[8, 9]))
    assert [v["n"] for v in read("memory://data", ["n"]).values] == [1, 2, 10]
    got = read("memory://data/part-*.jsonl", ["n"])
    assert [v["n"] for v in got.values] == [1, 2, 10]
    assert got.rows[0].where == "memory://data/part-1.jsonl:1"
    assert read("memory://z/in.jsonl.gz", ["n"]).values == [{"n": 7}]
    assert read("memory://p", ["n", "k"]).values == [{"n": 8, "k": "x"}, {"n": 9, "k": "x"}]
    assert open_input(["memory://data", "memory://p"]).fingerprint()["files"][0]["file"] == "part-1.jsonl"


def test_remote_arrow_and_csv(store: Any, read: Any) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as writer:
        writer.write(pa.record_batch({"n": [1, 2]}))
    store.pipe("/a.arrow", sink.getvalue().to_pybytes())
    store.pipe("/a.csv", b"n\n3\n")
    got = read(["memory://a.arrow", "memory://a.csv"], ["n"])
    assert [v["n"] for v in got.values] == [1, 2, 3]


def test_faults_name_the_url(store: Any, read: Any) -> None:
    with pytest.raises(UsageError, match=r"memory://no/such\.jsonl"):
        open_input(["memory://no/such.jsonl"])
    store.pipe("/x.parquet", b"broken")
    with pytest.raises(UsageError, match=r"memory://x\.parquet"):
        open_input(["memory://x.parquet"])
    store.pipe("/y.jsonl", b'{"n": 1}')
    source = open_input(["memory://y.jsonl"])
    store.rm("/y.jsonl")
    with pytest.raises(JobError, match=r"memory://y\.jsonl"):
        read(source)


def test_a_file_url_is_a_local_path(tmp_path: Any, read: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}')
    assert read(f"file://{tmp_path}/a.jsonl", ["n"]).values == [{"n": 1}]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket of a real S3 server on this machine, as a real client sees it."""
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem()
    filesystem.mkdir("bucket")
    yield filesystem
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_s3_files_folders_and_globs(bucket: Any, read: Any) -> None:
    for i in (2, 10, 1):
        bucket.pipe(f"bucket/in/part-{i}.jsonl.gz", gzip.compress(json.dumps({"n": i}).encode()))
    bucket.pipe("bucket/p/k=7/in.parquet", parquet(n=list(range(3000))))
    assert [v["n"] for v in read("s3://bucket/in/", ["n"]).values] == [1, 2, 10]
    assert [v["n"] for v in read("s3://bucket/in/part-1*.gz", ["n"]).values] == [1, 10]
    got = read("s3://bucket/p", ["n", "k"], done=set(range(2990)))
    assert got.values == [{"n": i, "k": 7} for i in range(2990, 3000)]
    assert got.rows[0].where == "s3://bucket/p/k=7/in.parquet:2990"
    with pytest.raises(UsageError, match=r"s3://bucket/none\.jsonl"):
        open_input(["s3://bucket/none.jsonl"])
    with pytest.raises(UsageError, match="s3://nobucket/x"):
        open_input(["s3://nobucket/x.parquet"])
