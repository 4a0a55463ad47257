// The trainer's steps around the blocks: torchtitan train.py (train_step, forward_backward_step),
// torch/distributed/pipelining (stage.py, schedules.py), torch/optim/adam.py.
#include "estimator/frameworks/torchtitan/timeline.h"

#include <algorithm>
#include <numeric>

#include "estimator/frameworks/pieces/data_parallel.h"
#include "estimator/frameworks/torchtitan/chunk.h"
#include "estimator/frameworks/torchtitan/parameters.h"
#include "estimator/ledger/peak_actions.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kBf16 = 2;
constexpr std::int64_t kFp32 = 4;

class Trainer {
 public:
  Trainer(const Job& job, const Plan& plan, const StagePieces& pieces);
  void build();
  void step();
  std::vector<AllocationEvent> take_events() { return tape_.take_events(); }

 private:
  bool is_pipelined() const { return plan_.pp > 1; }
  std::vector<std::int64_t> parameters() const;  // elements of a rank's share, one by one
  void make_rotary_tables();
  void infer_shapes();
  void make_optimizer_state();
  void make_buckets();
  void keep_active(std::size_t action);
  void play(std::size_t action);
  void end_backward(std::size_t chunk, std::size_t action);
  bool is_last_of_chunk(std::size_t action) const;

  const Job& job_;
  const Plan& plan_;
  SizesOfLayers layer_sizes_;
  const TitanSizes& sizes_;
  TitanTape tape_;
  FullyShard fsdp_;
  std::vector<ScheduleAction> actions_;
  std::vector<TitanChunk> chunks_;
  std::vector<TapeTensor> buckets_;  // of DDP
  std::int64_t forwards_ = 0;
  std::vector<std::int64_t> active_;  // chunks that the list of actions has gathered
  bool is_first_step_ = true;
};

std::int64_t workspace_bytes(const Job& job) {
  return job.profile.fixed_workspace_bytes;
}

// This rank's part of a weight as the optimizer has it.
std::int64_t shard_bytes(const ParameterGroup& group, std::int64_t weight) {
  return group.element_bytes() * div_ceil(weight / kBf16, group.shard);
}

Trainer::Trainer(const Job& job, const Plan& plan, const StagePieces& pieces)
    : job_(job),
      plan_(plan),
      layer_sizes_{TitanSizes(job, plan, !job.model.has_dense_layers()),
                   TitanSizes(job, plan, job.model.has_moe_layers())},
      sizes_(layer_sizes_.back()),
      tape_(workspace_bytes(job)),
      fsdp_(tape_),
      actions_(actions_to_peak(job, plan, pieces)) {
  std::int64_t microbatches = 0;
  for (const ScheduleAction& action : actions_) {
    microbatches = std::max(microbatches, action.microbatch + 1);
  }
  for (const ChunkLayout& chunk : pieces.layout.chunks) {
    chunks_.emplace_back(job, plan, layer_sizes_, tape_, fsdp_, chunk, microbatches);
  }
}

// Rotary tables: made with the model, computed anew when weights are initialised
// (models/llama3/model/model.py, precompute_freqs_cis).
void Trainer::make_rotary_tables() {
  const std::int64_t table = kFp32 * rotary_table_elements(job_);
  for (TitanChunk& chunk : chunks_) {
    // Qwen 3 and GPT-OSS (precompute_rope_cache): products, doubled, their cosines and sines, put
    // together.
    TapeTensor products = tape_.make(sizes_.turns_halves ? table / 4 : 0);
    TapeTensor angles = tape_.make(table / 2);
    TapeTensor ones = tape_.make(table / 2);
    TapeTensor sines = tape_.make(sizes_.turns_halves ? table / 2 : 0);
    TapeTensor computed = tape_.make(table);
    tape_.free(ones, sines, angles, products);
    tape_.free(chunk.rotary_table);
    chunk.rotary_table = computed;
  }
}

void Trainer::build() {
  for (TitanChunk& chunk : chunks_) {
    for (const ParameterGroup& group : chunk.groups) {
      for (const std::int64_t weight : group.weights) {
        if (!group.is_shared) {
          tape_.make(shard_bytes(group, weight));
        }
      }
    }
    if (fsdp_unties_table(job_, plan_)) {
      const ParameterGroup& first = chunk.groups.front();
      chunk.untied_table = tape_.make(shard_bytes(first, first.weights.back()));
    }
    chunk.rotary_table = tape_.make(kFp32 * rotary_table_elements(job_));
  }
  make_rotary_tables();
  constexpr std::int64_t kInt64 = 8;
  for (int i = 0; i < 2; ++i) {  // tokens and labels
    tape_.make(kInt64 * job_.sequence_length * plan_.micro_batch);
  }
}

// The first step of a pipeline runs every chunk once without gradients, to learn shapes, before it
// makes the buffers that receive (stage.py, _shape_inference, _prepare_forward_infra,
// _create_grad_recv_info).
void Trainer::infer_shapes() {
  const std::int64_t microbatches = num_microbatches(job_, plan_);
  for (TitanChunk& chunk : chunks_) {
    TapeTensor input = tape_.make(chunk.has_embedding ? 0 : sizes_.sequence);
    chunk.forward_without_gradients();
    tape_.free(input);
    for (std::int64_t i = 0; i < (chunk.has_embedding ? 0 : microbatches); ++i) {
      tape_.make(sizes_.sequence);
    }
  }
  for (TitanChunk& chunk : chunks_) {
    for (std::int64_t i = 0; i < (chunk.has_head ? 0 : microbatches); ++i) {
      tape_.make(sizes_.sequence);
    }
  }
}

// adam.py, _init_group: a step count and both moments, one parameter after the other.
void Trainer::make_optimizer_state() {
  for (const TitanChunk& chunk : chunks_) {
    for (const ParameterGroup& group : chunk.groups) {
      for (const std::int64_t weight : group.weights) {
        if (group.is_shared) {
          continue;
        }
        tape_.make(kFp32);
        tape_.make(shard_bytes(group, weight));
        tape_.make(shard_bytes(group, weight));
      }
    }
  }
}

// One for all when the first forward begins, and others of 100 MiB when the second one does
// (models/llama3/infra/parallelize.py, apply_ddp: bucket_cap_mb).
void Trainer::make_buckets() {
  constexpr std::int64_t kLeast = 100 * kMiB;
  if (!replicates(job_, plan_) || ++forwards_ > 2) {
    return;
  }
  std::vector<std::int64_t> gradients;  // in the order of a backward pass
  for (const TitanChunk& chunk : chunks_) {
    for (auto group = chunk.groups.rbegin(); group != chunk.groups.rend(); ++group) {
      if (!group->is_shared) {
        for (auto weight = group->weights.rbegin(); weight != group->weights.rend(); ++weight) {
          gradients.push_back(shard_bytes(*group, *weight));
        }
      }
    }
  }
  for (TapeTensor& bucket : buckets_) { tape_.free(bucket); }
  buckets_.clear();
  const std::int64_t all = std::accumulate(gradients.begin(), gradients.end(), std::int64_t{0});
  for (const std::int64_t bytes : rebuilt_buckets(gradients, forwards_ == 1 ? all : kLeast)) {
    buckets_.push_back(tape_.make(bytes));
  }
}

// Before an action the next three chunks that compute are gathered, others dropped
// (schedules.py, _add_unshard_reshard).
void Trainer::keep_active(std::size_t action) {
  constexpr std::size_t kActive = 3;
  std::vector<std::int64_t> next;
  for (std::size_t i = action; i < actions_.size() && next.size() < kActive; ++i) {
    if (std::ranges::find(next, actions_[i].chunk) == next.end()) {
      next.push_back(actions_[i].chunk);
    }
  }
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (std::ranges::find(next, static_cast<std::int64_t>(i)) == next.end()) {
      chunks_[i].reshard();
    }
  }
  for (const std::int64_t chunk : next) {
    if (std::ranges::find(active_, chunk) == active_.end()) {
      chunks_[static_cast<std::size_t>(chunk)].gather_ahead();
    }
  }
  active_ = std::move(next);
}

bool Trainer::is_last_of_chunk(std::size_t action) const {
  return std::none_of(
      actions_.begin() + static_cast<std::ptrdiff_t>(action) + 1, actions_.end(),
      [&](const ScheduleAction& later) { return later.chunk == actions_[action].chunk; });
}

void Trainer::play(std::size_t action) {
  const ScheduleAction& now = actions_[action];
  TitanChunk& chunk = chunks_[static_cast<std::size_t>(now.chunk)];
  const std::size_t microbatch = static_cast<std::size_t>(now.microbatch);
  if (runs_action_list(plan_)) {
    keep_active(action);
    chunk.wait_gathered();
  }
  switch (now.kind) {
    case ActionKind::kForward:
      make_buckets();
      chunk.forward(microbatch);
      break;
    case ActionKind::kBackward: chunk.backward(microbatch, true); break;
    case ActionKind::kBackwardInput: chunk.backward(microbatch, false); break;
    case ActionKind::kBackwardWeight: chunk.make_weight_gradients(microbatch); break;
  }
  if (is_pipelined() && now.kind != ActionKind::kForward && is_last_of_chunk(action)) {
    chunk.reduce_accumulated();
  }
}

void Trainer::step() {
  for (TitanChunk& chunk : chunks_) {
    tape_.free(chunk.untied_table);
    chunk.free_gradients();
  }
  if (is_first_step_ && is_pipelined()) {
    infer_shapes();
  }
  for (std::size_t i = 0; i < actions_.size(); ++i) { play(i); }
  for (TitanChunk& chunk : chunks_) { chunk.end_step(); }
  active_.clear();
  if (std::exchange(is_first_step_, false)) {
    make_optimizer_state();
  }
}

}  // namespace

std::vector<AllocationEvent> timeline(const Job& job, const Plan& plan, const StagePieces& pieces) {
  // The second step meets the optimizer's state in the cache that the first has left, the third
  // meets gradients in that of the second; later steps repeat the third.
  constexpr int kSteps = 3;
  Trainer trainer(job, plan, pieces);
  trainer.build();
  for (int i = 0; i < kSteps; ++i) { trainer.step(); }
  return trainer.take_events();
}

}  // namespace shardplan::torchtitan
