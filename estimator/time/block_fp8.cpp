#include "estimator/time/block_fp8.h"

#include "estimator/frameworks/native/token_pieces.h"
#include "estimator/plan/number.h"

namespace shardplan {
namespace {

// Whether our own trainer rounds an output gradient for one product at a time: in pieces of tokens
// for the input's gradient, then at once for the weight's. Pieces that no product in fp8 takes, of
// less than 16 tokens, only hide communication (step_limit.cpp).
bool rounds_gradient_again(const BlockContext& context) {
  return context.job.profile.tensor_parallel_chunk_tokens >= 16 &&
         native_token_pieces(context.job, context.plan) > 1;
}

}  // namespace

// Libraries read 2 bytes and write 1 byte in two layouts for the input (forward), the output
// gradient (backward); Transformer Engine once a step the weight too (is_first_microbatch), and
// with scales of the tensor itself all of it once more before, for the largest value
// (Float8CurrentScaling; data/measured/fp8_products_h100.csv). Our own trainer keeps nothing in
// fp8: before every product it reads both factors for their largest value and again to round them;
// the weight once for all pieces of tokens, the output's gradient once for two products that take
// it as a whole (validator/lower/fp8.cpp).
BlockTime fp8_rounding(const BlockContext& context, const ProductShape& layer) {
  const GpuSpec& gpu = context.gpu();
  const double input = number(layer.count * layer.m * layer.k);
  const double gradient = number(layer.count * layer.m * layer.n);
  const double weight = number(layer.count * layer.n * layer.k);
  BlockTime time;
  if (context.job.profile.memory_model == MemoryModel::kNative) {
    const bool again = rounds_gradient_again(context);
    time.forward_s = memory_bound_s(gpu, 5 * (input + weight));
    time.backward_input_s = memory_bound_s(gpu, (again ? 5 : 6) * gradient + 5 * weight);
    time.backward_weight_s = memory_bound_s(gpu, 5 * (again ? input + gradient : input));
  } else {
    const FrameworkProfile& profile = context.job.profile;
    const bool is_engine = profile.memory_model == MemoryModel::kMegatron;
    const double bytes = is_engine && profile.fp8_recipe == Fp8Recipe::kTensorwise ? 6 : 4;
    const double weights =
        is_engine ? weight / number(num_microbatches(context.job, context.plan)) : 0;
    time.forward_s = memory_bound_s(gpu, bytes * (input + weights));
    time.backward_input_s = memory_bound_s(gpu, bytes * gradient);
  }
  return time;
}

}  // namespace shardplan
