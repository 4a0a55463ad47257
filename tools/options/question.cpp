#include "tools/options/question.h"

#include <algorithm>
#include <set>
#include <utility>

#include "data/frameworks/framework.h"
#include "data/frameworks/profile_fields.h"
#include "data/read/case_plan.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tools/options/given_cluster.h"
#include "tools/options/given_model.h"
#include "tools/options/options.h"
#include "tools/options/plan_words.h"
#include "tools/options/run_job.h"
#include "tools/options/tuning_words.h"
#include "tools/options/words.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

// `flag`: the option that gives the word.
void apply_word(FrameworkProfile& profile, const std::string& word, const std::string& flag,
                const Library& library) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError(flag + ": found '" + word + "', expected KEY=VALUE");
  }
  apply_option(profile, word.substr(0, equals), word.substr(equals + 1), library,
               flag + " " + word + ": ");
}

// --set and --framework-option: switches of the framework. `others`: words of --set that are none.
void apply_words(FrameworkProfile& profile, const Options& options, const Library& library,
                 const std::vector<std::string>& others) {
  for (const std::string& word : all_of(options, "framework-option")) {
    apply_word(profile, word, "--framework-option", library);
  }
  const std::string flag = options.command == "compare" ? "--against or --set" : "--set";
  for (const std::string& word : all_of(options, "set")) {
    if (std::ranges::find(others, word) == others.end()) {
      apply_word(profile, word, flag, library);
    }
  }
}

// Of two words for one thing the first would be dropped silently.
void refuse_repeated_keys(const Options& options) {
  std::set<std::string> keys;
  for (const char* option : {"framework-option", "set"}) {
    for (const std::string& word : all_of(options, option)) {
      std::string key = word.substr(0, word.find('='));
      key.erase(0, std::min(key.find_first_not_of('-'), key.size()));
      if (!keys.insert(key).second) {
        throw second_word(std::string("--").append(option).append(" ").append(word), key, "one");
      }
    }
  }
}

// A search has no --num-microbatches.
void require_batch(const Options& options) {
  if (!given(options, "num-microbatches")) {
    required_text(options, "global-batch");
  }
}

void refuse_file_words(const Options& options) {
  for (const std::string& word : all_of(options, "set")) {
    if (names_argument(word)) {
      throw InputError("--set: found '" + word +
                       "', an argument of a run's file, expected --from FILE beside it");
    }
  }
}

// A slip of the hand is likelier than the wish: estimates are those of the longer sequence.
void warn_of_positions(const Job& job, std::vector<std::string>& warnings) {
  const std::int64_t positions = job.model.max_sequence_length;
  if (positions > 0 && job.sequence_length > positions) {
    warnings.push_back("sequences of " + grouped(job.sequence_length) + " tokens, but " +
                       job.model.name + " has " + grouped(positions) +
                       " positions (max_position_embeddings): counted as if it had more");
  }
}

// The batch that num_microbatches per data-parallel rank make.
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

// Fields not given as the framework has them. `selective` alone: Megatron-LM's recompute_modules
// default to core_attn (training/arguments.py), torchtitan's selective_ac_option to 2
// (config/job_config.py).
Plan with_defaults(const Job& job, const Plan& plan, const std::vector<std::string>& given_fields) {
  const FrameworkProfile& profile = job.profile;
  Plan full = with_profile_defaults(job, plan, given_fields);
  Recompute& recompute = full.recompute;
  const Recompute bare{.granularity = RecomputeGranularity::kSelective};
  if (recompute == bare && profile.memory_model == MemoryModel::kTorchtitan) {
    recompute.policy = "every_second_layer";
  } else if (recompute == bare) {
    recompute.modules.core_attn = true;
  }
  return full;
}

// The plan of the run's file with the options over it. Schedule and layers of the chunks follow
// changed pp and vpp, dp a changed pp; of other sizes the file's reader has seen to it.
Plan plan_of_run(const Options& options, const GivenRun& run, std::vector<std::string>& fields) {
  Plan plan = plan_of(options, fields, run.reading.plan);
  std::vector<std::string> known = plan_field_names();
  const Plan& own = run.reading.plan;
  const bool restaged = plan.pp != own.pp || plan.vpp != own.vpp;
  if (restaged && !given(options, "schedule")) {
    std::erase(known, "schedule");
  }
  if (restaged && !given(options, "layers-per-chunk")) {
    plan.layers_per_chunk.clear();
  }
  if (plan.pp != own.pp && !given(options, "dp")) {
    plan.dp = 0;  // what the other sizes leave
  }
  fields = known;
  return with_defaults(run.reading.job, plan, known);
}

}  // namespace

Options with_plan_fields(Options options) {
  std::vector<std::string> others;
  const std::vector<std::string> fields = plan_field_names();
  for (const std::string& word : all_of(options, "set")) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (equals != std::string::npos && std::ranges::find(fields, name) != fields.end()) {
      add_option(options, option_name(name), word.substr(equals + 1));
    } else {
      others.push_back(word);
    }
  }
  if (others.empty()) {
    options.values.erase("set");
  } else {
    options.values["set"] = others;
  }
  return options;
}

Library library_of(const Options& options) {
  return given(options, "data") ? Library(text_or(options, "data", "")) : Library();
}

GivenJob job_of(const Options& options, const Library& library) {
  GivenJob result;
  refuse_repeated_keys(options);
  const bool has_run = given(options, "from");
  if (has_run) {
    result = job_of_run(options, library);
  } else {
    refuse_file_words(options);
    required_text(options, "sequence-length");
    required_text(options, "model");
    require_batch(options);
    result.job.cluster = cluster_of(options, library, 0, result.warnings);
  }
  Job& job = result.job;
  if (given(options, "framework") || !has_run) {
    const std::string framework = text_or(options, "framework", "megatron");
    job.profile = library.framework(framework);
    if (library.framework_named(framework) != in_lower_case(framework)) {
      result.warnings.push_back("--framework " + framework + ": understood as " + job.profile.name);
    }
  }
  std::vector<std::string> taken = result.run ? result.run->set_words : std::vector<std::string>{};
  if (given(options, "model")) {
    ModelFile file = library.model_file(text_or(options, "model", ""));
    if (!has_run) {
      taken = model_words(file, options, profile_options(library, library.key_of(job.profile)));
    }
    ModelConfig model =
        model_of(std::move(file), options, has_run ? std::vector<std::string>{} : taken);
    job.model = std::move(model.model);
    job.model.tower = library.model(text_or(options, "model", "")).model.tower;  // of presets, too
    result.warnings.insert(result.warnings.end(), model.warnings.begin(), model.warnings.end());
  }
  if (!job.profile.name.empty()) {
    apply_words(job.profile, options, library, taken);
  }
  if (std::string left_out = leave_out_modules(job); !left_out.empty()) {
    result.warnings.push_back(std::move(left_out));
  }
  job.sequence_length = count_or(options, "sequence-length", job.sequence_length);
  if (given(options, "model")) {  // a framework's own models have positions of their own
    warn_of_positions(job, result.warnings);
  }
  if (given(options, "optimizer") || !has_run) {
    job.optimizer = value_of<OptimizerKind>(text_or(options, "optimizer", "adamw")).value();
  }
  apply_tuning(job, options);
  return result;
}

MemoryRule memory_rule_of(const Options& options) {
  if (text_or(options, "memory-threshold", "") == "none") {
    if (given(options, "memory-basis")) {
      throw InputError(
          "--memory-threshold: found none beside --memory-basis, expected a share of "
          "it or one of the two");
    }
    return kCardAlone;
  }
  MemoryRule rule;
  rule.threshold = number_or(options, "memory-threshold", rule.threshold);
  rule.basis = value_of<MemoryBasis>(text_or(options, "memory-basis", "allocated")).value();
  rule.is_asked = given(options, "memory-threshold") || given(options, "memory-basis");
  return rule;
}

Question question_of(const Options& raw_options, const Library& library) {
  const Options options = with_plan_fields(raw_options);
  Question question;
  GivenJob given_job = job_of(options, library);
  question.job = std::move(given_job.job);
  question.run = std::move(given_job.run);
  question.warnings = std::move(given_job.warnings);
  question.plan =
      question.run ? plan_of_run(options, *question.run, question.given)
                   : with_defaults(question.job, plan_of(options, question.given), question.given);
  const bool is_read = question.run && question.run->reading.has_profile;
  if (is_read && !given(options, "framework")) {  // of another framework nothing was read
    for (const ProfileOption& option :
         profile_options(library, library.key_of(question.job.profile))) {
      if (!option.assumed) {
        question.given_options.push_back(option.name);
      }
    }
  }
  for (const char* option : {"framework-option", "set"}) {
    for (const std::string& word : all_of(options, option)) {
      question.given_options.push_back(word.substr(0, word.find('=')));
    }
  }
  question.microbatches_given = given(options, "num-microbatches");
  const bool batch_given = given(options, "global-batch");
  if (question.microbatches_given && batch_given) {
    throw InputError(options.command +
                     ": expected either --global-batch or --num-microbatches, found both");
  }
  if (batch_given) {
    question.job.global_batch = count_or(options, "global-batch", 0);
  } else if (question.microbatches_given || !question.run->reading.batch_stated) {
    question.job.global_batch =
        global_batch_of(question.job, question.plan, count_or(options, "num-microbatches", 1));
  }
  return question;
}

std::string options_of_plan(const Job& job, const Plan& plan, const std::optional<GivenRun>& run) {
  if (!run) {
    return options_of_plan(plan, with_open_etp(job, {}));
  }
  // In a file sizes and layers follow from one another: all of them are said.
  Plan base = run->reading.plan;
  for (const PlanSize& size : kPlanSizes) { base.*size.field = -1; }
  base.layers_per_chunk = {-1};
  Plan full = plan;
  full.dp = data_parallel_size(job, plan);
  return options_of_plan(full, base);
}

std::vector<std::string> other_values(const FrameworkProfile& profile,
                                      const ProfileOption& option) {
  std::vector<std::string> values =
      option.type == "bool" ? std::vector<std::string>{"true", "false"} : option.choices;
  std::erase(values, profile_field_text(profile, option.name));
  return values;
}

bool takes_uncounted_memory(const ProfileOption& option) {
  return option.name == "cuda_graphs" || option.name == "overlap_moe_expert_parallel_comm" ||
         option.name == "moe_shared_expert_overlap" || option.name == "fsdp_whole_moments";
}

Prediction predict_question(const Question& question, const MemoryRule& rule) {
  if (question.run && !question.run->reading.unsupported.empty()) {
    return {.status = PredictedStatus::kUnsupported, .reason = question.run->reading.unsupported};
  }
  return predict(question.job, question.plan, rule);
}

}  // namespace shardplan
