#!/bin/bash
# Llama-3-8B by Megatron-LM core_v0.16.1 on one node of eight H100.
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_FLASH_ATTN=1

TP=2
PP=2

MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 500000
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
    --attention-dropout 0 --hidden-dropout 0
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 3e-4 --bf16
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP --sequence-parallel
    --pipeline-model-parallel-size $PP
)
DATA_ARGS=(
    --data-path "${DATA:?folder of the tokens}" --split 99,1,0
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B --vocab-size 128256
)

torchrun --nproc-per-node 8 pretrain_gpt.py \
    "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${DATA_ARGS[@]}"
