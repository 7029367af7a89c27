"""The configuration of a causal language model whose layers mix with a recurrence: saved as JSON, the recurrence with it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import ClassVar

from transformers import LlamaConfig

from chunkform.errors import ArgumentError, nearest
from chunkform.spec.language import Recurrence, find
from chunkform.spec.language.data import as_data, from_data

LINEAR, SOFTMAX = "linear_attention", "full_attention"


class ChunkformConfig(LlamaConfig):
    """As `LlamaConfig` has it (widths, layers, rotary positions of softmax layers, tokens), and

    Args:
        mixer: what the recurrent layers run on: a name of the catalogue; a `Recurrence`; a `Path` of a spec file, which is run;
            or the data of a spec, as a saved configuration has them. A list has one for each recurrent layer.
        layer_types: "linear_attention" or "full_attention" for each layer; all are linear where it is None.
        mixer_options: what `Mixer` is given besides: dims, heads_of, convolution, gate, memory, constants.
        python_spec: a file of the saved folder that declares the recurrence in Python, in the place of `mixer`; it runs only in
            `from_pretrained(folder, trust_remote_code=True)`, of this class, of the models, or of `AutoModelForCausalLM`.

    Raises:
        chunkform.errors.ArgumentError: a mixer that isn't one of these, or layer types of another number or name.
    """

    model_type = "chunkform"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]

    mixer: object = "gated_delta_rule"
    layer_types: list[str] | None = None
    mixer_options: dict | None = None
    python_spec: str | None = None

    def __post_init__(self, **kwargs: object) -> None:
        for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"ChunkformConfig: {name} must be 1 or more, got {getattr(self, name)}")
        if not isinstance(self.mixer_options, Mapping | None):
            raise ArgumentError(f"ChunkformConfig: mixer_options must be a dict of options, got {self.mixer_options!r}")
        if self.layer_types is None:
            self.layer_types = [LINEAR] * self.num_hidden_layers
        if len(self.layer_types) != self.num_hidden_layers or set(self.layer_types) - {LINEAR, SOFTMAX}:
            raise ArgumentError(
                f"ChunkformConfig: layer_types must have {LINEAR!r} or {SOFTMAX!r} for each of {self.num_hidden_layers} layers, "
                f"got {self.layer_types}"
            )
        self.mixer_options = self.mixer_options or {}
        self.mixer = [_plain(x) for x in self.mixer] if isinstance(self.mixer, list) else _plain(self.mixer)
        if isinstance(self.mixer, list) and len(self.mixer) != self.layer_types.count(LINEAR):
            raise ArgumentError(
                f"ChunkformConfig: mixer has {len(self.mixer)} entries, but there are {self.layer_types.count(LINEAR)} "
                "recurrent layers"
            )
        super().__post_init__(**kwargs)

    def op_of(self, layer: int) -> str | Recurrence:
        """What a recurrent layer runs on: a catalogue's name, or the recurrence that is declared anew from its data."""
        mixer = self.mixer
        if isinstance(mixer, list):
            mixer = mixer[(self.layer_types or [])[:layer].count(LINEAR)]
        if isinstance(mixer, Mapping):
            return from_data(mixer)
        return str(mixer)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *args: object, **kwargs: object
    ) -> ChunkformConfig:
        trusted = bool(kwargs.pop("trust_remote_code", False))
        if trusted:
            found, _ = cls.get_config_dict(pretrained_model_name_or_path, **kwargs)
            if found.get("python_spec"):
                kwargs |= {"mixer": _beside(pretrained_model_name_or_path, found["python_spec"]), "python_spec": None}
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def with_python_spec(self, folder: str | os.PathLike[str]) -> ChunkformConfig:
        """This configuration with the recurrence that the folder's spec in Python declares, which is run."""
        return type(self).from_dict(
            self.to_dict() | {"mixer": _beside(folder, str(self.python_spec)), "python_spec": None}
        )

    def check_python_spec(self) -> None:
        """Refuse to make a model of a spec in Python that nobody has said may run."""
        if self.python_spec:
            raise ArgumentError(
                f"ChunkformConfig: {self.python_spec} is Python, and runs only in from_pretrained(folder, trust_remote_code=True)"
            )


def _plain(mixer: object) -> object:
    """A mixer as JSON can hold it."""
    if isinstance(mixer, Mapping):
        return as_data(from_data(mixer))
    if isinstance(mixer, Recurrence):
        return as_data(mixer)
    if isinstance(mixer, os.PathLike):
        return _of_file(os.fspath(mixer))
    names = dir(importlib.import_module("chunkform.generated"))
    if isinstance(mixer, str) and mixer in names:
        return mixer
    hint = nearest(mixer, names) if isinstance(mixer, str) else ""
    if isinstance(mixer, str) and mixer.endswith(".py"):
        hint = f": a file, which runs, is named by Path({mixer!r})"
    raise ArgumentError(
        "ChunkformConfig: mixer must be a name of the catalogue, a Recurrence, a Path of a spec file, or a spec's data, got "
        f"{str(mixer)[:60]!r}{hint}"
    )


def _beside(folder: str | os.PathLike[str], name: str) -> dict[str, object]:
    """What a file of the folder declares, and of no other."""
    return _of_file(os.path.join(os.fspath(folder), os.path.basename(name)))


def _of_file(path: str) -> dict[str, object]:
    found = find(path)
    if len(found) != 1 or not isinstance(found[0], Recurrence):
        raise ArgumentError(f"ChunkformConfig: {path} must declare one recurrence, and declares {found}")
    return as_data(found[0])
