// Embedding, final norm, output product and loss of torchtitan as the trainer runs them.
#pragma once

#include "estimator/frameworks/torchtitan/fsdp.h"

namespace shardplan::torchtitan {

class TitanEmbedding {
 public:
  TitanEmbedding(TitanTape& tape, const TitanSizes& sizes) : tape_(tape), sizes_(sizes) {}
  TapeTensor forward();
  // Frees `gradient`; the table's, bf16 or under autocast fp32.
  TapeTensor backward(TapeTensor& gradient);

 private:
  TitanTape& tape_;
  const TitanSizes& sizes_;
};

struct HeadTensors {
  TapeTensor input, norm, statistics, gathered;
  ProductCasts casts;
  TapeTensor logits, log_softmax;
};

class TitanHead {
 public:
  // `keeps_logits`: a pipeline's schedule holds them beyond the loss.
  TitanHead(TitanTape& tape, const TitanSizes& sizes, bool compiles_loss, bool keeps_logits)
      : tape_(tape), sizes_(sizes), compiles_loss_(compiles_loss), keeps_logits_(keeps_logits) {}

  // Reads head.input. Without gradients nothing is left but the logits.
  void forward(HeadTensors& head, bool saves);
  void loss(HeadTensors& head);
  // Gradient of the logits.
  TapeTensor loss_backward(HeadTensors& head);
  // Gradient of the residual stream; leaves the table's, bf16 or under autocast fp32, none where it
  // is added to that of an earlier microbatch.
  TapeTensor backward(HeadTensors& head, TapeTensor& of_logits, TapeTensor& of_table,
                      bool accumulates);

 private:
  void free_logits(HeadTensors& head);

  TitanTape& tape_;
  const TitanSizes& sizes_;
  bool compiles_loss_;
  bool keeps_logits_;
};

}  // namespace shardplan::torchtitan
