// Speed of the search on fixed jobs: `bench_search [--seconds N] [--only REGEX] [--prices N]`.
// Every line runs in a process of its own, so that its peak memory is its own.
//
// --prices: in this process the first N prices of one job, and nothing else: work that is always
// the same, for whoever counts its instructions.
//
// "prices": valid plans through price(table, plan) in the order of the walk, without bounds, from
// an empty table: memory of the deciding stages and step time, with all pieces that have to be
// made. Enumeration and validity rules are not in the seconds. Megatron-LM, default axes: every
// valid plan of the space. All axes: N seconds, in pieces of N / 32 from the beginnings of random
// branches. Other frameworks, whose rows begin with their names, have default axes only, and at
// most as many prices as kJobs says, in 32 such pieces.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "search/space/census.h"
#include "search/space/default_space.h"
#include "search/walk/branches.h"
#include "search/walk/search.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Of all threads of this process.
double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Of this thread.
double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void print(std::int64_t plans, const std::string& valid, std::int64_t priced, double wall_s,
           double cpu_s, const std::string& speed) {
  std::printf("%17lld %14s %12lld %9.3f %9.3f %13s", static_cast<long long>(plans), valid.c_str(),
              static_cast<long long>(priced), wall_s, cpu_s, speed.c_str());
}

struct BenchJob {
  std::string model;
  std::string cluster;
  std::int64_t sequence_length = 0;
  std::int64_t global_batch = 0;
  std::string framework = "megatron";
  std::int64_t prices = 0;  // of other frameworks; 0: all of the default axes, seconds of all axes

  std::string name() const { return (prices > 0 ? framework + " " : "") + model; }
};

// Global batches: 16 M tokens for 405B (arXiv 2407.21783, table 4), 15,360 sequences of 4,096 for
// DeepSeek-V3 (arXiv 2412.19437, section 4.2); the others are ours, of the same order per GPU.
const std::vector<BenchJob> kJobs = {
    {"llama3-8b", "8x8-h100", 8192, 1024},
    {"llama3-70b", "128x8-h100", 8192, 1024},
    {"llama3.1-405b", "2048x8-h100", 8192, 2048},
    {"deepseek-v3", "256x8-h100", 4096, 15360},
    {"llama4-maverick", "128x8-h100", 8192, 2048},
    {"llama3-8b", "8x8-h100", 8192, 1024, "megatron-core-local", 100'000},
    {"llama3-8b", "8x8-h100", 8192, 1024, "torchtitan", 20'000},
    {"llama3-8b", "8x8-h200", 8192, 1024, "native", 100'000},
    {"llama3-8b", "8x8-h100", 8192, 1024, "fujii2024", 100'000},
    {"llama3-8b", "8x8-h100", 8192, 1024, "nanotron", 1'000},
    {"llama3-8b", "8x8-h100", 8192, 1024, "deepspeed", 30},
};

Job job_of(const BenchJob& bench, const Library& library) {
  Job job;
  job.model = library.model(bench.model).model;
  job.cluster = library.cluster(bench.cluster);
  job.profile = library.framework(bench.framework);
  job.sequence_length = bench.sequence_length;
  job.global_batch = bench.global_batch;
  return job;
}

// Prices plans handed to it, and counts the time of nothing else.
class Pricer {
 public:
  explicit Pricer(const Job& job) : table_(build_price_table(job)), plans_(kTogether) {}
  void add(const Plan& plan) {
    plans_[waiting_++] = plan;
    if (waiting_ == kTogether) {
      flush();
    }
  }
  void flush() {
    const double start = thread_seconds();
    for (std::size_t at = 0; at < waiting_; ++at) { static_cast<void>(price(table_, plans_[at])); }
    cpu_s_ += thread_seconds() - start;
    priced_ += static_cast<std::int64_t>(waiting_);
    waiting_ = 0;
  }
  std::int64_t priced() const { return priced_; }
  std::int64_t asked() const { return priced_ + static_cast<std::int64_t>(waiting_); }
  double cpu_s() const { return cpu_s_; }

 private:
  static constexpr std::size_t kTogether = 128;  // few enough to stay in the first cache
  PriceTable table_;
  std::vector<Plan> plans_;
  std::size_t waiting_ = 0;
  std::int64_t priced_ = 0;
  double cpu_s_ = 0;
};

// When enough prices have been asked for.
struct Enough {
  double cpu_s = std::numeric_limits<double>::infinity();
  std::int64_t prices = std::numeric_limits<std::int64_t>::max();

  bool is_reached(const Pricer& pricer) const {
    return pricer.cpu_s() >= cpu_s || pricer.asked() >= prices;
  }
};

// The valid plans below a prefix in order, until there are enough prices.
void price_below(const SettledRules& rules, Prefix& prefix, Pricer& pricer, const Enough& enough) {
  const std::size_t axis = rules.next_axis(prefix.depth);
  if (axis == kNumAxes) {
    pricer.add(prefix.plan);
    return;
  }
  const std::size_t depth = prefix.depth;
  const std::int64_t index = prefix.index;
  for (std::int64_t value = 0; value < rules.size(axis) && !enough.is_reached(pricer); ++value) {
    rules.choose(axis, value, prefix);
    if (rules.settle(axis, prefix, rules.distinct()) == rules.distinct()) {
      price_below(rules, prefix, pricer, enough);
    }
    prefix.depth = depth;
    prefix.index = index;
  }
}

// In pieces from the beginnings of random branches.
void price_random_branches(const SettledRules& rules, Pricer& pricer, const Enough& enough) {
  constexpr std::size_t kBranchDepth = 5;  // tp, cp, ep, etp, splits
  constexpr std::int64_t kMostPieces = 32;
  std::vector<Branch> branches = branches_of(rules, kBranchDepth);
  const std::int64_t pieces = std::min(kMostPieces, std::ssize(branches));
  std::shuffle(branches.begin(), branches.end(), std::mt19937_64(1));
  for (const Branch& branch : branches) {
    Prefix prefix = rules.prefix_at(branch.index, kBranchDepth);
    const std::int64_t more = enough.prices / pieces + 1;
    const std::int64_t left = enough.prices - pricer.asked();
    price_below(rules, prefix, pricer,
                {.cpu_s = std::min(enough.cpu_s,
                                   pricer.cpu_s() + enough.cpu_s / static_cast<double>(pieces)),
                 .prices = pricer.asked() + std::min(more, left)});
  }
}

void measure_prices(const Job& job, const SearchSpace& space, const std::optional<Enough>& some) {
  const PlanSpace plans = plan_space(job, space);
  const SettledRules rules(job, plans);
  const Clock::time_point start = Clock::now();
  Pricer pricer(job);
  if (some) {
    price_random_branches(rules, pricer, *some);
  } else {
    Prefix prefix = rules.root();
    price_below(rules, prefix, pricer, {});
  }
  pricer.flush();
  const double per_s = static_cast<double>(pricer.priced()) / pricer.cpu_s();
  print(num_plans(plans), some ? "sampled" : "all", pricer.priced(), seconds_since(start),
        pricer.cpu_s(),
        per_s < 10 ? std::to_string(per_s).substr(0, 4) : std::to_string(std::llround(per_s)));
}

void search(const Job& job, const SearchSpace& space, const SearchOptions& options) {
  const double cpu_before = cpu_seconds();
  const SearchResult result = search_plans(job, space, options);
  std::int64_t cut = 0;
  for (const RuleCount& count : result.pruned) {
    cut += count.rule.starts_with("cut: ") ? count.plans : 0;
  }
  print(result.plans_in_space, std::to_string(result.plans_priced + cut), result.plans_priced,
        result.seconds, cpu_seconds() - cpu_before, "");
}

// Runs it in a child process and ends its line with the child's peak memory.
void measure(const std::string& name, const std::function<void()>& work) {
  std::printf("%-44s", name.c_str());
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    work();
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  rusage usage = {};
  wait4(child, &status, 0, &usage);
  std::printf(" %8.1f%s\n", static_cast<double>(usage.ru_maxrss) / 1024,
              status == 0 ? "" : "  failed");
  std::fflush(stdout);
}

struct Options {
  double seconds = 2;
  std::string only = "";
  std::int64_t prices = 0;
};

void price_some(const Job& job, std::int64_t prices) {
  const PlanSpace plans = plan_space(job, default_space(job));
  const SettledRules rules(job, plans);
  Pricer pricer(job);
  Prefix prefix = rules.root();
  price_below(rules, prefix, pricer, {.prices = prices});
  pricer.flush();
}

// The rows of a job, but those that the options leave out.
void measure_job(const BenchJob& bench, const Job& job, const Options& options) {
  const auto measure_if = [&](const std::string& line, const std::function<void()>& work) {
    if (std::regex_search(line, std::regex(options.only))) {
      measure(line, work);
    }
  };
  const std::string name = bench.name() + " / " + std::to_string(job.cluster.world_size());
  const SearchSpace space = default_space(job);
  if (bench.prices > 0) {
    measure_if(name + ", search", [&] { search(job, space, {}); });
    measure_if(name + ", prices",
               [&] { measure_prices(job, space, Enough{.prices = bench.prices}); });
    return;
  }
  for (const bool wide : {false, true}) {
    const SearchSpace axes = wide ? wide_space(job) : space;
    const std::string row = name + (wide ? ", all axes" : "");
    measure_if(row + ", search", [&] { search(job, axes, {}); });
    measure_if(row + ", pareto", [&] { search(job, axes, {.pareto = true}); });
    measure_if(row + ", prices", [&] {
      measure_prices(job, axes,
                     wide ? std::optional(Enough{.cpu_s = options.seconds}) : std::nullopt);
    });
  }
}

void bench(const Options& options) {
  const Library library;
  if (options.prices > 0) {
    for (const BenchJob& job : kJobs) {
      if (std::regex_search(job.name(), std::regex(options.only))) {
        price_some(job_of(job, library), options.prices);
      }
    }
    return;
  }
  std::printf("%-44s%17s %14s %12s %9s %9s %13s %8s\n", "job", "plans in space", "valid", "priced",
              "seconds", "CPU s", "prices/s/core", "RSS MiB");
  for (const BenchJob& job : kJobs) { measure_job(job, job_of(job, library), options); }
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  shardplan::Options options;
  int at = 1;
  for (; at + 1 < argc; at += 2) {
    const std::string flag = argv[at];
    if (flag == "--seconds") {
      options.seconds = std::strtod(argv[at + 1], nullptr);
    } else if (flag == "--only") {
      options.only = argv[at + 1];
    } else if (flag == "--prices") {
      options.prices = std::strtoll(argv[at + 1], nullptr, 10);
    } else {
      break;
    }
  }
  if (at != argc) {
    std::fprintf(
        stderr,
        "usage: bench_search [--seconds N] [--only REGEX] [--prices N]\n"
        "REGEX is looked for in the names of rows: \"llama3-70b / 1024, all axes, search\" "
        "(Megatron-LM),\n\"torchtitan llama3-8b / 64, prices\" (any other framework); "
        "\"^llama\" leaves out the others\n");
    return 2;
  }
  shardplan::bench(options);
  return 0;
}
