#include "tools/commands/other_sizes.h"

#include <algorithm>
#include <optional>
#include <set>

#include "estimator/plan/units.h"
#include "search/space/default_space.h"
#include "search/space/resize.h"
#include "tools/commands/overlaps.h"

namespace shardplan {
namespace {

constexpr double kBusyShare = 0.5;     // of a step that computes
constexpr double kKeptSpeed = 0.8;     // of all GPUs together
constexpr std::int64_t kHalvings = 3;  // searches, as all that follow
constexpr std::int64_t kDoublings = 3;
constexpr std::size_t kBatches = 4;
constexpr std::int64_t kMostGpus = std::int64_t{1} << 22;

// The same question with another option, and the fastest plan that fits.
class OtherSearches {
 public:
  OtherSearches(const Options& options, const SearchOptions& search, const Library& library)
      : options_(options), search_(search), library_(library) {
    search_.top = 1;
    search_.pareto = false;
    search_.progress = nullptr;
  }

  std::optional<OtherSize> with(const std::string& option, std::int64_t value) const {
    return with(option, std::to_string(value));
  }
  std::optional<OtherSize> with(const std::string& option, const std::string& value) const {
    Options other = options_;
    other.values[option] = {value};
    const SearchQuestion question = search_question_of(other, library_);
    const std::vector<std::string> overlaps = open_overlaps(other, question, library_);
    SearchResult result;
    if (!overlaps.empty()) {
      const SearchQuestion switched = search_question_of(with_switches(other, overlaps), library_);
      result = search_plans(switched.job, switched.space, search_);
    }
    if (result.top.empty()) {
      result = search_plans(question.job, question.space, search_);
    }
    if (result.top.empty()) {
      return std::nullopt;
    }
    const double speed = result.top.front().time.tokens_per_s_per_gpu;
    return OtherSize{
        .option = "--" + option + " " + value,
        .num_gpus = question.job.cluster.world_size(),
        .global_batch = question.job.global_batch,
        .tokens_per_s_per_gpu = speed,
        .tokens_per_s = speed * static_cast<double>(question.job.cluster.world_size())};
  }

 private:
  const Options& options_;
  SearchOptions search_;
  const Library& library_;
};

// The most GPUs, in whole nodes or a part of one and up to `most`, that are a divisor of the batch
// times one of the layers times a power of two: dp, pp, and what else divides a model. 0: none.
std::int64_t suited_gpus(const Job& job, std::int64_t most) {
  constexpr std::int64_t kMostStages = 16;  // of an odd number; more are mostly bubble
  std::int64_t best = 0;
  for (std::int64_t dp = 1; dp <= std::min(job.global_batch, most); ++dp) {
    for (std::int64_t pp = 1; pp <= kMostStages && job.global_batch % dp == 0; pp += 2) {
      std::int64_t gpus = dp * pp;
      while (2 * gpus <= most) { gpus *= 2; }
      const bool is_suited = job.model.num_layers() % pp == 0 && gpus <= most &&
                             resized(job.cluster, gpus).has_value();
      best = is_suited ? std::max(best, gpus) : best;
    }
  }
  return best;
}

// Larger batches that the data-parallel ranks of some sizes of the space divide, the least first.
std::set<std::int64_t> larger_batches(const SearchQuestion& question) {
  const std::int64_t world = question.job.cluster.world_size();
  std::set<std::int64_t> batches;
  for (const std::int64_t tp : question.space.tp) {
    for (const std::int64_t cp : question.space.cp) {
      for (const std::int64_t pp : question.space.pp) {
        if (world % (tp * cp * pp) == 0) {
          batches.insert(round_up(question.job.global_batch, world / (tp * cp * pp)));
        }
      }
    }
  }
  batches.erase(question.job.global_batch);
  return batches;
}

std::optional<OtherSize> larger_batch(const OtherSearches& searches,
                                      const SearchQuestion& question) {
  std::size_t tried = 0;
  for (const std::int64_t batch : larger_batches(question)) {
    if (++tried > kBatches) {
      break;
    }
    if (std::optional<OtherSize> found = searches.with("global-batch", batch)) {
      return found;
    }
  }
  return std::nullopt;
}

// `reference`: the speed of all GPUs that must nearly be kept; 0: of the largest size that fits.
std::optional<OtherSize> fewer_gpus(const OtherSearches& searches, const Job& job,
                                    std::int64_t most, double reference) {
  std::optional<OtherSize> best;
  for (std::int64_t halving = 0; halving < kHalvings; ++halving, most /= 2) {
    const std::int64_t gpus = suited_gpus(job, most);
    const std::optional<OtherSize> found =
        gpus == 0 ? std::nullopt : searches.with("num-gpus", gpus);
    if (!found) {
      continue;
    }
    reference = reference == 0 ? found->tokens_per_s : reference;
    if (found->tokens_per_s < kKeptSpeed * reference) {
      break;
    }
    best = found;
  }
  return best;
}

// State and activations are divided by the GPUs at best.
std::optional<OtherSize> more_gpus(const OtherSearches& searches, const Job& job,
                                   const SearchOptions& search, const SearchResult& result) {
  const std::int64_t limit = memory_limit_bytes(job.cluster, search.rule());
  const std::int64_t world = job.cluster.world_size();
  std::int64_t times = 2;
  while (times < result.smallest_price.allocated_bytes / std::max<std::int64_t>(limit, 1)) {
    times *= 2;
  }
  for (std::int64_t doubling = 0; doubling < kDoublings; ++doubling, times *= 2) {
    if (times > kMostGpus / world) {
      break;
    }
    if (std::optional<OtherSize> found = searches.with("num-gpus", times * world)) {
      return found;
    }
  }
  return std::nullopt;
}

double busy_share(const StepTime& time) {
  return (time.compute_s + time.recompute_s) / time.total_s;
}

}  // namespace

std::vector<OtherSize> other_sizes(const Options& options, const SearchQuestion& question,
                                   const SearchOptions& search, const SearchResult& result,
                                   const Library& library) {
  const Job& job = question.job;
  const bool refused_anyway =
      !result.pruned.empty() && result.pruned.back().rule.starts_with("unsupported");
  if (refused_anyway || given(options, "axes") || given(options, "range")) {
    return {};
  }
  const OtherSearches searches(options, search, library);
  const std::int64_t world = job.cluster.world_size();
  std::vector<OtherSize> found;
  const auto add = [&](const std::optional<OtherSize>& size) {
    if (size) {
      found.push_back(*size);
    }
  };
  if (result.plans_distinct == 0) {
    add(larger_batch(searches, question));
    add(fewer_gpus(searches, job, world - 1, 0));
  } else if (result.top.empty()) {
    if (wide_space(job).offload.size() > question.space.offload.size()) {
      add(searches.with("axes", "offload"));
    }
    add(more_gpus(searches, job, search, result));
  } else if (busy_share(result.top.front().time) < kBusyShare) {
    add(fewer_gpus(searches, job, world / 2,
                   result.top.front().time.tokens_per_s_per_gpu * static_cast<double>(world)));
  }
  return found;
}

}  // namespace shardplan
