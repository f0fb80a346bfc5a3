"""Models and recipes from a Megatron-LM command line.

Defaults are those of Megatron-LM's ``arguments.py``: four times the hidden size between the feed-forward
layers, a vocabulary padded to a multiple of 128 times the tensor-parallel size, tied embeddings, learned
positions, biases, and LayerNorm.  Flags that change neither shape nor recipe are ignored; those that change
the shape in a way that is not modelled are refused by name.

The arguments come from a list, a pasted command, or the text of a shell script.
"""

from __future__ import annotations

import ast
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from weft.errors import BadInput, Unsupported
from weft.model._families import runs
from weft.model._fields import MOST_LAYERS
from weft.model.job import AttentionKernel, Job, Precision, Recipe
from weft.model.spec import Attention, Block, FeedForward, LatentAttention, MixtureOfExperts, Model

__all__ = ["Arguments", "parse_arguments", "read_megatron_args", "read_megatron_job"]

_GPT2_VOCABULARY = 50257

_REFUSED = (
    "--attention-output-gate",
    "--decoder-num-layers",
    "--enable-mhc-connections",
    "--encoder-num-layers",
    "--experimental-attention-variant",
    "--heterogeneous-layers-config-encoded-json",
    "--heterogeneous-layers-config-path",
    "--hybrid-layer-pattern",
    "--hybrid-override-pattern",
    "--is-hybrid-model",
    "--linear-attention-freq",
    "--moe-latent-size",
    "--mtp-hybrid-override-pattern",
    "--mtp-use-repeated-layer",
    "--retro-add-retriever",
    "--spec",
    "--use-checkpoint-args",
    "--yaml-cfg",
)


def read_megatron_args(
    source: str | Sequence[str] | Arguments, *, name: str = "megatron", vocab: int | None = None
) -> Model:
    """The model that a Megatron-LM command trains.

    ``vocab`` is the tokenizer's vocabulary (before padding) for commands that leave it to the tokenizer.

    Raises:
        BadInput: a required flag is missing, or a value cannot be used.
        Unsupported: a flag changes the shape in a way that is not modelled.
    """
    a = source if isinstance(source, Arguments) else parse_arguments(source)
    _refuse(a)
    norm_bias = a.text("--normalization", "LayerNorm") != "RMSNorm"
    blocks = _blocks(a, norm_bias)
    return Model(
        name=name,
        hidden=blocks[0].hidden,
        vocab=_padded_vocabulary(a, vocab),
        runs=runs(blocks),
        tied_embeddings=not a.has("--untie-embeddings-and-output-weights"),
        positions=_positions(a),
        norm_bias=norm_bias,
        prediction_layers=a.integer("--mtp-num-layers", 0, least=0, most=64),
    )


def read_megatron_job(
    source: str | Sequence[str] | Arguments, *, name: str = "megatron", vocab: int | None = None
) -> Job:
    """The model and the recipe of a Megatron-LM command.

    Raises:
        BadInput: as ``read_megatron_args``, or ``--global-batch-size`` or ``--seq-length`` is missing.
        Unsupported: as ``read_megatron_args``.
    """
    a = source if isinstance(source, Arguments) else parse_arguments(source)
    dropout = max(a.number("--hidden-dropout", 0.1), a.number("--attention-dropout", 0.1)) > 0
    recipe = Recipe(
        global_batch=a.integer("--global-batch-size"),
        sequence=a.integer("--seq-length"),
        precision=_precision(a),
        attention=attention_kernel(a),
        dropout=dropout,
        gradient_bytes=_gradient_bytes(a),
    )
    return Job(model=read_megatron_args(a, name=name, vocab=vocab), recipe=recipe)


def _refuse(a: Arguments) -> None:
    for flag in _REFUSED:
        if a.has(flag):
            raise Unsupported(
                f"{flag} changes the model's shape in a way that is not modelled",
                where=a.where,
                remedy="remove the flag if the model runs without it",
            )


def _positions(a: Arguments) -> int:
    """Rows of the learned position table."""
    kind = a.text("--position-embedding-type", "learned_absolute")
    if kind == "relative":
        raise Unsupported("relative positions are not modelled", where=f"{a.where}: --position-embedding-type")
    rotary = a.has("--use-rotary-position-embeddings") or a.has("--no-position-embedding")
    if kind != "learned_absolute" or rotary:
        return 0
    return a.integer("--max-position-embeddings")


def _padded_vocabulary(a: Arguments, vocab: int | None) -> int:
    """Vocabulary rounded up to a multiple of ``--make-vocab-size-divisible-by`` x tensor-parallel size."""
    padded = a.optional_integer("--padded-vocab-size")
    if padded is not None:
        return padded
    fallback = vocab or (_GPT2_VOCABULARY if _uses_gpt2_tokenizer(a) else None)
    size = a.integer("--vocab-size", fallback)
    if a.has("--no-pad-vocab-size"):
        return size
    multiple = a.integer("--make-vocab-size-divisible-by", 128) * a.integer("--tensor-model-parallel-size", 1)
    return -(-size // multiple) * multiple


def _uses_gpt2_tokenizer(a: Arguments) -> bool:
    """GPT-2's byte-pair tokenizer: named, or a merge file given (the default tokenizer of old scripts)."""
    return a.text("--tokenizer-type") == "GPT2BPETokenizer" or a.has("--merge-file")


def _blocks(a: Arguments, norm_bias: bool) -> list[Block]:
    """The block of each layer."""
    layers = a.integer("--num-layers", most=MOST_LAYERS)
    hidden = a.integer("--hidden-size")
    latent = a.has("--multi-latent-attention")
    full = _latent_attention(a, hidden, norm_bias) if latent else _attention(a, hidden, norm_bias, None)
    narrow = full
    window = _window(a)
    if window is not None and not latent:
        narrow = _attention(a, hidden, norm_bias, window)
    dense, moe = _dense(a, hidden), _mixture(a, hidden)
    slides = _slides(a, layers)
    routed = _pattern(a, "--moe-layer-freq", layers) or [True] * layers
    return [
        Block(
            hidden=hidden,
            attention=narrow if slides[layer] else full,
            feed_forward=moe if moe and routed[layer] else dense,
            norm_bias=norm_bias,
        )
        for layer in range(layers)
    ]


def _attention(a: Arguments, hidden: int, norm_bias: bool, window: int | None) -> Attention:
    heads = a.integer("--num-attention-heads")
    kv_heads = a.integer("--num-query-groups", 1) if a.has("--group-query-attention") else heads
    if heads % kv_heads:
        raise a.bad("--num-query-groups", f"{heads} heads cannot share {kv_heads} groups evenly")
    channels = a.optional_integer("--kv-channels")
    if channels is None and hidden % heads:
        raise a.bad("--num-attention-heads", f"hidden size {hidden} is not a multiple of {heads} heads")
    head_dim = channels or hidden // heads
    bias = not a.has("--disable-bias-linear")
    norms = 2 * head_dim * (2 if norm_bias else 1) if a.has("--qk-layernorm") else 0
    sinks = heads if a.text("--softmax-type") == "learnable" else 0
    rotary = a.text("--position-embedding-type") in ("rope", "yarn", "mrope")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=window,
        qkv_bias=bias or a.has("--add-qkv-bias"),
        out_bias=bias,
        extra_parameters=norms + sinks,
        rotary=rotary or a.has("--use-rotary-position-embeddings"),
    )


def _latent_attention(a: Arguments, hidden: int, norm_bias: bool) -> LatentAttention:
    """Multi-latent attention; a bias of the output projection counts among the small vectors."""
    if a.has("--window-size"):
        raise Unsupported("--window-size with --multi-latent-attention is not modelled", where=a.where)
    q_rank = a.optional_integer("--q-lora-rank")
    kv_rank = a.integer("--kv-lora-rank", 32)
    norms = ((q_rank or 0) + kv_rank) * (2 if norm_bias else 1) if a.has("--qk-layernorm") else 0
    return LatentAttention(
        heads=a.integer("--num-attention-heads"),
        q_rank=q_rank,
        kv_rank=kv_rank,
        nope_dim=a.integer("--qk-head-dim", 128),
        rope_dim=a.integer("--qk-pos-emb-head-dim", 64),
        value_dim=a.integer("--v-head-dim", 128),
        extra_parameters=norms + (0 if a.has("--disable-bias-linear") else hidden),
    )


def _gated(a: Arguments) -> bool:
    return a.has("--swiglu") or a.has("--quick-geglu")


def _width(a: Arguments, hidden: int) -> int:
    """Features between the feed-forward layers; SwiGLU's default is 8/3 hidden, down to a multiple of 64."""
    default = int((4 * hidden * 2 / 3) / 64) * 64 if a.has("--swiglu") else 4 * hidden
    return a.integer("--ffn-hidden-size", default or 64)


def _dense(a: Arguments, hidden: int) -> FeedForward:
    return FeedForward(intermediate=_width(a, hidden), gated=_gated(a), bias=not a.has("--disable-bias-linear"))


def _mixture(a: Arguments, hidden: int) -> MixtureOfExperts | None:
    """The routed layer, or None for a dense model."""
    experts = a.optional_integer("--num-experts")
    if experts is None:
        return None
    top_k = a.integer("--moe-router-topk", 2)
    if top_k > experts:
        raise a.bad("--moe-router-topk", f"a token cannot use {top_k} of {experts} experts")
    bias = not a.has("--disable-bias-linear")
    width = a.integer("--moe-ffn-hidden-size", _width(a, hidden))
    shared = a.optional_integer("--moe-shared-expert-intermediate-size")
    balance = experts if a.has("--moe-router-enable-expert-bias") else 0
    gate = hidden if shared and a.has("--moe-shared-expert-gate") else 0
    return MixtureOfExperts(
        experts=experts,
        top_k=top_k,
        expert=FeedForward(intermediate=width, gated=_gated(a), bias=bias),
        shared=FeedForward(intermediate=shared, gated=_gated(a)) if shared else None,
        router_bias=bias,
        extra_parameters=balance + gate,
    )


def _window(a: Arguments) -> int | None:
    """Keys that a query sees: itself and the first number of ``--window-size`` before it (-1: all)."""
    if not a.has("--window-size"):
        return None
    match = re.fullmatch(r"\(?\s*(-1|[0-9]{1,9})\s*,?\s*(-1|0)\s*\)?", a.text("--window-size"))
    if match is None:
        problem = f"{reprlib.repr(a.text('--window-size'))} is not a causal window"
        raise a.bad("--window-size", problem, "write it like 127,0")
    return None if match[1] == "-1" else int(match[1]) + 1


def _slides(a: Arguments, layers: int) -> list[bool]:
    """For each layer whether it has the window; with a frequency N, every N-th layer has none."""
    if not a.has("--window-attn-skip-freq"):
        return [True] * layers
    text = a.text("--window-attn-skip-freq")
    if text.isdecimal():
        step = a.integer("--window-attn-skip-freq")
        return [(layer + 1) % step != 0 for layer in range(layers)]
    return _pattern(a, "--window-attn-skip-freq", layers) or [True] * layers


def _pattern(a: Arguments, flag: str, layers: int) -> list[bool] | None:
    """One truth value a layer from N (every N-th, the first included) or a list such as [0]*3+[1]*58."""
    if not a.has(flag):
        return None
    text = a.text(flag)
    if text.isdecimal():
        step = a.integer(flag)
        return [layer % step == 0 for layer in range(layers)]
    try:
        pattern = _evaluate(ast.parse(text.strip(), mode="eval").body) if len(text) < 10_000 else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pattern = None
    if pattern is None:
        raise a.bad(flag, f"{reprlib.repr(text)} is no layer pattern", "write it like [0]*3+[1]*58")
    if len(pattern) != layers:
        raise a.bad(flag, f"the pattern has {len(pattern)} entries for {layers} layers")
    return pattern


def _evaluate(node: ast.expr) -> list[bool]:
    """The entries of a sum or repetition of lists of 0 and 1.

    Raises:
        ValueError: anything else, or more than ``MOST_LAYERS`` entries.
    """
    match node:
        case ast.List(elts=items) if all(map(_is_bit, items)):
            return [isinstance(item, ast.Constant) and item.value == 1 for item in items]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _bounded(_evaluate(left) + _evaluate(right))
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if times >= 0:
            return _bounded(_evaluate(left) * min(times, MOST_LAYERS + 1))
    raise ValueError("not a layer pattern")


def _is_bit(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1)


def _bounded(pattern: list[bool]) -> list[bool]:
    if len(pattern) > MOST_LAYERS:
        raise ValueError("too many layers")
    return pattern


def _precision(a: Arguments) -> Precision:
    if a.has("--fp4-format"):
        return "nvfp4"
    if a.has("--fp8-format"):
        return "mxfp8" if a.text("--fp8-recipe") == "mxfp8" else "fp8"
    if a.has("--bf16"):
        return "bf16"
    return "fp16" if a.has("--fp16") else "fp32"


def attention_kernel(a: Arguments) -> AttentionKernel:
    """Flash attention unless another kernel is asked for, or a local implementation without it."""
    if a.text("--attention-backend") in ("unfused", "local"):
        return "unfused"
    local = a.text("--transformer-impl", "transformer_engine") == "local"
    return "unfused" if local and not a.has("--use-flash-attn") else "flash"


def _gradient_bytes(a: Arguments) -> int:
    """Megatron accumulates in fp32 with bf16 unless told otherwise, and in fp16 with fp16."""
    if a.has("--grad-reduce-in-bf16"):
        return 2
    half = a.has("--fp16") and not a.has("--accumulate-allreduce-grads-in-fp32")
    return 2 if half else 4


LARGEST_TEXT = 1_000_000
LARGEST_VALUE = 10**9

_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
_TOKEN = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'|([^\s\"']+)")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_ASSIGNMENT = re.compile(
    r"^[ \t]*+(?:(?:export|local)[ \t]++)?([A-Za-z_]\w*+)=(?![(])[\"']?([^\s\"'();]*)", re.MULTILINE
)
_PREFIX = re.compile(r"[A-Za-z_]\w*\+?=")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}$]*))?\}|(\w+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The flags of a command: each with its values joined by spaces, or "" when it stands alone.

    A flag given twice keeps its last value, as argparse does.
    """

    values: Mapping[str, str]
    where: str = "arguments"

    def has(self, flag: str) -> bool:
        return flag in self.values

    def text(self, flag: str, default: str = "") -> str:
        return self.values.get(flag) or default

    def bad(self, flag: str, problem: str, remedy: str | None = None) -> BadInput:
        """A ``BadInput`` about a flag."""
        return BadInput(problem, where=f"{self.where}: {flag}", remedy=remedy)

    def optional_integer(self, flag: str, *, least: int = 1, most: int = LARGEST_VALUE) -> int | None:
        """The whole number after a flag, or None where the flag is absent.

        Raises:
            BadInput: no whole number, or out of range.
        """
        if flag not in self.values:
            return None
        text = self.values[flag]
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            remedy = "write the number instead of the variable" if "$" in text else None
            raise self.bad(flag, f"{reprlib.repr(text)} is not a whole number", remedy)
        value = int(text)
        if not least <= value <= most:
            raise self.bad(flag, f"{value} is outside {least} to {most}")
        return value

    def integer(self, flag: str, default: int | None = None, *, least: int = 1, most: int = LARGEST_VALUE) -> int:
        """Like ``optional_integer``, with a default; without one the flag is required."""
        value = self.optional_integer(flag, least=least, most=most)
        if value is not None:
            return value
        if default is None:
            raise BadInput(f"{flag} is missing", where=self.where, remedy=f"add {flag} and its value")
        return default

    def number(self, flag: str, default: float) -> float:
        """A finite number >= 0."""
        text = self.values.get(flag)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise self.bad(flag, f"{reprlib.repr(text)} is not a number") from None
        if not 0 <= value < math.inf:
            raise self.bad(flag, f"{text} is not a finite number >= 0")
        return value


def parse_arguments(source: str | Sequence[str], *, where: str = "arguments") -> Arguments:
    """The flags in a list of arguments or in the text of a command or shell script.

    In text, line continuations, comments, quotes, bash arrays and variables that the text gives one value are
    understood; other variables stay as they are written.

    Raises:
        BadInput: more than ``LARGEST_TEXT`` characters, or no flag at all.
    """
    words = _words_of_text(source, where) if isinstance(source, str) else map(str, source)
    values: dict[str, list[str]] = {}
    flag, size = None, 0
    for word in words:
        size += len(word)
        if size > LARGEST_TEXT:
            raise _too_long(where)
        name, equals, rest = word.partition("=")
        if _FLAG.fullmatch(name):
            flag = name
            values[flag] = [rest] if rest else []
            if equals:
                flag = None
        elif word in _BOUNDARIES:
            flag = None
        elif flag is not None:
            values[flag].append(word)
    if not values:
        raise BadInput("no argument such as --num-layers", where=where, remedy="give a training command")
    joined = {name: " ".join(given).strip() for name, given in values.items()}
    return Arguments(values=MappingProxyType(joined), where=where)


def _too_long(where: str) -> BadInput:
    return BadInput(f"longer than {LARGEST_TEXT} characters", where=where, remedy="give the command only")


_BOUNDARIES = frozenset({"", "(", ")", "\\", ";", "&&", "||", "|", "&"})


def _words_of_text(text: str, where: str) -> Iterator[str]:
    if len(text) > LARGEST_TEXT:
        raise _too_long(where)
    joined = re.sub(r"\\\r?\n", " ", _COMMENT.sub("", text))
    variables = _variables(joined)
    for line in joined.splitlines():
        yield from _words_of_line(line, variables)


def _variables(text: str) -> dict[str, str]:
    """Variables with one value in the text; those assigned differently (in branches) are left out."""
    found: dict[str, str] = {}
    ambiguous = set()
    for match in _ASSIGNMENT.finditer(text):
        value = _expand(match[2], found)
        if found.setdefault(match[1], value) != value:
            ambiguous.add(match[1])
    return {name: value for name, value in found.items() if name not in ambiguous}


def _words_of_line(line: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Words of one line, ended by an empty word: values do not continue on the next line."""
    for match in _TOKEN.finditer(line):
        quoted = match[1] if match[1] is not None else match[2]
        if quoted is None:
            plain = _PREFIX.sub("", match[3], count=1) if _PREFIX.match(match[3]) else match[3]
            yield _expand(plain, variables)
        elif "--" in quoted:
            yield from (_expand(word, variables) for word in quoted.split())
        else:
            yield _expand(quoted, variables)
    yield ""


def _expand(word: str, variables: Mapping[str, str]) -> str:
    """Replace variables that the text assigned so far, or their ``:-`` defaults; others stay."""
    replaced = _VARIABLE.sub(lambda m: variables.get(m[1] or m[3], m[2] or m[0]), word)
    return replaced if len(replaced) <= 10_000 else word
