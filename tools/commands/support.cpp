#include "tools/commands/support.h"

#include <algorithm>
#include <array>

#include "data/read/json_message.h"
#include "estimator/estimate.h"
#include "tools/accuracy/evidence.h"
#include "tools/commands/help.h"
#include "tools/options/command_words.h"
#include "tools/options/question.h"
#include "tools/report/csv.h"
#include "tools/report/json.h"
#include "tools/report/report.h"
#include "tools/report/text.h"
#include "tools/screen/screen.h"

namespace shardplan {
namespace {

constexpr std::int64_t kFeatureColumn = 10;
constexpr std::int64_t kLeastColumn = 6;
constexpr std::size_t kMostTitle = 12;

using Has = bool (*)(const Job& job, const Plan& plan);

bool divides_data(const Job& job, const Plan& plan) {
  return data_parallel_size(job, plan) > 1;
}

template <std::int64_t Plan::*Size>
bool has_more(const Job&, const Plan& plan) {
  return plan.*Size > 1;
}

template <int Stage>
bool has_zero(const Job& job, const Plan& plan) {
  return plan.zero == Stage && divides_data(job, plan);
}

template <RecomputeGranularity Granularity>
bool recomputes(const Job&, const Plan& plan) {
  return plan.recompute.granularity == Granularity;
}

bool has_experts(const Job& job, const Plan&) {
  return job.model.moe.num_experts > 0;
}

bool is_quantized(const Job& job, const Plan&) {
  return job.quantized.kind != Quantization::kNone;
}

// Options of a sample job that ask for a feature; where frameworks differ in how, several ways.
struct Feature {
  std::string_view name;
  Has has;  // of a measured run
  std::array<std::string_view, 3> words;
};
constexpr std::array kFeatures = std::to_array<Feature>({
    {"tp", has_more<&Plan::tp>, {"--tp 2", "--tp 8"}},
    {"tp with sp",
     [](const Job&, const Plan& plan) { return plan.tp > 1 && plan.sequence_parallel; },
     {"--tp 2 --sequence-parallel on"}},
    {"pp", has_more<&Plan::pp>, {"--pp 2"}},
    {"vpp", has_more<&Plan::vpp>, {"--pp 2 --vpp 2"}},
    {"cp", has_more<&Plan::cp>, {"--cp 2", "--cp 2 --cp-method a2a", "--cp 2 --zero 3"}},
    {"experts",
     has_experts,
     {"--model qwen3-30b-a3b", "--model mixtral-8x7b", "--model mixtral-8x7b --zero 3"}},
    {"ep",
     has_more<&Plan::ep>,
     {"--model qwen3-30b-a3b --ep 2", "--model mixtral-8x7b --ep 2",
      "--model qwen3-30b-a3b --ep 2 --zero 3"}},
    {"etp", has_more<&Plan::etp>, {"--model qwen3-30b-a3b --tp 2 --ep 2 --etp 2"}},
    {"zero 0", has_zero<0>, {"--zero 0"}},
    {"zero 1", has_zero<1>, {"--zero 1"}},
    {"zero 2", has_zero<2>, {"--zero 2"}},
    {"zero 3", has_zero<3>, {"--zero 3"}},
    {"hybrid",
     has_more<&Plan::dp_replicate>,
     {"--dp-replicate 2 --zero 3", "--dp-replicate 2 --zero 1", "--dp-replicate 2"}},
    {"full rec.", recomputes<RecomputeGranularity::kFull>, {"--recompute full"}},
    {"some rec.", recomputes<RecomputeGranularity::kSelective>, {"--recompute selective"}},
    {"fp8",
     [](const Job&, const Plan& plan) { return plan.precision == Precision::kFp8; },
     {"--precision fp8"}},
    {"offload",
     [](const Job&, const Plan& plan) {
       return plan.offload.optimizer > 0 || plan.offload.parameters;
     },
     {"--offload-optimizer 1", "--offload-optimizer 1 --zero 3",
      "--offload-optimizer 1 --offload-parameters on --zero 3"}},
    {"LoRA",
     [](const Job& job, const Plan& plan) {
       return job.adapters.rank > 0 && !is_quantized(job, plan);
     },
     {"--lora-rank 8", "--lora-rank 8 --lora-dtype bf16"}},
    {"QLoRA",
     is_quantized,
     {"--lora-rank 8 --lora-dtype bf16 --quantize nf4", "--lora-rank 8 --quantize nf4"}},
    {"muon",
     [](const Job& job, const Plan&) {
       return job.optimizer == OptimizerKind::kMuon || job.optimizer == OptimizerKind::kDistMuon;
     },
     {"--optimizer muon", "--optimizer dist_muon", "--optimizer muon --zero 1"}},
});

Options sample_options(const std::string& framework, std::string_view words) {
  const Options sample =
      parse_options("estimate", {"--model", "llama3-8b", "--cluster", "1x8-h100", "--framework",
                                 framework, "--sequence-length", "4096", "--global-batch", "64"});
  return with_option_words(sample, std::string(words));
}

// "" for a plan that is counted.
std::string refusal_of(const Options& options, const Library& library) {
  try {
    const Question question = question_of(options, library);
    const std::optional<InvalidReason> reason = why_invalid(question.job, question.plan);
    return reason ? reason->message : "";
  } catch (const InputError& problem) { return problem.what(); }
}

// Of the first way to ask for it, or of none where another is counted.
void ask(const Feature& feature, FeatureSupport& support, const Library& library) {
  for (const std::string_view words : feature.words) {
    if (words.empty()) {
      break;
    }
    const std::string refusal = refusal_of(sample_options(support.framework, words), library);
    if (refusal.empty() || support.words.empty()) {
      support.words = words;
      support.refusal = refusal;
    }
    if (refusal.empty()) {
      return;
    }
  }
}

// "-" where it is refused, else how many runs were measured.
std::string cell_of(const FeatureSupport& support) {
  return support.refusal.empty() ? grouped(support.measured_runs) : "-";
}

// "megatron-" above "core-local": the two rows of a column's title.
std::array<std::string, 2> title_of(const std::string& framework) {
  const std::size_t dash = framework.find('-');
  const bool is_long = dash != std::string::npos && framework.size() > kMostTitle;
  return is_long ? std::array{framework.substr(0, dash + 1), framework.substr(dash + 1)}
                 : std::array{std::string(), framework};
}

std::int64_t column_of(const std::string& framework) {
  std::int64_t width = kLeastColumn;
  for (const std::string& row : title_of(framework)) {
    width = std::max(width, display_width(row));
  }
  return width + 1;
}

using Frameworks = std::vector<std::vector<FeatureSupport>>;

// The columns of some frameworks, each feature a row.
std::string columns_text(const Frameworks& frameworks) {
  std::string text;
  for (std::size_t title = 0; title < 2; ++title) {
    std::string line;
    for (const std::vector<FeatureSupport>& each : frameworks) {
      const std::string& name = each.front().framework;
      line += padded_left(title_of(name).at(title), column_of(name));
    }
    if (line.find_first_not_of(' ') != std::string::npos) {
      text += padded_right("", kFeatureColumn) + line + "\n";
    }
  }
  for (std::size_t row = 0; row < kFeatures.size(); ++row) {
    text += padded_right(kFeatures[row].name, kFeatureColumn);
    for (const std::vector<FeatureSupport>& each : frameworks) {
      text += padded_left(cell_of(each[row]), column_of(each.front().framework));
    }
    text += "\n";
  }
  return text;
}

// Frameworks side by side, as many as the screen is wide, the rest below.
std::string side_by_side(const Frameworks& frameworks, std::int64_t width) {
  std::string text;
  Frameworks row;
  std::int64_t used = kFeatureColumn;
  for (const std::vector<FeatureSupport>& each : frameworks) {
    const std::int64_t column = column_of(each.front().framework);
    if (!row.empty() && used + column > width) {
      text += columns_text(row) + "\n";
      row.clear();
      used = kFeatureColumn;
    }
    used += column;
    row.push_back(each);
  }
  return text + columns_text(row);
}

Table long_table(const Frameworks& frameworks) {
  Table table{.columns = {"framework", "version", "feature", "status", "measured_runs", "options",
                          "refusal"}};
  for (const std::vector<FeatureSupport>& framework : frameworks) {
    for (const FeatureSupport& each : framework) {
      const std::string status = !each.refusal.empty()    ? "refused"
                                 : each.measured_runs > 0 ? "measured"
                                                          : "counted";
      table.rows.push_back({each.framework, each.version, each.feature, status, each.measured_runs,
                            each.words, each.refusal});
    }
  }
  return table;
}

// One framework with its reasons.
std::string with_reasons(const Frameworks& versions, const Screen& screen) {
  std::string text = side_by_side(versions, screen.width);
  for (const FeatureSupport& each : versions.front()) {
    if (!each.refusal.empty()) {
      text += screen_line(screen, "- " + each.feature, each.refusal, 2);
    }
  }
  return text;
}

std::string support_text(const Frameworks& frameworks, const Screen& screen, bool has_reasons) {
  constexpr std::string_view kLegend =
      "Runs that were measured with it; 0: counted, never measured; -: refused, and why: "
      "--framework NAME.\n";
  return has_reasons
             ? with_reasons(frameworks, screen)
             : side_by_side(frameworks, screen.width) + rewrapped(screen, std::string(kLegend), 3);
}

// The framework that is asked for with its other versions, or the newest of every one.
std::vector<std::string> frameworks_asked(const Options& options, const Library& library) {
  std::string asked;
  if (given(options, "framework")) {
    asked = text_or(options, "framework", "");
    library.framework(asked);  // its message knows the names
    asked = library.framework_named(asked);
  }
  std::vector<std::string> names;
  for (const std::string& name : library.framework_names()) {
    const std::string bare = name.substr(0, name.find('@'));
    const bool is_asked =
        asked.empty() ? bare == name : name == asked || (bare == asked && bare != name);
    if (is_asked) {
      names.push_back(name);
    }
  }
  std::stable_partition(names.begin(), names.end(),
                        [&](const std::string& name) { return name == asked; });
  return names;
}

}  // namespace

std::vector<FeatureSupport> support_of(const std::string& framework, const Library& library) {
  const FrameworkProfile profile = library.framework(framework);
  const MeasuredRuns runs(profile, library);
  std::vector<FeatureSupport> features;
  for (const Feature& feature : kFeatures) {
    FeatureSupport support{.framework = framework,
                           .version = profile.version,
                           .feature = std::string(feature.name),
                           .words = {},
                           .refusal = {}};
    ask(feature, support, library);
    support.measured_runs = runs.count([&](const Job& job, const Plan& plan) {
      return job.profile.version == profile.version && feature.has(job, plan);
    });
    features.push_back(std::move(support));
  }
  return features;
}

std::vector<std::string> frameworks_that_take(const Options& options, const Library& library) {
  std::vector<std::string> names;
  for (const std::string& name : library.framework_names()) {
    Options other = options;
    other.values["framework"] = {name};
    other.values.erase("framework-option");
    if (name.find('@') == std::string::npos && refusal_of(other, library).empty()) {
      names.push_back(name);
    }
  }
  return names;
}

ExitCode run_support(const Arguments& arguments) {
  const Options options = parse_options("support", arguments);
  if (given(options, "help")) {
    return run_help({"support"});
  }
  refuse_positional(options);
  const Library library = library_of(options);
  Frameworks frameworks;
  for (const std::string& name : frameworks_asked(options, library)) {
    frameworks.push_back(support_of(name, library));
  }
  Output output(text_or(options, "out", ""));
  switch (format_of(options)) {
    case Format::kTable:
      output.write(
          support_text(frameworks, screen_for(options, output), given(options, "framework")));
      break;
    case Format::kCsv: output.write(csv_text(long_table(frameworks))); break;
    case Format::kJson: output.write(table_json(long_table(frameworks))); break;
  }
  output.commit();
  return ExitCode::kOk;
}

}  // namespace shardplan
