"""`python -m engine.floors FILE`: the least time the benchmark's work can take on other chips, on paper.

Computed, not measured. FILE is what `python -m engine.benchmark --json FILE` wrote; its token counts are used for both
models, although the second one's tokenizer cuts text a little differently. Plain Python; imports no mlx.

    operations of a pass  2 x body weights x tokens, and 4 x layers x query width x tokens x keys seen (half of the
                          tree's own, and all that are cached)
    bytes of a pass       body weights once, and the keys and values of every token, computed or cached, once
    floor                 the larger of operations / peak rate and bytes / bandwidth
    baseline's floor      its passes x (body and output head weights) / bandwidth: one token a pass reads them all
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModelSize:
    """From the model's config.json. `weight_bytes` of one weight in the body, scales included."""

    name: str
    layers: int
    width: int
    key_width: int  # of all key heads together
    mlp_width: int
    vocabulary: int
    weight_bytes: float
    cache_bytes: int = 2  # of one number among the keys and values

    @property
    def body(self) -> int:
        """Weights of all layers: queries, output, keys, values and the three matrices of the MLP."""
        return self.layers * (2 * self.width**2 + 2 * self.width * self.key_width + 3 * self.width * self.mlp_width)

    @property
    def head(self) -> int:
        return self.vocabulary * self.width


@dataclass(frozen=True)
class Chip:
    """The maker's figures: operations and bytes a second."""

    name: str
    operations: float
    bandwidth: float


MODELS = (
    ModelSize("SmolLM2-135M, float16", 30, 576, 192, 1536, 49_152, 2.0),
    # Four bits, and a half-precision scale and bias for each 64 weights.
    ModelSize("Qwen2.5-1.5B, 4 bits", 28, 1536, 256, 8960, 151_936, 0.5 + 4 / 64),
)
CHIPS = (
    # 40 GPU cores. Apple states the bandwidth. The rate is an estimate, and on the high side: half precision counted
    # at twice float32. A lower one makes the floor of the compute higher.
    Chip("M4 Max", 36e12, 546e9),
    Chip("H200", 989e12, 4.8e12),  # dense bfloat16
)


def operations(model: ModelSize, computed: float, cached: float) -> float:
    attention = 4 * model.layers * model.width * computed * (cached + computed / 2)
    return 2 * model.body * computed + attention


def bytes_moved(model: ModelSize, computed: float, cached: float, passes: float = 1) -> float:
    keys_and_values = 2 * model.layers * model.key_width * model.cache_bytes * (computed + cached)
    return model.body * model.weight_bytes * passes + keys_and_values


def baseline_s(model: ModelSize, chip: Chip, passes: float) -> float:
    return passes * (model.body + model.head) * model.weight_bytes / chip.bandwidth


def table(results: list[dict[str, object]]) -> str:
    """Markdown: each workload, warm, with each model on each chip. Times in milliseconds."""
    lines = [
        "| workload | tokens | model | G operations | MB | chip | compute | memory | baseline's floor |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        warm = result["warm"]
        assert isinstance(warm, dict)
        computed, cached, passes = warm["tree_tokens"], warm["cached_tokens"], warm["passes"]
        for model in MODELS:
            work, moved = operations(model, computed, cached), bytes_moved(model, computed, cached, passes)
            for chip in CHIPS:
                baseline = (
                    f"{baseline_s(model, chip, warm['baseline_passes']) * 1e3:.1f}"
                    if "baseline_passes" in warm
                    else "-"
                )
                lines.append(
                    f"| {result['preset']} | {computed:.0f} | {model.name} | {work / 1e9:.0f} | {moved / 1e6:.0f} "
                    f"| {chip.name} | {work / chip.operations * 1e3:.2f} | {moved / chip.bandwidth * 1e3:.2f} "
                    f"| {baseline} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m engine.floors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="what `python -m engine.benchmark --json` wrote")
    print(table(json.loads(parser.parse_args().file.read_text())["results"]))


if __name__ == "__main__":
    main()
