#include "estimator/time/attention_calls.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/block_context_parallel.h"

namespace shardplan {
namespace {

// Of one sequence. Off the diagonal the keys lie before the queries, so that all of them are seen
// or, of the last ones, a triangle.
struct Block {
  double count = 1;  // 0: none
  double queries = 0;
  double keys = 0;
  double pairs = 0;
  bool is_diagonal = false;
};

using Blocks = std::array<Block, 3>;

// Hops of a ring: this rank's queries on its own keys, then in half of the hops on the first chunk
// of another's keys, in the others the second half of the queries on both of its chunks.
Blocks blocks_of_ring(double chunk, double cp, const LayerSpec& layer) {
  const double window = number(layer.attention_window);
  const double off_diagonal = window == 0 ? 2 * chunk * chunk : chunk * std::min(2 * chunk, window);
  const double hops = (cp - 1) / 2;
  return {{{.queries = 2 * chunk,
            .keys = 2 * chunk,
            .pairs = seen_pairs(layer, 2 * chunk),
            .is_diagonal = true},
           {.count = hops, .queries = 2 * chunk, .keys = chunk, .pairs = off_diagonal},
           {.count = hops, .queries = chunk, .keys = 2 * chunk, .pairs = off_diagonal}}};
}

// On gathered keys: of the rank whose chunks are the first and the last of a sequence, the shortest
// block and the longest.
Blocks blocks_of_gathered(double chunk, double cp, const LayerSpec& layer, double before) {
  const double last = (2 * cp - 1) * chunk;
  return {
      {{.queries = chunk, .keys = chunk, .pairs = seen_pairs(layer, chunk), .is_diagonal = true},
       {.queries = chunk,
        .keys = chunk + std::min(last, before),
        .pairs = seen_pairs(layer, last + chunk) - seen_pairs(layer, last)},
       {.count = 0}}};
}

// Length of the triangle as fast as a rectangle without a mask, whose tiles walk over `length`
// tokens: twice that of one with as many in the mean. cuDNN's backward on H200 runs rectangles of
// 8192 x 4096 to 16384 x 8192 at 520 to 570 TFLOP/s and forward at 600 to 680, triangles of 8192
// and 16384 beside them at 430 to 450 and 480 to 500 (torchtitan's rings of 2 and 4 ranks, kernels
// of one step, data/measured/ring_kernels_h200.json); FlashAttention 2 was not seen.
std::int64_t unmasked_length(double length) {
  return std::llround(4 * length);
}

// Our own backward kernels compute 4 products by tiles of keys, whose group of query heads they
// walk one after the other, and 3 by tiles of queries (kernels/attention/key_gradients_sm90.cu,
// kernels/attention/query_gradients_sm90.cu).
constexpr double kProductsByKeys = 4;
constexpr double kProductsByQueries = 3;

class CallTimes {
 public:
  CallTimes(const BlockContext& context, const AttentionWork& work)
      : context_(context), work_(work), gpu_(context.gpu()) {
    const Plan& plan = context.plan;
    heads_of_call_ = work.heads * (context.framework.attends_by_sequence ? 1 : plan.micro_batch);
    const auto adds = context.framework.adds_key_gradients;
    adds_key_gradients_ = adds != nullptr && adds(context.job, plan);
  }

  // `pairs`: of the blocks of all sequences.
  ForwardBackward diagonal_s(const Block& block, double pairs) const {
    AttentionWork work = work_;
    work.pairs = pairs;
    const std::int64_t queries = std::llround(block.queries);
    work.length = std::min(work_.length, queries);
    work.window = work_.window < queries ? work_.window : 0;
    work.heads_of_call = heads_of_call_ * div_ceil(queries, work.length);
    return {.forward_s = attention_forward_s(gpu_, work),
            .backward_s = attention_backward_s(gpu_, work) /
                          (adds_key_gradients_ ? gpu_.constants->own_backward_share : 1)};
  }

  // Forward, tiles of queries start and end once for all the keys that each of them sees: as of a
  // triangle with as many in the mean. Backward, those of keys for all queries.
  ForwardBackward rectangle_s(const Block& block, double pairs) const {
    AttentionWork work = work_;
    work.pairs = pairs;
    work.window = 0;
    work.heads_of_call = 0;
    const double busy = busy_share(gpu_, block.queries, number(heads_of_call_));
    const bool is_unmasked = !work.is_flash2 && block.pairs == block.queries * block.keys;
    work.length =
        is_unmasked ? unmasked_length(block.keys) : std::llround(2 * block.pairs / block.queries);
    const double forward_s = attention_forward_s(gpu_, work) / busy;
    if (adds_key_gradients_) {
      return {.forward_s = forward_s, .backward_s = own_backward_s(block, work, busy)};
    }
    work.length = is_unmasked ? unmasked_length(block.queries) : std::llround(block.keys);
    return {.forward_s = forward_s, .backward_s = attention_backward_s(gpu_, work) / busy};
  }

 private:
  // Rows of all heads of a group on the keys, and keys on the queries: as of a triangle as long as
  // their harmonic mean.
  double own_backward_s(const Block& block, AttentionWork work, double busy) const {
    constexpr double kProducts = kProductsByKeys + kProductsByQueries;
    const ModelSpec& model = context_.model();
    const double rows = block.queries * number(div_ceil(model.num_heads, model.num_kv_heads));
    work.length = std::llround(2 * rows * block.keys / (rows + block.keys));
    return attention_backward_s(gpu_, work) * (kProductsByKeys + kProductsByQueries / busy) /
           kProducts / gpu_.constants->own_backward_share;
  }

  const BlockContext& context_;
  const AttentionWork& work_;
  const GpuSpec& gpu_;
  std::int64_t heads_of_call_ = 0;
  bool adds_key_gradients_ = false;
};

}  // namespace

double seen_pairs(const LayerSpec& layer, double queries) {
  const double window = number(layer.attention_window);
  if (window == 0 || window >= queries) {
    return queries * queries / 2;
  }
  if (!layer.attends_in_chunks) {
    return window * queries - window * window / 2;
  }
  const double rest = std::fmod(queries, window);
  return (window * (queries - rest) + rest * rest) / 2;
}

ForwardBackward attention_calls_s(const BlockContext& context, const LayerSpec& layer,
                                  const AttentionWork& work) {
  const Plan& plan = context.plan;
  if (plan.cp == 1 || plan.cp_method == CpMethod::kA2a) {
    return {.forward_s = attention_forward_s(context.gpu(), work),
            .backward_s = attention_backward_s(context.gpu(), work)};
  }
  const double cp = number(plan.cp);
  const double chunk = number(context.job.sequence_length) / (2 * cp);
  const Blocks blocks =
      plan.cp_method == CpMethod::kRing || context.framework.attends_in_rounds
          ? blocks_of_ring(chunk, cp, layer)
          : blocks_of_gathered(chunk, cp, layer,
                               number(gathered_keys_before(context.job, layer.attention_window)));
  double all_pairs = 0;
  for (const Block& block : blocks) { all_pairs += block.count * block.pairs; }
  const CallTimes times(context, work);
  ForwardBackward sum;
  for (const Block& block : blocks) {
    if (block.count == 0) {
      continue;
    }
    const double pairs = work.pairs * block.count * block.pairs / all_pairs;
    const ForwardBackward calls =
        block.is_diagonal ? times.diagonal_s(block, pairs) : times.rectangle_s(block, pairs);
    sum.forward_s += calls.forward_s;
    sum.backward_s += calls.backward_s;
  }
  return sum;
}

}  // namespace shardplan
