// Order of allocations, read in Megatron-LM core_v0.16.1: core/transformer (modules make their
// weights as they are built), core/distributed/param_and_grad_buffer.py (contiguous buffers, then
// the weights move in one by one), core/optimizer/{optimizer,distrib_optimizer}.py (main parameters
// are clones cast to fp32), torch/optim/adam.py (both moments of one parameter after the other).
#include "estimator/allocator_tails.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "estimator/block_rows.h"
#include "estimator/caching_allocator.h"

namespace shardplan {
namespace {

struct Weights {
  std::vector<std::int64_t> dense;  // elements on one rank, in the order of construction
  std::vector<std::int64_t> expert;
};

void add_block(Weights& weights, const Job& job, const Plan& plan, BlockKind kind) {
  const BlockKind shapes = kind == BlockKind::kEmbedding ? BlockKind::kHead : kind;
  const bool has_experts = kind == BlockKind::kMoeLayer;
  std::vector<WeightShape> experts;
  for (const WeightShape& shape : weight_shapes(job, plan, shapes)) {
    const bool is_expert = has_experts &&
                           shape.count == div_ceil(job.model.moe.num_experts, plan.ep) &&
                           (shape.rows == div_ceil(job.model.moe.expert_ffn, plan.etp) *
                                              (job.model.gated_ffn ? 2 : 1) ||
                            shape.columns == div_ceil(job.model.moe.expert_ffn, plan.etp));
    if (is_expert) {
      experts.push_back(shape);
    } else {
      weights.dense.insert(weights.dense.end(), static_cast<std::size_t>(shape.count),
                           shape.rows * shape.columns);
    }
  }
  for (std::int64_t i = 0; !experts.empty() && i < experts.front().count; ++i) {
    for (const WeightShape& shape : experts) {
      weights.expert.push_back(shape.rows * shape.columns);
    }
  }
}

Weights chunk_weights(const Job& job, const Plan& plan, const ChunkLayout& chunk) {
  Weights weights;
  for (const Unit& unit : chunk.units) {
    for (std::int64_t i = 0; i < unit.count; ++i) {
      for (const BlockRun& run : unit.blocks) {
        for (std::int64_t block = 0; block < run.count; ++block) {
          add_block(weights, job, plan, run.kind);
        }
      }
    }
  }
  return weights;
}

// The allocator, and what was asked of it.
class StartUp {
 public:
  explicit StartUp(AllocatorKind kind)
      : allocator_(kind, std::numeric_limits<std::int64_t>::max() / 4) {}

  std::int32_t allocate(std::int64_t bytes) {
    asked_ += round_up(bytes, kRounding);
    return allocator_.allocate(bytes);
  }
  void free(std::int32_t block, std::int64_t bytes) {
    asked_ -= round_up(bytes, kRounding);
    allocator_.free(block);
  }
  std::int64_t tails() const { return allocator_.allocated() - asked_; }

 private:
  static constexpr std::int64_t kRounding = 512;
  CachingAllocator allocator_;
  std::int64_t asked_ = 0;
};

// The part of a contiguous buffer that belongs to its first rank: weights lie in it in reverse.
std::vector<std::int64_t> first_shard(const std::vector<std::int64_t>& weights,
                                      std::int64_t shard) {
  std::int64_t left = 0;
  for (const std::int64_t weight : weights) { left += weight; }
  left = div_ceil(left, shard);
  std::vector<std::int64_t> part;
  for (std::size_t i = weights.size(); i-- > 0 && left > 0;) {
    part.push_back(std::min(weights[i], left));
    left -= part.back();
  }
  std::ranges::reverse(part);
  return part;
}

std::int64_t bytes(std::int64_t elements, DType dtype) {
  return elements * bytes_of(dtype);
}

// One chunk: weights, then buffers, into which the weights move where the optimizer is sharded.
void build_chunk(StartUp& start, const Plan& plan, const Weights& weights,
                 const ChunkBuffers& buffers) {
  const DType type = activation_dtype(plan.precision);
  std::vector<std::int64_t> elements = weights.dense;
  elements.insert(elements.end(), weights.expert.begin(), weights.expert.end());
  std::vector<std::int32_t> blocks;
  for (const std::int64_t count : elements) {
    blocks.push_back(start.allocate(bytes(count, type)));
  }
  const bool moves = plan.zero >= 1;
  for (const std::int64_t count : {buffers.dense, buffers.expert}) {
    if (count > 0) {
      if (moves) {
        start.allocate(bytes(count, type));
      }
      start.allocate(bytes(count, plan.grad_dtype));
    }
  }
  for (std::size_t i = 0; moves && i < blocks.size(); ++i) {
    start.free(blocks[i], bytes(elements[i], type));
  }
}

}  // namespace

AllocatorTails allocator_tails(const Job& job, const Plan& plan, const StageLayout& stage,
                               const StageTensors& tensors) {
  StartUp start(job.profile.allocator);
  const DType type = activation_dtype(plan.precision);
  const bool shards = plan.zero >= 1;
  std::vector<std::int64_t> main;
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    const Weights weights = chunk_weights(job, plan, stage.chunks[chunk]);
    build_chunk(start, plan, weights, tensors.chunks[chunk]);
    for (const auto& [part, ranks] : {std::pair{weights.dense, dense_shard_size(job, plan)},
                                      std::pair{weights.expert, expert_shard_size(job, plan)}}) {
      const std::vector<std::int64_t> own = first_shard(part, shards ? ranks : 1);
      main.insert(main.end(), own.begin(), own.end());
    }
  }
  for (const std::int64_t elements : main) {
    const std::int32_t clone = start.allocate(bytes(elements, type));
    start.allocate(bytes(elements, plan.master_dtype));
    start.free(clone, bytes(elements, type));
  }
  AllocatorTails tails{.start_up_bytes = start.tails()};
  for (const std::int64_t elements : main) {
    start.allocate(bytes(elements, plan.exp_avg_dtype));
    start.allocate(bytes(elements, plan.exp_avg_sq_dtype));
  }
  tails.optimizer_bytes = start.tails() - tails.start_up_bytes;
  for (const std::int64_t elements : main) { start.allocate(bytes(elements, DType::kFp32)); }
  tails.step_bytes = start.tails() - tails.start_up_bytes - tails.optimizer_bytes;
  return tails;
}

}  // namespace shardplan
