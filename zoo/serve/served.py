"""What a server serves, and how: one value that the routes, the queue and the lanes get whole."""

from dataclasses import dataclass, field
from typing import Any

from zoo.errors import InputError
from zoo.generation.text_batch import longest_text
from zoo.model import Model
from zoo.serve.limits import Limits


@dataclass(frozen=True, eq=False)
class Served:
    """One model as it is served.

    Attributes:
        model, params, tokenizer: what is served.
        name: of the model, as clients say it.
        limits: of requests.
        cache_dtype: of cached keys and values; None for the model's.

    Raises:
        InputError: texts longer than the model's positions, or a cache's dtype for a model without one.
    """

    model: Model
    params: Any
    tokenizer: Any
    name: str
    limits: Limits = field(default_factory=Limits)
    cache_dtype: str | None = None

    def __post_init__(self):
        most = longest_text(self.model.config)
        if self.limits.max_length > most:
            raise InputError(f"max_length is {self.limits.max_length}; this model has {most} positions (0 takes all)")
        if self.encodes and self.cache_dtype is not None:
            raise InputError(f"cache_dtype is {self.cache_dtype}; an encoder keeps no keys and values: leave it out")

    @property
    def encodes(self) -> bool:
        """It embeds texts, and continues none."""
        return self.model.config.visibility == "full"

    @property
    def longest(self) -> int:
        """Tokens of a text, prompt and answer together."""
        return self.limits.max_length or longest_text(self.model.config)

    @property
    def limit(self) -> int:
        """Ids end here."""
        return min(self.tokenizer.vocab_size, self.model.config.vocab_size)
