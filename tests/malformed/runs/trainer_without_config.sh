accelerate launch --config_file nowhere.yaml sft.py --model_name_or_path Qwen/Qwen3-0.6B --dataset_name a --max_length 1024
