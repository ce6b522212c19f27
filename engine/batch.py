"""One run's token tree: plants requests, has the tree evaluated once, and reads each field's scores back."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.evaluation import Edges, Evaluation, Strategy
from engine.prefix_cache import PrefixCache
from engine.prompt import FieldPrompt, Prompt, PromptBuilder
from engine.request import Request, Scoring
from engine.result import BatchStats, Usage
from engine.scoring import mean_prior, value_scores
from engine.tree import Ints, Span, TokenTree, pack
from engine.value_trie import Floats

MAX_PRIORS = 20_000  # fields whose content-free scores are kept, about 2 KB for 255 values


class PriorCache:
    """Content-free log-scores by prompt digest, so by model, schema, layout and prompt version; least recently used
    first out."""

    def __init__(self) -> None:
        self._scores: OrderedDict[bytes, Floats] = OrderedDict()

    def get(self, digest: bytes) -> Floats | None:
        if digest in self._scores:
            self._scores.move_to_end(digest)
        return self._scores.get(digest)

    def put(self, digest: bytes, scores: Floats) -> None:
        self._scores[digest] = scores
        while len(self._scores) > MAX_PRIORS:
            self._scores.popitem(last=False)

    def clear(self) -> None:
        self._scores.clear()


@dataclass(eq=False)
class PlantedField:
    """A field's place in the tree: the trie of its values hangs below `base`."""

    prompt: FieldPrompt
    scoring: Scoring
    base: Span
    chains: list[tuple[list[int], Span]]  # consecutive trie nodes, and the position after the last of them
    prior: Floats | None = None  # (values,) set by `Batch.evaluate` where the request wants one
    logits: Floats | None = None  # (N,) per edge of the trie, set by `Batch.evaluate`
    log_probabilities: Floats | None = None

    def edge_rows(self) -> Ints:
        """(N,): the packed row before each of the trie's edges."""
        trie = self.prompt.trie
        row_of = np.full(len(trie.parents) + 1, -1, np.int64)  # by node + 1
        row_of[0] = self.base.rows(1)[0]
        for nodes, end in self.chains:
            row_of[np.array(nodes) + 1] = end.rows(len(nodes))
        return np.asarray(row_of[trie.parents + 1])

    def scores(self) -> Floats:
        """(values,): log-scores without prior or temperature."""
        assert self.logits is not None
        assert self.log_probabilities is not None
        return value_scores(self.prompt.trie, self.scoring, self.logits, self.log_probabilities)

    def legal_mass(self) -> float:
        assert self.log_probabilities is not None
        return self.prompt.trie.legal_mass(self.log_probabilities)


class Batch:
    """`plant` each request, `evaluate` once, then read the planted fields, `usage` and `stats`."""

    def __init__(self, prompts: PromptBuilder, priors: PriorCache) -> None:
        self._prompts = prompts
        self._priors = priors
        self._tree = TokenTree()
        self._fields: list[PlantedField] = []
        self._content_free: dict[bytes, list[PlantedField]] = {}  # priors that this run computes
        self._wants_prior: list[PlantedField] = []
        self._ends: list[list[Span]] = []  # per planted request: where everything that it reads ends
        self._contexts: set[str] = set()
        self._cached: set[Span] = set()

    def plant(self, request: Request) -> list[PlantedField]:
        """Add a request's tokens, and those of the content-free contexts whose scores it needs and nobody knows yet.

        Raises `FieldcastError`, and then the tree is as before.
        """
        prompt = self._prompts.build(request)
        ends: list[Span] = []
        planted = self._plant(prompt, request.options.scoring, ends)
        with_prior = [f for f in planted if uses_prior(request, f.prompt)]
        self._wants_prior += with_prior
        unknown = {
            f.prompt.digest
            for f in with_prior
            if f.prompt.digest not in self._content_free and self._priors.get(f.prompt.digest) is None
        }
        if unknown:
            for content_free in self._prompts.content_free(request):
                wanted = Prompt(content_free.trunk, tuple(f for f in content_free.fields if f.digest in unknown))
                for field in self._plant(wanted, request.options.scoring, ends):
                    self._content_free.setdefault(field.prompt.digest, []).append(field)
        self._ends.append(ends)
        self._contexts.add(request.context)
        return planted

    def evaluate(self, strategy: Strategy, prefix_cache: PrefixCache) -> Evaluation:
        """Evaluate the whole tree and hand each planted field its edges and its prior."""
        cached = prefix_cache.match(self._tree) if strategy.uses_prefix_cache else {}
        self._cached = set(cached)
        packed = pack(self._tree, cached)
        rows = [field.edge_rows() for field in self._fields]
        tokens = [field.prompt.trie.tokens for field in self._fields]
        evaluation = strategy.evaluate(packed, cached, Edges(_joined(rows), _joined(tokens)))
        log_probabilities = evaluation.logits - evaluation.normalisers
        at = 0
        for field, own in zip(self._fields, rows, strict=True):
            field.logits = evaluation.logits[at : at + len(own)]
            field.log_probabilities = log_probabilities[at : at + len(own)]
            at += len(own)
        for digest, fields in self._content_free.items():
            self._priors.put(digest, mean_prior([field.scores() for field in fields]))
        for field in self._wants_prior:
            field.prior = self._priors.get(field.prompt.digest)
            assert field.prior is not None
        return evaluation

    def usages(self) -> list[Usage]:
        """Per planted request, the tokens on its own paths."""
        usages = []
        for spans in self._spans_by_request():
            cached = sum(len(s.tokens) for s in spans if s in self._cached)
            total = sum(len(s.tokens) for s in spans)
            usages.append(Usage(input_tokens=total, cached_tokens=cached, tree_tokens=total - cached))
        return usages

    def stats(self, evaluation: Evaluation) -> BatchStats:
        uses = Counter(span for spans in self._spans_by_request() for span in spans)
        return BatchStats(
            requests=len(self._ends),
            contexts=len(self._contexts),
            passes=evaluation.passes,
            computed_tokens=evaluation.computed_tokens,
            cached_tokens=evaluation.cached_tokens,
            shared_tokens=sum(len(span.tokens) for span, count in uses.items() if count > 1),
        )

    def _plant(self, prompt: Prompt, scoring: Scoring, ends: list[Span]) -> list[PlantedField]:
        trunk = self._tree.root
        for segment in prompt.trunk:
            trunk = self._tree.extend(trunk, segment, trunk=True)
        planted = []
        for field in prompt.fields:
            base = self._tree.extend(trunk, [*field.question, *field.trie.shared])
            ends.append(base)
            end_of_node = {-1: base}
            chains = []
            for above, nodes in field.trie.chains:
                end = self._tree.extend(end_of_node[above], field.trie.tokens[nodes].tolist())
                end_of_node[nodes[-1]] = end
                ends.append(end)
                chains.append((nodes, end))
            planted.append(PlantedField(field, scoring, base, chains))
        self._fields += planted
        return planted

    def _spans_by_request(self) -> list[set[Span]]:
        """Read after evaluation only: until then spans may still be split."""
        found = []
        for ends in self._ends:
            spans: set[Span] = set()
            for end in ends:
                span: Span | None = end
                while span is not None and span.parent is not None and span not in spans:
                    spans.add(span)
                    span = span.parent
            found.append(spans)
        return found


def uses_prior(request: Request, field: FieldPrompt) -> bool:
    """Measured without labels: the prior helps enum and score fields and hurts unbalanced booleans."""
    if request.options.prior is not None:
        return request.options.prior
    return field.definition.field_type != "boolean"


def _joined(arrays: Sequence[Ints]) -> Ints:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
