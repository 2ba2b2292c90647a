#!/bin/bash
LR=${LR:-2e-5}
bash scripts/msrun_launcher.sh "run_mindformer.py \
 --config llama.yaml \
 --use_parallel True \
 --epochs 3 \
 --options lr_schedule.learning_rate=$LR runner_wrapper.use_clip_grad=True model.model_config.num_hidden_layers=4" 8
