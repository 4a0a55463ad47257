#include "tools/commands/sweep.h"

#include <algorithm>
#include <set>

#include "data/read/case_line.h"
#include "tools/accuracy/case.h"
#include "tools/accuracy/errors.h"
#include "tools/commands/sweep_questions.h"
#include "tools/options/axes.h"
#include "tools/options/plan_words.h"
#include "tools/options/question.h"
#include "tools/options/search_question.h"
#include "tools/options/words.h"
#include "tools/report/csv.h"
#include "tools/report/report.h"
#include "tools/report/sweep.h"
#include "tools/report/text.h"
#include "tools/screen/progress.h"
#include "tools/screen/sweep.h"

namespace shardplan {
namespace {

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
      throw InputError("--" + std::string(option) + ": found no --tokens beside it",
                       "--tokens 2T: what the model is to be trained on");
    }
  }
  return target;
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

// The fastest plan of one cluster, and its command.
struct AnsweredPoint {
  SweepPoint point;
  std::string command;
};

// Where nothing fits with the overlaps, without them.
AnsweredPoint answered(const SweepQuestion& asked, const SearchOptions& search,
                       const SweepReport& report) {
  AnsweredPoint answer;
  for (const SearchQuestion* question : {&asked.question, &asked.plain}) {
    answer.point =
        sweep_point(question->job, question->space, search, report.target, report.spread);
    if (answer.point.best) {
      answer.command = question->command_of(answer.point.best->plan);
      break;
    }
  }
  return answer;
}

void add(SweepReport& report, AnsweredPoint answer) {
  report.points.push_back(std::move(answer.point));
  report.commands.push_back(std::move(answer.command));
}

// The least number of nodes that reaches the target, by bisection between the sizes asked for: the
// largest that does not and the least that does. Points of the cluster begin at `first`.
void add_least_nodes(SweepReport& report, std::size_t first, const SweepQuestions& questions,
                     std::size_t cluster, const SearchOptions& search) {
  const std::int64_t gpus_per_node = report.points.back().job.cluster.gpus_per_node;
  std::int64_t too_few = 0;
  std::int64_t enough = 0;
  for (std::size_t i = first; i < report.points.size(); ++i) {
    const SweepPoint& point = report.points[i];
    if (point.best && point.reached == Reached::kYes) {
      const std::int64_t nodes = point.job.cluster.nodes;
      enough = enough == 0 ? nodes : std::min(enough, nodes);
    }
  }
  for (std::size_t i = first; i < report.points.size(); ++i) {
    const std::int64_t nodes = report.points[i].job.cluster.nodes;
    too_few = nodes < enough ? std::max(too_few, nodes) : too_few;
  }
  std::optional<AnsweredPoint> least;
  while (enough - too_few > 1) {
    const std::int64_t middle = too_few + (enough - too_few) / 2;
    AnsweredPoint answer = answered(
        questions.of({.cluster = cluster, .num_gpus = middle * gpus_per_node}), search, report);
    const bool is_enough = answer.point.best && answer.point.reached == Reached::kYes;
    (is_enough ? enough : too_few) = middle;
    if (is_enough) {
      least = std::move(answer);
    }
  }
  if (least) {
    add(report, std::move(*least));
  }
}

// Each warning once.
void tell_warnings(const std::vector<SweepQuestion>& asked) {
  std::set<std::string> told;
  for (const SweepQuestion& one : asked) {
    for (const std::string& warning : one.plain.warnings) {
      if (told.insert(warning).second) {
        print_message("warning: " + warning);
      }
    }
  }
}

std::string render(const SweepReport& report, const Options& options, const Screen& screen) {
  switch (format_of(options)) {
    case Format::kTable:
      return asks_details(options) ? sweep_text(report) : sweep_screen(screen, report);
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

namespace {

// The first cluster of the question.
std::string one_cluster(const Options& options, const Library& library) {
  const auto first = [&](const char* name) {
    const std::string list = text_or(options, name, "");
    return list.substr(0, list.find_first_of(",."));
  };
  const std::string name = given(options, "gpu")
                               ? library.cluster_named(first("num-gpus") + "x" + first("gpu"))
                               : first("cluster");
  return "--cluster " + name;
}

}  // namespace

ExitCode run_sweep(const Options& options, const Library& library) {
  for (const char* option : {"headroom", "families", "distinct", "pareto", "top", "list-axes"}) {
    if (given(options, option)) {
      throw InputError(
          "--" + std::string(option) +
              ": found beside --gpu, several sizes or clusters, a target, --tokens or a price, of "
              "which only the fastest plan of each cluster is shown; expected one of both",
          "all plans of one cluster: " + one_cluster(options, library) + " --" +
              std::string(option));
    }
  }
  SweepReport report;
  report.target = target_of(options);
  report.has_given_prices = given(options, "price-per-gpu-hour");
  const SweepQuestions questions(options, library);
  const std::vector<SweepSize> sizes = questions.sizes();
  std::vector<SweepQuestion> asked;
  for (const SweepSize& size : sizes) { asked.push_back(questions.of(size)); }
  report.spread = step_time_spread(asked.front().plain.job.profile.name, library);
  SearchOptions search = search_options(memory_rule_of(options));
  read_search_options(options, search);
  Output output(text_or(options, "out", ""));
  tell_warnings(asked);
  std::optional<ProgressRow> progress(std::in_place);
  search.progress = [&](const SearchProgress& so_far) { progress->tell(so_far); };
  std::size_t first = 0;  // point of the cluster
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool is_last = i + 1 == sizes.size() || sizes[i + 1].cluster != sizes[i].cluster;
    add(report, answered(asked[i], search, report));
    if (is_last && report.target.is_given() && report.target.cost_usd == 0) {
      add_least_nodes(report, first, questions, sizes[i].cluster, search);
    }
    first = is_last ? report.points.size() : first;
  }
  progress.reset();
  output.write(render(report, options, screen_for(options, output)));
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
