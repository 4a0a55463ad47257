#include "tools/accuracy/evidence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>

#include "data/frameworks/framework.h"
#include "data/frameworks/profile_fields.h"
#include "data/read/json_message.h"
#include "estimator/price/price.h"
#include "estimator/time/kernel_time.h"
#include "tools/accuracy/case.h"
#include "tools/accuracy/plan_features.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

struct Size {
  std::string_view name;
  std::int64_t (*value)(const Job& job, const Plan& plan);
};

constexpr std::array<Size, 12> kSizes = {{
    {"hidden size", [](const Job& job, const Plan&) { return job.model.hidden; }},
    {"FFN size", [](const Job& job, const Plan&) { return job.model.ffn; }},
    {"layers", [](const Job& job,
                  const Plan&) { return static_cast<std::int64_t>(std::ssize(job.model.layers)); }},
    {"vocabulary", [](const Job& job, const Plan&) { return job.model.vocab; }},
    {"tokens of a microbatch on a rank", tokens_per_microbatch},
    {"tp", [](const Job&, const Plan& plan) { return plan.tp; }},
    {"pp", [](const Job&, const Plan& plan) { return plan.pp; }},
    {"vpp", [](const Job&, const Plan& plan) { return plan.vpp; }},
    {"cp", [](const Job&, const Plan& plan) { return plan.cp; }},
    {"ep", [](const Job&, const Plan& plan) { return plan.ep; }},
    {"dp", data_parallel_size},
    {"experts", [](const Job& job,
                   const Plan&) { return std::max<std::int64_t>(job.model.moe.num_experts, 1); }},
}};

}  // namespace

// What runs are compared by.
struct RunTraits {
  std::array<std::int64_t, kSizes.size()> sizes{};
  std::set<std::string> features;
};

// A measured run of the framework that its profile can predict.
struct KnownRun {
  std::string set;
  Case run;
  RunTraits traits;
  double distance = 0;
};

namespace {

// "tp > 1" is told by the size.
bool is_size_feature(const std::string& feature) {
  return feature.find(" > 1") != std::string::npos;
}

RunTraits traits_of(const Job& job, const Plan& plan, const std::vector<CaseOption>& options) {
  RunTraits traits;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    traits.sizes[i] = std::max<std::int64_t>(kSizes[i].value(job, plan), 1);
  }
  for (const std::string& feature : plan_features(job, plan, options)) {
    traits.features.insert(feature);
  }
  traits.features.insert("GPU " + job.cluster.gpu.id);
  return traits;
}

double distance_of(const RunTraits& one, const RunTraits& other) {
  constexpr double kPerFeature = 1;
  double distance = 0;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    distance += std::fabs(
        std::log2(static_cast<double>(one.sizes[i]) / static_cast<double>(other.sizes[i])));
  }
  std::vector<std::string> different;
  std::ranges::set_symmetric_difference(one.features, other.features,
                                        std::back_inserter(different));
  std::erase_if(different, is_size_feature);
  return distance + kPerFeature * static_cast<double>(different.size());
}

// Options that are not at their default; the others say nothing.
std::vector<CaseOption> telling(const FrameworkProfile& profile,
                                const std::vector<ProfileOption>& options) {
  std::vector<CaseOption> kept;
  for (const ProfileOption& option : options) {
    std::string value = profile_field_text(profile, option.name);
    if (value != option.default_value) {
      kept.push_back({.name = option.name, .value = std::move(value)});
    }
  }
  return kept;
}

// What a measured run took of its card; nothing where nobody knows.
std::optional<double> card_share(const Case& run) {
  const bool has_died = run.measured->status == RunStatus::kOom;
  const std::optional<std::int64_t> bytes =
      has_died ? [&] {
        PriceTable table = build_price_table(run.job);
        return std::optional(price(table, run.plan).device_used_bytes);
      }()
               : measured_device_bytes(*run.measured);
  return bytes ? std::optional(static_cast<double>(*bytes) /
                               static_cast<double>(device_capacity_bytes(run.job.cluster)))
               : std::nullopt;
}

// Counts the run where it is as near to its card as the plan is to its own.
void count_near(const Case& run, double share, NearCard& near) {
  constexpr double kAsNear = 0.05;
  const RunStatus status = run.measured->status;
  if (status != RunStatus::kOk && status != RunStatus::kOom) {
    return;
  }
  const std::optional<double> other = card_share(run);
  if (other && std::fabs(*other - share) <= kAsNear) {
    ++(status == RunStatus::kOom ? near.died : near.lived);
  }
}

// The framework's measured lines that its profile can predict.
std::vector<KnownRun> known_runs(const std::string& framework, const Library& library) {
  const std::vector<ProfileOption> options = profile_options(library, framework);
  const std::string key = '"' + framework + '"';
  std::vector<KnownRun> runs;
  for (const std::string& file : library.case_files()) {
    const std::string text = library.text_of(file);
    std::int64_t line = 0;
    for (std::size_t start = 0; start < text.size();) {
      const std::size_t end = std::min(text.find('\n', start), text.size());
      const std::string case_text = text.substr(start, end - start);
      start = end + 1;
      ++line;
      if (case_text.find(key) == std::string::npos) {
        continue;  // another framework's: not worth reading
      }
      Case run = read_case(case_text, file + ":" + std::to_string(line), library);
      const bool counts = run.framework == framework && run.measured && run.unsupported.empty() &&
                          first_broken_rule(run.job, run.plan) == nullptr;
      if (counts) {
        RunTraits traits = traits_of(run.job, run.plan, telling(run.job.profile, options));
        runs.push_back({.set = std::filesystem::path(file).stem().string(),
                        .run = std::move(run),
                        .traits = std::move(traits)});
      }
    }
  }
  return runs;
}

std::vector<NearRun> nearest_of(std::vector<KnownRun> runs, const RunTraits& traits,
                                const Library& library) {
  for (KnownRun& run : runs) { run.distance = distance_of(run.traits, traits); }
  std::ranges::stable_sort(runs, {}, &KnownRun::distance);
  std::vector<NearRun> nearest;
  for (const KnownRun& run : runs) {
    if (nearest.size() == kNearRuns || run.distance > kFarthest) {
      break;
    }
    AccuracyCase known = accuracy_case(run.run, run.set, library);
    nearest.push_back(
        {.set = run.set, .id = run.run.id, .distance = run.distance, .worst = known.worst});
  }
  return nearest;
}

std::int64_t predicted_bytes(const MemoryEstimate& memory, Quantity quantity) {
  switch (quantity) {
    case Quantity::kPeakAllocated: return basis_bytes(memory, MemoryBasis::kAllocated);
    case Quantity::kPeakReserved: return basis_bytes(memory, MemoryBasis::kReserved);
    default: return basis_bytes(memory, MemoryBasis::kDeviceUsed);
  }
}

std::vector<SupportedInterval> intervals_of(const std::vector<NearRun>& nearest,
                                            const MemoryEstimate& memory) {
  std::vector<SupportedInterval> intervals;
  for (const Quantity quantity :
       {Quantity::kPeakAllocated, Quantity::kPeakReserved, Quantity::kDeviceUsed}) {
    SupportedInterval interval = {.quantity = quantity};
    for (const NearRun& run : nearest) {
      if (const auto& pair = run.worst[static_cast<std::size_t>(quantity)]) {
        ++interval.num_runs;
        interval.least_error = std::min(interval.least_error, pair->error());
        interval.most_error = std::max(interval.most_error, pair->error());
      }
    }
    if (interval.num_runs == 0) {
      continue;
    }
    const double predicted = static_cast<double>(predicted_bytes(memory, quantity));
    interval.low_bytes = std::llround(predicted / (1 + interval.most_error));
    interval.high_bytes = std::llround(predicted / (1 + interval.least_error));
    intervals.push_back(interval);
  }
  return intervals;
}

void find_gaps(Evidence& evidence, const std::vector<KnownRun>& runs, const RunTraits& traits) {
  for (const std::string& feature : traits.features) {
    const bool is_covered = std::ranges::any_of(
        runs, [&](const KnownRun& run) { return run.traits.features.contains(feature); });
    if (!is_covered) {
      evidence.uncovered.push_back(feature);
    }
  }
  for (std::size_t i = 0; i < kSizes.size() && !runs.empty(); ++i) {
    const auto size = [i](const KnownRun& run) { return run.traits.sizes[i]; };
    const auto [least, most] = std::ranges::minmax_element(runs, {}, size);
    const std::int64_t value = traits.sizes[i];
    if (value < size(*least) || value > size(*most)) {
      evidence.beyond.push_back(std::string(kSizes[i].name) + " " + grouped(value) + " (measured " +
                                grouped(size(*least)) + " to " + grouped(size(*most)) + ")");
    }
  }
}

std::vector<ConstantRows> constants_of(const StageMemory& stage) {
  std::vector<ConstantRows> constants;
  for (const Origin origin :
       {Origin::kFitted, Origin::kMeasuredElsewhere, Origin::kMeasured, Origin::kDocumented}) {
    ConstantRows rows = {.origin = origin, .rows = {}};
    for (const Row& row : stage.rows) {
      if (row.origin == origin && row.total_bytes() > 0) {
        rows.bytes += row.total_bytes();
        rows.rows.push_back(row.name);
      }
    }
    if (!rows.rows.empty()) {
      constants.push_back(std::move(rows));
    }
  }
  return constants;
}

std::string joined_cut(const std::vector<std::string>& words, std::size_t most) {
  std::vector<std::string> shown(
      words.begin(), words.begin() + static_cast<std::ptrdiff_t>(std::min(most, words.size())));
  std::string text = joined(shown);
  if (words.size() > most) {
    text += " and " + std::to_string(words.size() - most) + " more";
  }
  return text;
}

}  // namespace

MeasuredRuns::MeasuredRuns(const FrameworkProfile& profile, const Library& library)
    : library_(library),
      options_(profile_options(library, profile.name)),
      runs_(known_runs(profile.name, library)) {}

MeasuredRuns::~MeasuredRuns() = default;

Evidence MeasuredRuns::evidence_of(const Job& job, const Plan& plan,
                                   const MemoryEstimate& memory) const {
  Evidence evidence;
  evidence.rates_measured = is_calibrated(job.cluster.gpu);
  const RunTraits traits = traits_of(job, plan, telling(job.profile, options_));
  const double share = static_cast<double>(basis_bytes(memory, MemoryBasis::kDeviceUsed)) /
                       static_cast<double>(device_capacity_bytes(job.cluster));
  for (const KnownRun& run : runs_) { count_near(run.run, share, evidence.near_card); }
  std::vector<KnownRun> runs = runs_;
  std::erase_if(runs, [](const KnownRun& run) { return run.run.measured->ranks.empty(); });
  evidence.num_runs = std::ssize(runs);
  if (evidence.num_runs > 0) {
    find_gaps(evidence, runs, traits);
  }
  evidence.nearest = nearest_of(std::move(runs), traits, library_);
  evidence.intervals = intervals_of(evidence.nearest, memory);
  evidence.constants = constants_of(memory.stages.at(static_cast<std::size_t>(memory.worst_stage)));
  return evidence;
}

bool MeasuredRuns::cover(const Job& job, const Plan& plan) const {
  Evidence gaps;
  find_gaps(gaps, runs_, traits_of(job, plan, telling(job.profile, options_)));
  return gaps.uncovered.empty() && gaps.beyond.empty();
}

std::int64_t MeasuredRuns::count(
    const std::function<bool(const Job& job, const Plan& plan)>& is_so) const {
  return std::ranges::count_if(
      runs_, [&](const KnownRun& known) { return is_so(known.run.job, known.run.plan); });
}

Evidence evidence_of(const Job& job, const Plan& plan, const MemoryEstimate& memory,
                     const Library& library) {
  return MeasuredRuns(job.profile, library).evidence_of(job, plan, memory);
}

std::string near_card_words(const Evidence& evidence, const std::string& framework) {
  const NearCard& near = evidence.near_card;
  return grouped(near.died) + " of " + grouped(near.runs()) + " measured " + framework +
         (near.runs() == 1 ? " run" : " runs") + " as near to the card died";
}

std::vector<std::string> evidence_lines(const Evidence& evidence) {
  std::vector<std::string> lines;
  if (evidence.num_runs == 0) {
    lines.emplace_back("unmeasured: no run of this framework is among the measurements");
  } else if (evidence.nearest.empty()) {
    lines.push_back("unmeasured: none of the " + grouped(evidence.num_runs) +
                    " measured runs of this framework is near");
  } else {
    lines.push_back("nearest " + std::to_string(evidence.nearest.size()) + " of " +
                    grouped(evidence.num_runs) + " measured runs, at distance " +
                    range_of(fixed(evidence.nearest.front().distance, 1),
                             fixed(evidence.nearest.back().distance, 1)) +
                    " (1: one size doubled, 2: another choice)");
  }
  for (const SupportedInterval& interval : evidence.intervals) {
    lines.push_back(
        std::string(name_of(interval.quantity)) + " was estimated " +
        range_of(signed_percent(interval.least_error), signed_percent(interval.most_error)) +
        " off in " + std::to_string(interval.num_runs) +
        " of them: " + range_of(gib(interval.low_bytes), gib(interval.high_bytes)) + " GiB here");
  }
  if (!evidence.uncovered.empty()) {
    lines.push_back("no run covers: " + joined(evidence.uncovered));
  }
  if (!evidence.beyond.empty()) {
    lines.push_back("beyond all runs: " + joined(evidence.beyond));
  }
  for (const ConstantRows& constant : evidence.constants) {
    constexpr std::size_t kMostRows = 4;
    lines.push_back(std::string(name_of(constant.origin)) + ", not counted from sizes: " +
                    gib(constant.bytes) + " GiB (" + joined_cut(constant.rows, kMostRows) + ")");
  }
  lines.emplace_back(evidence.rates_measured
                         ? "measured: the GPU's efficiencies; from datasheets: its peaks and links"
                         : "from datasheets: peaks of GPU and links, with documented efficiencies");
  return lines;
}

}  // namespace shardplan
