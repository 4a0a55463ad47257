// Changes of a plan that make it fit, each judged by a whole estimate.
#include <algorithm>
#include <functional>

#include "search/advise.h"
#include "tools/plan_words.h"
#include "tools/why_oom.h"

namespace shardplan {
namespace {

// One thing to try; false: it does not apply to this plan.
using Try = std::function<bool(Question& question)>;

Try recompute(const Recompute& value) {
  return [value](Question& question) {
    const bool is_new = question.plan.recompute != value;
    question.plan.recompute = value;
    return is_new;
  };
}

// Twice as much of one dimension, at the cost of data parallelism.
Try doubled(std::int64_t Plan::*field) {
  return [field](Question& question) {
    Plan& plan = question.plan;
    const Plan before = plan;
    const std::int64_t model_parallel = plan.tp * plan.cp * plan.pp;
    if (field == &Plan::pp) {
      plan.schedule = plan.schedule == Schedule::kNone
                          ? question.job.profile.default_pipeline_schedule
                          : plan.schedule;
      plan.layers_per_chunk.clear();
    }
    if (field == &Plan::tp && plan.tp == 1) {
      plan.sequence_parallel = question.job.profile.default_sequence_parallel;
    }
    plan.*field *= 2;
    plan.dp = 0;
    if (field == &Plan::tp) {
      suit_experts(question.job, before, plan);
    }
    return question.job.cluster.world_size() % (2 * model_parallel) == 0;
  };
}

std::vector<Try> recompute_tries() {
  using enum RecomputeGranularity;
  return {
      recompute({.granularity = kSelective, .modules = {.core_attn = true}}),
      recompute({.granularity = kSelective, .modules = {.layernorm = true}}),
      recompute({.granularity = kSelective, .modules = {.mlp = true}}),
      recompute({.granularity = kSelective, .policy = "every_second_matmul"}),
      recompute({.granularity = kFull}),
  };
}

bool double_experts_ranks(Question& changed) {
  const Plan before = changed.plan;
  changed.plan.ep *= 2;
  suit_experts(changed.job, before, changed.plan);
  return changed.job.model.moe.num_experts > 0;
}

bool halve_micro_batch(Question& changed) {
  const bool is_even = changed.plan.micro_batch % 2 == 0;
  changed.plan.micro_batch /= 2;
  return is_even;
}

bool shard_sequence(Question& changed) {
  const bool is_new = changed.plan.tp > 1 && !changed.plan.sequence_parallel;
  changed.plan.sequence_parallel = true;
  return is_new;
}

bool join_chunks(Question& changed) {
  const bool is_new = changed.plan.vpp > 1;
  changed.plan.vpp = 1;
  changed.plan.schedule = Schedule::k1F1B;
  changed.plan.layers_per_chunk.clear();
  return is_new;
}

bool reduce_in_bf16(Question& changed) {
  const bool is_new = changed.plan.grad_dtype == DType::kFp32;
  changed.plan.grad_dtype = DType::kBf16;
  return is_new;
}

bool expand_segments(Question& changed) {
  const bool is_new = changed.job.profile.allocator == AllocatorKind::kCaching;
  changed.job.profile.allocator = AllocatorKind::kCachingExpandable;
  return is_new;
}

std::vector<Try> all_tries(const Question& question) {
  std::vector<Try> tries = recompute_tries();
  tries.emplace_back(halve_micro_batch);
  tries.emplace_back(shard_sequence);
  for (std::int64_t zero = question.plan.zero + 1; zero <= 3; ++zero) {
    tries.emplace_back([zero](Question& changed) {
      changed.plan.zero = zero;
      return true;
    });
  }
  for (const auto field : {&Plan::tp, &Plan::pp, &Plan::cp}) { tries.push_back(doubled(field)); }
  tries.emplace_back(double_experts_ranks);
  tries.emplace_back(join_chunks);
  tries.emplace_back(reduce_in_bf16);
  tries.emplace_back(expand_segments);
  return tries;
}

// All options that differ, those that follow from a change too: who sets them has this plan.
std::string text_of(const Question& before, const Question& after) {
  Plan plan = after.plan;
  if (before.plan.dp != 0) {
    plan.dp = data_parallel_size(after.job, plan);
  }
  std::string text = options_that_differ(with_open_etp(after.job, before.plan), plan);
  const std::int64_t microbatches = num_microbatches(after.job, after.plan);
  if (before.microbatches_given && microbatches != num_microbatches(before.job, before.plan)) {
    text += (text.empty() ? "--num-microbatches " : " --num-microbatches ") +
            std::to_string(microbatches);
  }
  if (after.job.profile.allocator != before.job.profile.allocator) {
    text += text.empty() ? "" : " ";
    text +=
        "--framework-option allocator=caching_expandable "
        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)";
  }
  return text;
}

std::int64_t device_used(const Prediction& prediction) {
  return basis_bytes(prediction.memory, MemoryBasis::kDeviceUsed);
}

// Judges one changed plan and keeps it if it fits, and uses less than the plan of the run. Two
// tries of one field come to one of them alone: a plan that was judged before says nothing new.
void judge(WhyOomReport& report, const Question& changed, std::vector<Question>& judged) {
  const auto is_same = [&](const Question& other) {
    return other.plan == changed.plan &&
           other.job.profile.allocator == changed.job.profile.allocator;
  };
  if (first_broken_rule(changed.job, changed.plan) != nullptr ||
      std::ranges::any_of(judged, is_same)) {
    return;
  }
  judged.push_back(changed);
  ++report.changes_tried;
  PlanChange change = {.text = text_of(report.question, changed), .question = changed};
  change.prediction = predict(changed.job, changed.plan, {});
  if (!is_negative(change.prediction.status) &&
      device_used(change.prediction) < device_used(report.prediction)) {
    report.changes.push_back(std::move(change));
  }
}

void try_pairs(WhyOomReport& report, const std::vector<Try>& tries, std::vector<Question>& judged) {
  for (std::size_t i = 0; i < tries.size(); ++i) {
    for (std::size_t j = i + 1; j < tries.size(); ++j) {
      Question changed = report.question;
      if (tries[i](changed) && tries[j](changed)) {
        judge(report, changed, judged);
      }
    }
  }
}

}  // namespace

void find_changes(WhyOomReport& report) {
  const std::vector<Try> tries = all_tries(report.question);
  std::vector<Question> judged;
  for (const Try& one : tries) {
    Question changed = report.question;
    if (one(changed)) {
      judge(report, changed, judged);
    }
  }
  if (report.changes.empty()) {
    try_pairs(report, tries, judged);
  }
  std::ranges::stable_sort(report.changes, {},
                           [](const PlanChange& change) { return change.prediction.time.total_s; });
}

}  // namespace shardplan
