"""Downloads of public data: all are looked up before the first, and files arrive whole or not."""

import os
import shutil
import tarfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from torchvision.datasets.utils import calculate_md5, check_integrity
from tqdm import tqdm  # type: ignore[import-untyped]
from tqdm.utils import CallbackIOWrapper  # type: ignore[import-untyped]

from fedaux_pl.errors import DataError, DataNotFoundError, first_line
from fedaux_pl.files import SCRATCH, locked

PATIENCE = 60.0  # seconds without a byte from a host
_BLOCK = 1 << 20  # bytes
_UNPACKED = 1.2  # bytes for each byte of an archive, at most


@dataclass
class Download(ABC):
    """Public data that a source needs, there or not.

    Args:
        source: The name of the source, for messages.
        file: The file or folder that can also be copied by hand.
        folder: The folder that it belongs in.
        url: Where it is downloaded from.
        size: The bytes of the download; 0 if unknown.
        allowed: Whether it may be downloaded.
    """

    source: str
    file: str
    folder: Path
    url: str
    size: int
    allowed: bool

    @abstractmethod
    def is_there(self) -> bool:
        """Return whether the source finds its data."""

    def needs_network(self) -> bool:
        """Return whether data that are not there must be downloaded."""
        return True

    @abstractmethod
    def connect(self) -> None:
        """Raise any exception if the host cannot be reached; write nothing to ``folder``."""

    def space(self) -> float:
        """Return the bytes of disk space that ``fetch`` needs in ``folder``; 0 if unknown."""
        return 0.0

    @abstractmethod
    def fetch(self) -> None:
        """Download the data, with a bar; raise a DataError if that fails."""

    def __str__(self) -> str:
        return f"{self.file} ({self.url}) to {self.folder.absolute()}"


@dataclass
class PublishedFile(Download):
    """A file with a published checksum, or the files of such an archive.

    The bytes that have arrived are in ``<file>.part``, so that a later run resumes the download.

    Args:
        md5: The checksum of the file.
        contents: The paths of an archive's files below ``folder``; none for a file on its own.
    """

    md5: str
    contents: Sequence[str] = ()

    @property
    def path(self) -> Path:
        """The path of the file, or the archive."""
        return self.folder / self.file

    @property
    def part(self) -> Path:
        """The path of what has arrived so far."""
        return self.folder / f"{self.file}{SCRATCH}"

    def received(self) -> int:
        """Return the number of bytes that have arrived."""
        return self.part.stat().st_size if self.part.is_file() else 0

    def is_there(self) -> bool:
        """Return whether the file, or everything in the archive, exists."""
        return all((self.folder / name).is_file() for name in self.contents or [self.file])

    def needs_network(self) -> bool:
        """Return whether there is no undamaged archive to unpack."""
        return not check_integrity(self.path, self.md5)

    def connect(self) -> None:
        """Raise an OSError or an HTTPException if the host does not send the file."""
        with self._request(0):
            pass

    def space(self) -> float:
        """Return the bytes that are still to arrive, and those of the unpacked files."""
        missing = self.size - self.received() if self.needs_network() else 0
        return missing + (_UNPACKED * self.size if self.contents else 0)

    def fetch(self) -> None:
        """Download, verify and unpack the file; another run that does the same is waited for."""
        try:
            about = f"waiting for another run that downloads {self.path}"
            with locked(self.folder / f".{self.file}.lock", partial(print, about)):
                if self.is_there():
                    return
                if self.needs_network():
                    self._download()
                if self.contents:
                    self._unpack()
        except (OSError, HTTPException, tarfile.TarError) as error:
            arrived = f"{format_bytes(self.received())} of {format_bytes(self.size)}"
            raise DataError(
                f"{self.file} could not be fetched to {self.folder.absolute()}, {arrived} have "
                f"arrived ({first_line(error)}): run the command again to resume, or copy the file "
                f"there from {self.url}"
            ) from error

    def _request(self, start: int) -> Any:
        """Open the URL at a position; hosts that cannot do that send the whole file."""
        request = Request(self.url, headers={"User-Agent": "fedaux-pl"})  # noqa: S310 - has a checksum
        if start:
            request.add_header("Range", f"bytes={start}-")
        return urlopen(request, timeout=PATIENCE)  # noqa: S310

    def _download(self) -> None:
        """Download the file and give it its name, after a comparison of checksums."""
        is_resumed = self.received() > 0
        before = self.received()
        while before < self.size:
            try:
                self._transfer(before)
            except (OSError, HTTPException):
                if self.received() <= before:
                    raise
            before = self.received()
        checksum = calculate_md5(self.part)
        if checksum == self.md5:
            self.part.replace(self.path)
            return
        self.part.unlink()
        if is_resumed:  # it may have begun with bytes of another file
            self._download()
            return
        raise DataError(
            f"{self.url} sent a file with the MD5 checksum {checksum}; expected {self.md5}, that "
            f"of {self.file}: set the source's `mirror` to another host, or copy the file to "
            f"{self.folder.absolute()}; what has arrived was removed"
        )

    def _transfer(self, start: int) -> None:
        """Append what the host sends to the received bytes until it ends."""
        with self._request(start) as response:
            has_resumed = response.status == 206
            start = start if has_resumed else 0
            with (
                self.part.open("ab" if has_resumed else "wb") as file,
                _bar(self.file, self.size, start) as bar,
            ):
                while block := response.read(_BLOCK):
                    file.write(block)
                    bar.update(len(block))
        if self.received() <= start:
            raise OSError("the host sent nothing")

    def _unpack(self) -> None:
        """Unpack the archive into a scratch folder, and move each file from there."""
        scratch = self.folder / f".{self.file}{SCRATCH}"
        shutil.rmtree(scratch, ignore_errors=True)  # of a killed run
        try:
            with self.path.open("rb") as file, _bar(f"unpacking {self.file}", self.size) as bar:
                packed = CallbackIOWrapper(bar.update, file, "read")
                with tarfile.open(fileobj=packed, mode="r|*") as archive:
                    # the first releases of Python 3.11 have no filters
                    archive.extraction_filter = getattr(tarfile, "data_filter", None)
                    archive.extractall(scratch)  # noqa: S202 - the checksum is the published one
            for unpacked in [path for path in scratch.rglob("*") if path.is_file()]:
                target = self.folder / unpacked.relative_to(scratch)
                target.parent.mkdir(parents=True, exist_ok=True)
                unpacked.replace(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def fetch_missing(downloads: Iterable[Download]) -> None:
    """Download what is missing, after a list of what is needed, there and missing.

    Nothing is written before all hosts have answered. A DataNotFoundError names all missing files
    if one of them may not be, or cannot be, downloaded.
    """
    needed = list({download.folder / download.file: download for download in downloads}.values())
    absent = [download for download in needed if not download.is_there()]
    missing = [download for download in absent if download.needs_network()]
    if not all(download.allowed for download in missing):
        files = "; ".join(f"{d.file} in {d.folder.absolute()}" for d in missing)
        raise DataNotFoundError(
            f"missing data: {files}. Set `data.download: true` (in Python, `download=True`) to "
            "download them, or copy them there; `--config quickstart` needs no data"
        )
    for download in missing:
        try:
            download.connect()
        # the library of the hub can raise nearly any exception
        except Exception as error:
            files = "; ".join(map(str, missing))
            raise DataNotFoundError(
                f"{download.url} cannot be reached ({first_line(error)}): check the network, or "
                f"copy from another machine {files}; `--config quickstart` needs no data"
            ) from error
    _check_space(absent)
    if missing:
        _print_list(needed, missing)
    for download in absent:
        download.fetch()


def _print_list(needed: Sequence[Download], missing: Sequence[Download]) -> None:
    print("This run needs:")
    for download in needed:
        state = "there"
        if download in missing:
            size = format_bytes(download.size) if download.size else "an unknown size"
            state = f"downloading {size} from {download.url}"
        print(f"  {download.source}, {download.file} in {download.folder.absolute()}: {state}")
    total = format_bytes(sum(download.size for download in missing))
    print(f"In all {total} to download, once; an interrupted download resumes", flush=True)


def _check_space(downloads: Iterable[Download]) -> None:
    """Raise a DataError if a disk has too little space for all that goes there."""
    spaces = Counter[int]()
    folders = dict[int, Path]()
    for download in downloads:
        folder = download.folder.absolute()
        existing = next(path for path in (folder, *folder.parents) if path.is_dir())
        disk = os.stat(existing).st_dev
        spaces[disk] += int(download.space())
        folders[disk] = existing
    for disk, space in spaces.items():
        free = shutil.disk_usage(folders[disk]).free
        if space > free:
            raise DataError(
                f"{folders[disk]} has {format_bytes(free)} of free space; expected at least "
                f"{format_bytes(space)} for the data: make room, or set `root` to another folder"
            )


def format_bytes(count: float) -> str:
    """Return a number of bytes for a reader.

    Examples:
        >>> format_bytes(2640397119), format_bytes(170498071), format_bytes(12)
        ('2.6 GB', '170 MB', '12 bytes')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if unit == "GB" else f"{count / size:.0f} {unit}"
    return f"{count:.0f} bytes"


def _bar(description: str, total: int, start: int = 0) -> Any:
    # disable=None: no bar unless stderr is a terminal
    options = {"unit": "B", "unit_scale": True, "disable": None}
    return tqdm(desc=description, total=total, initial=start, **options)
