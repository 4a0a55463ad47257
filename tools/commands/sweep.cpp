#include "tools/commands/sweep.h"

#include <algorithm>
#include <set>

#include "data/read/case_line.h"
#include "tools/accuracy/case.h"
#include "tools/accuracy/errors.h"
#include "tools/options/axes.h"
#include "tools/options/option_values.h"
#include "tools/options/plan_words.h"
#include "tools/options/question.h"
#include "tools/options/search_question.h"
#include "tools/options/words.h"
#include "tools/report/csv.h"
#include "tools/report/report.h"
#include "tools/report/sweep.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxGpus = std::int64_t{1} << 22;
constexpr std::size_t kMaxPoints = 256;

// A question asked twice is one, or one of the two was meant to be another.
void refuse_repeats(const std::vector<std::string>& words, const std::string& place) {
  std::set<std::string> known;
  for (const std::string& word : words) {
    if (!known.insert(word).second) {
      throw InputError(std::string(place)
                           .append(": found ")
                           .append(word)
                           .append(" twice, expected every value once"));
    }
  }
}

// "8,16,32", "8..1024" (doubling) or "8..64:8" (steps).
std::vector<std::int64_t> parse_sizes(const std::string& word) {
  const std::string place = "--num-gpus";
  std::vector<std::int64_t> sizes;
  for (const std::string& piece : parse_list(word, place)) {
    const std::size_t dots = piece.find("..");
    if (dots == std::string::npos) {
      sizes.push_back(parse_count(piece, 1, kMaxGpus, place));
      continue;
    }
    const std::size_t colon = piece.find(':', dots);
    const std::int64_t low = parse_count(piece.substr(0, dots), 1, kMaxGpus, place);
    const std::int64_t high =
        parse_count(piece.substr(dots + 2, colon == std::string::npos ? colon : colon - dots - 2),
                    low, kMaxGpus, place);
    const std::int64_t step =
        colon == std::string::npos ? 0 : parse_count(piece.substr(colon + 1), 1, kMaxGpus, place);
    for (std::int64_t size = low; size <= high && sizes.size() <= kMaxPoints;
         size = step > 0 ? size + step : 2 * size) {
      sizes.push_back(size);
    }
  }
  if (sizes.size() > kMaxPoints) {
    throw InputError(place + ": found more than " + std::to_string(kMaxPoints) + " sizes");
  }
  std::vector<std::string> words;
  words.reserve(sizes.size());
  for (const std::int64_t size : sizes) { words.push_back(std::to_string(size)); }
  refuse_repeats(words, place);
  return sizes;
}

// Cluster names: of --cluster, or one node of every --gpu with its usual network.
std::vector<std::string> cluster_names(const Options& options, const Library& library) {
  if (given(options, "gpu")) {
    if (given(options, "cluster")) {
      throw InputError("--gpu: found --cluster beside it, expected one of them");
    }
    const std::vector<std::string> gpus = parse_list(text_or(options, "gpu", ""), "--gpu");
    refuse_repeats(gpus, "--gpu");
    std::vector<std::string> names;
    for (const std::string& gpu : gpus) {
      const ClusterSpec usual = library.usual_cluster(gpu, "--gpu: ");
      names.push_back("1x" + std::to_string(usual.gpus_per_node) + "-" + gpu);
    }
    return names;
  }
  std::vector<std::string> names = parse_list(required_text(options, "cluster"), "--cluster");
  refuse_repeats(names, "--cluster");
  return names;
}

// Zero asks for nothing, so that its answer would be of another question.
void refuse_zero_targets(const Options& options) {
  for (const char* option : {"tokens", "target-tokens-per-s", "target-days", "target-cost"}) {
    if (given(options, option) && number_or(options, option, 0) == 0) {
      throw InputError("--" + std::string(option) + ": found '" + text_or(options, option, "") +
                       "', expected a number above 0");
    }
  }
}

// --tokens and what they must reach. Refuses zeros, and days or a cost of no tokens.
SweepTarget target_of(const Options& options) {
  refuse_zero_targets(options);
  const SweepTarget target = {.tokens_per_s = number_or(options, "target-tokens-per-s", 0),
                              .tokens = number_or(options, "tokens", 0),
                              .days = number_or(options, "target-days", 0),
                              .cost_usd = number_or(options, "target-cost", 0)};
  for (const char* option : {"target-days", "target-cost"}) {
    if (given(options, option) && target.tokens == 0) {
      throw InputError("--" + std::string(option) + ": found no --tokens beside it");
    }
  }
  return target;
}

// The price of the options over that of the cluster's file.
void set_price(ClusterSpec& cluster, const Options& options) {
  cluster.usd_per_gpu_hour = number_or(options, "price-per-gpu-hour", cluster.usd_per_gpu_hour);
}

// Of each cluster: the same for all, or one each; none where none is given.
std::vector<std::string> prices_of(const Options& options, std::size_t num_clusters) {
  constexpr const char* kOption = "price-per-gpu-hour";
  if (!given(options, kOption)) {
    return {};
  }
  const std::string place = std::string("--") + kOption;
  std::vector<std::string> prices = parse_list(text_or(options, kOption, ""), place);
  if (prices.size() == 1) {
    prices.resize(num_clusters, prices.front());
  }
  if (prices.size() != num_clusters) {
    throw InputError(place + ": found " + std::to_string(prices.size()) + " prices for " +
                     std::to_string(num_clusters) + " clusters, expected one, or one for each");
  }
  return prices;
}

// One job a cluster and size.
std::vector<SearchQuestion> sweep_questions(const Options& options, const Library& library) {
  std::vector<SearchQuestion> questions;
  std::vector<std::int64_t> sizes = {0};
  if (given(options, "num-gpus")) {
    sizes = parse_sizes(text_or(options, "num-gpus", ""));
  } else if (given(options, "gpu")) {
    throw InputError("--gpu: found no --num-gpus beside it");
  }
  const std::vector<std::string> clusters = cluster_names(options, library);
  const std::vector<std::string> prices = prices_of(options, clusters.size());
  for (std::size_t cluster = 0; cluster < clusters.size(); ++cluster) {
    for (const std::int64_t size : sizes) {
      Options one = options;
      one.values["cluster"] = {clusters[cluster]};
      if (!prices.empty()) {
        one.values["price-per-gpu-hour"] = {prices[cluster]};
      }
      if (size > 0) {
        one.values["num-gpus"] = {std::to_string(size)};
      }
      SearchQuestion question = search_question_of(one, library);
      set_price(question.job.cluster, one);
      if (question.job.cluster.usd_per_gpu_hour == 0 && given(options, "target-cost")) {
        throw InputError("--target-cost: found no price of " + question.job.cluster.name +
                         ", expected --price-per-gpu-hour or usd_per_gpu_hour in its file");
      }
      questions.push_back(std::move(question));
    }
  }
  return questions;
}

// Of a step's time the share from which on the host decides it.
constexpr double kHostDecides = 0.25;

// A run of the library's files: measured over predicted step time, and where.
struct TimedRun {
  double ratio = 0;
  ClusterSpec cluster = {};
};

// Every run with a step time. Runs that the host decides tell of the machine they ran on; a job
// worth a sweep keeps its GPUs busy.
std::vector<TimedRun> timed_runs(const std::string& framework, const Library& library) {
  std::vector<TimedRun> runs;
  for (const std::string& file : library.case_files()) {
    const std::string text = library.text_of(file);
    std::size_t line = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string words = text.substr(begin, end - begin);
      begin = end + 1;
      ++line;
      if (words.empty()) {
        continue;
      }
      const Case run = read_case(words, file + ":" + std::to_string(line), library);
      const bool is_asked = framework.empty() || run.job.profile.name == framework;
      if (!is_asked || !run.supported || !run.measured || !run.unsupported.empty() ||
          first_broken_rule(run.job, run.plan) != nullptr) {
        continue;
      }
      if (const auto measured = measured_step_s(*run.measured, run.job)) {
        const StepTime predicted = estimate_step_time(run.job, run.plan);
        if (predicted.host_s < kHostDecides * predicted.total_s) {
          runs.push_back({.ratio = *measured / predicted.total_s, .cluster = run.job.cluster});
        }
      }
    }
  }
  return runs;
}

FamilyAxis size_axis(const PlanSize& size, const SearchSpace& space) {
  FamilyAxis axis = {.name = std::string(size.name), .values = {}, .only = {}, .value_of = {}};
  std::vector<std::int64_t> values = space.*size.axis;
  std::ranges::sort(values);
  for (const std::int64_t value : values) { axis.values.push_back(std::to_string(value)); }
  axis.only = [field = size.axis, values](const SearchSpace& whole, std::size_t value) {
    SearchSpace part = whole;
    part.*field = {values[value]};
    return part;
  };
  axis.value_of = [field = size.field, values](const Plan& plan) {
    return static_cast<std::size_t>(std::ranges::find(values, plan.*field) - values.begin());
  };
  return axis;
}

template <class Value>
FamilyAxis choice_axis(const std::string& name, std::vector<Value> SearchSpace::*field,
                       Value Plan::*of_plan, const SearchSpace& space,
                       std::string (*text)(const Value& value)) {
  FamilyAxis axis = {.name = name, .values = {}, .only = {}, .value_of = {}};
  for (const Value& value : space.*field) { axis.values.push_back(text(value)); }
  axis.only = [field](const SearchSpace& whole, std::size_t value) {
    SearchSpace part = whole;
    part.*field = {(whole.*field)[value]};
    return part;
  };
  axis.value_of = [of_plan, values = space.*field](const Plan& plan) {
    return static_cast<std::size_t>(std::ranges::find(values, plan.*of_plan) - values.begin());
  };
  return axis;
}

std::vector<FamilyAxis> family_axes(const SearchSpace& space) {
  std::vector<FamilyAxis> axes;
  axes.reserve(kPlanSizes.size() + 2);
  for (const PlanSize& size : kPlanSizes) { axes.push_back(size_axis(size, space)); }
  axes.push_back(
      choice_axis<Schedule>("schedule", &SearchSpace::schedule, &Plan::schedule, space,
                            [](const Schedule& value) { return std::string(name_of(value)); }));
  axes.push_back(
      choice_axis<Recompute>("recompute", &SearchSpace::recompute, &Plan::recompute, space,
                             [](const Recompute& value) { return recompute_text(value); }));
  std::erase_if(axes, [](const FamilyAxis& axis) { return axis.values.size() < 2; });
  return axes;
}

// 10th to 90th percentile of measured over predicted step times: of the framework's runs that the
// library has, of all frameworks where it has none. Steps that wait for the host for a quarter of
// their time or more are left out.
StepTimeSpread step_time_spread(const std::string& framework, const Library& library) {
  StepTimeSpread spread;
  spread.of = "runs of " + framework;
  std::vector<TimedRun> runs = timed_runs(framework, library);
  if (runs.empty()) {
    spread.of = "runs of all frameworks";
    runs = timed_runs("", library);
  }
  if (runs.empty()) {
    return spread;
  }
  std::vector<double> ratios;
  std::set<std::string> gpus;
  for (const TimedRun& run : runs) {
    ratios.push_back(run.ratio);
    gpus.insert(run.cluster.gpu.id);
  }
  const auto num_gpus = [](const TimedRun& run) { return run.cluster.world_size(); };
  const auto [least, most] = std::ranges::minmax(runs, {}, num_gpus);
  spread.num_runs = std::ssize(runs);
  spread.low = nearest_rank(ratios, 0.1);
  spread.high = nearest_rank(ratios, 0.9);
  spread.least_gpus = least.cluster.world_size();
  spread.most_gpus = most.cluster.world_size();
  spread.gpus = {gpus.begin(), gpus.end()};
  return spread;
}

std::string render(const SweepReport& report, Format format) {
  switch (format) {
    case Format::kTable: return sweep_text(report);
    case Format::kCsv: return csv_text(sweep_table(report));
    case Format::kJson: return sweep_json(report);
  }
  return "";
}

}  // namespace

bool is_sweep(const Options& options) {
  const auto is_list = [&](const char* name) {
    const std::string word = text_or(options, name, "");
    return word.find(',') != std::string::npos || word.find("..") != std::string::npos;
  };
  const bool has_target = given(options, "target-tokens-per-s") || given(options, "target-days") ||
                          given(options, "target-cost") || given(options, "tokens") ||
                          given(options, "price-per-gpu-hour");
  const bool lists_clusters = text_or(options, "cluster", "").find(',') != std::string::npos;
  return is_list("num-gpus") || lists_clusters || given(options, "gpu") || has_target;
}

ExitCode run_sweep(const Options& options, const Library& library) {
  for (const char* option : {"headroom", "families", "distinct", "pareto", "top", "list-axes"}) {
    if (given(options, option)) {
      throw InputError(
          "--" + std::string(option) +
          ": found several clusters, a target, --tokens or a price beside it, of which "
          "only the fastest plan of each cluster is shown; expected one of both");
    }
  }
  SweepReport report;
  report.target = target_of(options);
  const std::vector<SearchQuestion> questions = sweep_questions(options, library);
  report.spread = step_time_spread(questions.front().job.profile.name, library);
  SearchOptions search = memory_rule_of(options).share;
  read_search_options(options, search);
  Output output(text_or(options, "out", ""));
  std::set<std::string> told;
  for (const SearchQuestion& question : questions) {
    for (const std::string& warning : question.warnings) {
      if (told.insert(warning).second) {
        print_message("warning: " + warning);
      }
    }
    report.points.push_back(
        sweep_point(question.job, question.space, search, report.target, report.spread));
    const std::optional<RankedPlan>& best = report.points.back().best;
    report.commands.push_back(best ? question.command_of(best->plan) : "");
  }
  output.write(render(report, format_of(options)));
  output.commit();
  return choose_cluster(report.points, report.target) ? ExitCode::kOk : ExitCode::kNegative;
}

bool asks_cost(const Options& options) {
  return given(options, "tokens") || given(options, "price-per-gpu-hour");
}

SweepReport cost_of(const Question& question, const Prediction& prediction, const Options& options,
                    const Library& library) {
  SweepReport report = {.target = target_of(options),
                        .spread = step_time_spread(question.job.profile.name, library),
                        .points = {}};
  const RankedPlan plan = {
      .plan = question.plan, .price = {}, .memory = prediction.memory, .time = prediction.time};
  Job job = question.job;
  set_price(job.cluster, options);
  report.points.push_back(planned_point(job, plan, report.target, report.spread));
  return report;
}

SearchExtras search_extras(const Options& options, const Job& job, const SearchSpace& space,
                           const SearchOptions& search, const SearchResult& result) {
  SearchExtras extras;
  if (given(options, "headroom")) {
    extras.headroom = headroom_of(job, result.top, search);
  }
  if (given(options, "families")) {
    extras.families = plan_families(job, space, family_axes(space), search);
  }
  return extras;
}

}  // namespace shardplan
