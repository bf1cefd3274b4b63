"""Folders of an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure.

Model: a file is an object; its name is a key below the folder's. There are no folders: the keys'
beginnings are what lists go by. The client is obstore, the library that delta-rs has inside, so
that both know the same options and treat conditional puts alike.

Invariants, beside those of `spillway.storage`:

* An object is there whole or not at all, and durable once it is there; `sync` has nothing to do.
* A put says "only if there is none" (`If-None-Match: *` on S3). A put carries a mark of its own in
  the object's metadata. Whatever went wrong on the way (no answer, a server's error after it had
  stored the object, a repeated request that meets the first one's object), who asks for the object
  afterwards sees by the mark whether it is this put's. So a write is never taken for another's.
  One that met another put under way and finds no object (409 of S3) is repeated.
* Whether a store keeps to "only if there is none", and lists from a name on, is tried before
  anything rests on it (`assure_safe`).

Failure paths: requests that got no answer, or that of an overloaded server, are repeated for
`patience_s` and then end with a `StorageError`. A put whose answer was lost may arrive later than
that: its name is fresh, so that it is then a file that nothing names.

Known limitations: a file of more than `PART_BYTES` that is written in pieces (`create`) goes up as
a multipart upload, which this library cannot make conditional; its name was looked up before, and
is fresh. An upload that is cut off leaves parts that no listing shows: let the bucket
delete incomplete uploads after a day. Not for a process that was forked after the library's first
use: its threads do not survive that.
"""

from __future__ import annotations

import errno
import io
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import from_url

from spillway.storage.folders import FileInfo, StorageError, UnsafeStore, parts_of
from spillway_schemas.exits import USAGE
from spillway_schemas.secret import Options, hide, revealed
from spillway_schemas.stores import (
    CONNECTION,
    DEFAULTS,
    PROVIDERS,
    REFUSED_VARIABLES,
    RETRY_TIMEOUT,
    SPANS,
    option_problem,
    span_s,
    store_location,
)

PART_BYTES = 8 * 2**20
"""Up to this size a file goes up in one put, and comes down in one get; a writer holds two."""
WINDOW_BYTES = 2**20
"""Of a larger file so much is read at once, at least: a request costs as much as a megabyte."""
MARK = "spillwayput"
"""The metadata by which a put's object is known. Azure takes letters and digits alone."""
TRIAL = "_trial"
"""Below it lie the objects by which a store is tried, for a moment."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
"""Between two attempts at a request: doubled each time."""
TIMES = 1000
"""At most: it is the time that bounds the attempts."""

_FINAL = (
    AlreadyExistsError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
"""Errors that another attempt would only repeat."""

_IN_THE_WAY = "the store says that another put was in the way (409), and there is no object"
"""Told by obstore as one that found an object."""

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status(?: code)?:? (\d{3})\b")
_ENDPOINT = re.compile(r"Error performing \w+ (https?://[^/\s@]+)[/\s]")
"""Whom a request was for."""
_OF_STORE = re.compile(
    r"Generic (?:S3|GCS|MicrosoftAzure) error|Error performing (?:GET|PUT|POST|DELETE|HEAD|list)|"
    r"error sending request|operation timed out|dns error",
)
"""How texts of delta-rs show that a store did not do what it was asked for."""

T = TypeVar("T")


class StoreOptionError(ValueError):
    """An option, or a variable of the environment, that the store's client cannot have."""

    exit_code = USAGE


def object_folder(uri: str, options: Options) -> ObjectFolder:
    """The folder at the URI of an object store. Raises ValueError for a place that cannot be, and
    StoreOptionError."""
    location = store_location(uri)
    for name in options:
        if problem := option_problem(name):
            raise StoreOptionError(f"warehouse.options: {problem}")
        if name not in CONNECTION and not name.startswith(PROVIDERS[location.scheme]):
            raise StoreOptionError(
                f"warehouse.options: {name} is of another provider; those of {location.scheme}:// "
                f"begin with {PROVIDERS[location.scheme]}"
            )
    if set_too := [name for name in REFUSED_VARIABLES if os.environ.get(name)]:
        raise StoreOptionError(
            f"the variable {set_too[0]} is set: commits go by conditional puts, and it would have "
            "delta-rs do otherwise. Unset it"
        )
    place = ObjectFolder(location.uri, options)
    place._store()  # raises for options that its provider does not have
    return place


@dataclass(frozen=True)
class ObjectFolder:
    """A `Folder` in an object store."""

    uri: str
    options: Options = field(default_factory=dict, repr=False, hash=False)
    base: str = ""
    """URI of the folder that `folder()` was asked for."""

    # --- names ---------------------------------------------------------------------------

    def path(self, name: str = "") -> str:
        """Return the URI of a file, or of the folder itself."""
        return f"{self.uri}/{_inside(name)}" if name else self.uri

    def child(self, name: str) -> ObjectFolder:
        """Return the folder `name` below this one."""
        return ObjectFolder(self.path(name), self.options, self.base or self.uri)

    @property
    def library_options(self) -> dict[str, str]:
        """The options as delta-rs takes them, secrets included."""
        told = {**DEFAULTS, **revealed(self.options)}
        wait = {"init_backoff": FIRST_WAIT_S, "max_backoff": LONGEST_WAIT_S}
        return {
            **{
                name: _shown_span(value) if name in SPANS else value for name, value in told.items()
            },
            "aws_conditional_put": "etag",
            "max_retries": str(TIMES),
            **{f"backoff_config.{name}": f"{int(s * 1000)}ms" for name, s in wait.items()},
        }

    @property
    def is_atomic(self) -> bool:
        """An object is there whole or not at all, and durable."""
        return True

    @property
    def patience_s(self) -> float:
        """How long a request is repeated."""
        return span_s(revealed(self.options).get(RETRY_TIMEOUT, DEFAULTS[RETRY_TIMEOUT]))

    # --- writing -------------------------------------------------------------------------

    def publish(self, name: str, data: bytes) -> None:
        """Write a whole file: a store shows no part of one. Raises FileExistsError."""
        self.write_new(name, data)

    def write_new(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a whole file. Raises FileExistsError when the name is taken."""
        mark = uuid.uuid4().hex
        view = memoryview(data).cast("B")

        def put() -> None:
            try:
                obstore.put(
                    self._store(), self._key(name), view, mode="create", attributes={MARK: mark}
                )
            except AlreadyExistsError:
                found = self._mark(name)
                if found is None:
                    raise StorageError(
                        errno.EAGAIN, f"cannot write {self.path(name)}: {_IN_THE_WAY}"
                    ) from None
                if found != mark:
                    raise

        try:
            self._tried("write", name, put)
        except AlreadyExistsError:
            raise _taken(self.path(name)) from None

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """Open a new file to write into; when the block raises, there is none."""
        upload = _Upload(self, name)
        yield pa.PythonFile(upload, mode="w")
        upload.finish()

    def sync(self, names: Iterable[str]) -> None:
        """Nothing: what is there is durable."""

    # --- reading -------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError."""
        return self._tried("read", name, lambda: bytes(self._got(name)))

    def map(self, name: str) -> pa.Buffer:
        """Return a file's bytes; they are read. Raises FileNotFoundError."""
        return self._tried("read", name, lambda: self._got(name))

    def open(self, name: str) -> Any:
        """Return a readable, seekable `pa.NativeFile`. Raises FileNotFoundError."""

        def opened() -> Any:
            found = obstore.get(self._store(), self._key(name))
            size = int(found.meta["size"])
            if size <= PART_BYTES:
                return pa.BufferReader(pa.py_buffer(found.bytes()))
            return pa.PythonFile(_Ranges(self, name, size), mode="r")

        return self._tried("read", name, opened)

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes; None when there is no such file."""
        try:
            found = self._tried("read", name, lambda: obstore.head(self._store(), self._key(name)))
        except FileNotFoundError:
            return None
        return int(found["size"])

    def list(self) -> Iterator[FileInfo]:
        """Iterate over all files here and below."""
        prefix = self._key()

        def listed() -> list[FileInfo]:
            pages = obstore.list(self._store(), prefix or None)
            return [
                FileInfo(
                    each["path"][len(prefix) :].lstrip("/"),
                    int(each["size"]),
                    each["last_modified"].timestamp(),
                )
                for page in pages
                for each in page
            ]

        yield from self._tried("list", "", listed)

    def names(self) -> Iterator[str]:
        """Iterate over the names of what is here; none of a folder that is not there."""

        def listed() -> list[str]:
            found = obstore.list_with_delimiter(self._store(), self._key() or None)
            paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
            return [path.rsplit("/", 1)[-1] for path in paths]

        yield from self._tried("list", "", listed)

    def delete(self, *names: str) -> None:
        """Remove files; one that is not there is no error."""

        def delete(keys: list[str]) -> None:
            with suppress(FileNotFoundError):
                obstore.delete(self._store(), keys)
                return
            for key in keys if len(keys) > 1 else []:
                delete([key])

        if names:
            self._tried("delete", names[0], lambda: delete([self._key(each) for each in names]))

    # --- what the store is like -----------------------------------------------------------

    def assure_safe(self) -> None:
        """Make sure that a put which must find nothing is refused where there is something, and
        that a listing from a name on, by which delta-rs finds a table's newest commits, is one.

        Once a process. Raises `UnsafeStore`, StorageError.
        """
        _assure_safe(ObjectFolder(self.base or self.uri, self.options))

    def error_of(self, action: str, name: str, error: BaseException) -> StorageError | None:
        """What an error of obstore, or of delta-rs, comes to; None: it is not the store's."""
        if isinstance(error, StorageError):
            return error
        text = str(error)
        told = _reason(text)
        is_absent = (match := _STATUS.search(text)) is not None and match[1] == "404"
        is_store = isinstance(error, BaseError) or _OF_STORE.search(text) is not None
        if told is None and (is_absent or not is_store):
            return None
        where = self.path(name) if name else self.uri
        number, what = told or (errno.EIO, _brief(text))
        return StorageError(number, f"cannot {action} {where}: {hide(what, self.options)}")

    # --- inside --------------------------------------------------------------------------

    def _store(self) -> Any:
        location = store_location(self.uri)
        return _client(f"{location.scheme}://{location.bucket}", _frozen(self.options))

    def _key(self, name: str = "") -> str:
        own = store_location(self.uri).key
        return "/".join(part for part in (own, _inside(name) if name else "") if part)

    def _got(self, name: str) -> pa.Buffer:
        return pa.py_buffer(obstore.get(self._store(), self._key(name)).bytes())

    def _lists(self, name: str, start: str) -> bool:
        """Whether an object is in the listing of what comes after a name."""
        key = self._key(name)

        def listed() -> bool:
            folder_, offset = key.rpartition("/")[0], self._key(start)
            pages = obstore.list(self._store(), folder_, offset=offset)
            return any(each["path"] == key for page in pages for each in page)

        return self._tried("list", TRIAL, listed)

    def _mark(self, name: str) -> str | None:
        """The mark of the put that made an object, empty where it has none; None: no object."""
        try:
            found = obstore.get(self._store(), self._key(name), options={"head": True})
        except FileNotFoundError:
            return None
        marks = {key.lower(): value for key, value in found.attributes.items()}
        return marks.get(MARK, "")

    def _tried(self, action: str, name: str, request: Callable[[], T]) -> T:
        """What a request gives, repeated while the store does not answer.

        Raises StorageError; FileNotFoundError and AlreadyExistsError as they are.
        """
        until = time.monotonic() + self.patience_s
        wait_s = FIRST_WAIT_S
        while True:
            try:
                return request()
            except AlreadyExistsError:
                raise
            except FileNotFoundError as error:
                if any(code in str(error) for code in _NO_BUCKET):
                    raise self.error_of(action, name, error) or error from None
                raise _absent(self.path(name)) from None
            except (BaseError, OSError) as error:
                # Its text has all that the server said: what the chain would show again.
                if _is_final(error) or time.monotonic() + wait_s >= until:
                    raise self.error_of(action, name, error) or error from None
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


@lru_cache(maxsize=16)
def _client(bucket: str, options: tuple[tuple[str, str], ...]) -> Any:
    """The client of a bucket. Raises StoreOptionError for what it does not take."""
    own = {name: value for name, value in options if name not in CONNECTION}
    connection = {**DEFAULTS, **{n: value for n, value in options if n in CONNECTION}}
    patience_s = span_s(connection.pop(RETRY_TIMEOUT))
    if bucket.startswith("s3:"):
        own["aws_conditional_put"] = "etag"
    connect: Any = from_url  # typed by provider, which is known by the URI alone
    try:
        return connect(
            bucket,
            config=own,
            client_options={
                name: _shown_span(value) if name in SPANS else _plain(value)
                for name, value in connection.items()
            },
            retry_config={
                "max_retries": TIMES,
                "retry_timeout": timedelta(seconds=patience_s),
                "backoff": {
                    "init_backoff": timedelta(seconds=FIRST_WAIT_S),
                    "max_backoff": timedelta(seconds=LONGEST_WAIT_S),
                    "base": 2,
                },
            },
        )
    except (BaseError, ValueError, TypeError) as error:
        provider = PROVIDERS[bucket.partition(":")[0]]
        raise StoreOptionError(
            f"warehouse.options: the client of {bucket} does not take them: "
            f"{hide(_brief(str(error)), dict(options))}. Its own begin with {provider}"
        ) from None


@lru_cache(maxsize=16)
def _assure_safe(place: ObjectFolder) -> None:
    name = f"{TRIAL}/{uuid.uuid4().hex}"
    place.write_new(name, b"first")
    try:
        if not _is_exclusive(place, name):
            raise UnsafeStore(
                errno.ENOTSUP,
                f"the object store at {place.uri} is not safe for commits: a put that must find "
                "nothing (If-None-Match: *) has replaced an object, so two commits could replace "
                "each other. Nothing was changed. Use a store with conditional puts (Amazon S3, "
                "Google Cloud Storage, Azure, MinIO, Cloudflare R2), or a local folder",
            )
        # What begins before the name has it, what begins behind it has not.
        if not place._lists(name, name[:-1]) or place._lists(name, f"{name}0"):
            raise UnsafeStore(
                errno.ENOTSUP,
                f"the object store at {place.uri} is not safe for commits: listings do not begin "
                "at the name that is asked for (start-after, startFrom), so the newest commits "
                "would not be found. Nothing was changed. Use another store, or a local folder; "
                "Azure's emulator needs azure_storage_use_emulator = true in warehouse.options",
            )
    finally:
        place.delete(name)


def _is_exclusive(place: ObjectFolder, name: str) -> bool:
    try:
        place.write_new(name, b"second")
    except FileExistsError:
        return True
    return False


class _Upload(io.RawIOBase):
    """A new file as it is written: one put when it is small, else parts as they come."""

    def __init__(self, place: ObjectFolder, name: str) -> None:
        self._place, self._name = place, name
        self._held = bytearray()
        self._bytes = 0
        self._parts: Any = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._held += view
        self._bytes += len(view)
        if len(self._held) >= PART_BYTES:
            self._push()
        return len(view)

    def finish(self) -> None:
        """Make the object of all that was written."""
        if self._parts is None:
            self._place.write_new(self._name, bytes(self._held))
            return
        self._push()
        try:
            self._parts.close()
        except (BaseError, OSError) as error:
            # Its answer may have been lost: the name is fresh, so what is there is this upload's.
            if self._place.size(self._name) != self._bytes:
                raise self._error(error) from None

    def _push(self) -> None:
        if self._parts is None:
            if self._place.size(self._name) is not None:
                raise _taken(self._place.path(self._name))
            self._parts = obstore.open_writer(
                self._place._store(),
                self._place._key(self._name),
                buffer_size=PART_BYTES,
                max_concurrency=1,
            )
        try:
            self._parts.write(bytes(self._held))
        except (BaseError, OSError) as error:
            raise self._error(error) from None
        self._held.clear()

    def _error(self, error: Exception) -> Exception:
        what = f"cannot write {self._place.path(self._name)}"
        told = hide(_brief(str(error)), self._place.options)
        # An upload that the store no longer knows is no file that is not there.
        gone = StorageError(errno.EIO, f"{what}: {told}")
        return self._place.error_of("write", self._name, error) or gone


class _Ranges(io.RawIOBase):
    """A large file, read a window at a time."""

    def __init__(self, place: ObjectFolder, name: str, size: int) -> None:
        self._place, self._name, self._size = place, name, size
        self._at = 0
        self._start, self._window = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, wanted: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        length = left if wanted is None or wanted < 0 else min(wanted, left)
        first = self._at - self._start
        if first < 0 or first + length > len(self._window):
            self._start, first = self._at, 0
            self._window = self._fetched(self._at, min(left, max(length, WINDOW_BYTES)))
        self._at += length
        return self._window[first : first + length]

    def _fetched(self, start: int, length: int) -> bytes:
        place, key = self._place, self._place._key(self._name)
        if not length:
            return b""
        return bytes(
            place._tried(
                "read",
                self._name,
                lambda: obstore.get_range(place._store(), key, start=start, length=length),
            )
        )


def _taken(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "there is such an object", path)


def _absent(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such object", path)


def _inside(name: str) -> str:
    parts_of(name)
    return name


def _frozen(options: Options) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(revealed(options).items()))


def _shown_span(text: str) -> str:
    return f"{int(span_s(text) * 1000)}ms"


def _plain(value: str) -> Any:
    return {"true": True, "false": False}.get(value.lower(), value)


def _is_final(error: Exception) -> bool:
    """Whether another attempt would only repeat the error: the request itself is refused."""
    status = match[1] if (match := _STATUS.search(str(error))) else ""
    return isinstance(error, _FINAL) or (
        status.startswith("4") and status not in ("408", "409", "429")
    )


_METADATA = ("169.254.169.254", "metadata.google.internal", "/latest/api/token")
"""Whom a client asks last for credentials."""


def _reason(text: str) -> tuple[int, str] | None:
    """The number and words for an error that a person can mend, by what the server said."""
    code = match[1] if (match := _CODE.search(text)) else ""
    status = match[1] if (match := _STATUS.search(text)) else ""
    if any(each in text for each in _METADATA):  # what it answered is not the store's answer
        return errno.EACCES, (
            "there are no credentials: neither in warehouse.options nor in the environment, and "
            "this machine's metadata service gives none: set SPILLWAY_WAREHOUSE__OPTIONS, or what "
            "the provider's own client looks for"
        )
    if code in _NO_BUCKET:
        return errno.ENOENT, "there is no such bucket: make it, or name another in warehouse.root"
    if code == "RequestTimeTooSkewed":
        return errno.EACCES, (
            "this host's clock is wrong, so the store refuses the request (RequestTimeTooSkewed): "
            "set the clock"
        )
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken") or status == "401":
        return errno.EACCES, (
            f"the store does not know these credentials ({code or status}): see warehouse.options, "
            "or where the provider's own client finds them"
        )
    if code == "AccessDenied" or status == "403":
        return errno.EACCES, (
            "the store refuses it (403): check the credentials, and grant read, write, list and "
            "delete below warehouse.root"
        )
    if code in ("SlowDown", "ServiceUnavailable") or status in ("429", "503"):
        return errno.EIO, (
            f"the store is overloaded ({code or status}) and stayed so: wait, or raise "
            "retry_timeout in warehouse.options"
        )
    if "dns error" in text or "error sending request" in text or "timed out" in text:
        found = _ENDPOINT.search(text)
        return errno.EIO, (
            f"{found[1] if found else 'the store'} does not answer: check the network, and the "
            "endpoint and timeout in warehouse.options"
        )
    if status.startswith("5"):
        return errno.EIO, f"the store failed ({code or status}) and kept failing: try again later"
    return None


def _brief(text: str) -> str:
    return " ".join(text.split())[:300]
