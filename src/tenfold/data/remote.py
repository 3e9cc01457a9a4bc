"""Files of datasets on the Hub, read where they are: listed once, then read by parts, so that none is ever on disk."""

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, BinaryIO

from tenfold.data.web import Trouble, blocks, persistently, refusal, request
from tenfold.errors import DataError

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from huggingface_hub.hf_api import DatasetInfo

BLOCK = 1 << 23  # bytes asked for in one request, and kept; about a row group of text
TIMEOUT = 20.0  # seconds to wait for a server to connect or to send more
LISTING = 60.0  # seconds to wait for the list of a dataset's files, which may be tens of thousands
DEADLINE = 600.0  # seconds for one request of a block with all its tries to begin, and for each to end
TRIES = 5

ACCESS = "it is private or gated: ask for access on its page, and put your token into the variable HF_TOKEN"
ADVICE = {  # status -> what to do; for all others it is to come back later
    0: "check the network, and run the same command again",
    200: "download the file some other way and prepare it from there",
    206: "run the same command again; if this stays, download the file some other way and prepare it from there",
    401: ACCESS,
    403: ACCESS,
    404: "check the name: it may have moved",
    416: "the file is not the one that was listed: run the same command again",
    451: "it is blocked for legal reasons: take another source",
}
LATER = "run the same command again later"


@dataclass(frozen=True)
class RemoteFile:
    """A file on the Hub, or on a server that answers like it.

    `size` is in bytes; `identity` changes with the content: its SHA-256 where the Hub knows that, else git's hash.
    """

    name: str
    url: str
    size: int
    identity: str

    def open(self) -> BinaryIO:
        """The file to read from and seek in, in blocks of a few megabytes, one of which is kept. The user's token for
        the Hub goes along.

        Raises:
            DataError: from every read, if what it needs did not come after a few tries.
        """
        return io.BufferedReader(_Ranges(self), BLOCK)


class _Ranges(io.RawIOBase):
    """A remote file without a buffer: each read is a request for a range of bytes."""

    def __init__(self, file: RemoteFile) -> None:
        from huggingface_hub import get_token

        self.file, self.at, self.token = file, 0, get_token()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self.at, self.file.size)[whence]
        if at < 0:
            raise ValueError(f"there is no byte {at} of {self.file.name}")
        self.at = at
        return at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fills the buffer, or the first BLOCK bytes of it, or what there is up to the file's end."""
        first, stop = self.at, min(self.at + min(len(buffer), BLOCK), self.file.size)
        if first >= stop:
            return 0
        end = time.monotonic() + DEADLINE

        def receive() -> None:  # goes on where an earlier try broke
            asked = {"Range": f"bytes={self.at}-{stop - 1}"}
            with request(self.file.url, TIMEOUT, asked, self.token) as answer:
                _check_range(answer, self.at, stop, self.file.size)
                for block in blocks(answer, time.monotonic() + DEADLINE):
                    buffer[self.at - first : self.at - first + len(block)] = block
                    self.at += len(block)

        try:
            persistently(receive, TRIES, end)
        except Trouble as trouble:
            raise _told(f"cannot read {self.file.name} from {self.file.url}", trouble) from None
        return stop - first

    def readall(self) -> bytes:
        """The rest of the file, by blocks; Python's own would ask for 8 kB at a time."""
        return b"".join(iter(lambda: self.read(BLOCK) or b"", b""))


def _check_range(answer: "HTTPResponse", first: int, stop: int, size: int) -> None:
    """Trouble unless the answer is the part of the file that was asked for."""
    kind = answer.headers.get_content_type()
    if kind == "text/html":
        raise Trouble(f"the server answered {answer.status} with an HTML page in place of data", status=answer.status)
    if answer.status != 206:
        raise Trouble(
            f"the server answered {answer.status} with the whole file ({kind}) when asked for a part of it",
            status=answer.status,
        )
    given, wanted = answer.headers.get("Content-Range", ""), f"bytes {first}-{stop - 1}/{size}"
    if given.rpartition("/")[0] != wanted.rpartition("/")[0] or answer.length != stop - first:
        raise Trouble(f"the server sent {given or 'an unnamed part'}, not {wanted}", status=206)
    if given.rpartition("/")[2] not in (str(size), "*"):
        raise Trouble(f"the file has {given.rpartition('/')[2]} bytes, not {size} as when it was listed", status=416)


def _told(what: str, trouble: Trouble) -> DataError:
    return DataError(f"{what}: {trouble}; {ADVICE.get(trouble.status, LATER)}")


def hub_files(
    repo: str, revision: str, patterns: Sequence[str], endpoint: str | None = None
) -> tuple[str, list[RemoteFile]]:
    """The commit that a revision (branch, tag or commit) of a Hub dataset is, and its files whose paths match one of
    the patterns (`*` also matches "/"), in the order of their names. `endpoint` is another server than HF_ENDPOINT or
    the Hub.

    Raises:
        DataError: no such dataset, revision or files, no access, no network, or an answer that is none.
    """
    from huggingface_hub import HfApi, hf_hub_url

    api = HfApi(endpoint=endpoint)
    info = _asked(
        lambda: api.dataset_info(repo, revision=revision, files_metadata=True, timeout=LISTING),
        f"the dataset {repo}",
        f"{revision!r} at {api.endpoint}",
    )
    if not info.sha:
        raise DataError(f"{api.endpoint} names no commit of the dataset {repo}; {LATER}")
    listed = sorted(info.siblings or [], key=lambda sibling: sibling.rfilename)
    files = []
    for sibling in listed:
        if not any(fnmatchcase(sibling.rfilename, pattern) for pattern in patterns):
            continue
        if sibling.size is None:
            raise DataError(
                f"{api.endpoint} does not tell the size of {sibling.rfilename} of the dataset {repo}; {LATER}"
            )
        url = hf_hub_url(info.id, sibling.rfilename, repo_type="dataset", revision=info.sha, endpoint=api.endpoint)
        identity = (sibling.lfs and sibling.lfs.sha256) or sibling.blob_id or ""
        files.append(RemoteFile(sibling.rfilename, url, sibling.size, identity))
    if not files:
        some = ", ".join(sibling.rfilename for sibling in listed[:5]) or "none"
        raise DataError(
            f"no file of the dataset {repo} matches {' or '.join(patterns)}; its {len(listed)} files are {some}"
            f"{', ...' * (len(listed) > 5)}: give a pattern that matches some"
        )
    return info.sha, files


def _asked(ask: "Callable[[], DatasetInfo]", what: str, revision: str) -> "DatasetInfo":
    """What the Hub's library returns, tried a few times; its errors in one line."""
    from huggingface_hub import errors

    def once() -> "DatasetInfo":
        try:
            return ask()
        except errors.HfHubHTTPError as error:
            raise refusal(error.response.status_code, error.response.headers.get("Retry-After")) from error
        except errors.HTTPError as error:  # a connection that failed or timed out
            raise Trouble(f"no connection ({error or type(error).__name__})") from error

    try:
        return persistently(once, TRIES, time.monotonic() + DEADLINE)
    except Trouble as trouble:
        cause = trouble.__cause__
        if isinstance(cause, errors.RevisionNotFoundError):
            said = f"{what} has no revision {revision}; give a branch, a tag or a commit that it has"
        elif isinstance(cause, errors.RepositoryNotFoundError) and not isinstance(cause, errors.GatedRepoError):
            said = f"{what} (revision {revision}) does not exist, or {ACCESS.replace('it is', 'is')}; check the name"
        else:
            raise _told(f"cannot list the files of {what} (revision {revision})", trouble) from None
    except errors.HFValidationError:
        said = f"{what} cannot exist on the Hub; give OWNER/NAME, such as HuggingFaceFW/fineweb-edu"
    except errors.OfflineModeIsEnabled:
        said = f"{what} is on the Hub, but HF_HUB_OFFLINE forbids to ask it; unset that variable"
    except (ValueError, KeyError, TypeError):
        said = (
            f"cannot list the files of {what} (revision {revision}): the answer is not the Hub's, but maybe a sign-in "
            "page; open that address in a browser, or set HF_ENDPOINT to a server that answers like the Hub"
        )
    raise DataError(said)
