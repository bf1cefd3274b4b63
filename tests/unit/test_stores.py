"""Files in an object store: the same house rules, and answers that are lost."""

from __future__ import annotations

import json
import pickle
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import GenericError
from pydantic import SecretStr

from spillway.doctor.stores import judge_store, object_store
from spillway.engine.join.results import result_schema
from spillway.storage import Folder, StorageError, folder, private
from spillway.storage.folders import UnsafeStore
from spillway.storage.objects import MARK, PART_BYTES, StoreOptionError, _is_final, _reason
from spillway.tables import Warehouse
from spillway_schemas.secret import shown
from spillway_schemas.settings import SettingsError, load_settings, values
from spillway_schemas.stores import StoreLocation, is_uri, option_problem, store_location
from tests.azure_server import PACKAGE
from tests.integration.spilled_day import SPEC
from tests.lanes import on_every_store
from tests.s3_server import SECRET
from tests.store_server import BUCKET, StoreServer
from tests.unit.test_tables import claim, genesis

# --- names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("s3://lake", StoreLocation("s3", "lake", "")),
        ("s3://lake/", StoreLocation("s3", "lake", "")),
        ("gs://a.b-c/d/e_f/", StoreLocation("gs", "a.b-c", "d/e_f")),
        (
            "abfss://c@account.dfs.core.windows.net/w",
            StoreLocation("abfss", "c@account.dfs.core.windows.net", "w"),
        ),
    ],
)
def test_uris(uri: str, location: StoreLocation) -> None:
    assert is_uri(uri)
    assert store_location(uri) == location
    assert store_location(location.uri) == location


@pytest.mark.parametrize(
    "uri",
    [
        "s3://",
        "s3:/a",
        "s3://a//b",
        "s3://a/../b",
        "s3://a/b c",
        "s3://k@b/c",
        "abfss://b/c",
        "s3a://b",
    ],
)
def test_what_is_no_place_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"address of Azure|does not name a place"):
        store_location(uri)


def test_state_is_local() -> None:
    with pytest.raises(ValueError, match="not supported here"):
        private("s3://lake/state")


def test_options_that_would_break_commits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert option_problem("aws_region") is option_problem("timeout") is None
    for name in ("aws_conditional_put", "aws_s3_allow_unsafe_rename", "region"):
        with pytest.raises(ValueError, match=name):
            folder("s3://lake/w", {name: "x"})
    with pytest.raises(ValueError, match="azure_client_id is of another provider"):
        folder("s3://lake/w", {"azure_client_id": "x"})
    with pytest.raises(StoreOptionError, match=r"does not take them.*aws_spelt_wrong") as refused:
        folder("s3://lake/w", {"aws_spelt_wrong": "x"})
    assert refused.value.exit_code == 2
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(ValueError, match="AWS_S3_ALLOW_UNSAFE_RENAME is set"):
        folder("s3://lake/w")


# --- settings ------------------------------------------------------------------------------


def test_a_request_that_was_in_the_way_of_another_is_repeated() -> None:
    """Some stores answer 409 while another put of the same object goes on."""
    said = "Generic S3 error: Server returned non-2xx status code: {}"
    every = ("400", "403", "404", "408", "409", "412", "429", "500", "503")
    finals = [_is_final(GenericError(said.format(status))) for status in every]
    assert finals == [True, True, True, False, False, True, False, False, False]


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_what_a_machine_s_metadata_service_answers_is_not_the_store_s_answer(status: str) -> None:
    where = "Error performing PUT {} in 2ms - Server returned non-2xx status code: " + status
    asked = where.format("http://169.254.169.254/latest/api/token")
    [(_, told), (_, store)] = [_reason(asked), _reason(where.format("http://lake.example.com/w"))]
    assert told.startswith("there are no credentials")
    assert store.startswith("the store")


def test_a_store_that_is_not_there_is_named_by_its_endpoint() -> None:
    options = {"aws_endpoint": "http://127.0.0.1:1", "allow_http": "true", "retry_timeout": "0s"}
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": SECRET, "aws_region": "eu"}
    given = {name: SecretStr(value) for name, value in (options | keys).items()}
    place = folder("s3://lake/w", given)
    with pytest.raises(StorageError, match=r": http://127\.0\.0\.1:1 does not answer: check"):
        place.read("x")


def test_a_warehouse_in_a_store_and_its_options() -> None:
    environ = {
        "SPILLWAY_WAREHOUSE__ROOT": "s3://lake/w/",
        "SPILLWAY_WAREHOUSE__OPTIONS": json.dumps(
            {"aws_secret_access_key": SECRET, "timeout": "1min"}
        ),
        "SPILLWAY_WAREHOUSE__OPTIONS__AWS_REGION": "eu-west-1",
    }
    settings, _ = load_settings(None, {"warehouse.options": {"allow_http": True}}, environ)
    assert settings.warehouse.root == "s3://lake/w"
    assert values(settings)["warehouse.options"] == {
        "aws_secret_access_key": "(hidden)",
        "timeout": "1min",
        "aws_region": "eu-west-1",
        "allow_http": "true",
    }
    assert settings.secrets["aws_secret_access_key"] == SecretStr(SECRET)
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"warehouse.root": "s3://key:secret@lake/w"}, "credentials belong in warehouse.options"),
        (
            {"warehouse.root": "ftp://lake/w"},
            "a folder, or a place in an object store that begins with",
        ),
        ({"state.root": "s3://lake/w"}, "only warehouse.root may be in an object store"),
        ({"kafka.data_dir": "gs://lake/w"}, "only warehouse.root may be in an object store"),
        ({"warehouse.options": {"region": "x"}}, "is no option of an object store"),
        ({"warehouse.options": {"aws_conditional_put": "disabled"}}, "are always on"),
        ({"warehouse.options": {"aws_allow_http": True}}, r"have no prefix\. Write allow_http"),
        ({"warehouse.options": {"azure_timeout": "5s"}}, r"have no prefix\. Write timeout"),
        ({"warehouse.options": {"timeout": SECRET}}, "timeout: write a length of time"),
    ],
)
def test_settings_that_cannot_be(flags: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError, match=told) as caught:
        load_settings(None, flags, {})
    assert "secret" not in str(caught.value).replace("secret_access", "")
    assert SECRET not in str(caught.value)


# --- files ---------------------------------------------------------------------------------


@pytest.fixture
def place(store: StoreServer) -> Folder:
    return folder(store.root(uuid.uuid4().hex), store.options)


@on_every_store()
def test_written_once_and_read_in_every_way(place: Folder) -> None:
    place.write_new("session_date=2026-01-05/a.bin", b"abc" * 1000)
    place.write_new("b.bin", pa.py_buffer(b"xyz"))
    place.write_new("empty", b"")
    assert place.read("b.bin") == b"xyz"
    assert place.map("session_date=2026-01-05/a.bin").to_pybytes() == b"abc" * 1000
    assert place.map("empty").size == 0
    with place.open("b.bin") as file:
        file.seek(1)
        assert file.read() == b"yz"
    assert (place.size("b.bin"), place.size("none")) == (3, None)
    names = {info.name: info.bytes for info in place.list()}
    assert names == {"session_date=2026-01-05/a.bin": 3000, "b.bin": 3, "empty": 0}
    assert sorted(place.names()) == ["b.bin", "empty", "session_date=2026-01-05"]
    inner = place.child("session_date=2026-01-05")
    assert [info.name for info in inner.list()] == list(inner.names()) == ["a.bin"]
    assert list(place.child("none").list()) == list(place.child("none").names()) == []
    for absent in (place.read, place.open, place.map):
        with pytest.raises(FileNotFoundError):
            absent("none")
    again = pickle.loads(pickle.dumps(place))
    assert again == place
    assert again.read("b.bin") == b"xyz"
    many = [f"{n}" for n in range(40)]
    for name in many:
        place.write_new(name, b"")
    place.delete("none", "b.bin", *many, "none too", "empty")
    assert [info.name for info in place.list()] == ["session_date=2026-01-05/a.bin"]
    with pytest.raises(ValueError, match="inside a folder"):
        place.read("../a")


@on_every_store()
def test_a_taken_name_is_refused_and_kept(place: Folder) -> None:
    """With the same bytes, too: it is somebody else's file."""
    place.write_new("a", b"first")
    for data in (b"first", b"second"):
        with pytest.raises(FileExistsError):
            place.write_new("a", data)
    with pytest.raises(FileExistsError), place.create("a") as sink:
        sink.write(b"third")
    with pytest.raises(FileExistsError), place.create("a") as sink:
        sink.write(b"x" * (PART_BYTES + 1))
    assert place.read("a") == b"first"


@on_every_store()
@pytest.mark.parametrize("rows", [1_000, 3_000_000])
def test_what_pyarrow_writes_it_reads(place: Folder, store: StoreServer, rows: int) -> None:
    """In one put, and in parts; of a large file only what is wanted."""
    table = pa.table({"n": pa.array(range(rows), pa.int64())})
    with place.create("t") as sink, pq.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table, row_group_size=rows // 10)
    store.requests()
    with place.open("t") as source:
        file = pq.ParquetFile(source)
        assert file.read_row_group(3).equals(table.slice(3 * rows // 10, rows // 10))
        assert file.read().equals(table)
    if rows == 1_000:
        assert len(store.requests()) == 1


@on_every_store()
@pytest.mark.parametrize("size", [10, 2 * PART_BYTES])
def test_a_file_whose_writing_fails_is_not_there(place: Folder, size: int) -> None:
    def fails(sink: pa.NativeFile) -> None:
        sink.write(b"x" * size)
        raise KeyError

    with pytest.raises(KeyError), place.create("a") as sink:
        fails(sink)
    assert place.size("a") is None


@on_every_store()
@pytest.mark.parametrize("kind", ["error", "failed", "reset", "lost"])
def test_a_write_whose_answer_is_lost_is_its_own(
    place: Folder, store: StoreServer, kind: str
) -> None:
    store.fail({"kind": kind, "method": "PUT"})
    place.write_new("a", b"1")
    store.fail({"kind": kind, "method": "PUT", "skip": 1})
    with place.create("large") as sink:
        sink.write(b"x" * (PART_BYTES + 1))
    store.fail({"kind": kind, **store.completes})
    with place.create("larger") as sink:
        sink.write(b"x" * (PART_BYTES + 1))
    assert store.hits() == 1
    store.fail({"kind": kind, "method": "GET", "times": 2})
    assert place.read("a") == b"1"
    assert place.size("large") == place.size("larger") == PART_BYTES + 1


@on_every_store()
def test_an_upload_that_is_complete_counts_whatever_the_second_request_is_told(
    place: Folder, store: StoreServer
) -> None:
    """The answer to the request that completes it is lost; repeated, it meets no such upload."""
    gone = {"kind": "error", "status": 404, "code": "NoSuchUpload", **store.completes}
    store.fail({"kind": "lost", **store.completes}, gone)
    with place.create("a") as sink:
        sink.write(b"x" * (PART_BYTES + 1))
    assert store.hits() == 2
    assert place.size("a") == PART_BYTES + 1
    store.fail(gone)
    with pytest.raises(StorageError), place.create("b") as sink:
        sink.write(b"x" * (PART_BYTES + 1))
    assert place.size("b") is None


@on_every_store()
def test_an_upload_that_fails_does_not_count_for_another_s_file(
    place: Folder, store: StoreServer
) -> None:
    """Of the same name: it is told by its size."""
    gone = {"kind": "error", "status": 404, "code": "NoSuchUpload", **store.completes}

    def writes() -> None:
        with place.create("a") as sink:
            sink.write(b"x" * (PART_BYTES + 1))
            place.write_new("a", b"1")
            store.fail(gone)

    with pytest.raises(StorageError, match="cannot write"):
        writes()
    assert place.read("a") == b"1"


@on_every_store()
def test_a_put_that_was_in_the_way_of_another_comes_through(
    place: Folder, store: StoreServer
) -> None:
    """S3 says 409 to one of two conditional puts at once; here the other one has failed."""
    store.fail({"kind": "error", "status": 409, "code": "Conflict", "method": "PUT"})
    place.write_new("a", b"1")
    assert store.hits() == 1
    assert place.read("a") == b"1"
    hasty = folder(place.path(), store.options | {"retry_timeout": "0s"})
    store.fail({"kind": "error", "status": 409, "code": "Conflict", "method": "PUT", "times": 9})
    with pytest.raises(StorageError, match="another put was in the way"):
        hasty.write_new("b", b"1")


@on_every_store()
def test_a_commit_that_was_in_the_way_of_another_comes_through(store: StoreServer) -> None:
    w = Warehouse(store.root(uuid.uuid4().hex), result_schema(SPEC), options=store.options)
    w.journal.append(genesis())
    store.fail(
        {"kind": "error", "status": 409, "code": "Conflict", "method": "PUT", "path": "02.json"}
    )
    w.journal.append(claim(1, 1))
    assert store.hits() == 1
    assert [entry.n for entry in w.journal.read()] == [0, 1]


@on_every_store()
def test_another_s_file_is_not_taken_for_one_s_own(place: Folder, store: StoreServer) -> None:
    """The put failed after another had made the object."""
    place.write_new("a", b"1")
    store.fail({"kind": "failed", "method": "PUT"})
    with pytest.raises(FileExistsError):
        place.write_new("a", b"1")
    assert MARK.isalnum()


# --- errors --------------------------------------------------------------------------------


@on_every_store()
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"kind": "error", "status": 503, "code": "SlowDown"}, r"overloaded \(SlowDown\)"),
        ({"kind": "error", "status": 403, "code": "AccessDenied"}, "grant read, write, list"),
        ({"kind": "error", "status": 403, "code": "InvalidAccessKeyId"}, "these credentials"),
        ({"kind": "error", "status": 403, "code": "RequestTimeTooSkewed"}, "clock is wrong"),
        ({"kind": "error", "status": 400, "code": "Odd"}, "400"),
        ({"kind": "error", "status": 500}, "kept failing"),
        ({"kind": "reset"}, "does not answer: check the network"),
    ],
)
def test_errors_say_what_to_do(store: StoreServer, fault: dict[str, object], told: str) -> None:
    place = folder(store.root("none"), store.options | {"retry_timeout": "0s"})
    store.fail(fault | {"times": 100})
    for ask in (place.read, lambda name: place.write_new(name, b"")):
        with pytest.raises(StorageError, match=told) as caught:
            ask("x")
        assert caught.value.errno
        assert store.secret not in str(caught.value)
    with pytest.raises(StorageError):  # the answer to a HEAD says nothing but its number
        place.size("x")
    store.fail()


@on_every_store()
def test_a_bucket_that_is_not_there_is_named(store: StoreServer) -> None:
    root = store.root("w").replace(BUCKET, "none", 1)
    with pytest.raises(StorageError, match=rf"{root}/x: there is no such bucket"):
        folder(root, store.options).read("x")


@on_every_store()
def test_doctor_tries_the_store(store: StoreServer, tmp_path: Path) -> None:
    def looked(root: str, **options: str) -> tuple[str, str]:
        flags = {"warehouse.root": root, "warehouse.options": {**store.options, **options}}
        check = object_store(load_settings(None, flags, {})[0])
        assert check.status == "ok" or check.mend
        return check.status, check.what

    root = store.root(uuid.uuid4().hex)
    status, what = looked(root)
    assert (status, "conditional puts work" in what) == ("ok", True)
    assert list(folder(root, store.options).list()) == []
    store.fail({"kind": "unconditional", "method": "PUT", "times": 9})
    status, what = looked(store.root(uuid.uuid4().hex))
    assert (status, "not safe for commits" in what) == ("fail", True)
    for start in ("", "~"):  # all names, and none
        store.fail({"kind": "listing", "start": start, "times": 9})
        status, what = looked(store.root(uuid.uuid4().hex))
        assert (status, "not safe for commits" in what) == ("fail", True)
    store.fail({"kind": "error", "status": 403, "code": "AccessDenied", "times": 9})
    assert looked(store.root(uuid.uuid4().hex))[0] == "fail"
    store.fail()
    assert looked(root, aws_spelt_wrong="x")[0] == "fail"
    assert judge_store(root, 8.0).status == "warn"


@pytest.mark.server
def test_azure_s_emulator_as_the_pages_say(
    azure: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists everything, whatever it is asked for."""
    azure.fail({"kind": "listing", "start": "", "times": 9})
    place = azure.root(uuid.uuid4().hex)
    with pytest.raises(UnsafeStore, match="azure_storage_use_emulator = true"):
        folder(place, azure.options).assure_safe()
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azure.endpoint)
    options = {name: value for name, value in azure.options.items() if name != "azure_endpoint"}
    folder(place, options | {"azure_storage_use_emulator": "true"}).assure_safe()
    azure.fail()


def test_all_of_azurite_is_locked() -> None:
    """By digests, and wherever npm is told to look."""
    lock = json.loads((PACKAGE / "package-lock.json").read_text())
    _, *packages = lock["packages"].values()
    assert len(packages) > 300
    assert all(each["integrity"].startswith("sha512-") for each in packages)
    assert not any("resolved" in each for each in packages)


def test_harmless_options_are_shown() -> None:
    options = {"aws_access_key_id": "a", "aws_endpoint": "https://h", "proxy_url": "p"}
    assert shown(options) == {
        "aws_access_key_id": "(hidden)",
        "aws_endpoint": "https://h",
        "proxy_url": "(hidden)",
    }
