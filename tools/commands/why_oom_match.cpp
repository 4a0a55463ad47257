#include "tools/commands/why_oom_match.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/rank_grid.h"
#include "tools/commands/why_oom.h"
#include "tools/commands/why_oom_levels.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

// How far a place in the step is from what the message says, the best first.
struct Nearness {
  bool is_elsewhere = false;  // the traceback is in another part of the step
  bool is_too_late = false;   // the run would have died earlier
  std::int64_t beyond = 0;    // bytes from the range of levels, beyond what the model may err
  std::int64_t width = 0;     // of the range: exact levels say more
  std::int64_t distance = 0;  // bytes from its upper end
  std::int64_t behind = 0;    // bytes of rows made right behind it, when there is most
  friend auto operator<=>(const Nearness&, const Nearness&) = default;
};

// What the allocator may hold, where the message says it: all that is free comes to it.
std::optional<std::int64_t> allocator_limit(const OomEvent& event) {
  if (!event.reserved) {
    return std::nullopt;
  }
  const std::int64_t limit = event.reserved->middle() + (event.free ? event.free->middle() : 0);
  return event.allowed ? std::min(limit, event.allowed->middle()) : limit;
}

bool is_in_part(const std::string& moment, StepPart part) {
  const bool is_backward = moment.ends_with("backward") || moment == "weight gradient" ||
                           moment == "recompute replay" || moment == "gradient reduction";
  switch (part) {
    case StepPart::kForward: return moment.ends_with("forward") || moment == "recompute replay";
    case StepPart::kLoss: return moment == "loss forward";
    case StepPart::kBackward: return is_backward;
    case StepPart::kOptimizer: return moment == "optimizer step" || moment == "gradient reduction";
    case StepPart::kUnknown: return true;
  }
  return true;
}

Nearness nearness_of(const RowLevels& levels, const OomEvent& event) {
  if (!event.allocated || !event.tried) {
    return {};
  }
  const std::int64_t held = event.allocated->middle() + event.tried->middle();
  const std::int64_t tolerance = std::max(held / 64, 64 * kMiB);
  const std::int64_t outside =
      std::max({levels.lowest - held, held - levels.highest, std::int64_t{0}});
  const std::int64_t limit = std::max(held, allocator_limit(event).value_or(held));
  return {.is_elsewhere = !is_in_part(levels.moment, event.part),
          .is_too_late = levels.before > limit + tolerance,
          .beyond = std::max(outside - tolerance, std::int64_t{0}),
          .width = levels.highest - levels.lowest,
          .distance = std::llabs(levels.highest - held),
          .behind = levels.behind};
}

// Where in the step a row fits the message best. A step that the log reports is over.
RowLevels nearest_levels(const StageMemory& stage, const Row& row, const Question& question,
                         const OomEvent& event) {
  std::vector<RowLevels> levels = levels_of(stage, row, question.job, question.plan);
  if (event.last_step.value_or(0) > 0 && levels.size() > 1) {
    std::erase_if(levels, [](const RowLevels& each) { return each.is_first; });
  }
  return *std::ranges::min_element(levels, {},
                                   [&](const RowLevels& each) { return nearness_of(each, event); });
}

RowMatch match_of(const StageMemory& stage, const Row& row, const Question& question,
                  const OomEvent& event, std::int64_t bytes, bool by_segment) {
  const RowLevels levels = nearest_levels(stage, row, question, event);
  return {.stage = stage.pp_rank,
          .component = row.component,
          .row = row.name,
          .bytes = bytes,
          .by_segment = by_segment,
          .born = row.born.name,
          .levels = levels,
          .device_bytes = levels.highest + stage.outside_bytes};
}

// Rows of the state are lists of tensors: one per weight, where they are not sharded.
std::vector<WeightShape> weights_of_stage(const Question& question, std::int64_t pp_rank) {
  const PlanPieces pieces = plan_pieces(question.job, question.plan);
  const StageLayout& layout = pieces.stages[static_cast<std::size_t>(pp_rank)].layout;
  std::vector<WeightShape> shapes;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    const BlockKind kind = static_cast<BlockKind>(i);
    if (count_blocks(layout, kind) == 0) {
      continue;
    }
    const BlockKind shaped = kind == BlockKind::kEmbedding ? BlockKind::kHead : kind;
    for (WeightShape shape : weight_shapes(question.job, question.plan, shaped)) {
      shape.count = 1;
      if (std::ranges::find(shapes, shape) == shapes.end()) {
        shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

bool is_list_of_weights(const Question& question, const Row& row) {
  switch (row.component) {
    case Component::kParameters: return question.plan.zero < 3;
    case Component::kGradients:
    case Component::kOptimizer: return question.plan.zero < 2;
    case Component::kTemporaries:
      return question.plan.zero < 2 && row.born.name == "optimizer_step";
    default: return false;
  }
}

void match_weights(const Question& question, const StageMemory& stage, const OomEvent& event,
                   std::vector<RowMatch>& matches) {
  if (question.job.profile.memory_model == MemoryModel::kFujii2024) {
    return;
  }
  for (const WeightShape& shape : weights_of_stage(question, stage.pp_rank)) {
    const std::int64_t elements = shape.rows * shape.columns;
    for (const Row& row : stage.rows) {
      const std::int64_t bytes = elements * bytes_of(row.dtype);
      if (is_list_of_weights(question, row) && row.elements > elements &&
          event.tried->covers(segment_bytes(bytes))) {
        matches.push_back(match_of(stage, row, question, event, bytes, true));
        matches.back().row +=
            ", a weight of " + grouped(shape.rows) + " x " + grouped(shape.columns);
      }
    }
  }
}

// Segments that many tensors share: the message says little about which.
bool is_shared_segment(const PrintedBytes& tried) {
  return tried.covers(segment_bytes(1)) || tried.covers(segment_bytes(2 * kMiB));
}

// The component of the rows that a library outside the allocator fills; none: any of them.
std::optional<Component> component_of(std::string_view library) {
  if (library == "NCCL") {
    return Component::kCommunication;
  }
  const bool has_workspace = library == "cuBLAS" || library == "cuDNN";
  return has_workspace ? std::optional(Component::kWorkspace) : std::nullopt;
}

bool may_be_of(const StageMemory& stage, const Row& row, std::string_view library) {
  const std::optional<Component> component = component_of(library);
  return !component || row.component == *component ||
         std::ranges::none_of(stage.rows, [&](const Row& other) {
           return !other.in_allocator && other.bytes > 0 && other.component == *component;
         });
}

void match_rows(const Question& question, const StageMemory& stage, OomDiagnosis& diagnosis) {
  const OomEvent& event = diagnosis.event;
  for (const Row& row : stage.rows) {
    if (row.bytes == 0 || row.in_allocator != event.tried.has_value()) {
      continue;
    }
    if (!event.tried) {
      if (may_be_of(stage, row, event.outside)) {
        diagnosis.matches.push_back(match_of(stage, row, question, event, row.bytes, false));
      }
      continue;
    }
    const bool by_segment = event.tried->covers(segment_bytes(row.bytes));
    if (by_segment && is_shared_segment(*event.tried)) {
      ++diagnosis.small_rows;
    } else if (by_segment || event.tried->covers(row.bytes)) {
      diagnosis.matches.push_back(match_of(stage, row, question, event, row.bytes, by_segment));
    }
  }
}

// transformers integrations/sdpa_attention.py keeps no scores, models/llama/modeling_llama.py,
// eager_attention_forward, all of them: as the product in the model's type, as softmax in fp32.
std::int64_t eager_score_bytes(const Question& question, const PrintedBytes& tried) {
  const Job& job = question.job;
  const std::int64_t scores =
      question.plan.micro_batch * job.model.num_heads * job.sequence_length * job.sequence_length;
  for (const std::int64_t bytes : {2, 4}) {
    if (tried.covers(segment_bytes(scores * bytes))) {
      return bytes;
    }
  }
  return 0;
}

void match_event(OomDiagnosis& diagnosis, const Question& question) {
  const OomEvent& event = diagnosis.event;
  if (question.job.profile.memory_model == MemoryModel::kDeepspeed && event.tried &&
      !is_shared_segment(*event.tried)) {
    diagnosis.eager_score_bytes = eager_score_bytes(question, *event.tried);
  }
  for (const std::int64_t stage : diagnosis.stages) {
    const StageMemory& estimate = diagnosis.memory.stages.at(static_cast<std::size_t>(stage));
    match_rows(question, estimate, diagnosis);
    if (event.tried && !is_shared_segment(*event.tried)) {
      match_weights(question, estimate, event, diagnosis.matches);
    }
  }
  std::ranges::stable_sort(diagnosis.matches, [&](const RowMatch& one, const RowMatch& other) {
    if (!event.allocated) {
      return one.device_bytes > other.device_bytes;
    }
    return nearness_of(one.levels, event) < nearness_of(other.levels, event);
  });
}

std::optional<std::int64_t> stage_of(const OomEvent& event, const Question& question,
                                     const MemoryEstimate& memory) {
  if (!event.rank || *event.rank >= question.job.cluster.world_size()) {
    return std::nullopt;
  }
  const std::int64_t stage = coordinates_of(question.job, question.plan, *event.rank).pp;
  return stage < std::ssize(memory.stages) ? std::optional(stage) : std::nullopt;
}

std::int64_t capacity_of(const OomEvent& event, const ClusterSpec& cluster) {
  return event.capacity && !cluster.memory_limit_bytes ? *event.usable_bytes()
                                                       : device_capacity_bytes(cluster);
}

// Of what the allocator keeps, capacity decides.
MemoryEstimate memory_at(std::int64_t capacity_bytes, Question question,
                         const MemoryEstimate& memory) {
  if (capacity_bytes == device_capacity_bytes(question.job.cluster)) {
    return memory;
  }
  question.job.cluster.memory_limit_bytes = capacity_bytes;
  const Prediction prediction = predict_question(question, {});
  return prediction.has_numbers() ? prediction.memory : memory;
}

// With all GPUs in one node and one process per GPU the index is the rank.
void take_rank_from_gpu(OomEvent& event, const Question& question) {
  if (!event.rank && question.job.cluster.nodes == 1 && event.gpu.value_or(0) > 0) {
    event.rank = event.gpu;
  }
}

}  // namespace

std::vector<OomDiagnosis> diagnose(const std::vector<OomEvent>& events, const Question& question,
                                   const MemoryEstimate& memory) {
  std::vector<OomDiagnosis> diagnoses;
  for (OomEvent event : events) {
    take_rank_from_gpu(event, question);
    const std::int64_t capacity_bytes = capacity_of(event, question.job.cluster);
    std::vector<std::int64_t> stages;
    if (const auto stage = stage_of(event, question, memory)) {
      stages = {*stage};
    } else {
      stages.resize(memory.stages.size());
      std::iota(stages.begin(), stages.end(), std::int64_t{0});
    }
    const auto same = std::ranges::find_if(diagnoses, [&](const OomDiagnosis& known) {
      const bool same_size = event.tried
                                 ? known.event.tried && known.event.tried->text == event.tried->text
                                 : known.event.outside == event.outside;
      return same_size && known.stages == stages && known.capacity_bytes == capacity_bytes;
    });
    OomDiagnosis& diagnosis = same != diagnoses.end()
                                  ? *same
                                  : diagnoses.emplace_back(OomDiagnosis{
                                        .event = event,
                                        .ranks = {},
                                        .stages = stages,
                                        .matches = {},
                                        .capacity_bytes = capacity_bytes,
                                        .memory = memory_at(capacity_bytes, question, memory)});
    if (event.rank) {
      diagnosis.ranks.push_back(*event.rank);
    }
  }
  for (OomDiagnosis& diagnosis : diagnoses) {
    std::ranges::sort(diagnosis.ranks);
    match_event(diagnosis, question);
  }
  return diagnoses;
}

}  // namespace shardplan
