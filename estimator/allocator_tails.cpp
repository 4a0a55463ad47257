// Order of allocations, read in Megatron-LM core_v0.16.1: core/transformer (modules make their
// weights as they are built), core/distributed/param_and_grad_buffer.py (contiguous buffers, then
// the weights move in one by one), core/optimizer/{optimizer,distrib_optimizer}.py (main parameters
// are clones cast to fp32), torch/optim/adam.py (both moments of one parameter after the other).
#include "estimator/allocator_tails.h"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "estimator/block_counts.h"
#include "estimator/block_rows.h"
#include "estimator/caching_allocator.h"
#include "estimator/megatron_weights.h"
#include "estimator/muon.h"

namespace shardplan {
namespace {

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

}  // namespace

BuiltStage megatron_start_up(const Job& job, const Plan& plan, const StageLayout& stage,
                             const StageTensors& tensors, std::int64_t shard) {
  StageWeights weights = stage_weights(job, plan, stage, tensors, shard);
  StartUp start;
  const DType type = activation_dtype(plan.precision);
  std::vector<std::vector<std::int64_t>> ids(stage.chunks.size());
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    for (const std::int64_t elements : weights.of_chunk[chunk]) {
      ids[chunk].push_back(start.allocate(bytes(elements, type)));
    }
  }
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    add_buffers(start, plan, tensors.chunks[chunk], ids[chunk]);
  }
  BuiltStage found;
  found.optimizer_elements = std::move(weights.of_optimizer);
  found.second_moments = weights.second_moments;
  for (const std::int64_t elements : found.optimizer_elements) {
    const std::int64_t clone = start.allocate(bytes(elements, type));
    start.allocate(bytes(elements, state_dtype(job, plan.master_dtype)));
    start.free(clone);
  }
  found.events = std::move(start.events);
  return found;
}

AllocatorTails replayed_tails(const Job& job, const Plan& plan, const StageLayout& stage,
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

namespace {

// A segment that no other request shares.
bool has_own_segment(std::int64_t tensor_bytes) {
  return segment_bytes(tensor_bytes) > kLargeSegment;
}

// What fits beside a large tensor in its segment.
bool fits_into_rest(std::int64_t tensor_bytes) {
  return tensor_bytes > kSmallRequest && tensor_bytes < kSegmentRounding;
}

// The start-up and the first step by sizes of blocks.
class CountedStartUp {
 public:
  CountedStartUp(const Job& job, const Plan& plan, const StageTensors& tensors,
                 const StageWeights& weights)
      : job_(job),
        plan_(plan),
        tensors_(tensors),
        weights_(weights),
        dtype_(activation_dtype(plan.precision)) {}

  std::optional<AllocatorTails> tails() {
    const bool known = plan_.zero >= 1 ? move_weights() : keep_weights();
    if (!known || !take_main_parameters()) {
      return std::nullopt;
    }
    AllocatorTails tails = {.start_up_bytes = start_up_bytes_};
    const DType first = state_dtype(job_, plan_.exp_avg_dtype);
    const DType second = state_dtype(job_, plan_.exp_avg_sq_dtype);
    for (std::size_t i = 0; i < weights_.of_optimizer.size(); ++i) {
      const std::int64_t elements = weights_.of_optimizer[i];
      tails.optimizer_bytes += blocks_.take(bytes(elements, first));
      if (i < weights_.second_moments) {
        tails.optimizer_bytes += blocks_.take(bytes(elements, second));
      }
    }
    for (std::size_t i = 0; !job_.profile.fused_optimizer && i < weights_.second_moments; ++i) {
      tails.step_bytes += blocks_.take(bytes(weights_.of_optimizer[i], DType::kFp32));
    }
    return tails;
  }

 private:
  bool keep_weights() {
    for (const std::vector<std::int64_t>& chunk : weights_.of_chunk) {
      for (const std::int64_t elements : chunk) {
        start_up_bytes_ += blocks_.take(bytes(elements, dtype_));
      }
    }
    for (const ChunkBuffers& chunk : tensors_.chunks) {
      for (const std::int64_t elements : {chunk.dense, chunk.expert}) {
        if (elements > 0) {
          start_up_bytes_ += blocks_.take(bytes(elements, plan_.grad_dtype));
        }
      }
    }
    return true;
  }

  // Buffers larger than shared segments take nothing of weights but what large ones of chunks
  // before left free whole. The rest is free whole at the end.
  bool move_weights() {
    BlockCounts shared;
    for (const std::vector<std::int64_t>& chunk : weights_.of_chunk) {
      for (const std::int64_t elements : chunk) {
        if (fits_into_rest(bytes(elements, dtype_))) {
          return false;
        }
        if (!has_own_segment(bytes(elements, dtype_))) {
          shared.take(bytes(elements, dtype_));
        }
      }
    }
    for (std::size_t chunk = 0; chunk < weights_.of_chunk.size(); ++chunk) {
      const ChunkBuffers& buffers = tensors_.chunks[chunk];
      for (const std::int64_t elements : {buffers.dense, buffers.expert}) {
        for (const DType dtype : {dtype_, plan_.grad_dtype}) {
          if (elements > 0 && !has_own_segment(bytes(elements, dtype))) {
            return false;
          }
          start_up_bytes_ += elements > 0 ? blocks_.take(bytes(elements, dtype)) : 0;
        }
      }
      for (const std::int64_t elements : weights_.of_chunk[chunk]) {
        if (has_own_segment(bytes(elements, dtype_))) {
          blocks_.add_free(segment_bytes(bytes(elements, dtype_)), 1);
        }
      }
    }
    for (const auto& [size, count] : shared.segments()) { blocks_.add_free(size, count); }
    return true;
  }

  bool take_main_parameters() {
    const DType main = state_dtype(job_, plan_.master_dtype);
    const std::vector<std::int64_t>& all = weights_.of_optimizer;
    for (std::size_t i = 0; i < all.size();) {
      std::size_t next = i + 1;
      while (next < all.size() && all[next] == all[i]) { ++next; }
      const std::int64_t beyond = blocks_.take_beside(bytes(all[i], dtype_), bytes(all[i], main),
                                                      static_cast<std::int64_t>(next - i));
      if (beyond < 0) {
        return false;
      }
      start_up_bytes_ += beyond;
      i = next;
    }
    return true;
  }

  const Job& job_;
  const Plan& plan_;
  const StageTensors& tensors_;
  const StageWeights& weights_;
  DType dtype_;
  BlockCounts blocks_;
  std::int64_t start_up_bytes_ = 0;
};

}  // namespace

AllocatorTails allocator_tails(const Job& job, const Plan& plan, const StageLayout& stage,
                               const StageTensors& tensors) {
  if (job.profile.allocator == AllocatorKind::kCaching) {
    const StageWeights weights = stage_weights(job, plan, stage, tensors, 0);
    if (const auto tails = CountedStartUp(job, plan, tensors, weights).tails()) {
      return *tails;
    }
  }
  return replayed_tails(job, plan, stage, tensors);
}

}  // namespace shardplan
