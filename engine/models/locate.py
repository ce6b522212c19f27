"""From what FIELDCAST_MODEL says to a folder on this machine. Imports no mlx except through a conversion."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelUnavailable
from engine.models.builtin import BUILTIN, ensure

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Found:
    """A model's folder, and the name that results and metrics show (never a whole path of this machine)."""

    name: str
    path: Path


def locate(model: str, data_dir: Path, say: Callable[[str], None]) -> Found:
    """Find the model's folder, downloading what is missing. Raises ModelUnavailable."""
    if model in BUILTIN:
        return Found(name=model, path=ensure(model, data_dir, say))
    path = Path(model).expanduser()
    if (model and path.exists()) or model.startswith(("/", "./", "../", "~")):
        path = path.resolve()
        _check_folder(path)
        return Found(name=path.name, path=path)
    if HUB_ID.fullmatch(model):
        return Found(name=model, path=_from_hub(model, say))
    raise ModelUnavailable(f"there is no model {model!r}; {_choices()}")


def _check_folder(path: Path) -> None:
    if not path.exists():
        raise ModelUnavailable(f"there is no folder {path}; {_choices()}")
    if not path.is_dir():
        raise ModelUnavailable(f"{path} is a file; {_choices()}")
    missing = [pattern for pattern in ("config.json", "model*.safetensors") if not any(path.glob(pattern))]
    if missing:
        raise ModelUnavailable(
            f"{path} is not an mlx-lm model folder: it has no {' and no '.join(missing)}; "
            f"`mlx_lm.convert` makes one from a Hugging Face model"
        )


def _from_hub(model: str, say: Callable[[str], None]) -> Path:
    """A complete snapshot in the hub's own cache is used without asking the network: answers stay the same."""
    from huggingface_hub import constants, snapshot_download
    from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

    def snapshot(*, local: bool) -> Path:
        return Path(snapshot_download(model, allow_patterns=DEFAULT_ALLOW_PATTERNS, local_files_only=local))

    try:
        path = snapshot(local=True)
        _check_folder(path)
        return path
    except (OSError, ValueError, ModelUnavailable):
        pass  # not there, or not whole
    say(f"downloading {model} from the model hub")
    try:
        path = snapshot(local=False)
    except Exception as e:  # httpx, hub and file errors of many kinds; all mean the same to the user
        offline = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
        raise ModelUnavailable(
            f"model {model} is not in the local cache and could not be downloaded from the model hub{offline}: "
            f"{_first_line(e)} Check the name and the network (a private model needs HF_TOKEN); {_choices()}"
        ) from e
    _check_folder(path)
    return path


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:300] if text else type(error).__name__


def _choices() -> str:
    return (
        f"set FIELDCAST_MODEL to a built-in name ({', '.join(BUILTIN)}), a local mlx-lm folder or a hub id (owner/name)"
    )
