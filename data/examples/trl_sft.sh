#!/bin/bash
# Supervised fine-tuning of Llama-3.1-8B by TRL.
accelerate launch --config_file "$(dirname "$0")/trl_fsdp2.yaml" trl/scripts/sft.py \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --dataset_name trl-lib/Capybara --packing --max_length 4096 \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \
    --gradient_checkpointing --bf16 --learning_rate 2e-5 --output_dir out
