"""lm-evaluation-harness on the same items: its figures are this package's, and both are those of the definition."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import words
from tenfold.data.tokenizer import Bytes
from tenfold.evaluate.evaluation import evaluate
from tenfold.generate import LanguageModel
from tenfold.model.config import ModelConfig
from tenfold.model.gpt import GPT
from tenfold.world import World
from test_generate import lively
from test_tasks import write

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]  # what the harness's packages warn of
pytest.importorskip("lm_eval")

ALONE = World(0, 1, torch.device("cpu"))
CONFIG = ModelConfig(layers=2, heads=2, width=32, context=96, vocab=257, padded_vocab=264)


def model() -> LanguageModel:
    return LanguageModel(lively(CONFIG), Bytes(), "", 0)


def hellaswag_items(count: int) -> list[dict[str, Any]]:
    """Items with everything that the harness cleans away."""
    draw = random.Random(3)
    return [
        {
            "activity_label": words(1, n).strip(),
            "ctx_a": f"{words(4, n)} [step] {words(2, n + 1)}",
            "ctx_b": words(2, n + 2),
            "ctx": words(6, n),
            "endings": [words(draw.randint(1, 5), 7 * n + i) + draw.choice(["", " [title] ba"]) for i in range(4)],
            "label": str(draw.randrange(4)),
        }
        for n in range(count)
    ]


def harness_figures(task: str, path: Path, **config: Any) -> dict[str, float]:
    """What the harness's own evaluation makes of its own task on a local file."""
    import lm_eval
    import yaml
    from lm_eval.api.task import ConfigurableTask

    from tenfold.evaluate.harness import Harness

    name = next(Path(lm_eval.__file__).parent.glob(f"tasks/*/{task}.yaml"))
    lines = name.read_text().replace("!function ", "")
    given = {
        **yaml.safe_load(lines),
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"validation": str(path)}},
        "training_split": None,
        "test_split": None,
        "validation_split": "validation",
        **config,
    }
    given.pop("tag")
    done = lm_eval.evaluate(Harness(model()), {task: ConfigurableTask(config=given)}, bootstrap_iters=0)
    assert done is not None
    return {key.split(",")[0]: value for key, value in done["results"][task].items()}


def test_hellaswag_has_the_harness_own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.tasks.hellaswag.utils import process_docs

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "hellaswag.jsonl", hellaswag_items(40))
    theirs = harness_figures("hellaswag", path, process_docs=process_docs)
    ours = evaluate(model().model, Bytes(), ["hellaswag-harness"], ALONE, data=path)["hellaswag-harness"].figures
    assert theirs["acc"] == ours["acc"].value
    assert theirs["acc_norm"] == ours["acc_norm"].value
    assert len({0.0, 1.0, theirs["acc"], theirs["acc_norm"]}) == 4, "items that tell the two apart"


def test_lambada_has_the_harness_own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    one = model()
    passages = [words(8, n).strip() for n in range(20)]
    passages += [f"{text} {one.generate(text + ' ', 3, 0)}" for text in passages]
    path = write(tmp_path / "lambada.jsonl", ({"text": text} for text in passages))
    theirs = harness_figures("lambada_openai", path)
    ours = evaluate(one.model, Bytes(), ["lambada"], ALONE, data=path)["lambada"].figures
    assert theirs["acc"] == ours["acc"].value
    assert theirs["perplexity"] == pytest.approx(ours["ppl"].value, rel=1e-6)


def test_the_harness_gets_the_log_likelihoods_of_transformers() -> None:
    """Pair by pair from the same weights, whole texts by windows, and the same greedy text."""
    transformers = pytest.importorskip("transformers")
    from lm_eval.api.instance import Instance

    from tenfold.evaluate.harness import Harness

    ours = model()
    theirs = as_transformers(ours.model, transformers).eval()
    harness, tokenizer = Harness(ours), Bytes()
    texts = [(words(3, n).strip(), f" {words(2, n + 50).strip()}") for n in range(24)] + [("", "ba ke")]

    def logs(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return theirs(torch.tensor([ids])).logits[0].log_softmax(-1)

    got = harness.loglikelihood([request(Instance, "loglikelihood", *pair) for pair in texts], disable_tqdm=True)
    for (before, after), (total, greedy) in zip(texts, got, strict=True):
        context, ids = tokenizer.encode(before).tolist() or [256], tokenizer.encode(after).tolist()
        rows = logs(context + ids[:-1])[len(context) - 1 :]
        assert total == pytest.approx(float(rows[range(len(ids)), ids].sum()), abs=1e-3)
        assert greedy == (rows.argmax(-1).tolist() == ids)

    long = words(40, 1)
    ids = [256, *tokenizer.encode(long).tolist()]
    assert len(ids) > 2 * CONFIG.context
    want = 0.0
    for start in range(1, len(ids), CONFIG.context):
        end = min(start + CONFIG.context, len(ids))
        rows = logs(ids[max(0, end - 1 - CONFIG.context) : end - 1])[start - end :]
        want += float(rows[range(end - start), ids[start:end]].sum())
    (total,) = harness.loglikelihood_rolling([request(Instance, "loglikelihood_rolling", long)])
    assert total == pytest.approx(want, rel=1e-5)

    start = "ba ke"
    grown = theirs.generate(torch.tensor([list(start.encode())]), max_new_tokens=20, do_sample=False, pad_token_id=256)
    text = bytes(i for i in grown[0].tolist()[len(start) :] if i < 256).decode("utf-8", errors="replace")
    options = {"until": [], "max_gen_toks": 20}
    assert harness.generate_until([request(Instance, "generate_until", start, options)]) == [text]
    stop = text[4:6]
    options = {"until": [stop], "max_gen_toks": 20}
    cut = harness.generate_until([request(Instance, "generate_until", start, options)])
    assert cut == [text[: text.index(stop)]]


def request(kind: Any, name: str, *arguments: Any) -> Any:
    return kind(request_type=name, doc={}, arguments=arguments, idx=0)


def as_transformers(ours: GPT, transformers: Any) -> Any:
    """transformers' GPT-2 with these weights; it keeps linear layers the other way round."""
    config = transformers.GPT2Config(
        vocab_size=CONFIG.vocab,
        n_positions=CONFIG.context,
        n_embd=CONFIG.width,
        n_layer=CONFIG.layers,
        n_head=CONFIG.heads,
        bos_token_id=256,
        eos_token_id=256,
    )
    theirs = transformers.GPT2LMHeadModel(config)
    state = {f"transformer.{name}": tensor for name, tensor in ours.state_dict().items()}
    for name, tensor in state.items():
        if ".h." in name and tensor.dim() == 2:
            state[name] = tensor.t()
    state["transformer.wte.weight"] = state["transformer.wte.weight"][: CONFIG.vocab]
    theirs.load_state_dict({**state, "lm_head.weight": state["transformer.wte.weight"]})
    return theirs
