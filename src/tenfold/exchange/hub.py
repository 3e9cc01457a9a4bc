"""Models on the Hugging Face Hub, fetched and sent by its own library. HF_ENDPOINT names another server, HF_TOKEN who
you are, HF_HOME where what was fetched is kept."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from tenfold.errors import CheckpointError
from tenfold.files import sha256_of

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

RELEASED = {  # GPT-2's four sizes
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
}
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # the safe format, and where there is none the other
OTHERS = ("*.index.json", "vocab.json", "tokenizer.json", "tokenizer_config.json")
TIMEOUT = 20.0  # seconds to wait for what a repository holds; files have HF_HUB_DOWNLOAD_TIMEOUT
NAME = "there is none of this name, or it is private; check it, or put your token into HF_TOKEN"
ADVICE = {  # status of an answer -> what to do
    401: NAME,
    403: "put a token that may do this into HF_TOKEN",
    404: NAME,
    429: "it is asked too often; wait some minutes",
    451: "it is blocked for legal reasons; take another source",
}


def repository(given: str) -> str | None:
    """The repository that a name means, or None if it cannot be one."""
    return RELEASED.get(given) or (given if REPOSITORY.fullmatch(given) else None)


def download(name: str) -> tuple[Path, str]:
    """The folder with a repository's model and its commit: the newest, or without a network what the library's cache
    has. Files that lie there are not fetched again."""
    from huggingface_hub import HfApi, errors, hf_hub_download, try_to_load_from_cache

    with told(name):
        try:
            info = HfApi().model_info(name, timeout=TIMEOUT, files_metadata=True)
        except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:
            cached = try_to_load_from_cache(name, "config.json")
            if isinstance(error, errors.HfHubHTTPError) or not isinstance(cached, str):
                raise  # the Hub says no, or there is nothing to go on with
            return Path(cached).parent, Path(cached).parent.name
        listed = {sibling.rfilename: sibling for sibling in info.siblings or []}
        there = [file for file in listed if "/" not in file]
        found = [[file for file in there if fnmatchcase(file, pattern)] for pattern in WEIGHTS]
        if "config.json" not in there or not any(found):
            raise CheckpointError(f"{name} on the Hub has no config.json with {' or '.join(WEIGHTS)}; it is no model")
        folder = Path(hf_hub_download(name, "config.json")).parent  # of the newest commit, which the cache notes
        others = [file for file in there if any(fnmatchcase(file, pattern) for pattern in OTHERS)]
        for file in (*others, *next(filter(None, found))):
            check(Path(hf_hub_download(name, file, revision=folder.name)), listed[file])
        return folder, folder.name


def check(path: Path, listed: "RepoSibling") -> None:
    """CheckpointError, and it is removed, if a file is not the one that the Hub lists: by SHA-256 where that is known,
    as it is for weights, and else by size."""
    if (listed.lfs and listed.lfs.sha256 != sha256_of(path)) or listed.size not in (None, path.stat().st_size):
        path.resolve().unlink()  # what the cache's link leads to
        path.unlink(missing_ok=True)
        raise CheckpointError(f"{path} is not the file that the Hub lists; it was removed: run the same command again")


def push(folder: Path, name: str) -> str:
    """Send a folder to a repository of the Hub, made if it is not there; where it can be seen."""
    from huggingface_hub import HfApi

    api = HfApi()
    with told(name, f"{folder} is whole: `hf upload {name} {folder}` sends it later"):
        api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="A model trained with Tenfold")
    return f"{api.endpoint}/{name}"


@contextmanager
def told(name: str, instead: str = "or give a folder that holds it") -> Iterator[None]:
    """CheckpointError in one line for whatever goes wrong with a repository; `instead`: what else can be done."""
    from huggingface_hub import constants, errors

    hub = f"the Hub at {constants.ENDPOINT}"
    try:
        yield
    except errors.GatedRepoError:
        raise CheckpointError(
            f"{name} is gated: accept its terms on the Hub, and put your token into HF_TOKEN"
        ) from None
    except errors.HFValidationError as error:
        raise CheckpointError(f"{name} cannot be a repository ({first_line(error)}); give owner/name") from None
    except errors.LocalEntryNotFoundError as error:
        raise unreached(hub, name, error.__cause__ or error.__context__ or error, instead) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        raise CheckpointError(
            f"{hub} answered {status} about {name}: {ADVICE.get(status, 'try again later')}; {instead}"
        ) from None
    except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:
        raise unreached(hub, name, error, instead) from None
    except (ValueError, KeyError, OSError) as error:
        raise CheckpointError(
            f"{hub} did not answer properly about {name} ({first_line(error)}); try later, or set HF_ENDPOINT to "
            "another server"
        ) from None


def unreached(hub: str, name: str, error: BaseException, instead: str) -> CheckpointError:
    """The error for a server that does not answer at all, about a repository that is not in the cache."""
    return CheckpointError(
        f"{hub} cannot be reached for {name} ({first_line(error)}); connect, or set HF_ENDPOINT to another server; "
        f"{instead}"
    )


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return (str(error) or type(error).__name__).partition("\n")[0]
