"""Any checkpoint as a model of lm-evaluation-harness (the extra `harness`), with all of its tasks and reports:

    lm_eval.simple_evaluate(Harness(tenfold.load("mine")), tasks=["hellaswag"])

Log-likelihoods come from the scorer that the tasks of this package use, so figures agree where the protocols do.
"""

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from tenfold.evaluate.scorer import Scorer
from tenfold.generate import LanguageModel
from tenfold.world import World

NEW_TOKENS = 256  # of a generated text, if the task says nothing; the harness's own number


class Harness(TemplateLM):
    """A model with its tokenizer as the harness sees it, on this process alone."""

    def __init__(self, model: LanguageModel, tokens: int = 0) -> None:
        super().__init__()
        self.language_model = model
        self._device = model.model.wte.weight.device
        self.score = Scorer(model.model, World(0, 1, self._device), tokens=tokens)

    @property
    def eot_token_id(self) -> int:
        """What stands before a text."""
        return self.language_model.tokenizer.eot

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The ids of a text; no tokenizer here adds any of its own."""
        ids: list[int] = self.language_model.tokenizer.encode(string).tolist()
        return ids

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        scores = self.score([(tuple(context), tuple(continuation)) for _, context, continuation in requests])
        return list(zip(scores.sums.tolist(), scores.greedy.tolist(), strict=True))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts after end-of-text; long ones in windows of the model's context."""
        texts = [self.tok_encode(request.args[0]) for request in requests]
        sums: list[float] = self.score([((self.eot_token_id,), tuple(ids)) for ids in texts]).sums.tolist()
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the model makes of each context, up to the first of the task's stops: greedily, or sampled if the task
        says do_sample."""
        return [self._generate(*request.args) for request in requests]

    def _generate(self, context: str, options: dict[str, Any]) -> str:
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else until
        sampled = options.get("do_sample", False)
        pieces = self.language_model.stream(
            context,
            options.get("max_gen_toks", NEW_TOKENS),
            options.get("temperature", 1.0) if sampled else 0.0,
            options.get("top_k", 0),
            options.get("top_p", 1.0),
        )
        text = ""
        for piece in pieces:
            text += piece
            if found := [at for stop in stops if (at := text.find(stop)) >= 0]:
                return text[: min(found)]
        return text
