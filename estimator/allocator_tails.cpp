// Order of allocations, read in Megatron-LM core_v0.16.1: core/transformer (modules make their
// weights as they are built), core/distributed/param_and_grad_buffer.py (contiguous buffers, then
// the weights move in one by one), core/optimizer/{optimizer,distrib_optimizer}.py (main parameters
// are clones cast to fp32), torch/optim/adam.py (both moments of one parameter after the other).
#include "estimator/allocator_tails.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "estimator/block_rows.h"
#include "estimator/caching_allocator.h"
#include "estimator/muon.h"

namespace shardplan {
namespace {

struct Weights {
  std::vector<std::int64_t> dense;  // elements on one rank, in the order of construction
  std::vector<std::int64_t> expert;
};

// In the order of construction: Attention makes the projection before SelfAttention makes the
// product that is packed (core/transformer/attention.py).
std::vector<WeightShape> module_shapes(const Job& job, const Plan& plan, BlockKind kind) {
  std::vector<WeightShape> shapes = weight_shapes(job, plan, kind);
  const bool is_layer = kind == BlockKind::kDenseLayer || kind == BlockKind::kMoeLayer;
  if (is_layer && !job.model.is_mla()) {
    std::swap(shapes[0], shapes[1]);
  }
  return shapes;
}

void add_block(Weights& weights, const Job& job, const Plan& plan, BlockKind kind) {
  const BlockKind shapes = kind == BlockKind::kEmbedding ? BlockKind::kHead : kind;
  const bool has_experts =
      kind == BlockKind::kMoeLayer || (kind == BlockKind::kMtp && job.model.layers.back().is_moe);
  std::vector<WeightShape> experts;
  for (const WeightShape& shape : module_shapes(job, plan, shapes)) {
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
        // A tied head has a table of its own only where the embedding is on another rank.
        const bool is_view =
            run.kind == BlockKind::kHead && job.model.tied_embeddings && !chunk.has_embedding_copy;
        for (std::int64_t block = 0; block < run.count && !is_view; ++block) {
          add_block(weights, job, plan, run.kind);
        }
      }
    }
  }
  return weights;
}

// The pieces of the weights that lie in one rank's share of every bucket of a contiguous buffer, in
// its order, which the sharded optimizer's groups have, too (distrib_optimizer.py,
// _build_optimizer_group_ranges): weights lie in it in reverse, a bucket ends with the weight that
// makes it large enough. bucket_elements 0: one bucket.
std::vector<std::int64_t> share_of(const std::vector<std::int64_t>& weights, std::int64_t ranks,
                                   std::int64_t rank, std::int64_t bucket_elements) {
  std::vector<std::int64_t> pieces;
  std::vector<std::int64_t> bucket;
  std::int64_t elements = 0;
  for (std::size_t i = weights.size(); i-- > 0;) {
    bucket.push_back(weights[i]);
    elements += weights[i];
    if (i > 0 && (bucket_elements == 0 || elements < bucket_elements)) {
      continue;
    }
    const std::int64_t share = div_ceil(elements, ranks);
    std::int64_t begin = 0;
    for (const std::int64_t weight : bucket) {
      const std::int64_t first = std::max(begin, rank * share);
      const std::int64_t last = std::min(begin + weight, (rank + 1) * share);
      if (first < last) {
        pieces.push_back(last - first);
      }
      begin += weight;
    }
    bucket.clear();
    elements = 0;
  }
  return pieces;
}

// Not more than the buffer's share: the shapes of weights count heads that no rank has.
void cut_to(std::vector<std::int64_t>& pieces, std::int64_t elements) {
  for (std::int64_t& piece : pieces) {
    piece = std::min(piece, elements);
    elements -= piece;
  }
  std::erase(pieces, 0);
}

std::int64_t bytes(std::int64_t elements, DType dtype) {
  return elements * bytes_of(dtype);
}

// Writes what start-up allocates and frees.
class StartUp {
 public:
  std::int64_t allocate(std::int64_t bytes) {
    events.push_back({.id = ++last_id_, .bytes = bytes});
    return last_id_;
  }
  void free(std::int64_t id) { events.push_back({.id = id, .bytes = 0}); }

  std::vector<AllocationEvent> events;

 private:
  std::int64_t last_id_ = 0;
};

// The buffers of a chunk, into which the weights move, the last one first, where the optimizer is
// sharded.
void add_buffers(StartUp& start, const Plan& plan, const ChunkBuffers& buffers,
                 const std::vector<std::int64_t>& weights) {
  const bool moves = plan.zero >= 1;
  for (const std::int64_t count : {buffers.dense, buffers.expert}) {
    if (count > 0) {
      if (moves) {
        start.allocate(bytes(count, activation_dtype(plan.precision)));
      }
      start.allocate(bytes(count, plan.grad_dtype));
    }
  }
  for (std::size_t i = moves ? weights.size() : 0; i-- > 0;) { start.free(weights[i]); }
}

// Bytes that the allocator counts beyond what was asked for.
class TailCounter {
 public:
  explicit TailCounter(AllocatorKind kind)
      : allocator_(kind, std::numeric_limits<std::int64_t>::max() / 4) {}

  void add(const AllocationEvent& event) {
    if (event.bytes > 0) {
      asked_ += round_up(event.bytes, kAllocatorRounding);
      blocks_.push_back(allocator_.allocate(event.bytes));
      bytes_.push_back(event.bytes);
      return;
    }
    const std::size_t i = static_cast<std::size_t>(event.id) - 1;  // ids count from 1
    asked_ -= round_up(bytes_[i], kAllocatorRounding);
    allocator_.free(blocks_[i]);
  }
  void allocate(std::int64_t bytes) {
    asked_ += round_up(bytes, kAllocatorRounding);
    allocator_.allocate(bytes);
  }
  std::int64_t tails() const { return allocator_.allocated() - asked_; }

 private:
  CachingAllocator allocator_;
  std::int64_t asked_ = 0;
  std::vector<std::int32_t> blocks_;
  std::vector<std::int64_t> bytes_;
};

// Muon's is fp32 whatever a plan says.
DType state_dtype(const Job& job, DType chosen) {
  return uses_muon(job) ? DType::kFp32 : chosen;
}

// What AdamW updates, then Muon's matrices.
void set_muon_elements(BuiltStage& found, const Job& job, const Plan& plan,
                       const StageLayout& stage) {
  const std::vector<MuonTensor> tensors = muon_tensors(job, plan, held_blocks(job, stage));
  const std::vector<MuonTensor> own = fullest_muon_tensors(job, plan, tensors);
  const auto add = [&](bool matrices) {
    for (const MuonTensor& tensor : own) {
      if (tensor.is_matrix == matrices) {
        found.optimizer_elements.insert(found.optimizer_elements.end(),
                                        static_cast<std::size_t>(tensor.count), tensor.elements());
      }
    }
  };
  found.optimizer_elements.clear();
  add(false);
  found.second_moments = found.optimizer_elements.size();
  add(true);
}

}  // namespace

BuiltStage megatron_start_up(const Job& job, const Plan& plan, const StageLayout& stage,
                             const StageTensors& tensors, std::int64_t shard) {
  StartUp start;
  BuiltStage found;
  const DType type = activation_dtype(plan.precision);
  std::vector<std::vector<std::int64_t>> ids(stage.chunks.size());
  std::vector<std::int64_t> experts;
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    Weights weights = chunk_weights(job, plan, stage.chunks[chunk]);
    const ChunkBuffers& buffers = tensors.chunks[chunk];
    for (std::vector<std::int64_t>* part : {&weights.dense, &weights.expert}) {
      const bool dense = part == &weights.dense;
      cut_to(*part, dense ? buffers.dense : buffers.expert);
      for (const std::int64_t elements : *part) {
        ids[chunk].push_back(start.allocate(bytes(elements, type)));
      }
      const std::int64_t ranks = plan.zero == 0 ? 1
                                 : dense        ? dense_shard_size(job, plan)
                                                : expert_state_shards(job, plan);
      std::vector<std::int64_t> own =
          plan.zero == 0 ? *part
                         : share_of(*part, ranks, shard % ranks,
                                    megatron_bucket_elements(job, stage, chunk, ranks));
      cut_to(own, (dense ? buffers.dense : buffers.expert) / ranks);
      std::vector<std::int64_t>& pieces = dense ? found.optimizer_elements : experts;
      pieces.insert(pieces.end(), own.begin(), own.end());
    }
  }
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    add_buffers(start, plan, tensors.chunks[chunk], ids[chunk]);
  }
  found.optimizer_elements.insert(found.optimizer_elements.end(), experts.begin(), experts.end());
  found.second_moments = found.optimizer_elements.size();
  if (uses_muon(job)) {
    set_muon_elements(found, job, plan, stage);
  }
  for (const std::int64_t elements : found.optimizer_elements) {
    const std::int64_t clone = start.allocate(bytes(elements, type));
    start.allocate(bytes(elements, state_dtype(job, plan.master_dtype)));
    start.free(clone);
  }
  found.events = std::move(start.events);
  return found;
}

AllocatorTails allocator_tails(const Job& job, const Plan& plan, const StageLayout& stage,
                               const StageTensors& tensors) {
  const BuiltStage start = megatron_start_up(job, plan, stage, tensors, 0);
  TailCounter counter(job.profile.allocator);
  for (const AllocationEvent& event : start.events) { counter.add(event); }
  AllocatorTails tails{.start_up_bytes = counter.tails()};
  for (std::size_t i = 0; i < start.optimizer_elements.size(); ++i) {
    counter.allocate(bytes(start.optimizer_elements[i], state_dtype(job, plan.exp_avg_dtype)));
    if (i < start.second_moments) {
      counter.allocate(bytes(start.optimizer_elements[i], state_dtype(job, plan.exp_avg_sq_dtype)));
    }
  }
  tails.optimizer_bytes = counter.tails() - tails.start_up_bytes;
  if (job.profile.fused_optimizer) {
    return tails;
  }
  for (std::size_t i = 0; i < start.second_moments; ++i) {
    counter.allocate(bytes(start.optimizer_elements[i], DType::kFp32));
  }
  tails.step_bytes = counter.tails() - tails.start_up_bytes - tails.optimizer_bytes;
  return tails;
}

}  // namespace shardplan
