// Order of allocations, read in Megatron-LM core_v0.16.1: core/transformer (modules make their
// weights as they are built), core/distributed/param_and_grad_buffer.py (contiguous buffers, then
// the weights move in one by one), core/optimizer/{optimizer,distrib_optimizer}.py (main parameters
// are clones cast to fp32), torch/optim/adam.py (both moments of one parameter after the other).
#include "estimator/frameworks/megatron/allocator_tails.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "estimator/allocator/block_counts.h"
#include "estimator/allocator/caching_allocator.h"
#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/frameworks/megatron/state.h"
#include "estimator/frameworks/megatron/weights.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/ledger/allocation_tape.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/ledger/parameter_elements.h"

namespace shardplan::megatron {
namespace {

std::int64_t bytes(std::int64_t elements, DType dtype) {
  return elements * bytes_of(dtype);
}

// The buffers of a chunk, into which the weights move, the last one first, where the optimizer is
// sharded.
void add_buffers(AllocationTape& tape, const Plan& plan, const ChunkBuffers& buffers,
                 std::vector<TapeTensor>& weights) {
  const bool moves = plan.zero >= 1;
  for (const std::int64_t count : {buffers.dense, buffers.expert}) {
    if (moves) {
      tape.make(bytes(count, activation_dtype(plan.precision)));
    }
    tape.make(bytes(count, plan.grad_dtype));
  }
  for (std::size_t i = moves ? weights.size() : 0; i-- > 0;) { tape.free(weights[i]); }
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

BuiltStage start_up(const Job& job, const Plan& plan, const StageLayout& stage,
                    const StageTensors& tensors, std::int64_t shard) {
  StageWeights weights = stage_weights(job, plan, stage, tensors, shard);
  AllocationTape tape;
  const DType type = activation_dtype(plan.precision);
  std::vector<std::vector<TapeTensor>> built(stage.chunks.size());
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    for (const std::int64_t elements : weights.frozen[chunk]) { tape.make(bytes(elements, type)); }
    for (const std::int64_t elements : weights.of_chunk[chunk]) {
      built[chunk].push_back(tape.make(bytes(elements, type)));
    }
  }
  for (std::size_t chunk = 0; chunk < stage.chunks.size(); ++chunk) {
    add_buffers(tape, plan, tensors.chunks[chunk], built[chunk]);
  }
  BuiltStage found;
  found.optimizer_elements = std::move(weights.of_optimizer);
  found.second_moments = weights.second_moments;
  for (const std::int64_t elements : found.optimizer_elements) {
    TapeTensor clone = tape.make(bytes(elements, type));
    tape.make(bytes(elements, state_dtype(job, plan.master_dtype)));
    tape.free(clone);
  }
  found.events = tape.take_events();
  return found;
}

AllocatorTails replayed_tails(const Job& job, const Plan& plan, const StageLayout& stage,
                              const StageTensors& tensors) {
  const BuiltStage start = start_up(job, plan, stage, tensors, 0);
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

// Whether a tensor can lie beside a large one, in the rest of that one's segment.
bool fits_into_rest(std::int64_t tensor_bytes) {
  return tensor_bytes > kSmallRequest && tensor_bytes < kSegmentRounding;
}

// The first `length` elements of a list come `count` times in a row.
struct Repetition {
  std::size_t length = 1;
  std::int64_t count = 1;
};

// Takes the shortest repetition that covers many elements, else the one that covers most.
Repetition repetition_at(std::span<const std::int64_t> elements) {
  constexpr std::size_t kLongest = 16;
  constexpr std::size_t kFar = 64;
  Repetition best;
  std::size_t reach = 1;
  for (std::size_t length = 1; length <= kLongest && 2 * length <= elements.size(); ++length) {
    std::size_t end = length;
    while (end < elements.size() && elements[end] == elements[end - length]) { ++end; }
    const std::size_t count = end / length;
    if (count > 1 && count * length > reach) {
      best = {.length = length, .count = static_cast<std::int64_t>(count)};
      reach = count * length;
    }
    if (reach >= kFar) {
      break;
    }
  }
  return best;
}

// Counts the start-up and the first step by sizes of blocks.
class CountedStartUp {
 public:
  CountedStartUp(const Job& job, const Plan& plan, const StageTensors& tensors,
                 const StageWeights& weights)
      : job_(job),
        plan_(plan),
        tensors_(tensors),
        weights_(weights),
        dtype_(activation_dtype(plan.precision)) {}

  // nullopt: addresses decide.
  std::optional<AllocatorTails> tails() {
    const bool is_known = plan_.zero >= 1 ? move_weights() : keep_weights();
    if (!is_known || !take_main_parameters()) {
      return std::nullopt;
    }
    AllocatorTails tails = {.start_up_bytes = start_up_bytes_};
    const std::span<const std::int64_t> all = weights_.of_optimizer;
    const auto with_both = all.first(weights_.second_moments);
    const DType first = state_dtype(job_, plan_.exp_avg_dtype);
    const DType second = state_dtype(job_, plan_.exp_avg_sq_dtype);
    tails.optimizer_bytes += taken(with_both, [&](std::int64_t elements) {
      return blocks_.take(bytes(elements, first)) + blocks_.take(bytes(elements, second));
    });
    tails.optimizer_bytes += taken(all.subspan(with_both.size()), [&](std::int64_t elements) {
      return blocks_.take(bytes(elements, first));
    });
    if (!job_.profile.fused_optimizer) {
      tails.step_bytes += taken(with_both, [&](std::int64_t elements) {
        return blocks_.take(bytes(elements, DType::kFp32));
      });
    }
    return tails;
  }

 private:
  // Calls take_one for every tensor and adds up what it returns; -1: addresses decide. A tensor has
  // at least one byte an element. Weights come in the same order again with every layer and expert.
  template <class TakeOne>
  std::int64_t taken(std::span<const std::int64_t> elements, const TakeOne& take_one) {
    constexpr std::int64_t kTakesOfOne = 2;  // at most
    std::int64_t beyond = 0;
    while (!elements.empty()) {
      const Repetition found = repetition_at(elements);
      const auto turn = elements.first(found.length);
      const auto take_turn = [&] {
        std::int64_t of_turn = 0;
        for (const std::int64_t one : turn) {
          const std::int64_t of_one = take_one(one);
          if (of_one < 0) {
            return std::int64_t{-1};
          }
          of_turn += of_one;
        }
        return of_turn;
      };
      const std::int64_t more = found.count == 1
                                    ? take_turn()
                                    : blocks_.repeat(found.count, std::ranges::min(turn),
                                                     kTakesOfOne * std::ssize(turn), take_turn);
      if (more < 0) {
        return -1;
      }
      beyond += more;
      elements = elements.subspan(found.length * static_cast<std::size_t>(found.count));
    }
    return beyond;
  }

  bool keep_weights() {
    for (const std::vector<std::int64_t>& chunk : weights_.of_chunk) {
      start_up_bytes_ += taken(
          chunk, [&](std::int64_t elements) { return blocks_.take(bytes(elements, dtype_)); });
    }
    for (const ChunkBuffers& chunk : tensors_.chunks) {
      for (const std::int64_t elements : {chunk.dense, chunk.expert}) {
        start_up_bytes_ += elements > 0 ? blocks_.take(bytes(elements, plan_.grad_dtype)) : 0;
      }
    }
    return true;
  }

  // A weight that has a segment to itself leaves it free once its chunk's buffers are made. Weights
  // that share segments leave blocks too small for the buffers that follow.
  bool move_weights() {
    BlockCounts sharing;
    BlockCounts::Sizes shared;
    std::vector<BlockCounts::Sizes> own(weights_.of_chunk.size());
    const auto is_own = [&](std::int64_t elements) {
      return segment_bytes(bytes(elements, dtype_)) > kLargeSegment;
    };
    bool is_known = true;
    for (std::size_t chunk = 0; chunk < own.size(); ++chunk) {
      std::span<const std::int64_t> weights = weights_.of_chunk[chunk];
      while (!weights.empty()) {
        const Repetition found = repetition_at(weights);
        const auto turn = weights.first(found.length);
        const bool have_own = std::ranges::all_of(turn, is_own);
        for (std::int64_t turns = have_own ? 1 : found.count; turns > 0; --turns) {
          for (const std::int64_t elements : turn) {
            const std::int64_t weight = bytes(elements, dtype_);
            is_known = is_known && !fits_into_rest(weight);
            if (is_own(elements)) {
              add(own[chunk], segment_bytes(weight), have_own ? found.count : 1);
            } else {
              sharing.take(weight, 1, &shared);
            }
          }
        }
        weights = weights.subspan(found.length * static_cast<std::size_t>(found.count));
      }
    }
    for (std::size_t chunk = 0; is_known && chunk < own.size(); ++chunk) {
      is_known = take_buffers(tensors_.chunks[chunk]);
      free_all(own[chunk]);
    }
    free_all(shared);
    return is_known;
  }

  // Whether each has a segment larger than those that tensors share.
  bool take_buffers(const ChunkBuffers& buffers) {
    bool are_large = true;
    for (const std::int64_t elements : {buffers.dense, buffers.expert}) {
      for (const DType dtype : {dtype_, plan_.grad_dtype}) {
        if (elements > 0) {
          are_large = are_large && segment_bytes(bytes(elements, dtype)) > kLargeSegment;
          start_up_bytes_ += blocks_.take(bytes(elements, dtype));
        }
      }
    }
    return are_large;
  }

  void free_all(const BlockCounts::Sizes& segments) {
    for (const auto& [size, count] : segments) { blocks_.add_free(size, count); }
  }

  bool take_main_parameters() {
    const DType main = state_dtype(job_, plan_.master_dtype);
    const std::int64_t beyond = taken(weights_.of_optimizer, [&](std::int64_t elements) {
      return blocks_.take_beside(bytes(elements, dtype_), bytes(elements, main));
    });
    start_up_bytes_ += beyond;
    return beyond >= 0;
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
  if (job.profile.allocator == AllocatorKind::kCaching && !trains_adapters(job)) {
    const StageWeights weights = stage_weights(job, plan, stage, tensors, 0);
    if (const auto tails = CountedStartUp(job, plan, tensors, weights).tails()) {
      return *tails;
    }
  }
  return replayed_tails(job, plan, stage, tensors);
}

BuiltStage built_stage(const Job& job, const Plan& plan, const StageLayout& stage,
                       const StageTensors& tensors, std::int64_t shard) {
  if (trains_adapters(job)) {
    return start_up(job, plan, stage, trained_stage(job, plan, stage, buffers(job, plan)), shard);
  }
  const bool is_local = job.profile.memory_model == MemoryModel::kMegatronLocal;
  if (is_local || has_plain_optimizer(job, plan)) {
    return start_up(job, plan, stage, tensors, shard);
  }
  BuiltStage built;
  built.optimizer_elements = parameter_elements(job, plan, stage);
  return built;
}

}  // namespace shardplan::megatron
