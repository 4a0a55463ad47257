// Final norm, output product and loss of torchtitan (components/loss.py).
#include "estimator/frameworks/torchtitan/blocks/head.h"

#include <array>

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/blocks/fsdp_rows.h"
#include "estimator/frameworks/torchtitan/blocks/gradient_rows.h"
#include "estimator/frameworks/torchtitan/parameters.h"

namespace shardplan::torchtitan {
namespace {

// Without pipelining the trainer drops the logits before backward; a pipeline holds the last ones
// to the end of the step (a row of the state) and frees them when the next are there. GPipe and
// lists of actions hold those of every microbatch until its backward is done (fwd_cache of
// pipelining/stage.py).
void add_logits(TitanBlock& block, std::int64_t logits) {
  if (block.plan.pp > 1 && block.plan.schedule != Schedule::k1F1B) {
    block.rows.keep("loss.logits", logits, block.shape.dtype,
                    {.born = Step::kForwardLogits,
                     .last_forward_use = Step::kForwardLoss,
                     .dies = Step::kBackwardInput},
                    "V*T/t: output of the stage, held until its backward is done");
    return;
  }
  block.rows.use("loss.logits", logits, block.shape.dtype, Step::kForwardLogits,
                 block.plan.pp > 1 ? Step::kForwardLogits : Step::kForwardLoss, "V*T/t");
}

// Eager cross-entropy: fp32 logits, their log-softmax (kept), and in backward the gradients of
// nll_loss and of log_softmax beside it. With the vocabulary sharded (loss parallel) the backward
// of torch.distributed.tensor.parallel.loss makes one more.
void add_eager_loss(TitanBlock& block, std::int64_t logits) {
  RowList& rows = block.rows;
  const bool is_sharded = block.plan.tp > 1;
  add_logits(block, logits);
  rows.use("loss.fp32_logits", logits, DType::kFp32, Step::kForwardLoss, Step::kForwardLoss,
           "V*T/t: float()");
  rows.keep("loss.log_softmax", logits, DType::kFp32,
            {.born = Step::kForwardLoss,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardOutput},
            "V*T/t: kept for backward");
  rows.use("loss.nll_gradient", logits, DType::kFp32, Step::kBackwardOutput, Step::kBackwardOutput,
           "V*T/t: gradient of nll_loss");
  rows.use("loss.softmax", is_sharded ? logits : 0, DType::kFp32, Step::kBackwardOutput,
           Step::kBackwardOutput, "V*T/t: with loss parallel, a tensor of its own");
  rows.use("loss.fp32_logit_gradient", logits, DType::kFp32, Step::kBackwardOutput,
           Step::kBackwardLoss, "V*T/t: gradient of log_softmax, until it is cast");
}

// Compiled: one kernel reads bf16 logits, keeping only statistics; its backward writes their
// gradient. With a sharded vocabulary the collectives cut it, and fp32 log-softmax is kept.
void add_compiled_loss(TitanBlock& block, std::int64_t logits) {
  RowList& rows = block.rows;
  if (block.plan.tp == 1 && block.plan.pp == 1) {
    rows.keep("loss.logits", logits, block.shape.dtype,
              {.born = Step::kForwardLogits,
               .last_forward_use = Step::kForwardLoss,
               .dies = Step::kBackwardLoss},
              "V*T: input of the compiled loss");
    return;
  }
  add_logits(block, logits);
  if (block.plan.tp == 1) {
    return;
  }
  rows.use("loss.fp32_logits", logits, DType::kFp32, Step::kForwardLoss, Step::kForwardLoss,
           "V*T/t");
  rows.keep("loss.log_softmax", logits, DType::kFp32,
            {.born = Step::kForwardLoss,
             .last_forward_use = Step::kForwardLoss,
             .dies = Step::kBackwardLoss},
            "V*T/t: kept for backward");
}

void add_head_fsdp(TitanBlock& block) {
  const TitanParameters& p = block.parameters;
  RowList& rows = block.rows;
  if (block.fsdp.is_sharded && !block.fsdp.reduces_each_backward) {
    add_titan_pipelined(block, p.head, GroupEnd::kTable);
    if (block.fsdp.reshards_head) {
      add_titan_gathered_in_turn(block, {.elements = p.head,
                                         .next = p.layer,
                                         .last_forward_use = Step::kForwardLogits,
                                         .gathered_again = Step::kBackwardLogits});
    }
  }
  if (!block.fsdp.is_sharded || !block.fsdp.reduces_each_backward || block.fsdp.root_holds_ends) {
    return;  // of a root that holds both ends: rows of the embedding
  }
  add_titan_all_gather(block, p.head, p.layer);
  const std::array weights{block.job.model.hidden, p.head - block.job.model.hidden};
  add_titan_unsharded(block, {.elements = p.head,
                              .weights = weights,
                              .reshards_forward = block.fsdp.reshards_head,
                              .last_forward_use = Step::kForwardLogits,
                              .gathered_again = Step::kBackwardLogits});
  if (block.fsdp.reshards_forward) {
    block.gather("fsdp.prefetched_parameters", p.layer, Step::kBackwardLogits, Step::kBackwardInput,
                 "n: all-gather output of the last layer");
  }
  rows.use_as(Component::kCommunication, "fsdp.reduction_input", p.head, DType::kFp32,
              Step::kBackwardInput, Step::kBackwardInput, "n: fp32 reduce-scatter input");
}

}  // namespace

void add_titan_head(TitanBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t logits = s.local_vocab * s.tokens;
  const std::int64_t table = s.local_vocab * s.hidden;
  rows.keep("final_norm.input", block.sequence(), block.residual(),
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardNorm,
             .dies = Step::kBackwardNorm},
            "h*u: output of the last layer");
  rows.keep("final_norm.statistics", s.sharded_tokens, DType::kFp32,
            {.born = Step::kForwardNorm,
             .last_forward_use = Step::kForwardNorm,
             .dies = Step::kBackwardNorm},
            "u");
  rows.keep("final_norm.output", s.gathers_sequence ? block.gathered() : block.sequence(), s.dtype,
            {.born = Step::kForwardNorm,
             .last_forward_use = Step::kForwardLogits,
             .dies = Step::kBackwardLogits},
            "h*T: input of the output product, gathered under tp");
  if (block.is_autocast()) {
    rows.keep("output_weight_cast", table, s.dtype,
              {.born = Step::kForwardLogits,
               .last_forward_use = Step::kForwardLogits,
               .dies = Step::kBackwardLogits},
              "V*h: bf16 copy of the output weight");
  }
  if (block.compiles_loss()) {
    add_compiled_loss(block, logits);
  } else {
    add_eager_loss(block, logits);
  }
  rows.use("loss.logit_gradient", logits, s.dtype, Step::kBackwardLoss, Step::kBackwardLogits,
           "V*T/t");
  if (!block.fsdp.root_holds_ends) {  // else a row of the state
    rows.use("output_weight_gradient", table, s.dtype, Step::kBackwardLogits, Step::kBackwardInput,
             "V/t*h");
  }
  rows.use("final_norm.output_gradient", block.gathered(), s.dtype, Step::kBackwardLogits,
           Step::kBackwardNorm, "h*T");
  rows.use("output_gradient", block.sequence(), block.residual(), Step::kBackwardNorm,
           Step::kBackwardInput, "h*u: gradient of the residual stream");
  add_head_fsdp(block);
  rows.rows.push_back(titan_gradient(block, block.parameters.head, Step::kBackwardInput));
}

}  // namespace shardplan::torchtitan
