#include "estimator/frameworks/pieces/huggingface/expert_kernels.h"

#include "estimator/plan/number.h"

namespace shardplan::huggingface {

// Rows of experts in elements of the hidden size, each kernel reading and writing them: gathered,
// masked in front, the gate and up projections masked, the output masked, weighted, put back and
// summed; backward their derivatives, and zeros that gathered gradients are added to (transformers
// 5.17 integrations/moe.py grouped_mm_experts_forward). All ranks have all experts.
BlockTime expert_exchange(const BlockContext& context, double rows) {
  const ModelSpec& model = context.model();
  const double bytes = rows * number(model.hidden) * context.element_bytes;
  const double wide = 2 * number(model.moe.expert_ffn) / number(model.hidden);
  return memory_bound(context, bytes,
                      {.forward = {.streamed = 2 + 2 + 2 * wide + 2 + 2 + 2 + 1},
                       .backward = {.streamed = 1 + 2 + 5 + 2 + 2 * wide + 2 + 3}});
}

}  // namespace shardplan::huggingface
