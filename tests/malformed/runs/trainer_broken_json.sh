torchrun --nproc_per_node 8 sft.py --model_name_or_path Qwen/Qwen3-0.6B --dataset_name a --max_length 1024 --gradient_checkpointing_kwargs '{"use_reentrant": }'
