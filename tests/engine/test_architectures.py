"""Each family of decoders, built small with random weights: the strategy it gets, and answers that equal its own
sequential forward. The README's table of architectures is checked against this one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from plain import distribution
from small_models import ARCHITECTURES, SCHEMA, small_config, small_model

from engine import Engine, Options, Request
from engine.models.locate import locate
from engine.settings import ModelSettings

CONTEXTS = (
    "The card was charged twice for one order.",
    "The card was charged twice for one order, and nobody has answered my two e-mails since Monday.",
    "Merci, tout va bien.",
)


def build(architecture: str, folder: Path) -> Path:
    """An mlx-lm folder with the toy and the built-in model's tokenizer."""
    config = small_config(architecture)
    weights = dict(tree_flatten(small_model(config).parameters()))
    builtin = locate("smollm2-135m", ModelSettings().data_dir, print).path
    shutil.copytree(builtin, folder, ignore=shutil.ignore_patterns("*.safetensors*", "config.json"))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_equal_the_sequential_forward(architecture: str, tmp_path: Path) -> None:
    expected_strategy, _ = ARCHITECTURES[architecture]
    engine = Engine.load(str(build(architecture, tmp_path / architecture)))
    assert (engine.prefix_cache.nbytes, engine.prefix_cache.hits) == (0, 0)  # warming up has left nothing
    check = engine.info.strategy_check
    assert engine.info.strategy == expected_strategy
    assert (check.packed_error if expected_strategy == "packed" else check.broadcast_error) < 1e-4

    requests = [Request(context, SCHEMA, Options()) for context in CONTEXTS]
    for _ in range(2):  # the second time from the prefix cache, where the strategy has one
        for request, result in zip(requests, engine.run(requests), strict=True):
            for answer in result.answers:
                expected = distribution(engine, request, answer.name, prior=answer.prior_used)
                assert answer.probabilities == pytest.approx(expected, abs=1e-4)
                assert len(set(answer.probabilities)) > 1


def test_the_readme_lists_each_under_its_strategy() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for strategy in ("packed", "broadcast"):
        [row] = re.findall(rf"^\| `{strategy}` \| (.*) \|$", readme, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == [n for n, (expected, _) in ARCHITECTURES.items() if expected == strategy]
