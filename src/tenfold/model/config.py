"""The shape of a model: everything that decides which function is computed. No torch here."""

from dataclasses import dataclass

from tenfold.errors import ConfigError

STD = 0.02  # of initial weights; Radford et al. 2019 and the released code

MOST_LAYERS, MOST_PARAMETERS = 1_000, 10**12  # beyond any GPT; a file that says more is damaged


@dataclass(frozen=True)
class ModelConfig:
    """GPT-2's architecture: pre-norm blocks, tanh GELU, learned positions, tied head, no dropout."""

    layers: int = 12
    """Number of transformer blocks."""
    heads: int = 12
    """Attention heads in a block; they divide the width."""
    width: int = 768
    """Size of the residual stream, C."""
    context: int = 1024
    """Longest sequence in tokens: the number of learned positions."""
    vocab: int = 50257
    """Number of token ids that can occur; 0 takes it from the data's tokenizer."""
    padded_vocab: int = 50304
    """Rows of the embedding, at least vocab; ids from vocab on are never predicted. 0 means vocab."""
    bias: bool = True
    """Whether linear layers and LayerNorm have biases (GPT-2 has them)."""

    def __post_init__(self) -> None:
        for field in ("layers", "heads", "width", "context"):
            if getattr(self, field) < 1:
                raise ConfigError(f"model.{field} is {getattr(self, field)}; give a number of at least 1")
        if self.width % self.heads:
            raise ConfigError(
                f"model.width {self.width} is not divisible by model.heads {self.heads}; "
                f"choose a width such as {self.heads * max(1, self.width // self.heads)}"
            )
        if self.vocab < 0:
            raise ConfigError(f"model.vocab is {self.vocab}; give the number of token ids, or 0 for the data's own")
        if self.padded_vocab and self.padded_vocab < self.vocab:
            raise ConfigError(
                f"model.padded_vocab {self.padded_vocab} is smaller than model.vocab {self.vocab}; "
                f"give at least {self.vocab}, or 0 for no padding"
            )
        if self.layers > MOST_LAYERS or self.parameters + self.embedding_rows * self.width > MOST_PARAMETERS:
            raise ConfigError(
                f"a model of {self.layers:,} layers, width {self.width:,}, context {self.context:,} and "
                f"{self.embedding_rows:,} token ids cannot be built; give at most {MOST_LAYERS:,} layers and "
                f"{MOST_PARAMETERS:,} parameters"
            )

    @property
    def embedding_rows(self) -> int:
        """Rows of the embedding matrix: the vocabulary with its padding."""
        return self.padded_vocab or self.vocab

    @property
    def parameters(self) -> int:
        """Number of trained parameters, counting the real vocabulary only (124,439,808 for GPT-2's smallest)."""
        C, b = self.width, int(self.bias)
        norm = C + b * C
        block = 2 * norm + C * 3 * C + b * 3 * C + C * C + b * C + 2 * (C * 4 * C) + b * 5 * C
        return self.vocab * C + self.context * C + self.layers * block + norm

    def flops(self, length: int) -> int:
        """Training FLOPs a token in rows of `length` tokens: 6 a parameter, without the positions, and 12 a layer, unit
        of width and position (Chowdhery et al. 2022, appendix B; as nanoGPT counts it, causal or not). 855,166,464 for
        GPT-2's smallest at 1,024."""
        products = self.parameters - self.context * self.width
        return 6 * products + 12 * self.layers * self.width * length
