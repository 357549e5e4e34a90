"""Model directories from the Hugging Face hub, or from its local cache."""

from __future__ import annotations

import importlib
import io
import logging
from pathlib import Path
from typing import Any

from aurora_core.errors import TargetError
from aurora_core.target.progress import ReportProgress

logger = logging.getLogger(__name__)

ALLOWED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "*.safetensors",
    "*.safetensors.index.json",
)
IGNORED_FILES = ("*/*", "consolidated*")
"""Other formats' folders, and a second copy of the weights that some repositories carry."""

ANSWER_WITHIN_S = 5.0
"""How long the hub may take to say whether it knows a model."""


class HubUnavailable(Exception):
    """The hub does not answer and its local cache lacks the model; the message says why."""


def pull_from_hub(
    repository: str, *, cache_dir: Path | None, offline: bool, progress: ReportProgress
) -> Path:
    """Return a local snapshot with config, tokenizer and safetensors files.

    An interrupted download goes on where it stopped. Without a network a complete snapshot in
    the cache is used.

    Args:
        repository: `owner/name`.
        cache_dir: where snapshots are kept; None for Hugging Face's own cache.

    Raises:
        HubUnavailable: neither the hub nor the cache has an answer.
        TargetError: the hub answers that there is no such model, or that it is not for us.
    """
    from huggingface_hub import HfApi, errors, snapshot_download

    # Network errors are those of whichever HTTP library the client is built on.
    unanswered = (OSError, errors.HTTPError)  # type: ignore[attr-defined]
    reason = "offline"
    bar = _reporting_bar(f"downloading {repository}", progress)
    try:
        if not offline:
            try:
                # One quick question first: the download itself retries for minutes.
                HfApi().model_info(repository, timeout=ANSWER_WITHIN_S)
            except errors.RepositoryNotFoundError:
                raise
            except unanswered as error:
                reason = _first_line(error)
                offline = True
                logger.info("the model hub does not answer: %s", reason)
        return Path(
            snapshot_download(
                repository,
                cache_dir=cache_dir,
                local_files_only=offline,
                allow_patterns=list(ALLOWED_FILES),
                ignore_patterns=list(IGNORED_FILES),
                etag_timeout=ANSWER_WITHIN_S,
                tqdm_class=bar,
            )
        )
    except errors.HFValidationError as error:
        raise TargetError(
            f"target {repository!r} is neither a directory nor a hub id (owner/name)"
        ) from error
    except errors.GatedRepoError as error:
        raise TargetError(
            f"target {repository!r} is gated on the model hub; "
            "accept its licence there and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise TargetError(
            f"target {repository!r} is neither a directory nor a model that the hub shows you; "
            "check the name, or log in with `hf auth login` if it is private"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise HubUnavailable(reason if offline else _first_line(error)) from error
    except unanswered as error:
        raise HubUnavailable(_first_line(error)) from error
    finally:
        # The client leaves its bars to the garbage collector, which draws them a last time.
        bar.reports = False


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def _reporting_bar(stage: str, progress: ReportProgress) -> type[Any]:
    """Return a tqdm class that reports the furthest of the client's byte counts, and is mute."""
    bar_class: Any = importlib.import_module("tqdm").tqdm
    furthest = 0

    class ReportingBar(bar_class):  # type: ignore[misc]
        reports = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def display(self, *args: Any, **kwargs: Any) -> None:
            nonlocal furthest
            if self.reports and self.unit == "B" and self.n >= furthest:
                furthest = self.n
                progress(stage, int(self.n), int(self.total) if self.total else None)

    return ReportingBar
