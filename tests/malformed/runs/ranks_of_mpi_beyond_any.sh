mpirun -np 99999999999999999999 python pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 \
  --max-position-embeddings 1024 --micro-batch-size 1 --vocab-size 32000 --bf16
