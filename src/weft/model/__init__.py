"""What is trained: models, recipes and jobs."""

from weft.model.catalogue import load, names
from weft.model.huggingface import read_config
from weft.model.job import PRECISIONS, Job, Precision, Recipe, model_flops
from weft.model.resolve import RecipeChanges, resolve_job
from weft.model.spec import Attention, Block, BlockRun, FeedForward, LatentAttention, MixtureOfExperts, Model

__all__ = [
    "PRECISIONS",
    "Attention",
    "Block",
    "BlockRun",
    "FeedForward",
    "Job",
    "LatentAttention",
    "MixtureOfExperts",
    "Model",
    "Precision",
    "Recipe",
    "RecipeChanges",
    "load",
    "model_flops",
    "names",
    "read_config",
    "resolve_job",
]
