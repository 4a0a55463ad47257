// What flash-linear-attention's kernels of a gated delta rule work on: chunks of tokens, each with
// a triangle of pairs and a state. Sources: fla-core 0.4.1 and 0.6.0 fla/ops/gated_delta_rule/
// {chunk,wy_fast}.py, fla/ops/common/{chunk_o,chunk_delta_h}.py.
#pragma once

#include "estimator/plan/layer_spec.h"
#include "estimator/plan/number.h"
#include "estimator/time/elementwise.h"

namespace shardplan {

inline constexpr std::int64_t kRuleChunkTokens = 64;  // that share a state

// Forward products of one token and value head: two of a chunk's keys, its inverse with keys and
// values, three with the state, one of a chunk's values.
inline double delta_rule_flops(const DeltaSpec& delta) {
  const double chunk = number(kRuleChunkTokens);
  const double key = number(delta.key_head_dim);
  const double value = number(delta.value_head_dim);
  return 2 * 2 * chunk * key + 2 * chunk * (key + value) + 3 * 2 * key * value + 2 * chunk * value;
}

// Passes of the rule's kernels, e bytes an element. Of queries and keys as wide as value heads:
// read by four kernels and written as weights; backward made again 3, read 6 and written 4.
inline Passes delta_rule_keys(double e) {
  return {.forward = {.fused = 5 * e}, .backward = {.fused = 13 * e}};
}
// Of values: read, two more of their kind written and read, and the output; backward made again 5,
// gradients read and written 8.
inline Passes delta_rule_values(double e) {
  return {.forward = {.fused = 6 * e}, .backward = {.fused = 13 * e}};
}
// Of states: written and read; backward again, and their gradient.
inline Passes delta_rule_states(double e) {
  return {.forward = {.fused = 2 * e}, .backward = {.fused = 4 * e}};
}
// Of a chunk's triangle: in fp32 written, read and inverted, in the rule's type written and read;
// backward read twice.
inline Passes delta_rule_triangles(double e) {
  return {.forward = {.fused = 8 + 3 * e}, .backward = {.fused = 2 * e}};
}

}  // namespace shardplan
