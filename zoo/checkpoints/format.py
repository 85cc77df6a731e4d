"""Format: how the folders of one published model_type are read and written; each family's module lists its own."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from zoo.checkpoints.keys import Table
from zoo.checkpoints.settings import Settings
from zoo.config import ModelConfig


@dataclass(frozen=True)
class Format:
    """How the folders of one model_type are read and written.

    Attributes:
        table: its key table.
        architectures: the classes of the reference library that we take; the first is its language model.
        read: (settings, plain tensor names, architecture or None, tied) -> ModelConfig.
        write: ModelConfig -> settings.
        read_out, token_table: plain names of the two tensors that may be tied.
        tied: what the reference library takes where tie_word_embeddings is not set.
        bare: architectures that are a backbone without a head: their tensors are written without the table's prefix.
        prefixes: architecture -> what stands before the backbone's names there, where it is not the table's prefix.
        writes: whether a ModelConfig is published in this format.
        own_code: modules that published folders of this format carry and name in auto_map: copies of what the
            reference library has itself.
        text_of: (settings, file) -> those of the text model, where the folder holds a model of images beside it.
    """

    table: Table
    architectures: dict[str, dict[str, Any]]
    read: Callable[[Settings, Set[str], str | None, bool], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any]]
    read_out: str
    token_table: str
    tied: bool
    bare: tuple[str, ...]
    writes: Callable[[ModelConfig], bool]
    own_code: tuple[str, ...] = ()
    text_of: Callable[[dict[str, Any], str], dict[str, Any]] | None = None
    prefixes: Mapping[str, str] = field(default_factory=dict)

    def prefix_of(self, architecture: str) -> str:
        """What a folder of that class puts before the backbone's names."""
        return "" if architecture in self.bare else self.prefixes.get(architecture, self.table.prefix)
