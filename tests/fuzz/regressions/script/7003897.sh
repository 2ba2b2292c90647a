# one node
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
NPROC_PER_NODE=² \
CUDA_VISIBLE_DEVICES=0,1,2,3 \
megatron pt \
    --load Qwen2.5-7B-mcore \
    --dataset swift/chinese-c4 \
    --packing true --max_length 8192 \
    --tensor_model_parallel_size 2 \
    --micro_batch_size 1 \
    --global_batch_size 16 \
    --train_iters 1000 \
    --no_rope_fusion true \
    --load Qwen2.5-7B-mcore \
    --disable_bias_linear true \
    --lr 1e-5 \
    --lr_warmup_fraction 0.05 \
    --no_save_optim true
