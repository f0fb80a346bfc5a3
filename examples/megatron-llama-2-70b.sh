#!/bin/bash
# Llama 2 70B on 64 nodes of 8 H100 as a first attempt often looks: pipeline of 8 with few micro-batches,
# full recomputation, no sequence parallelism and no overlap of the gradient reduction.
TP=8
PP=8

torchrun --nnodes 64 --nproc-per-node 8 pretrain_gpt.py \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 \
  --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --position-embedding-type rope --max-position-embeddings 4096 \
  --hidden-dropout 0 --attention-dropout 0 \
  --vocab-size 32000 --make-vocab-size-divisible-by 1 \
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 256 \
  --bf16 --use-distributed-optimizer \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
