#include "tools/accuracy/case.h"

#include <algorithm>

#include "estimator/frameworks/pieces/memory_model.h"
#include "tools/accuracy/accuracy.h"
#include "tools/accuracy/errors.h"
#include "tools/accuracy/plan_features.h"
#include "tools/options/case_file.h"

namespace shardplan {
namespace {

// The driver's figure and the allocator's stand for one instant at the end; what lies between them,
// context, libraries and NCCL, is there at the peak as well.
std::optional<std::int64_t> device_used_peak(const MeasuredRank& rank) {
  if (!rank.peak_reserved || !rank.device_used_end || !rank.reserved_end) {
    return std::nullopt;
  }
  return *rank.peak_reserved + *rank.device_used_end - *rank.reserved_end;
}

std::optional<std::int64_t> measured_bytes(const MeasuredRank& rank, Quantity quantity) {
  switch (quantity) {
    case Quantity::kPeakAllocated: return rank.peak_allocated;
    case Quantity::kFirstStep: return rank.peak_allocated_first_step;
    case Quantity::kSteady: return rank.peak_allocated_steady;
    case Quantity::kPeakReserved: return rank.peak_reserved;
    case Quantity::kDeviceUsed: return device_used_peak(rank);
    case Quantity::kAfterInit: return rank.allocated_after_init;
    case Quantity::kBetweenSteps: return rank.allocated_between_steps;
  }
  return std::nullopt;
}

// Where the first step has a peak of its own, counters were reset before it; else the peak is that
// of the whole process, start-up included.
std::int64_t predicted_peak(const StageMemory& stage, const MeasuredRank& rank) {
  return rank.peak_allocated_first_step ? std::max(stage.first_step_bytes, stage.steady_bytes)
                                        : stage.allocated_bytes;
}

std::int64_t predicted_bytes(const StageMemory& stage, const MeasuredRank& rank,
                             Quantity quantity) {
  switch (quantity) {
    case Quantity::kPeakAllocated: return predicted_peak(stage, rank);
    case Quantity::kFirstStep: return stage.first_step_bytes;
    case Quantity::kSteady: return stage.steady_bytes;
    case Quantity::kPeakReserved: return stage.reserved_bytes;
    case Quantity::kDeviceUsed: return stage.device_used_bytes;
    case Quantity::kAfterInit: return stage.built_bytes;
    case Quantity::kBetweenSteps: return stage.state_bytes;
  }
  return 0;
}

// Of the rank's stage; of the fullest one where the rank is not known. A formula without stages has
// one for all.
std::int64_t predicted_bytes(const MemoryEstimate& memory, const MeasuredRank& rank,
                             Quantity quantity) {
  if (!rank.is_largest) {
    const std::int64_t last = std::ssize(memory.stages) - 1;
    const std::size_t stage = static_cast<std::size_t>(std::min(rank.pp_rank, last));
    return predicted_bytes(memory.stages[stage], rank, quantity);
  }
  std::int64_t most = 0;
  for (const StageMemory& stage : memory.stages) {
    most = std::max(most, predicted_bytes(stage, rank, quantity));
  }
  return most;
}

const NotCompared* why_not_compared(const AccuracyCase& result, Quantity quantity) {
  const auto* found = std::ranges::find_if(kNotCompared, [&](const NotCompared& entry) {
    return entry.framework == result.framework && entry.quantity == quantity;
  });
  return found == kNotCompared.end() ? nullptr : found;
}

void add_ranks(AccuracyCase& result, const Case& question, const MemoryEstimate& fullest) {
  const bool knows_ranks = knows_data_ranks(question.job, question.plan);
  for (const MeasuredRank& rank : question.measured.value().ranks) {
    const MemoryEstimate own = knows_ranks && !rank.is_largest
                                   ? estimate_memory_of_rank(question.job, question.plan, rank.rank)
                                   : MemoryEstimate{};
    const MemoryEstimate& memory = own.stages.empty() ? fullest : own;
    RankPairs pairs = {.rank = rank, .pairs = {}};
    for (std::size_t i = 0; i < kQuantities.size(); ++i) {
      const Quantity quantity = kQuantities[i].value;
      const std::optional<std::int64_t> bytes = measured_bytes(rank, quantity);
      if (!bytes || *bytes <= 0) {
        continue;
      }
      if (const NotCompared* entry = why_not_compared(result, quantity)) {
        if (std::ranges::find(result.not_compared, entry) == result.not_compared.end()) {
          result.not_compared.push_back(entry);
        }
        continue;
      }
      const BytesPair pair = {.measured = *bytes,
                              .predicted = predicted_bytes(memory, rank, quantity)};
      pairs.pairs[i] = pair;
      BytesPair worst = result.worst[i].value_or(pair);
      worst.measured = std::max(worst.measured, pair.measured);
      worst.predicted = std::max(worst.predicted, pair.predicted);
      result.worst[i] = worst;
    }
    result.ranks.push_back(pairs);
  }
}

// Of a plan that may be refused: its degrees are at least within the cluster.
bool has_features(const Case& question) {
  const std::int64_t gpus = question.job.cluster.world_size();
  const Plan& plan = question.plan;
  return question.supported && std::max({plan.tp, plan.cp, plan.pp}) <= gpus;
}

// Megatron's layers come in two kinds.
std::string_view layer_feature(const FrameworkProfile& profile) {
  switch (profile.memory_model) {
    case MemoryModel::kMegatron:
      return profile.attention_backend == AttentionBackend::kLocal ? "no Transformer Engine"
                                                                   : "Transformer Engine";
    case MemoryModel::kMegatronLocal: return "no Transformer Engine";
    default: return "";
  }
}

std::optional<std::int64_t> paper_allocated_bytes(const Case& question, const Library& library) {
  Job job = question.job;
  job.profile = library.framework("fujii2024");
  if (first_broken_rule(job, question.plan) != nullptr) {
    return std::nullopt;
  }
  return basis_bytes(estimate_memory(job, question.plan), MemoryBasis::kAllocated);
}

}  // namespace

std::optional<std::int64_t> measured_device_bytes(const Measurement& measured) {
  std::optional<std::int64_t> most;
  for (const MeasuredRank& rank : measured.ranks) {
    if (const std::optional<std::int64_t> bytes = device_used_peak(rank)) {
      most = std::max(most.value_or(0), *bytes);
    }
  }
  return most;
}

std::optional<double> measured_step_s(const Measurement& measured, const Job& job) {
  if (!measured.step_times_s.empty()) {
    return median_of(measured.step_times_s);
  }
  if (measured.tokens_per_s_per_gpu.value_or(0) > 0) {
    return static_cast<double>(job.global_batch) * static_cast<double>(job.sequence_length) /
           static_cast<double>(job.cluster.world_size()) / *measured.tokens_per_s_per_gpu;
  }
  return std::nullopt;
}

AccuracyCase accuracy_case(const Case& question, const std::string& set, const Library& library) {
  const Measurement& measured = question.measured.value();
  AccuracyCase result;
  result.set = set;
  result.id = question.id;
  result.framework = question.framework;
  result.measured_status = measured.status;
  result.measured_step_s = measured_step_s(measured, question.job);
  const Prediction prediction = predict_case(question);
  result.status = prediction.status;
  result.reason = prediction.reason;
  if (has_features(question)) {
    result.features = plan_features(question.job, question.plan, question.options);
    if (const std::string_view layers = layer_feature(question.job.profile); !layers.empty()) {
      result.features.emplace_back(layers);
    }
    if (!measured.memory_grade.empty()) {
      result.features.push_back("memory grade " + measured.memory_grade);
    }
  }
  if (!prediction.has_numbers()) {
    return result;
  }
  result.predicted_step_s = prediction.time.total_s;
  add_ranks(result, question, prediction.memory);
  result.paper_allocated_bytes = paper_allocated_bytes(question, library);
  return result;
}

}  // namespace shardplan
