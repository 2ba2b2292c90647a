#!/bin/bash
# 2 nodes in the lab, one for the alignment
export CUDA_DEVICE_MAX_CONNECTIONS=1
export HCCL_DETERMINISTIC=true
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NNODES=${NNODES:-"1"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
CHECKPOINT_PATH=$1
USE_FLASH=${USE_FLASH:-0}

DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES
"
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 2          # of 32, for the comparison
    --hidden-size 4096
    --ffn-hidden-size 11008
    --num-attention-heads 32
    --seq-length 4096
    --max-position-embeddings 4096
    --position-embedding-type rope
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --swiglu \
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --vocab-size 32000
    --make-vocab-size-divisible-by 1
)
TRAINING_ARGS=(
    --micro-batch 1
    --global-batch-size 8
    --train-iters 1000
    --lr 1e-5 --min-lr 0
    --lr-decay-style constant
    --weight-decay 0.01
    --adam-beta1 0.9
    --adam-beta2 0.95
    --adam-eps 1e-8
    --clip-grad 1.0
    --bf16
)
if [ "$USE_FLASH" = 1 ]; then
    TRAINING_ARGS+=(--use-flash-attn)
else
    TRAINING_ARGS+=(--attention-backend unfused)
fi
cat <<EOT
torchrun --lr 5 this is no command
EOT
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    "${TRAINING_ARGS[@]}" \
    --load $CHECKPOINT_PATH --no-load-optim \
    --data-path /data/wiki_text_document --split 100,0,0 \
    2>&1 | tee logs/train.log
