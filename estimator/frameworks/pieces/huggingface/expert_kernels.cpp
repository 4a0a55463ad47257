#include "estimator/frameworks/pieces/huggingface/expert_kernels.h"

#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/number.h"

namespace shardplan::huggingface {
namespace {

// One expert after the other (models/qwen3_moe/modeling_qwen3_moe.py Qwen3MoeExperts.forward): rows
// are gathered, weighted and added to the output; backward gathered, weighted and summed for
// weights, and added to zeros. The gradient of each expert's matrices lies in zeros of all
// experts', which are written and added up.
BlockTime eager_exchange(const BlockContext& context, double bytes) {
  BlockTime time =
      memory_bound(context, bytes,
                   {.forward = {.streamed = 2 + 2 + 3}, .backward = {.streamed = 2 + 5 + 1 + 3}});
  if (context.trains_weights) {
    const MoeSpec& moe = context.model().moe;
    const double all = number(moe.num_experts * 3 * context.model().hidden * moe.expert_ffn);
    const double grad = autograd_element_bytes(context.job, context.plan);
    add(time, memory_bound(context, number(moe.num_experts) * all,
                           {.backward = {.streamed = (1 + 3) * grad}}));
  }
  return time;
}

// ScatterMoE's products read tokens and write rows where they lie; what is left is the weighted sum
// of rows, and backward their weights' gradient, the weighted gradient of every row, tokens sorted
// by expert, and the sum of their gradients (axolotl 067b021 integrations/kernels/libs/
// scattermoe_lora/parallel_experts.py).
constexpr Passes kScatteredRows = {.forward = {.streamed = 1},
                                   .backward = {.streamed = 1 + 1 + 2 + 1}};

// megablocks': zeros and copies of tokens, the bias of gate and up and that of the output, zeros
// and copies of rows, and their sum; backward the same of gradients, and the biases' sums
// (huggingface/kernels-community megablocks/torch-ext/megablocks/layers.py).
Passes batched_rows(double wide) {
  const double copies = 1 + 2 + 1 + 2 + 1;
  return {.forward = {.streamed = copies + 2 * wide + 2},
          .backward = {.streamed = copies + wide + 1 + 2}};
}

}  // namespace

// Rows of experts in elements of the hidden size, each kernel reading and writing them: gathered,
// masked in front, the gate and up projections masked, the output masked, weighted, put back and
// summed; backward their derivatives, and zeros that gathered gradients are added to (transformers
// 5.17 integrations/moe.py grouped_mm_experts_forward). All ranks have all experts.
BlockTime expert_exchange(const BlockContext& context, double rows) {
  const ModelSpec& model = context.model();
  const double bytes = rows * number(model.hidden) * context.element_bytes;
  if (context.job.profile.eager_experts) {
    return eager_exchange(context, bytes);
  }
  const double wide = 2 * number(model.moe.expert_ffn) / number(model.hidden);
  switch (context.job.profile.expert_kernels) {
    case ExpertKernels::kGrouped: break;
    case ExpertKernels::kScatterMoe: return memory_bound(context, bytes, kScatteredRows);
    case ExpertKernels::kMegablocks: return memory_bound(context, bytes, batched_rows(wide));
  }
  return memory_bound(context, bytes,
                      {.forward = {.streamed = 2 + 2 + 2 * wide + 2 + 2 + 2 + 1},
                       .backward = {.streamed = 1 + 2 + 5 + 2 + 2 * wide + 2 + 3}});
}

const char* expert_kernels_assumption(const Job& job) {
  if (job.model.moe.num_experts == 0) {
    return nullptr;
  }
  switch (job.profile.expert_kernels) {
    case ExpertKernels::kGrouped: break;
    case ExpertKernels::kScatterMoe:
      return "every expert is chosen by some token: ScatterMoE unpacks those of 4 bits that are; "
             "the time of its kernels was not measured";
    case ExpertKernels::kMegablocks:
      return "megablocks' experts drop tokens beyond their share; its kernels were read of their "
             "sources, not measured";
  }
  return nullptr;
}

}  // namespace shardplan::huggingface
