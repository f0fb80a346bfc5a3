"""Weights under the names of the Hugging Face hub: which of them each parameter of Weft is made of, and reading them.

A rank reads the rectangles that it holds from mapped files: no other copy of the model is in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weft.documents import parse_json
from weft.errors import BadInput, Unsupported
from weft.files import read_text, refused, write_text, writing
from weft.model.huggingface import read_config, read_text_part
from weft.model.spec import Attention, MixtureOfExperts, Model
from weft.runtime.checkpoints.checkpoint import MOMENTS, FolderReader, raw_bytes, read_index, read_state
from weft.units import counted

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FAMILIES = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""Model types whose weights have the names of Llama's, and their ``architectures``."""
_TABLE = "embed_tokens.weight"
_DERIVED = (".rotary_emb.inv_freq",)
"""Ends of names of what old files hold and models compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPart:
    """A parameter of Weft: tensors of the hub one after the other along rows.

    ``shift`` is added to the hub's values: Gemma's gains are kept as their distance from 1.
    """

    names: tuple[str, ...]
    heights: tuple[int, ...]
    shift: float = 0.0


def family_of(source: str | os.PathLike[str]) -> str:
    """The model type of a ``config.json``, or of the folder that holds one.

    Raises:
        BadInput: it cannot be read.
        Unsupported: weights of such models are not read or written.
    """
    table, where = read_text_part(source)
    kind = table.get("model_type")
    if kind not in FAMILIES:
        raise Unsupported(
            f"weights of models of type {kind!r:.40} are not read or written",
            where=f"{where}: model_type",
            remedy=f"those of {', '.join(FAMILIES)} are",
        )
    return str(kind)


def parts(model: Model, family: str) -> dict[str, HubPart]:
    """The hub's tensors of each of Weft's parameters; names begin behind ``model.``, except the head's."""
    shift = 1.0 if family.startswith("gemma") else 0.0
    result = {"embedding.weight": HubPart(names=(_TABLE,), heights=(model.vocab,))}
    kinds = model.kinds
    for index, kind in enumerate(model.block_sequence()):
        block, ours, theirs = kinds[kind], f"blocks.{index}", f"layers.{index}"
        attention, feed = block.attention, block.feed_forward
        assert isinstance(attention, Attention)
        for norm, name in _norms(block.norms).items():
            result[f"{ours}.{norm}.weight"] = HubPart(
                names=(f"{theirs}.{name}.weight",), heights=(block.hidden,), shift=shift
            )
        wide, narrow, features = attention.heads, attention.kv_heads, attention.head_dim
        if attention.head_norms:
            for which in ("q_norm", "k_norm"):
                result[f"{ours}.{which}.weight"] = HubPart(
                    names=(f"{theirs}.self_attn.{which}.weight",), heights=(features,), shift=shift
                )
        fused: dict[str, tuple[dict[str, int], bool]] = {
            "qkv": (
                {f"self_attn.{one}_proj": n * features for one, n in zip("qkv", (wide, narrow, narrow), strict=True)},
                attention.qkv_bias,
            ),
            "proj": ({"self_attn.o_proj": block.hidden}, attention.out_bias),
        }
        if isinstance(feed, MixtureOfExperts):
            fused |= _experts(feed, block.hidden, family)
        elif feed is not None:
            fused["fc1"] = {"mlp.gate_proj": feed.intermediate, "mlp.up_proj": feed.intermediate}, feed.bias
            fused["fc2"] = {"mlp.down_proj": block.hidden}, feed.bias
        for linear, (some, bias) in fused.items():
            for what in ("weight", "bias")[: 2 if bias else 1]:
                result[f"{ours}.{linear}.{what}"] = HubPart(
                    names=tuple(f"{theirs}.{name}.{what}" for name in some), heights=tuple(some.values())
                )
    result["norm.weight"] = HubPart(names=("norm.weight",), heights=(model.hidden,), shift=shift)
    if not model.tied_embeddings:
        result["head.weight"] = HubPart(names=("lm_head.weight",), heights=(model.vocab,))
    return result


def _experts(moe: MixtureOfExperts, hidden: int, family: str) -> dict[str, tuple[dict[str, int], bool]]:
    """The router and the experts of a block, one expert after the other."""
    mixtral = family == "mixtral"
    home = "block_sparse_moe" if mixtral else "mlp"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    width, each = moe.expert.intermediate, [f"{home}.experts.{i}" for i in range(moe.experts)]
    return {
        "router": ({f"{home}.gate": moe.experts}, False),
        "expert.fc1": ({f"{one}.{which}": width for one in each for which in (gate, up)}, False),
        "expert.fc2": ({f"{one}.{down}": hidden for one in each}, False),
    }


def _norms(count: int) -> dict[str, str]:
    """The norms of a block by Weft's names."""
    behind = "post_attention_layernorm"
    if count == 2:
        return {"norm1": "input_layernorm", "norm2": behind}
    other = {"norm2": "pre_feedforward_layernorm", "norm3": behind, "norm4": "post_feedforward_layernorm"}
    return {"norm1": "input_layernorm", **other}


class HubWeights:
    """Whole parameters of a model from a folder of the hub, rectangle by rectangle (``parameters.Whole``).

    Raises:
        BadInput: no such folder, a file is missing or damaged, or a tensor is missing, has another shape than the
            model's, or is none of it.
        Unsupported: the model type is none of ``FAMILIES``.
    """

    def __init__(self, folder: str | os.PathLike[str], model: Model) -> None:
        self._folder = Path(folder)
        self._parts = parts(model, family_of(folder))
        self._files: dict[str, Any] = {}
        self._file_of = self._listed()
        tables = [name for name in self._file_of if name.endswith(_TABLE)]
        if len(tables) != 1:
            raise self._bad(f"{len(tables)} tensors end in {_TABLE}", "give the weights of one language model")
        self._prefix = tables[0].removesuffix(_TABLE)
        self._check(tied=model.tied_embeddings)

    def __call__(self, name: str, shape: Shape, offsets: Shape, sizes: Shape) -> Tensor:
        part, result, start = self._parts[name], [], 0
        low, high = offsets[0], offsets[0] + sizes[0]
        for own, height in zip(part.names, part.heights, strict=True):
            first, last = max(low - start, 0), min(high - start, height)
            if first < last:
                columns = () if len(sizes) == 1 else (slice(offsets[1], offsets[1] + sizes[1]),)
                result.append(self._tensor(own, (height, *shape[1:]))[(slice(first, last), *columns)])
            start += height
        values = result[0] if len(result) == 1 else torch.cat(result)
        return values.float() + part.shift if part.shift else values

    def _tensor(self, own: str, shape: Shape) -> Any:
        """A tensor of which slices are read."""
        name = self._full(own)
        file = self._file_of[name]
        try:
            stored = self._open(file).get_slice(name)
        except SafetensorError:
            raise self._bad(f"the index says that {file} has {name}, which it has not") from None
        if stored.get_dtype() not in STORED:
            what, where = f"its numbers are {stored.get_dtype()}", f"{self._folder / file}: {name}"
            raise BadInput(what, where=where, remedy=f"give weights in {', '.join(STORED)}")
        if tuple(stored.get_shape()) != shape:
            raise self._bad(
                f"{name} has the shape {tuple(stored.get_shape())}, the model of its config.json {shape}",
                "give the config.json that belongs to the weights",
            )
        return stored

    def _full(self, own: str) -> str:
        """The name in the files; that of the head has another prefix."""
        if own != "lm_head.weight":
            return self._prefix + own
        return next((name for name in self._file_of if name.endswith(own)), own)

    def _check(self, *, tied: bool) -> None:
        """Refuse weights that lack a tensor of the model's, or have one more."""
        wanted = {self._full(own) for part in self._parts.values() for own in part.names}
        missing = sorted(wanted - self._file_of.keys())
        if missing:
            raise self._bad(f"misses {counted(len(missing), 'tensor')}, the first is {missing[0]}", "give all files")
        others = (name for name in self._file_of.keys() - wanted if name.startswith(self._prefix or "layers."))
        left = sorted(name for name in others if not name.endswith((*_DERIVED, *(("lm_head.weight",) * tied))))
        if left:
            raise self._bad(
                f"holds {counted(len(left), 'tensor')} of no layer that its config.json says, the first is {left[0]}",
                "give the config.json that belongs to the weights",
            )

    def _listed(self) -> dict[str, str]:
        """The file of each tensor."""
        path = self._folder / INDEX
        if not path.is_file():
            if not (self._folder / SINGLE).is_file():
                remedy = "go on from checkpoints of weft train with --resume or --resume-from; complete a download"
                raise self._bad(f"holds no weights ({SINGLE} or {INDEX})", remedy)
            return dict.fromkeys(self._open(SINGLE).keys(), SINGLE)
        table = parse_json(read_text(path), str(path))
        listed = table.get("weight_map") if isinstance(table, dict) else None
        if not isinstance(listed, dict) or not all(isinstance(file, str) for file in listed.values()):
            raise BadInput("has no weight_map", where=str(path), remedy="is the download complete?")
        for file in set(listed.values()):
            if os.path.basename(file) != file:
                raise BadInput(f"{file!r:.80} is not in its folder", where=str(path), remedy="name a file beside it")
        return listed

    def _open(self, file: str) -> Any:
        """A file, mapped into memory."""
        where = self._folder / file
        if file not in self._files:
            try:
                self._files[file] = safe_open(where, framework="pt")
            except OSError as error:
                problem = f"cannot be read: {error.strerror or error}"
                raise BadInput(problem, where=str(where), remedy="check the path") from None
            except SafetensorError as error:
                problem = f"is not a safetensors file: {str(error)[:100]}"
                raise BadInput(problem, where=str(where), remedy="is the download complete?") from None
        return self._files[file]

    def _bad(self, problem: str, remedy: str = "is the download complete?") -> BadInput:
        return BadInput(problem, where=str(self._folder), remedy=remedy)


# Writing -----------------------------------------------------------------------------------------

CONFIG = "config.json"
LARGEST_SHARD_BYTES = 5_000_000_000
"""As the hub's own tools cut files."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileTensor:
    """A tensor of a file: rows of a parameter of Weft, from ``start``."""

    name: str
    dtype: torch.dtype
    shape: Shape
    source: str
    start: int = 0
    shift: float = 0.0

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def of(self, parameter: Tensor) -> Tensor:
        rows = parameter[self.start : self.start + self.shape[0]]
        return (rows - self.shift if self.shift else rows).to(self.dtype)


def export_hub(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    largest_bytes: int = LARGEST_SHARD_BYTES,
) -> None:
    """Write a checkpoint's parameters to a folder that ``transformers`` loads, with one in memory at a time.

    Args:
        config: the model's ``config.json``, or a folder that holds it; by default that beside the checkpoint, where
            ``weft train --out`` writes it.
        dtype: fp32, bf16 or fp16; by default that of the checkpoint.
        largest_bytes: of a file.

    Raises:
        BadInput: the folder is not a checkpoint, damaged or of another model than the configuration's, there is no
            configuration, or ``out`` is not empty or cannot be written.
        Unsupported: the hub has no names for weights of such models.
    """
    source, target = Path(folder), Path(out)
    place = Path(config or source.absolute().parent / CONFIG)
    if config is None and not place.is_file():
        raise BadInput(
            f"there is no config.json, and the hub's names are known for {', '.join(FAMILIES)} only",
            where=str(place),
            remedy="give the model's with --config, or export without --to hf",
        )
    family, saved = family_of(place), saved_parameters(source)
    tensors = list(_hub_tensors(saved, parts(read_config(place), family), source, dtype))
    _make_empty(target)
    files = _files(tensors, largest_bytes)
    for name, shard in files.items():
        _write(target / name, shard, saved, {})
    if len(files) > 1:
        size_bytes = sum(tensor.size_bytes for tensor in tensors)
        listed = {tensor.name: name for name, shard in files.items() for tensor in shard}
        index = {"metadata": {"total_size": size_bytes}, "weight_map": listed}
        write_text(target / INDEX, json.dumps(index, indent=2) + "\n")
    table, _ = read_text_part(place)
    table |= {"architectures": [FAMILIES[family]], "dtype": str(tensors[0].dtype).removeprefix("torch.")}
    table.pop("torch_dtype", None)
    write_text(target / CONFIG, json.dumps(table, indent=2) + "\n")


def _make_empty(target: Path) -> None:
    with refused("cannot be written", str(target)):
        target.mkdir(parents=True, exist_ok=True)
        full = any(target.iterdir())
    if full:
        raise BadInput("the folder is not empty", where=str(target), remedy="name a new one")


def _hub_tensors(
    saved: FolderReader, hub_parts: dict[str, HubPart], source: Path, dtype: str | None
) -> Iterator[_FileTensor]:
    """The hub's tensors, in the order of Weft's parameters."""
    different = sorted(saved.entries.keys() ^ hub_parts.keys())
    problem = f"{different[0]} is in one of them only" if different else ""
    for name, part in () if problem else hub_parts.items():
        entry, start = saved.entries[name], 0
        if entry.shape[0] != sum(part.heights):
            problem = f"{name} has {entry.shape[0]} rows, not {sum(part.heights)}"
            break
        for hub, height in zip(part.names, part.heights, strict=True):
            yield _FileTensor(
                name=hub if hub == "lm_head.weight" else f"model.{hub}",
                dtype=DTYPES[dtype] if dtype else entry.format,
                shape=(height, *entry.shape[1:]),
                source=name,
                start=start,
                shift=part.shift,
            )
            start += height
    if problem:
        problem = f"is of another model than the config.json: {problem}"
        raise BadInput(problem, where=str(source), remedy="give the model's with --config")


def _files(tensors: Iterable[_FileTensor], largest_bytes: int) -> dict[str, list[_FileTensor]]:
    """The tensors dealt to files in order, each below the limit unless one tensor is larger."""
    shards: list[list[_FileTensor]] = [[]]
    size_bytes = 0
    for tensor in tensors:
        if shards[-1] and size_bytes + tensor.size_bytes > largest_bytes:
            shards.append([])
            size_bytes = 0
        shards[-1].append(tensor)
        size_bytes += tensor.size_bytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": shard for i, shard in enumerate(shards, start=1)}


# One file under our names ------------------------------------------------------------------------

Shape = tuple[int, ...]
STORED = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_ALIGNMENT_BYTES = 8
_MOMENTS = tuple(f"/{moment}" for moment in MOMENTS)


def export(folder: str | os.PathLike[str], file: str | os.PathLike[str]) -> None:
    """Write the parameters of a checkpoint, whole and under Weft's names, to a safetensors file.

    Shapes are Weft's too: a convolution's weight is a matrix (outputs, inputs * kernel elements), and so is
    all else of more dimensions; ``gather_state_dict`` gives PyTorch's.  The optimizer's moments are left out;
    the state is JSON in the metadata's ``weft``.  One process does it, with one tensor in memory at a time.

    Raises:
        BadInput: the folder is not a checkpoint, damaged or cannot be read, or the file cannot be written.
    """
    source = Path(folder)
    state, saved = read_state(source), saved_parameters(source)
    tensors = [
        _FileTensor(name=name, dtype=entry.format, shape=entry.shape, source=name)
        for name, entry in saved.entries.items()
    ]
    _write(file, tensors, saved, {"weft": json.dumps(state)})


def saved_parameters(folder: Path) -> FolderReader:
    """The parameters of a checkpoint, without the optimizer's moments.

    Raises:
        BadInput: it is damaged or cannot be read.
    """
    index = read_index(folder)
    return FolderReader(folder, {name: entry for name, entry in index.items() if not name.endswith(_MOMENTS)})


def _write(
    path: str | os.PathLike[str], tensors: Sequence[_FileTensor], saved: FolderReader, metadata: Mapping[str, str]
) -> None:
    """A safetensors file; of the parameters one is in memory at a time."""
    names = {dtype: name for name, dtype in STORED.items()}
    table: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    start = 0
    for tensor in tensors:
        stop = start + tensor.size_bytes
        shape, place = list(tensor.shape), [start, stop]
        table[tensor.name] = {"dtype": names[tensor.dtype], "shape": shape, "data_offsets": place}
        start = stop
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    with writing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for parameter, rows in groupby(tensors, lambda tensor: tensor.source):
            try:
                values = saved.tensor(parameter)
            except OSError as error:
                where = str(error.filename or saved.folder)
                raise BadInput(f"cannot be read: {error.strerror}", where=where) from None
            for tensor in rows:
                file.write(raw_bytes(tensor.of(values)))
