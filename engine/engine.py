"""`Engine`: one loaded model, and `run`, which answers a batch of requests from one token tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from engine import device  # isort: skip  # first: it loads OpenBLAS, which must come before mlx
from engine import cpu_kernels, models, strategies
from engine.batch import Batch, PlantedField, PriorCache
from engine.errors import FieldcastError, OutOfMemory
from engine.evaluation import Evaluation, Stopwatch
from engine.hooks import HookedModel
from engine.prefix_cache import PrefixCache
from engine.prompt import PROMPT_VERSION, PromptBuilder
from engine.prompt_tokenizer import PromptTokenizer
from engine.request import LAYOUTS, SCORINGS, Request
from engine.result import BatchStats, FieldAnswer, Provenance, Result, Timings, Usage
from engine.schema import StructuredSchema
from engine.scoring import probabilities
from engine.settings import ModelSettings
from engine.version import __version__

Outcome = Result | FieldcastError

# Answered once before anything else is: compiling a kernel takes up to seconds, and shapes share kernels.
WARM_UP = Request(
    "The parcel came on Monday, two days late, and the box was torn at one corner. Nobody has answered my letter.",
    StructuredSchema(
        {
            "topic": {"type": "enum", "choices": ["late delivery", "late payment", "damage"]},
            "angry": {"type": "boolean", "description": "Is the writer angry?"},
        }
    ),
)


@dataclass(frozen=True)
class ModelInfo:
    """What is loaded, on what, and what was checked at load."""

    model: str
    strategy: str
    strategy_check: strategies.StrategyCheck
    context_limit: int  # tokens
    vocabulary: int
    parameters: int
    dtype: str
    device: str
    blas: str
    layouts: tuple[str, ...] = LAYOUTS
    scorings: tuple[str, ...] = SCORINGS
    prompt_version: int = PROMPT_VERSION
    startup_ms: dict[str, float] = field(default_factory=dict)  # of `Engine.load`, by stage

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Engine:
    """A loaded model that answers requests. Not safe to share between threads.

    Attributes: `info` (`ModelInfo`), `prefix_cache` (`PrefixCache`).
    """

    def __init__(self, loaded: models.LoadedModel, settings: ModelSettings) -> None:
        context_limit = device.context_limit(loaded.model)
        self.tokenizer = PromptTokenizer(loaded.tokenizer)
        self.prompts = PromptBuilder(self.tokenizer, context_limit)
        if device.on_cpu():
            cpu_kernels.install()
        self.model = HookedModel(loaded.model)
        self.prefix_cache = PrefixCache(settings.prefix_cache_mb * 2**20 or device.default_cache_bytes())
        self.priors = PriorCache()
        self.strategy, check = strategies.choose(
            self.model, self.prefix_cache, settings.pass_tokens, self.tokenizer, settings.strategy
        )
        self.info = ModelInfo(
            model=loaded.name,
            strategy=self.strategy.name,
            strategy_check=check,
            context_limit=context_limit,
            vocabulary=check.vocabulary,
            parameters=device.parameters(loaded.model),
            dtype=device.dtype(loaded.model),
            device=device.name(),
            blas=device.BLAS,
        )

    @classmethod
    def load(
        cls,
        model: str | None = None,
        *,
        settings: ModelSettings | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Engine:
        """Load a model: a built-in name, a hub id or a local mlx-lm folder; None: the one in the settings.

        Raises `ModelUnavailable` when its files cannot be had, and `ModelUnsupported` when its answers cannot be made
        to agree with its own sequential forward.
        """
        chosen = settings or ModelSettings()
        clock, stages = Stopwatch(), {}
        loaded = models.load(model or chosen.model, chosen.data_dir, progress)
        stages["load"] = clock.lap()
        engine = cls(loaded, chosen)
        stages["check"] = clock.lap()
        engine.warm_up()
        stages["warm_up"] = clock.lap()
        engine.info = replace(engine.info, startup_ms={stage: round(ms, 1) for stage, ms in stages.items()})
        return engine

    def run(self, requests: Sequence[Request]) -> list[Outcome]:
        """Answer a batch, any mix of contexts and schemas, from one token tree.

        Returns one entry per request, in order: its `Result`, or the `FieldcastError` that kept it from being
        answered. An error of one request does not touch the others. Raises `OutOfMemory` when the whole batch does not
        fit the device, however it is cut.
        """
        started = perf_counter()
        batch = Batch(self.prompts, self.priors)
        planted: list[list[PlantedField] | FieldcastError] = []
        for request in requests:
            try:
                planted.append(batch.plant(request))
            except FieldcastError as error:
                planted.append(error)
        if all(isinstance(entry, FieldcastError) for entry in planted):
            return [entry for entry in planted if isinstance(entry, FieldcastError)]
        evaluation = self._evaluate(batch)
        answers = [
            entry if isinstance(entry, FieldcastError) else tuple(_answer(request, field) for field in entry)
            for request, entry in zip(requests, planted, strict=True)
        ]
        usages, stats = iter(batch.usages()), batch.stats(evaluation)
        elapsed_ms = (perf_counter() - started) * 1e3
        model_ms = evaluation.prefill_ms + evaluation.eval_ms
        timings = Timings(elapsed_ms, evaluation.prefill_ms, evaluation.eval_ms, elapsed_ms - model_ms)
        return [
            entry if isinstance(entry, FieldcastError) else self._result(request, entry, timings, next(usages), stats)
            for request, entry in zip(requests, answers, strict=True)
        ]

    def answer(self, request: Request) -> Result:
        """Answer one request. Raises the `FieldcastError` that keeps it from being answered."""
        [outcome] = self.run([request])
        if isinstance(outcome, FieldcastError):
            raise outcome
        return outcome

    def warm_up(self) -> None:
        """Answer a made-up question cold and then from the cache, so that the first real one finds every kernel
        compiled. Leaves nothing in the caches."""
        for _ in range(2):
            self.answer(WARM_UP)
        self.forget()
        self.prefix_cache.hits = 0

    def memory(self) -> dict[str, int]:
        """Bytes that MLX holds: `active`, `cache` (freed, kept for reuse), and the `peak` of active since the start."""
        return device.memory()

    def forget(self) -> None:
        """Drop cached prefixes and priors, so that the next run computes everything."""
        self.prefix_cache.clear()
        self.priors.clear()

    def _evaluate(self, batch: Batch) -> Evaluation:
        """Evaluates the batch; where memory runs out, once more without cached prefixes and with passes of half the
        size."""
        budget = self.strategy.pass_tokens
        try:
            for self.strategy.pass_tokens in (budget, max(1, budget // 2)):
                try:
                    return batch.evaluate(self.strategy, self.prefix_cache)
                except Exception as error:
                    if not device.is_out_of_memory(error):
                        raise
                # Not in the handler above: the exception holds on to the arrays of the pass that failed.
                self.prefix_cache.clear()
                device.clear_cache()
            raise OutOfMemory(self.strategy.pass_tokens)
        finally:
            self.strategy.pass_tokens = budget

    def _result(
        self, request: Request, answers: tuple[FieldAnswer, ...], timings: Timings, usage: Usage, stats: BatchStats
    ) -> Result:
        provenance = Provenance(
            model=self.info.model,
            strategy=self.info.strategy,
            layout=request.options.layout,
            scoring=request.options.scoring,
            prior=any(answer.prior_used for answer in answers),
            schema_id=request.schema.schema_id,
            prompt_version=PROMPT_VERSION,
            engine=__version__,
        )
        return Result(answers, request.options.top_k, timings, usage, provenance, stats)


def _answer(request: Request, field: PlantedField) -> FieldAnswer:
    definition = field.prompt.definition
    p = probabilities(field.scores(), field.prior, request.options.temperature)
    return FieldAnswer(
        name=definition.name,
        value=definition.values[int(p.argmax())],
        values=definition.values,
        probabilities=tuple(p.tolist()),
        legal_mass=field.legal_mass(),
        prior_used=field.prior is not None,
        expected=float(p @ np.arange(len(p))) if definition.field_type == "score" else None,
    )
