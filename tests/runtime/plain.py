"""Plain decoders with the names and forward passes of Hugging Face's LlamaForCausalLM and GPT2LMHeadModel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """As LlamaRMSNorm, but in the format of its input."""

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


class LlamaRotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        frequency = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        self.register_buffer("inv_freq", frequency, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)
        both = torch.cat((angles, angles), dim=-1)[:, None]
        return both.cos(), both.sin()


def rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


class LlamaAttention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int, bias: bool) -> None:
        super().__init__()
        self.head_dim, self.num_key_value_groups = head_dim, heads // kv_heads
        self.attention_dropout = 0.0
        self.q_proj = nn.Linear(hidden, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=bias)

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.head_dim)
        queries = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        keys = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        values = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        queries, keys = (rotated(part, *position_embeddings) for part in (queries, keys))
        keys, values = (part.repeat_interleave(self.num_key_value_groups, 1) for part in (keys, values))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(*input_shape, -1).contiguous())


class LlamaMLP(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class LlamaDecoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int, intermediate: int, bias: bool):
        super().__init__()
        self.self_attn = LlamaAttention(hidden, heads, kv_heads, head_dim, bias)
        self.mlp = LlamaMLP(hidden, intermediate)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden), RMSNorm(hidden)

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        hidden_states = hidden_states + self.self_attn(
            hidden_states=self.input_layernorm(hidden_states), position_embeddings=position_embeddings
        )
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class LlamaModel(nn.Module):
    def __init__(self, vocab: int, layers: int, hidden: int, head_dim: int, **sizes: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(LlamaDecoderLayer(hidden, head_dim=head_dim, **sizes) for _ in range(layers))
        self.norm = RMSNorm(hidden)
        self.rotary_emb = LlamaRotaryEmbedding(head_dim)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden_states = self.embed_tokens(input_ids)
        places = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        position_embeddings = self.rotary_emb(hidden_states, places)
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_embeddings=position_embeddings)
        return self.norm(hidden_states)


class LlamaForCausalLM(nn.Module):
    """``bias``: of queries, keys, values and outputs; with it and without tied embeddings as Qwen2."""

    def __init__(
        self,
        *,
        vocab: int = 53,
        layers: int = 2,
        hidden: int = 16,
        heads: int = 8,
        kv_heads: int = 4,
        head_dim: int = 4,
        intermediate: int = 24,
        bias: bool = False,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.model = LlamaModel(
            vocab, layers, hidden, head_dim, heads=heads, kv_heads=kv_heads, intermediate=intermediate, bias=bias
        )
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.model(input_ids))


class Conv1D(nn.Module):
    """Hugging Face's linear layer of GPT-2: its matrix is (inputs, outputs)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.empty(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return out.view(*x.size()[:-1], self.nf)


class GPT2Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embed_dim = self.split_size = hidden
        self.num_heads, self.head_dim = heads, hidden // heads
        self.c_attn, self.c_proj = Conv1D(3 * hidden, hidden), Conv1D(hidden, hidden)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        parts = self.c_attn(hidden_states).split(self.split_size, dim=2)
        heads = (part.view(*part.shape[:-1], -1, self.head_dim).transpose(1, 2) for part in parts)
        dropped = self.attn_dropout.p if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True, dropout_p=dropped).transpose(1, 2)
        return self.resid_dropout(self.c_proj(mixed.reshape(*mixed.shape[:-2], -1).contiguous()))


class GPT2MLP(nn.Module):
    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(4 * hidden, hidden), Conv1D(hidden, 4 * hidden)
        self.act, self.dropout = nn.GELU(approximate="tanh"), nn.Dropout(dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(hidden_states))))


class GPT2Block(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden, eps=1e-5), nn.LayerNorm(hidden, eps=1e-5)
        self.attn, self.mlp = GPT2Attention(hidden, heads, dropout), GPT2MLP(hidden, dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = hidden_states + self.attn(self.ln_1(hidden_states))
        return hidden_states + self.mlp(self.ln_2(hidden_states))


class GPT2Model(nn.Module):
    def __init__(self, vocab: int, positions: int, layers: int, hidden: int, heads: int, dropout: float):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(GPT2Block(hidden, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)

    def forward(self, input_ids: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        hidden_states = self.drop(self.wte(input_ids) + self.wpe(places))
        for block in self.h:
            hidden_states = block(hidden_states)
        return self.ln_f(hidden_states)


class GPT2LMHeadModel(nn.Module):
    def __init__(
        self,
        *,
        vocab: int = 53,
        positions: int = 8,
        layers: int = 2,
        hidden: int = 16,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.transformer = GPT2Model(vocab, positions, layers, hidden, heads, dropout)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        self.register_buffer("steps", torch.tensor([7]))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.transformer(input_ids))


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Values that make every part matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(values * 0.3 + (1.0 if gain else 0.0))
