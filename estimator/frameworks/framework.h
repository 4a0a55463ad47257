// The interface of a training framework: all that the model asks of one. New code outside
// estimator/frameworks knows none by name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/ledger/allocation.h"
#include "estimator/ledger/outside.h"
#include "estimator/ledger/stage_pieces.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"
#include "estimator/time/block_kernels.h"
#include "estimator/time/update_times.h"
#include "estimator/validity/validity.h"

namespace shardplan {

// One row of functions and tables a framework. Functions of plans get valid ones only.
struct Framework {
  // Which plans it refuses, in the order in which the rules are tried.
  std::span<const ValidityRule> (*rules)();

  // Its classes of models have no modules of multi-token prediction: it trains a model without.
  bool leaves_out_prediction = false;

  // What plans and stages of it are made of, and what of them its options decide.
  FrameworkLayout layout = {};
  FrameworkChoices choices = {};

  // --- blocks ---

  // Rows of a block of one microbatch; none: they stand among those of the state.
  std::vector<BlockRow> (*block_rows)(const Job& job, const Plan& plan, BlockKind kind) = nullptr;
  // Kinds of blocks that are this framework's own, not the model's; none: no such.
  bool (*has_own_block)(const Job& job, BlockKind kind) = nullptr;
  // The part of a plan that rows of blocks look at; none: all of it.
  SeenByBlock (*seen_by_block)(const Job& job, const Plan& plan, BlockKind kind) = nullptr;
  // Rows of blocks go by the name of their tensor alone: those of equal names are one.
  bool names_rows_by_tensor = false;
  // A block's last forward step writes the first rows of the block behind it.
  bool writes_next_input = false;
  // Where the replay of a recomputed group ends in its last block.
  Step last_replayed = kLastForward;

  // Whether the units of a chunk gather and reduce buckets; none: never.
  bool (*gathers_by_unit)(const Job& job, const Plan& plan) = nullptr;
  // The buckets of a chunk, and rows of those that are alive at the peak.
  FsdpBuffers (*chunk_buffers)(const Job& job, const Plan& plan,
                               const ChunkLayout& chunk) = nullptr;
  void (*add_buffer_rows)(std::vector<Row>& rows, const Job& job, const Plan& plan,
                          const StagePieces& pieces) = nullptr;

  // --- what a stage holds ---

  // How contiguous buffers of parameters are cut; none: not at all.
  ContiguousBuffers (*contiguous_buffers)(const Job& job, const Plan& plan) = nullptr;
  // What a stage holds that depends neither on the sequence nor on the micro-batch, without
  // `parameters` and the sums of rows; where data-parallel ranks differ, of the one asked for, else
  // of the fullest.
  StageState (*state)(const Job& job, const Plan& plan, const StageLayout& stage,
                      const StageTensors& tensors, std::optional<std::int64_t> data_rank) = nullptr;
  // Rows of the size of a microbatch; none: they stand among the rows of the state.
  SequenceRows (*sequence_rows)(const Job& job, const Plan& plan, const StageEnds& ends) = nullptr;
  // The part of a plan that sequence_rows look at; none: all of it.
  SeenBySequences (*seen_by_sequences)(const Job& job, const Plan& plan,
                                       std::int64_t num_microbatches) = nullptr;

  // --- the replay of the allocator ---

  // What is allocated until the first step on a rank that has that shard of the optimizer; none:
  // nothing that rows of the state do not say.
  BuiltStage (*built)(const Job& job, const Plan& plan, const StageLayout& stage,
                      const StageTensors& tensors, std::int64_t shard) = nullptr;
  // Tensors that the first weight gradient of each shape makes, and that stay; none: no such.
  std::vector<std::int64_t> (*made_once_bytes)(const Job& job, const Plan& plan,
                                               const StageLayout& stage) = nullptr;
  // Start-up and steps played in full, tensor by tensor; none: blocks, state and buffers are
  // written from their rows.
  std::vector<AllocationEvent> (*timeline)(const Job& job, const Plan& plan,
                                           const StagePieces& pieces, std::int64_t rank) = nullptr;
  // Whether ranks that share the optimizer's state have tensors of different sizes; none: never.
  bool (*tells_shards)(const Plan& plan) = nullptr;
  // No more stages are replayed, the fullest first, once their timelines have had so many events: a
  // tenth of a second, where a timeline has one tensor for each row.
  std::int64_t most_events = 64'000;

  // --- time ---

  const BlockKernels& kernels;
  const UpdateTimes& update;

  // Stages do nothing else while one receives what another sends, both ways.
  bool waits_for_receives = false;
  // Without an interleaved schedule stages send between passes, whatever was asked for.
  bool sends_between_passes = false;
  // Whether a send is divided over tp without sequence parallelism, too; none: never.
  bool (*divides_sends)(const FrameworkProfile& profile) = nullptr;
  // Seconds of one tensor's hand-over to the next stage besides its bytes, on either side; none: 0.
  double (*hand_over_s)(const FrameworkProfile& profile) = nullptr;
  // Sets the options that its own functions of time look at as if nothing but kernels and links
  // took time (answer/step_limit.h); none: there are no such options.
  void (*set_fastest)(FrameworkProfile& profile) = nullptr;

  // --- keys of prices: what of a plan the times of blocks look at besides their sizes ---

  // Of the microbatches; none: nothing.
  std::int64_t (*microbatches_seen_by_time)(const Job& job, const Plan& plan) = nullptr;
  // Of how parameters and gradients are sharded among `dp` ranks; none: nothing.
  std::int64_t (*sharding_seen_by_time)(const Job& job, const Plan& plan,
                                        std::int64_t dp) = nullptr;

  // --- claims that bounds of a search rest on, each with a property test ---

  // Weights and gradients are whole on every rank, but where units gather buckets.
  bool holds_whole_weights = false;
  // Offloading the optimizer adds rows beside those that it takes away.
  bool offload_adds_buffers = false;

  // --- the default space of a search ---

  // The highest ZeRO stage that is tried unasked.
  std::int64_t most_zero_unasked = 3;
  // Every number of replicas is tried that divides the nodes, as rings over all GPUs have a step
  // for each of them; else one replica a node, where gradients can be sharded.
  bool gains_by_replicas = false;

  // --- outside the allocator ---

  // What the driver counts beside the allocator's segments, of one rank of a stage, and the part of
  // a plan that it looks at besides its groups and schedule.
  void (*add_outside)(const Job& job, const Plan& plan, std::int64_t pp_rank,
                      OutsideParts& parts) = nullptr;
  SeenByOutside (*seen_by_outside)(const Job& job, const Plan& plan) = nullptr;

  // --- answers ---

  // A closed formula in place of rows. What it says to fit is a share of the nominal capacity.
  MemoryEstimate (*formula)(const Job& job, const Plan& plan) = nullptr;
  // Whether the tensors of every data-parallel rank are known apart; none: never.
  bool (*knows_data_ranks)(const Plan& plan) = nullptr;

  // What runs beside something else, each option with its value; none: nothing.
  std::vector<std::string> (*overlaps)(const FrameworkProfile& profile, const Plan& plan) = nullptr;
  // What the numbers of an estimate rest on; none: nothing to say.
  void (*add_assumptions)(const Job& job, const Plan& plan, const PlanPieces& pieces,
                          std::vector<Assumption>& assumptions) = nullptr;
  // Bytes of host memory that a rank takes for what is offloaded; none: not counted.
  std::int64_t (*host_bytes)(const Job& job, const Plan& plan) = nullptr;
  // Moments and tensors outside the model, by name; none with a formula.
  std::vector<std::string> (*not_counted)(const FrameworkProfile& profile) = nullptr;
};

// By MemoryModel.
extern const std::array<Framework, kMemoryModels.size()> kFrameworks;

inline const Framework& framework_of(const FrameworkProfile& profile) {
  return kFrameworks[static_cast<std::size_t>(profile.memory_model)];
}

// Bytes of host memory of a rank, for what is offloaded.
inline std::int64_t host_bytes(const Job& job, const Plan& plan) {
  const Framework& framework = framework_of(job.profile);
  return framework.host_bytes != nullptr ? framework.host_bytes(job, plan) : 0;
}

// Leaves out of the job's model the modules that its framework leaves out; what these are, or
// nothing.
std::string leave_out_modules(Job& job);

// Makes it the profile's framework, with its layout and choices and without numbers of hosts.
void set_framework(FrameworkProfile& profile, MemoryModel memory_model);

}  // namespace shardplan
