// The rounds of ring attention (_templated_ring_attention, _templated_ring_attention_backward,
// _SDPAMerger): keys and values are gathered once, forward merges rounds in fp32, backward
// exchanges fp32 gradients of keys and values after every round.
#include "estimator/frameworks/torchtitan/ring.h"

#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kHalf = 2;      // half the queries from the second round on
constexpr std::int64_t kWiden = 2;     // fp32 for bf16
constexpr std::int64_t kKeyValue = 2;  // keys and values in one tensor

struct Round {
  TapeTensor output;
  TapeTensor log_sum_exp;
};

// out += sigmoid(...) * (block - out) on half the tokens, and the same for the log-sum-exp.
void merge(TitanTape& tape, const TitanSizes& sizes, TapeTensor& merged, TapeTensor& merged_lse) {
  const std::int64_t part = kWiden * sizes.query / kHalf;
  const std::int64_t lse = sizes.log_sum_exp / kHalf;
  TapeTensor block = tape.make(part);
  TapeTensor difference = tape.make(lse);
  tape.replace(difference, lse);  // sigmoid
  TapeTensor change = tape.make(part);
  TapeTensor scaled = tape.make(part);
  tape.free(difference, change);
  TapeTensor next = tape.make(part);
  tape.free(scaled);
  TapeTensor next_lse = tape.make(lse);
  tape.replace(next_lse, lse);  // log-sigmoid
  tape.replace(next_lse, lse);
  tape.replace(merged_lse, sizes.log_sum_exp);
  tape.replace(merged, kWiden * sizes.query);
  tape.free(next_lse, next, block);
}

}  // namespace

void play_ring_forward(TitanTape& tape, const TitanSizes& sizes, LayerTensors& layer) {
  TapeTensor keys = tape.make(sizes.key);
  TapeTensor values = tape.make(sizes.key);
  TapeTensor joined = tape.make(kKeyValue * sizes.key);
  TapeTensor gathered = tape.make(sizes.cp * kKeyValue * sizes.key);
  tape.free(joined);
  Round before{.output = tape.make(sizes.query), .log_sum_exp = tape.make(sizes.log_sum_exp)};
  TapeTensor merged = tape.make(kWiden * sizes.query);
  TapeTensor merged_lse = std::exchange(before.log_sum_exp, {});
  for (std::int64_t round = 1; round < sizes.cp; ++round) {
    if (round + 1 < sizes.cp) {
      joined = tape.make(kKeyValue * sizes.key);
      tape.free(joined);
    }
    tape.free(keys, values);
    Round now{.output = tape.make(sizes.query / kHalf),
              .log_sum_exp = tape.make(sizes.log_sum_exp / kHalf)};
    tape.free(before.output, before.log_sum_exp);
    before = now;
    merge(tape, sizes, merged, merged_lse);
  }
  layer.output = tape.make(sizes.query);
  layer.log_sum_exp = merged_lse;
  tape.free(merged, gathered, before.output, before.log_sum_exp);
}

RingGradients play_ring_backward(TitanTape& tape, const TitanSizes& sizes) {
  struct BackwardRound {
    TapeTensor query, key, value, pair;
  };
  TapeTensor sum = tape.make(kWiden * sizes.query);
  TapeTensor received = tape.make(kWiden * sizes.key);  // sums of keys' gradients, then exchanged
  TapeTensor received_values = tape.make(kWiden * sizes.key);
  TapeTensor keys = tape.make(sizes.key);
  TapeTensor values = tape.make(sizes.key);
  TapeTensor joined = tape.make(kKeyValue * sizes.key);
  TapeTensor gathered = tape.make(sizes.cp * kKeyValue * sizes.key);
  const auto attend = [&](std::int64_t query_bytes, std::int64_t workspace_bytes) {
    BackwardRound round{.query = tape.make(query_bytes),
                        .key = tape.make(sizes.key),
                        .value = tape.make(sizes.key),
                        .pair = {}};
    TapeTensor workspace = tape.make(workspace_bytes);
    tape.free(workspace);
    return round;
  };
  const std::int64_t pair_bytes = kWiden * kKeyValue * sizes.key;
  BackwardRound before = attend(sizes.query, sizes.workspace);
  TapeTensor wide_keys = tape.make(kWiden * sizes.key);
  TapeTensor wide_values = tape.make(kWiden * sizes.key);
  before.pair = tape.make(pair_bytes);
  tape.free(wide_values, wide_keys);
  TapeTensor exchanged = tape.make(pair_bytes);
  TapeTensor half_lse;
  for (std::int64_t round = 1; round < sizes.cp; ++round) {
    if (round + 1 < sizes.cp) {
      tape.replace(joined, kKeyValue * sizes.key);
    }
    tape.replace(half_lse, sizes.log_sum_exp / kHalf);
    tape.free(keys, values);
    BackwardRound now = attend(sizes.query / kHalf, sizes.half_workspace);
    tape.free(before.query, before.key, before.value, before.pair, received, received_values);
    received = exchanged;
    now.pair = tape.make(pair_bytes);
    exchanged = tape.make(pair_bytes);
    tape.replace(sum, kWiden * sizes.query);
    before = now;
  }
  RingGradients gradients{.query = tape.make(sizes.query), .key_value = {}};
  tape.free(sum);
  gradients.key_value = tape.make(kKeyValue * sizes.key);
  tape.free(before.pair, received, joined, before.query, before.key, before.value, exchanged,
            gathered, half_lse);
  return gradients;
}

}  // namespace shardplan::torchtitan
