#include "tools/question.h"

#include <algorithm>

#include "data/case_line.h"
#include "tools/plan_words.h"
#include "tools/words.h"

namespace shardplan {
namespace {

// --num-gpus: whole nodes, or a part of one node.
void resize(ClusterSpec& cluster, std::int64_t num_gpus) {
  if (num_gpus < cluster.gpus_per_node) {
    cluster.gpus_per_node = num_gpus;
    cluster.nodes = 1;
  } else if (num_gpus % cluster.gpus_per_node != 0) {
    throw InputError("--num-gpus: found " + std::to_string(num_gpus) +
                     ", expected a multiple of the " + std::to_string(cluster.gpus_per_node) +
                     " GPUs of a node of " + cluster.name);
  } else {
    cluster.nodes = num_gpus / cluster.gpus_per_node;
  }
  cluster.nvlink_domain = std::min(cluster.nvlink_domain, num_gpus);
  cluster.name += " limited to " + std::to_string(num_gpus) + " GPUs";
}

void apply_words(FrameworkProfile& profile, const std::vector<std::string>& words,
                 const Library& library) {
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError("--framework-option: found '" + word + "', expected KEY=VALUE");
    }
    apply_option(profile, word.substr(0, equals), word.substr(equals + 1), library);
  }
}

}  // namespace

Library library_of(const Options& options) {
  return given(options, "data") ? Library(text_or(options, "data", "")) : Library();
}

Job job_of(const Options& options, const Library& library, std::vector<std::string>& warnings) {
  Job job;
  const UnknownKeys unknown_keys =
      given(options, "strict") ? UnknownKeys::kRefuse : UnknownKeys::kWarn;
  required_text(options, "sequence-length");
  ModelConfig model = library.model(required_text(options, "model"), unknown_keys);
  job.model = std::move(model.model);
  warnings = std::move(model.warnings);
  job.cluster = library.cluster(required_text(options, "cluster"));
  if (given(options, "num-gpus")) {
    resize(job.cluster, count_or(options, "num-gpus", 0));
  }
  if (given(options, "gpu-memory")) {
    job.cluster.memory_limit_bytes = count_or(options, "gpu-memory", 0);
  }
  job.profile = library.framework(text_or(options, "framework", "megatron"));
  apply_words(job.profile, all_of(options, "framework-option"), library);
  job.sequence_length = count_or(options, "sequence-length", 0);
  job.optimizer = value_of<OptimizerKind>(text_or(options, "optimizer", "adamw")).value();
  return job;
}

MemoryRule memory_rule_of(const Options& options) {
  MemoryRule rule;
  rule.share.memory_threshold = number_or(options, "memory-threshold", rule.share.memory_threshold);
  rule.share.basis = value_of<MemoryBasis>(text_or(options, "memory-basis", "allocated")).value();
  rule.decides_verdict = given(options, "memory-threshold") || given(options, "memory-basis");
  return rule;
}

std::int64_t global_batch_of(const Job& job, const Plan& plan, std::int64_t num_microbatches) {
  // Where the sizes do not divide the world, why_invalid says so; any batch will do until then.
  const std::int64_t others = plan.tp * plan.cp * plan.pp;
  const std::int64_t dp =
      plan.dp > 0 ? plan.dp : std::max<std::int64_t>(1, job.cluster.world_size() / others);
  std::int64_t batch = 0;
  if (__builtin_mul_overflow(num_microbatches * plan.micro_batch, dp, &batch)) {
    throw InputError("--num-microbatches: the global batch does not fit 64 bits");
  }
  return batch;
}

Question question_of(const Options& options, const Library& library) {
  Question question;
  question.job = job_of(options, library, question.warnings);
  question.plan =
      with_profile_defaults(question.job.profile, plan_of(options, question.given), question.given);
  for (const std::string& word : all_of(options, "framework-option")) {
    question.given_options.push_back(word.substr(0, word.find('=')));
  }
  question.microbatches_given = given(options, "num-microbatches");
  if (question.microbatches_given == given(options, "global-batch")) {
    throw InputError(options.command +
                     ": expected either --global-batch or --num-microbatches, found " +
                     (question.microbatches_given ? "both" : "neither"));
  }
  question.job.global_batch =
      question.microbatches_given
          ? global_batch_of(question.job, question.plan, count_or(options, "num-microbatches", 1))
          : count_or(options, "global-batch", 0);
  return question;
}

}  // namespace shardplan
