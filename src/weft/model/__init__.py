"""What is trained: models, recipes and jobs."""

from weft.model.job import PRECISIONS, AttentionKernel, Job, Precision, Recipe
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
    "Precision",
    "Recipe",
]
