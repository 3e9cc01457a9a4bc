"""The model card of an export: what the run's own files say, and nothing else."""

from typing import Any

from tenfold.environment import installed
from tenfold.run import Run

MOST_ROWS = 24  # of the table of validation losses
TOKENIZERS = {
    "gpt2": "GPT-2's byte-level BPE",
    "bytes": "the bytes of UTF-8, one id each",
    "chars": "one id for each character of the training text",
}


def model_card(run: Run, saved: dict[str, Any], records: list[dict[str, Any]], step: int) -> str:
    """README.md with its YAML header. `saved` is run.json, `records` are the run's metrics, `step` the checkpoint's."""
    model, recipe = run.model, run.recipe
    records = [record for record in records if record["step"] <= step]
    environment = saved.get("environment", {})
    origin, processes = saved.get("origin", {}), environment.get("processes", 1)
    facts = {
        "architecture": f"GPT-2: {model.layers} layers, {model.heads} heads, width {model.width}, context "
        f"{model.context}, {model.vocab:,} token ids, {'with' if model.bias else 'without'} biases, tied head",
        "parameters": f"{model.parameters:,}",
        "tokenizer": TOKENIZERS[run.tokenizer],
        "started from": origin.get("source") or "random weights",
    }
    training = {
        "data": f"token shards with the fingerprint {recipe.data}",
        "steps": f"{step:,} of {recipe.steps:,}, {recipe.targets:,} tokens each",
        "recipe": f"{recipe.optimizer}, learning rate {recipe.lr:g} to {recipe.lr_end:g} ({recipe.schedule}, "
        f"{recipe.warmup} steps of warm-up), betas {recipe.beta1:g} and {recipe.beta2:g}, weight decay "
        f"{recipe.weight_decay:g}, clipping at {recipe.clip:g}, seed {recipe.seed}",
        "training loss": last(records, "loss"),
        "validation loss": last(records, "val_loss"),
    }
    machine = {
        "machine": f"{environment.get('hardware', {}).get('name', 'unknown')}, {processes} "
        f"process{'es' * (processes > 1)}",
        "software": ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items()),
    }
    return "\n".join(
        (
            "---",
            "library_name: transformers",
            "pipeline_tag: text-generation",
            "tags:",
            "- gpt2",
            "- tenfold",
            "# license: yours to choose; what the training data allows counts too",
            "---",
            "",
            f"# {run.name}",
            "",
            f"A GPT-2, {'trained with' if step else 'taken in and not trained by'} Tenfold, exported by Tenfold "
            f"{installed('tenfold')}.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in {**facts, **(training if step else {}), **machine}.items()),
            "",
            *curve(records),
            "## Use",
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
            'model = AutoModelForCausalLM.from_pretrained("FOLDER")',
            'ids = tokenizer("Once", return_tensors="pt").input_ids',
            "print(tokenizer.decode(model.generate(ids, max_new_tokens=50, do_sample=True)[0]))",
            "```",
            "",
            "FOLDER is this folder or its name on the Hub. The model continues text; it was not taught to follow",
            "instructions.",
            "",
        )
    )


def last(records: list[dict[str, Any]], key: str) -> str:
    """The last figure of a key, with its step."""
    found = [(record[key], record["step"]) for record in records if isinstance(record.get(key), float)]
    return f"{found[-1][0]:.4f} nats a token at step {found[-1][1]:,}" if found else "not measured"


def curve(records: list[dict[str, Any]]) -> list[str]:
    """The validation losses as a table, evenly thinned, the last one kept."""
    found = [(record["step"], record["val_loss"]) for record in records if isinstance(record.get("val_loss"), float)]
    every = -(-len(found) // MOST_ROWS) or 1
    rows = [f"| {step:,} | {loss:.4f} |" for step, loss in found[::-1][::every][::-1]]
    return ["| step | validation loss |", "|---|---|", *rows, ""] if rows else []
