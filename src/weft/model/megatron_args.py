"""Models and recipes from a Megatron-LM command line.

Defaults are those of Megatron-LM's ``arguments.py``: four times the hidden size between the feed-forward
layers, a vocabulary padded to a multiple of 128 times the tensor-parallel size, tied embeddings, learned
positions, biases, and LayerNorm.  Flags that change neither shape nor recipe are ignored; those that change
the shape in a way that is not modelled are refused by name.

The arguments come from a list, a pasted command, or the text of a shell script.
"""

from __future__ import annotations

import ast
import re
import reprlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from weft.errors import BadInput, Unsupported
from weft.model._families import runs
from weft.model.job import AttentionKernel, Job, Precision, Recipe
from weft.model.settings import Settings
from weft.model.spec import MOST_LAYERS, Attention, Block, FeedForward, LatentAttention, MixtureOfExperts, Model, Rope

# Scripts -------------------------------------------------------------------------------------------------------
# The words of a shell script's commands: variables, arrays and joined lines, with the quotes of `shlex`.
#
# Read are `NAME=...`, `NAME=( ... )`, `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME[@]}`. What the text does
# not set stays as it is written, except for defaults. A command that needs anything else (output of another,
# arithmetic, what conditions, loops and functions set or start) is refused, with its line. Nothing is executed.

LARGEST_TEXT = 1_000_000
OPEN = re.compile(r"\$([A-Za-z_]\w*|[0-9@*])", re.ASCII)
"""What has no value in a word."""

_BRACED = r"\$\{(?>\$\{[^{}]*\}|[^{}])*+\}"
_QUOTED = rf"'[^']*'|\"(?>\\.|{_BRACED}|[^\"\\])*+\""
_WITHIN = rf"[^()'\"]|{_QUOTED}"
_OUTPUT = rf"\$\((?>{_WITHIN}|\((?>{_WITHIN}|\((?>{_WITHIN}|\((?>{_WITHIN})*+\))*+\))*+\))*+\)|`[^`]*`"
_LIST = rf"=\((?>(?<=\s)#[^\n]*|{_QUOTED}|{_OUTPUT}|{_BRACED}|\\.|[^()'\"\\])*+\)"
_WORD = rf"(?>{_LIST}|{_QUOTED}|{_OUTPUT}|{_BRACED}|\\[^\n]|[^\s;|&()<>\\])++"
_ARRAY = re.compile(_LIST, re.DOTALL)
_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t]|\\\n)++)|(?P<comment>#[^\n]*)|(?P<paren>[()])|(?P<end>&&|\|\||;+|[|\n]|&(?!>))"
    r"|(?P<here><<-? *['\"]?(?P<tag>\w+)[^\n]*(?=\n)(?P<body>.*?)(?:\n\t*(?P=tag)(?=\n|\Z)|\Z))"
    rf"|(?P<moved>[0-9&]?[<>]+(?:&[0-9-]|[ \t]*{_WORD})?)|(?P<word>{_WORD})|(?P<other>.)",
    re.DOTALL,
)
_PART = re.compile(rf"{_QUOTED}|(?>{_OUTPUT}|{_BRACED}|\\.|[^'\"\\])++|.", re.DOTALL)
_REFERENCE = re.compile(rf"\\.|{_OUTPUT}|{_BRACED}|\$(?:[A-Za-z_]\w*|[^\s'\"])?|`", re.DOTALL | re.ASCII)
_VALUE = re.compile(
    r"\$(\{)?(?P<name>[A-Za-z_]\w*|[0-9@*])(?:(?P<all>\[[@*]\])|:-(?P<default>.*))?(?(1)\})", re.DOTALL | re.ASCII
)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)((?:\[[^\]]*\])?\+?)=", re.ASCII)
_DECLARING = frozenset({"export", "declare", "local", "readonly"})
_SETTING = frozenset({"for", "select", "read", "unset", "mapfile"})
_OPENED = frozenset({"if", "while", "until", "case", "{", "("})
_SHUT = frozenset({"fi", "done", "esac", "}", ")"})
_LEADING = _OPENED | {"then", "do", "else", "elif", "function", "!"}


class _RefusedError(BadInput):
    """Syntax that is not read; what does not need it is."""


@dataclass(slots=True)
class Command:
    """The words of a program that would start, or of a variable; as they are written where something is refused."""

    words: list[str]
    refused: BadInput | None = None

    @property
    def flat(self) -> list[str]:
        """The words; a quoted command line, which another shell would take apart, gives its own."""
        return [part for word in self.words for part in (word.split() if "--" in word else [word])]


@dataclass(slots=True)
class Script:
    """What starts, in order, the last value of every variable, and what people should be told."""

    where: str
    commands: list[Command] = field(default_factory=list)
    variables: dict[str, Command] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    line: int = 1
    left: int = LARGEST_TEXT
    inside: list[str] = field(default_factory=list)

    def command(self, words: list[str], joint: str) -> bool:
        """Take a command; whether it ends the script."""
        while words and (words[0] in _LEADING or (words[0] in _SHUT and self.inside)):
            if words[0] in _OPENED:
                self.inside.append(words[0])
            elif words[0] in _SHUT and (words[0] != ")" or self.inside[-1] == "("):
                self.inside.pop()
            words = words[2 if words[0] == "function" else 1 :]
        sometimes = bool(self.inside) or joint in ("&&", "||")
        number = next((n for n, word in enumerate(words) if not _ASSIGNED.match(word)), len(words))
        if not words:
            return False
        if number == len(words) or words[0] in _DECLARING:
            for match in filter(None, map(_ASSIGNED.match, words)):
                self.assign(match, sometimes)
        elif words[0] in _SETTING:
            for name in words[1:2] if words[0] in ("for", "select") else words[1:]:
                self.variables[name] = Command([], self.refused(" ".join(words)))
            self.inside += ["for"] if words[0] in ("for", "select") else []
        elif words[0] in ("source", ".", "eval"):
            self.notes.append(f"what {' '.join(words)[:60]} sets is not read")
        else:
            self.start(words[number:], self.refused(" ".join(words)) if self.inside or joint == "<<" else None)
        return words[0] == "exit" and not sometimes

    def start(self, words: list[str], refused: BadInput | None = None) -> None:
        """A program starts."""
        try:
            self.commands.append(Command([part for word in words for part in self.expanded(word)], refused))
        except _RefusedError as error:
            self.commands.append(Command(words, error))

    def assign(self, match: re.Match[str], sometimes: bool) -> None:
        """Set the variable of ``NAME=...``."""
        name, operator, raw = match[1], match[2], match.string[match.end() :]
        items = (
            [match[0] for match in _TOKEN.finditer(raw[1:-1]) if match["word"]]
            if _ARRAY.fullmatch(f"={raw}")
            else None
        )
        try:
            if sometimes or operator:
                raise self.refused(match.string)
            value = (
                [" ".join(self.expanded(raw))] if items is None else [w for item in items for w in self.expanded(item)]
            )
            self.variables[name] = Command(value)
        except _RefusedError as error:
            self.variables[name] = Command(re.findall(r"[^\s\"'()]+", raw), error)

    def refused(self, words: str) -> _RefusedError:
        words = " ".join(words.split())
        problem = f"{words if len(words) < 60 else words[:57] + '...'} is not read"
        return _RefusedError(problem, where=f"{self.where}: line {self.line}", remedy="paste the expanded arguments")

    def expanded(self, raw: str) -> list[str]:
        """The words that a word becomes."""
        try:
            return shlex.split("".join(map(self.part, _PART.findall(raw))))
        except ValueError:
            raise self.refused(raw) from None

    def part(self, text: str) -> str:
        """Quoted or plain text with values for its variables, as ``shlex`` reads it."""
        if text[0] == "'":
            return text
        quoted = text[0] == '"' and len(text) > 1
        inner = text[1:-1] if quoted else text
        if quoted and (match := _VALUE.fullmatch(inner)) and match["all"] == "[@]":
            return " ".join(map(shlex.quote, self.value(match)))
        special = r'["\\]' if quoted else r"[\"'\\]"
        filled = _REFERENCE.sub(lambda match: self.reference(match[0], special), inner)
        return f'"{filled}"' if quoted else filled

    def reference(self, text: str, special: str) -> str:
        """The value of ``$NAME`` with a backslash before each special character; an escaped character as it is."""
        if text[0] == "\\":
            return text[1:].strip() if text[1:] in ("\n", "$", "`") else text
        if (match := _VALUE.fullmatch(text)) is None:
            raise self.refused(text)
        return re.sub(special, r"\\\g<0>", " ".join(self.value(match)))

    def value(self, match: re.Match[str]) -> list[str]:
        """The items of a variable, the first alone without ``[@]``."""
        name, every, default = match.group("name", "all", "default")
        value = self.variables.get(name)
        if value and value.refused:
            raise value.refused
        words = [f"${name}"] if value is None else value.words if every else value.words[:1]
        if default is not None and ("".join(words) == "" or OPEN.fullmatch("".join(words))):
            return self.expanded(default)
        self.left -= sum(map(len, words)) + len(words)
        if self.left < 0:
            raise too_long(self.where)
        return words


def too_long(where: str) -> BadInput:
    return BadInput(f"longer than {LARGEST_TEXT} characters", where=where, remedy="give the command only")


def read_script(text: str, *, where: str) -> Script:
    """The commands of a script; a text that begins with a flag is a list of arguments, with quotes and variables.

    Raises:
        BadInput: more than ``LARGEST_TEXT`` characters, before or after variables have their values.
    """
    if len(text) > LARGEST_TEXT:
        raise too_long(where)
    script, text = Script(where), text.replace("\r\n", "\n")
    if text.lstrip().startswith("--"):
        script.start([text.replace("\\\n", " ")])
        return script
    for script.line, joint, words in _commands(text):
        if script.command(words, joint):
            break
    return script


def _commands(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """The line of each command, what joins it to the one before, and its words as they are written."""
    line, first, joint, words = 1, 1, "", list[str]()
    for token in _TOKEN.finditer(f"{text}\n"):
        kind, piece = token.lastgroup, token[0]
        if kind == "word":
            first = first if words else line
            words.append(piece)
        elif kind in ("end", "paren"):
            yield first, joint, words
            words, joint = [], piece
            if kind == "paren":
                yield line, "", [piece]
        elif kind == "here":
            yield line, "<<", ["<<", *token["body"].split()]
        line += piece.count("\n")


# Arguments -----------------------------------------------------------------------------------------------------

_GPT2_VOCABULARY = 50257

_SHAPE = ("--num-layers", "--hidden-size", "--num-attention-heads")

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


class Flag(NamedTuple):
    """A flag, the field that it sets, and the value without it: False where the flag is a switch."""

    flag: str
    field: str
    default: int | None = None


LATENT = (
    Flag("--q-lora-rank", "q_rank"),
    Flag("--kv-lora-rank", "kv_rank", 32),
    Flag("--qk-head-dim", "nope_dim", 128),
    Flag("--qk-pos-emb-head-dim", "rope_dim", 64),
    Flag("--v-head-dim", "value_dim", 128),
    Flag("--qk-layernorm", "latent_norms", False),
)
"""Of ``LatentAttention``."""
MIXTURE = (
    Flag("--num-experts", "experts"),
    Flag("--moe-router-topk", "top_k", 2),
    Flag("--moe-router-enable-expert-bias", "balance_bias", False),
)
"""Of ``MixtureOfExperts``."""


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
    for flag in filter(a.has, _REFUSED):
        raise Unsupported(
            f"{flag} changes the model's shape in a way that is not modelled",
            where=a.where,
            remedy="remove the flag if the model runs without it",
        )
    _require(a, *_SHAPE, vocab=vocab)
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
        prediction_layers=a.integer("--mtp-num-layers", default=0, least=0, most=64),
        rope=_rope(a) if blocks[0].attention is not None and blocks[0].attention.rotary else None,
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
    _require(a, *_SHAPE, "--seq-length", "--global-batch-size", vocab=vocab)
    recipe = Recipe(
        global_batch=a.integer("--global-batch-size"), sequence=a.integer("--seq-length"), **read_numerics(a)
    )
    return Job(model=read_megatron_args(a, name=name, vocab=vocab), recipe=recipe)


def _require(a: Arguments, *flags: str, vocab: int | None) -> None:
    """Name all flags at once that a reader cannot do without."""
    missing = [flag for flag in flags if not a.has(flag)]
    if not (vocab or a.has("--padded-vocab-size") or a.has("--vocab-size") or _uses_gpt2_tokenizer(a)):
        missing.append("--vocab-size")
    if missing:
        raise a.missing(*missing)


def _positions(a: Arguments) -> int:
    """Rows of the learned position table."""
    kind = a.text("--position-embedding-type", "learned_absolute")
    if kind == "relative":
        raise Unsupported("relative positions are not modelled", where=f"{a.where}: --position-embedding-type")
    rotary = a.has("--use-rotary-position-embeddings") or a.has("--no-position-embedding")
    return 0 if kind != "learned_absolute" or rotary else a.integer("--max-position-embeddings")


def _rope(a: Arguments) -> Rope:
    """How positions rotate; latent attention takes YaRN unless told otherwise."""
    base, share = a.number("--rotary-base", 10_000.0), a.number("--rotary-percent", 1.0)
    latent = a.has("--multi-latent-attention") and a.text("--rope-type", "yarn") == "yarn"
    if latent or a.text("--position-embedding-type") == "yarn":
        return Rope(base=base, share=share, scaling="yarn", factor=a.number("--rotary-scaling-factor", 1.0))
    if a.has("--use-rope-scaling"):
        return Rope(base=base, share=share, scaling="llama3", factor=a.number("--rope-scaling-factor", 8.0))
    if a.has("--rotary-seq-len-interpolation-factor"):
        factor = a.number("--rotary-seq-len-interpolation-factor", 1.0)
        return Rope(base=base, share=share, scaling="linear", factor=factor)
    return Rope(base=base, share=share)


def _padded_vocabulary(a: Arguments, vocab: int | None) -> int:
    """Vocabulary rounded up to a multiple of ``--make-vocab-size-divisible-by`` x tensor-parallel size."""
    padded = a.optional_integer("--padded-vocab-size")
    if padded is not None:
        return padded
    size = a.integer("--vocab-size", default=vocab or (_GPT2_VOCABULARY if _uses_gpt2_tokenizer(a) else None))
    if a.has("--no-pad-vocab-size"):
        return size
    multiple = a.integer("--make-vocab-size-divisible-by", default=128) * a.count("--tensor-model-parallel-size")
    return -(-size // multiple) * multiple


def _uses_gpt2_tokenizer(a: Arguments) -> bool:
    """GPT-2's byte-pair tokenizer: named, or a merge file given (the default tokenizer of old scripts)."""
    return a.text("--tokenizer-type") == "GPT2BPETokenizer" or a.has("--merge-file")


def _blocks(a: Arguments, norm_bias: bool) -> list[Block]:
    """The block of each layer."""
    layers = a.integer("--num-layers", most=MOST_LAYERS)
    hidden = a.integer("--hidden-size")
    bias = not a.has("--disable-bias-linear")
    full: Attention | LatentAttention
    narrow: Attention | LatentAttention
    if a.has("--multi-latent-attention"):
        if a.has("--window-size"):
            raise Unsupported("--window-size with --multi-latent-attention is not modelled", where=a.where)
        full = narrow = LatentAttention(heads=a.integer("--num-attention-heads"), out_bias=bias, **a.fields(LATENT))
    else:
        full = _attention(a, hidden, bias)
        narrow = replace(full, window=_window(a))
    gated = a.has("--swiglu") or a.has("--quick-geglu")
    # SwiGLU's width is 8/3 of the hidden size by default, down to a multiple of 64.
    default = int((4 * hidden * 2 / 3) / 64) * 64 if a.has("--swiglu") else 4 * hidden
    dense = FeedForward(intermediate=a.integer("--ffn-hidden-size", default=default or 64), gated=gated, bias=bias)
    moe = _mixture(a, dense)
    slides = _pattern(a, "--window-attn-skip-freq", layers, lambda layer, step: (layer + 1) % step != 0)
    routed = _pattern(a, "--moe-layer-freq", layers, lambda layer, step: layer % step == 0)
    return [
        Block(
            hidden=hidden,
            attention=narrow if slides[layer] else full,
            feed_forward=moe if moe and routed[layer] else dense,
            norm_bias=norm_bias,
        )
        for layer in range(layers)
    ]


def _attention(a: Arguments, hidden: int, bias: bool) -> Attention:
    heads = a.integer("--num-attention-heads")
    kv_heads = a.count("--num-query-groups") if a.has("--group-query-attention") else heads
    if heads % kv_heads:
        raise a.bad("--num-query-groups", f"{heads} heads cannot share {kv_heads} groups evenly")
    channels = a.optional_integer("--kv-channels")
    if channels is None and hidden % heads:
        raise a.bad("--num-attention-heads", f"hidden size {hidden} is not a multiple of {heads} heads")
    rotary = a.text("--position-embedding-type") in ("rope", "yarn", "mrope")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=channels or hidden // heads,
        qkv_bias=bias or a.has("--add-qkv-bias"),
        out_bias=bias,
        head_norms=a.has("--qk-layernorm"),
        sinks=a.text("--softmax-type") == "learnable",
        rotary=rotary or a.has("--use-rotary-position-embeddings"),
    )


def _mixture(a: Arguments, dense: FeedForward) -> MixtureOfExperts | None:
    """The routed layer, or None for a dense model."""
    if a.optional_integer("--num-experts") is None:
        return None
    fields = a.fields(MIXTURE)
    if fields["top_k"] > fields["experts"]:
        problem = f"a token cannot use {fields['top_k']} of {fields['experts']} experts"
        raise a.bad("--moe-router-topk", problem)
    width = a.integer("--moe-ffn-hidden-size", default=dense.intermediate)
    shared = a.optional_integer("--moe-shared-expert-intermediate-size")
    return MixtureOfExperts(
        expert=replace(dense, intermediate=width),
        shared=FeedForward(intermediate=shared, gated=dense.gated) if shared else None,
        shared_gate=bool(shared) and a.has("--moe-shared-expert-gate"),
        router_bias=dense.bias,
        **fields,
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


def _pattern(a: Arguments, flag: str, layers: int, holds: Callable[[int, int], bool]) -> list[bool]:
    """One truth value a layer, all true without the flag: ``holds(layer, N)`` of a number N, or those of a list such
    as [0]*3+[1]*58."""
    if not a.has(flag):
        return [True] * layers
    text = a.text(flag)
    if text.isdecimal():
        step = a.integer(flag)
        return [holds(layer, step) for layer in range(layers)]
    try:
        pattern = _evaluate(ast.parse(text.strip(), mode="eval").body) if len(text) < 10_000 else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pattern = []
    if not pattern:
        raise a.bad(flag, f"{reprlib.repr(text)} is not a layer pattern", "write it like [0]*3+[1]*58")
    if len(pattern) != layers:
        raise a.bad(flag, f"the pattern has {len(pattern)} entries for {layers} layers")
    return pattern


def _evaluate(node: ast.expr) -> list[bool]:
    """The entries of a sum or repetition of lists of 0 and 1, at most ``MOST_LAYERS``; ValueError of anything else."""
    match node:
        case ast.List(elts=items):
            entries = [item.value if isinstance(item, ast.Constant) else None for item in items]
            if not all(type(entry) is int and entry in (0, 1) for entry in entries):
                raise ValueError("an entry is neither 0 nor 1")
            pattern = [entry == 1 for entry in entries]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            pattern = _evaluate(left) + _evaluate(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if times >= 0:
            pattern = _evaluate(left) * min(times, MOST_LAYERS + 1)
        case _:
            raise ValueError("not a layer pattern")
    if len(pattern) > MOST_LAYERS:
        raise ValueError("too many layers")
    return pattern


def read_numerics(a: Arguments) -> dict[str, Any]:
    """What the flags say of a ``Recipe`` besides batch and sequence, by field."""
    # Megatron accumulates gradients in fp32 with bf16 unless told otherwise, and in fp16 with fp16.
    narrow = (
        a.has("--grad-reduce-in-bf16")
        or (a.has("--use-megatron-fsdp") and a.text("--megatron-fsdp-main-grads-dtype") in ("bf16", "fp16"))
        or (a.has("--fp16") and not a.has("--accumulate-allreduce-grads-in-fp32"))
    )
    return {
        "precision": _precision(a),
        "attention": attention_kernel(a),
        "dropout": max(a.number(f"--{part}-dropout", 0.1, most=1.0) for part in ("hidden", "attention")) > 0,
        "gradient_bytes": 2 if narrow else 4,
    }


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


_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
_MORE = re.compile(r"@|\*|ARGS|ARGUMENTS|OPTIONS|OPTS|PARAMS|FLAGS|EXTRA", re.IGNORECASE)
"""Names of variables that hold arguments rather than a value."""
_STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "accelerate")
_SILENT_PROGRAMS = frozenset({"cat", "grep", "sed", "awk", "pip", "git", "docker"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Settings):
    """The flags of a command: each with its values joined by spaces, or "" when it stands alone.

    A flag given twice keeps its last value, as argparse does.  A value that the text leaves open holds its
    variable as ``$NAME``.  ``program`` is the Python file that gets the flags; ``notes`` say what was left out.
    """

    where: str = "arguments"
    program: str = ""
    notes: tuple[str, ...] = ()

    def has(self, flag: str) -> bool:
        self.used.add(flag)
        return flag in self.data

    def text(self, flag: str, default: str = "") -> str:
        return str(self.data[flag] or default) if self.has(flag) else default

    def missing(self, *flags: str) -> BadInput:
        verb = "is" if len(flags) == 1 else "are"
        remedy = f"add {' and '.join(flags)} with {'its value' if len(flags) == 1 else 'their values'}"
        return BadInput(f"{', '.join(flags)} {verb} not stated", where=self.where, remedy=remedy)

    def whole(self, flag: str) -> int:
        text = self.data[flag]
        if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            return int(text)
        if "$" in text:
            problem = f"is not stated: {reprlib.repr(text)} has no value in the text"
            raise self.bad(flag, problem, "write the number instead of the variable")
        raise self.bad(flag, f"{reprlib.repr(text)} is not a whole number")

    def fields(self, options: Sequence[Flag]) -> dict[str, Any]:
        """The values of options, by field."""
        result: dict[str, Any] = {}
        for flag, name, default in options:
            number = self.has(flag) if default is False else self.optional_integer(flag)
            result[name] = default if number is None else number
        return result

    def real(self, flag: str) -> float:
        try:
            return float(self.data[flag])
        except ValueError:
            raise self.bad(flag, f"{reprlib.repr(self.data[flag])} is not a number") from None


def parse_arguments(source: str | Sequence[str], *, where: str = "arguments") -> Arguments:
    """The flags in a list of arguments or in the text of a command or shell script.

    The arguments are those of the training command (above).  A text without such a command gives all
    flags that its lines and variables hold.

    Raises:
        BadInput: more than ``LARGEST_TEXT`` characters, no flag at all, or shell syntax that is not read.
    """
    notes: list[str] = []
    if isinstance(source, str):
        script = read_script(source, where=where)
        notes += script.notes
        words = _training_words(script, notes)
    else:
        words = list(map(str, source))
    values, program = _flags(words, where, notes)
    if not values:
        raise BadInput("no argument such as --num-layers", where=where, remedy="give a training command")
    return Arguments(data=values, where=where, program=program, notes=tuple(notes))


def _training_words(script: Script, notes: list[str]) -> list[str]:
    """The words of the training command; of all commands and variables, where none starts a training."""
    commands = [command for command in script.commands if command.words and command.words[0] not in ("echo", "printf")]
    starts = [
        command
        for command in commands
        if any(word.endswith(".py") or word in _STARTERS for word in command.flat)
        and (command.refused or _holds_flags(command))
    ]
    starts = [
        command
        for command in starts
        if "--num-layers" in command.flat or (command.refused and "$" in str(command.words))
    ] or starts
    if any(command.flat != starts[-1].flat for command in starts):
        notes.append(f"of its {len(starts)} training commands the last is read")
    loose = (
        *script.variables.values(),
        *(command for command in commands if command.words[0] not in _SILENT_PROGRAMS),
    )
    chosen = starts[-1:] or [command for command in loose if _holds_flags(command)]
    for refused in (command.refused for command in chosen if command.refused):
        raise refused
    return [word for command in chosen for word in (*command.flat, "")]


def _holds_flags(command: Command) -> bool:
    return any(map(_FLAG.match, command.flat))


def _flags(words: Sequence[str], where: str, notes: list[str]) -> tuple[dict[str, str], str]:
    """Flags with their values, and the Python file before them."""
    values: dict[str, list[str]] = {}
    flag, size, program = None, 0, ""
    open_: dict[str, None] = {}
    for word in words:
        size += len(word)
        if size > LARGEST_TEXT:
            raise too_long(where)
        name, equals, value = word.partition("=")
        if _FLAG.fullmatch(name):
            flag = name
            values[flag] = [value] if value else []
            if equals:
                flag = None
        elif word in _BOUNDARIES:
            flag = None
        elif not program and word.endswith(".py"):
            program, flag = word, None
        elif (
            (names := OPEN.findall(word))
            and word == "".join(f"${name}" for name in names)
            and ((flag and values[flag]) or any(map(_MORE.search, names)))
        ):  # a word of open variables that hold arguments, not the value of a flag
            open_ |= dict.fromkeys(names)
        elif flag is not None:
            values[flag].append(word)
    if open_:
        notes.append(f"what {', '.join(f'${name}' for name in open_)} holds is not in the text")
    return {name: " ".join(value).strip() for name, value in values.items()}, program


_BOUNDARIES = frozenset({"", "(", ")", "\\", ";", "&&", "||", "|", "&"})
