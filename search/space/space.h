// A search space as a numbered list of plans: the product of its axes, slowest axis first.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "estimator/plan/fields.h"
#include "estimator/plan/job.h"
#include "search/space/search_space.h"

namespace shardplan {

// pp, vpp and the layers of every chunk are one axis: which splits exist depends on both numbers.
struct StageSplit {
  std::int64_t pp = 1;
  std::int64_t vpp = 1;
  std::vector<std::int64_t> layers_per_chunk;  // empty: even
};

struct PlanSpace {
  SearchSpace values;  // dp is never empty here: {0} stands for whatever follows
  std::vector<StageSplit> splits;
};

// Layers per chunk where the chunks do not divide the layers: all chunks have the same but the
// first and the last, which share what is missing, the odd layer at either end. One missing layer
// is Megatron-LM's --account-for-embedding-in-pipeline-split or
// --account-for-loss-in-pipeline-split, two are both (core/transformer/transformer_block.py), more
// its --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers. Llama 3 405B
// trains 126 layers on 16 stages with two missing (arXiv 2407.21783, section 3.3.2). Where more are
// missing than one chunk has, and every stage is one chunk, the last stage, which has the head, and
// the first ones, which keep most microbatches, have one layer less. Empty when the chunks divide
// the layers, and for other chunks.
std::vector<std::vector<std::int64_t>> uneven_splits(std::int64_t num_layers, std::int64_t pp,
                                                     std::int64_t vpp);
inline constexpr std::int64_t kMissingLayersAlways = 3;  // allowed however short the chunks are

// One axis of the product. The axes that decide most of a price come first, so that neighbouring
// plans share its pieces and a prefix of the axes bounds the branch below it.
struct Axis {
  std::string_view name;
  PlanFields fields;  // that `choose` writes
  std::int64_t (*size)(const PlanSpace& space);
  void (*choose)(const PlanSpace& space, std::size_t value, Plan& plan);
};
inline constexpr std::size_t kNumAxes = 21;
extern const std::array<Axis, kNumAxes> kAxes;

PlanSpace plan_space(const Job& job, const SearchSpace& space);
// kUncountable where the product does not fit 64 bits: such a space cannot be searched.
std::int64_t num_plans(const PlanSpace& space);
inline constexpr std::int64_t kUncountable = std::numeric_limits<std::int64_t>::max();
Plan plan_at(const PlanSpace& space, std::int64_t index);

}  // namespace shardplan
