"""A hub id to a snapshot folder, through huggingface_hub: safetensors, JSON and tokenizer files, no pickle, no code."""

from __future__ import annotations

from pathlib import Path

from offgen.errors import UsageError

WEIGHTS = ("*.safetensors",)
TEXTS = ("*.json", "*.jinja", "*.txt", "*.model")
LEFT_OUT = ("*/*", "consolidated*")  # other formats of the same weights live in sub-folders


def download(repo_id: str, *, revision: str | None, weights: bool = True) -> Path:
    """The snapshot of a repository, from the local cache if it is there. Honours HF_HOME, HF_HUB_OFFLINE, HF_TOKEN.

    Raises UsageError for a repository that does not exist, may not be read, or is not in the cache while offline.
    """
    import huggingface_hub
    from huggingface_hub import errors

    at = f"{repo_id}@{revision}" if revision else repo_id
    patterns = [*WEIGHTS, *TEXTS] if weights else [*TEXTS]
    try:
        folder = huggingface_hub.snapshot_download(
            repo_id, revision=revision, allow_patterns=patterns, ignore_patterns=list(LEFT_OUT)
        )
    except errors.GatedRepoError as error:
        raise UsageError(f"{at}: access is restricted", hint="accept its terms on the hub and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise UsageError(
            f"{at}: no such model on the hub, and no such local folder", hint="a private one needs HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(f"{at}: the hub has no such revision") from error
    except errors.HFValidationError as error:
        raise UsageError(f"{repo_id}: neither a local path nor a hub id") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise UsageError(
            f"{at}: no such local folder, not in the Hugging Face cache, and the hub cannot be reached "
            f"({'HF_HUB_OFFLINE is set' if huggingface_hub.constants.HF_HUB_OFFLINE else 'no network'})",
            hint="give a local folder, or download it where there is a network: hf download " + repo_id,
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise UsageError(f"{at}: the download failed: {error}") from error
    return Path(folder)
