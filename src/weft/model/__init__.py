"""What is trained: models, recipes and jobs."""

from weft.model.catalogue import ModelSource, load, names
from weft.model.flops import model_flops
from weft.model.huggingface import read_config
from weft.model.job import PRECISIONS, AttentionKernel, Job, Precision, Recipe
from weft.model.resolve import RecipeChanges, resolve_job
from weft.model.spec import (
    Attention,
    Block,
    BlockRun,
    FeedForward,
    LatentAttention,
    Linear,
    LinearKind,
    MixtureOfExperts,
    Model,
    StateSpace,
)

__all__ = [
    "PRECISIONS",
    "Attention",
    "AttentionKernel",
    "Block",
    "BlockRun",
    "FeedForward",
    "Job",
    "LatentAttention",
    "Linear",
    "LinearKind",
    "MixtureOfExperts",
    "Model",
    "ModelSource",
    "Precision",
    "Recipe",
    "RecipeChanges",
    "StateSpace",
    "load",
    "model_flops",
    "names",
    "read_config",
    "resolve_job",
]
