#include "search/questions/edits.h"

#include <algorithm>

#include "estimator/plan/layer_partition.h"
#include "search/questions/advise.h"
#include "search/space/default_space.h"
#include "search/space/space.h"

namespace shardplan {
namespace {

// Chunks that do not divide the layers get an uneven split, where there is one.
void split_layers(Job& job, Plan& plan) {
  plan.layers_per_chunk.clear();
  if (plan.pp * plan.vpp > 1 && layers_per_chunk(job, plan).empty()) {
    const auto splits = uneven_splits(job.model.num_layers(), plan.pp, plan.vpp);
    if (!splits.empty()) {
      plan.layers_per_chunk = splits.front();
    }
  }
}

void suit_schedule(const Job& job, Plan& plan) {
  if (plan.pp == 1) {
    plan.schedule = Schedule::kNone;
    plan.vpp = 1;
  } else if (plan.vpp > 1) {
    const ScheduleRow& row = row_of(plan.schedule);
    const bool has_chunks = row.most_chunks > 1 || row.group == MicrobatchGroup::kAll;
    plan.schedule = has_chunks ? plan.schedule : Schedule::kInterleaved1F1B;
  } else {
    const ScheduleRow& row = row_of(plan.schedule);
    const bool is_plain = row.most_stages > 1 && row.least_chunks == 1;
    plan.schedule = is_plain ? plan.schedule : job.profile.default_pipeline_schedule;
  }
}

template <class Value>
void add_value(std::vector<PlanEdit>& edits, const char* field, Value Plan::*member,
               const Plan& plan, const Value& value) {
  if (!(plan.*member == value)) {
    edits.push_back({.field = field,
                     .apply = [member, value](Job&, Plan& changed) { changed.*member = value; }});
  }
}

struct AxisValue {
  std::int64_t value = 0;
  bool is_next = false;
};

std::vector<AxisValue> other_values(std::int64_t own, std::int64_t most) {
  std::vector<AxisValue> values;
  for (std::int64_t more = 2 * own; more <= most; more *= 2) {
    values.push_back({.value = more, .is_next = more == 2 * own});
  }
  for (std::int64_t by = 2; by <= own; ++by) {
    if (own % by == 0) {
      values.push_back({.value = own / by, .is_next = values.empty() || values.back().value > own});
    }
  }
  return values;
}

// dp takes what is left.
void add_degree(std::vector<PlanEdit>& edits, const char* field, std::int64_t Plan::*member,
                const Plan& plan, std::int64_t most) {
  for (const auto& [value, is_next] : other_values(plan.*member, most)) {
    edits.push_back({.field = field,
                     .apply =
                         [member, value = value](Job& job, Plan& changed) {
                           const Plan before = changed;
                           changed.*member = value;
                           changed.dp = 0;
                           if ((changed.tp > 1) != (before.tp > 1)) {
                             changed.sequence_parallel =
                                 changed.tp > 1 && job.profile.default_sequence_parallel;
                           }
                           if (member == &Plan::tp || member == &Plan::ep) {
                             suit_experts(job, before, changed);
                           }
                           if (member == &Plan::pp) {
                             suit_schedule(job, changed);
                             split_layers(job, changed);
                           }
                         },
                     .is_next = is_next});
  }
}

void add_chunks(std::vector<PlanEdit>& edits, const SearchSpace& space, const Plan& plan) {
  const auto own = std::ranges::lower_bound(space.vpp, plan.vpp);
  const auto next = std::ranges::upper_bound(space.vpp, plan.vpp);
  for (auto value = space.vpp.begin(); value != space.vpp.end(); ++value) {
    if (*value != plan.vpp) {
      edits.push_back({.field = "vpp",
                       .apply =
                           [vpp = *value](Job& job, Plan& changed) {
                             changed.vpp = vpp;
                             suit_schedule(job, changed);
                             split_layers(job, changed);
                           },
                       .is_next = value == next || value + 1 == own});
    }
  }
}

// DeepSpeed's parameters go to the host with the optimizer's state, as in its examples: alone they
// are the slower way.
void add_offload(std::vector<PlanEdit>& edits, const Job& job, const Plan& plan) {
  for (const double share : {0.0, 0.5, 1.0}) {
    if (share != plan.offload.optimizer) {
      edits.push_back({.field = "offload_optimizer", .apply = [share](Job&, Plan& changed) {
                         changed.offload.optimizer = share;
                       }});
    }
  }
  const auto turn = [](Plan& changed) {
    changed.offload.parameters = !changed.offload.parameters;
    changed.offload.optimizer = changed.offload.parameters ? 1 : changed.offload.optimizer;
  };
  Plan turned = plan;
  turn(turned);
  if (first_broken_rule(job, turned) == nullptr) {
    edits.push_back(
        {.field = "offload_parameters", .apply = [turn](Job&, Plan& changed) { turn(changed); }});
  }
}

void add_state(std::vector<PlanEdit>& edits, const Plan& plan) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    add_value(edits, "grad_dtype", &Plan::grad_dtype, plan, dtype);
    add_value(edits, "exp_avg_dtype", &Plan::exp_avg_dtype, plan, dtype);
    add_value(edits, "exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype, plan, dtype);
  }
}

}  // namespace

void suit_experts(const Job& job, const Plan& before, Plan& plan) {
  if (job.model.moe.num_experts == 0) {
    return;
  }
  const bool as_tp = before.etp == before.tp && (before.ep == 1 || before.tp > 1);
  const std::int64_t expected = as_tp ? plan.tp : before.etp;
  const std::int64_t other = as_tp ? before.etp : plan.tp;
  plan.etp = other;
  const bool only_other = first_broken_rule(job, plan) == nullptr;
  plan.etp = expected;
  if (only_other && first_broken_rule(job, plan) != nullptr) {
    plan.etp = other;
  }
}

std::vector<PlanEdit> single_edits(const Job& job, const Plan& plan) {
  const SearchSpace space = default_space(job);
  std::vector<PlanEdit> edits;
  const std::int64_t num_gpus = job.cluster.world_size();
  add_degree(edits, "micro_batch", &Plan::micro_batch, plan, job.global_batch);
  for (const Recompute& recompute : space.recompute) {
    add_value(edits, "recompute", &Plan::recompute, plan, recompute);
  }
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    add_value<std::int64_t>(edits, "zero", &Plan::zero, plan, zero);
  }
  add_value(edits, "sequence_parallel", &Plan::sequence_parallel, plan, !plan.sequence_parallel);
  add_degree(edits, "tp", &Plan::tp, plan, num_gpus);
  add_degree(edits, "pp", &Plan::pp, plan, num_gpus);
  add_degree(edits, "cp", &Plan::cp, plan, num_gpus);
  if (job.model.moe.num_experts > 0) {
    add_degree(edits, "ep", &Plan::ep, plan, num_gpus);
    add_degree(edits, "etp", &Plan::etp, plan, num_gpus);
  }
  add_chunks(edits, space, plan);
  if (plan.layers_per_chunk.empty() && layers_per_chunk(job, plan).empty()) {
    edits.push_back({.field = "layers_per_chunk", .apply = split_layers});
  }
  for (const Schedule schedule : space.schedule) {
    add_value(edits, "schedule", &Plan::schedule, plan, schedule);
  }
  if (plan.cp > 1) {
    for (const CpMethod method : space.cp_method) {
      add_value(edits, "cp_method", &Plan::cp_method, plan, method);
    }
  }
  add_degree(edits, "dp_replicate", &Plan::dp_replicate, plan, num_gpus);
  add_state(edits, plan);
  add_offload(edits, job, plan);
  return edits;
}

}  // namespace shardplan
