// Speed of the search on fixed jobs: `bench_search [--seconds N]`. Every search runs in a process
// of its own, so that its peak memory is its own.
//
// Without bounds every valid plan of a space is priced; where that would take too long, prices are
// measured over N seconds of the same walk (marked "sampled"), branches taken in a fixed random
// order.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "data/library.h"
#include "search/census.h"
#include "search/search.h"

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

void print(std::int64_t plans, const std::string& valid, std::int64_t priced, double wall_s,
           double cpu_s) {
  std::printf("%17lld %14s %12lld %9.3f %9.3f %13.0f", static_cast<long long>(plans), valid.c_str(),
              static_cast<long long>(priced), wall_s, cpu_s, static_cast<double>(priced) / cpu_s);
}

struct BenchJob {
  std::string model;
  std::string cluster;
  std::int64_t sequence_length = 0;
  std::int64_t global_batch = 0;
};

// Global batches: 16 M tokens for 405B (arXiv 2407.21783, table 4), 15,360 sequences of 4,096 for
// DeepSeek-V3 (arXiv 2412.19437, section 4.2); the others are ours, of the same order per GPU.
const std::vector<BenchJob> kJobs = {
    {"llama3-8b", "8x8-h100", 8192, 1024},         {"llama3-70b", "128x8-h100", 8192, 1024},
    {"llama3.1-405b", "2048x8-h100", 8192, 2048},  {"deepseek-v3", "256x8-h100", 4096, 15360},
    {"llama4-maverick", "128x8-h100", 8192, 2048},
};

Job job_of(const BenchJob& bench, const Library& library) {
  Job job;
  job.model = library.model(bench.model).model;
  job.cluster = library.cluster(bench.cluster);
  job.profile = library.framework("megatron");
  job.sequence_length = bench.sequence_length;
  job.global_batch = bench.global_batch;
  return job;
}

// Prices the valid plans below a prefix until the time is over; how many.
std::int64_t price_below(const SettledRules& rules, Prefix& prefix, PriceTable& table,
                         Clock::time_point end) {
  const std::size_t axis = rules.next_axis(prefix.depth);
  if (axis == kNumAxes) {
    static_cast<void>(price(table, prefix.plan));
    return 1;
  }
  const std::size_t depth = prefix.depth;
  const std::int64_t index = prefix.index;
  std::int64_t priced = 0;
  for (std::int64_t value = 0; value < rules.size(axis) && Clock::now() < end; ++value) {
    rules.choose(axis, value, prefix);
    if (rules.settle(axis, prefix, rules.distinct()) == rules.distinct()) {
      priced += price_below(rules, prefix, table, end);
    }
    prefix.depth = depth;
    prefix.index = index;
  }
  return priced;
}

void sample(const Job& job, const SearchSpace& space, double seconds) {
  constexpr std::size_t kBranchDepth = 5;  // tp, cp, ep, etp, splits
  const PlanSpace plans = plan_space(job, space);
  const SettledRules rules(job, plans);
  std::vector<std::int64_t> branches;
  for (std::int64_t at = 0; at < num_plans(plans); at += rules.plans_below(kBranchDepth)) {
    Prefix prefix = rules.root();
    Verdict verdict = rules.root_verdict();
    const Prefix chosen = rules.prefix_at(at, kBranchDepth);
    for (std::size_t axis = rules.next_axis(0); axis < kBranchDepth;
         axis = rules.next_axis(axis + 1)) {
      rules.choose(axis, chosen.values[axis], prefix);
      verdict = rules.settle(axis, prefix, verdict);
    }
    if (verdict == rules.distinct()) {
      branches.push_back(at);
    }
  }
  std::shuffle(branches.begin(), branches.end(), std::mt19937_64(1));
  PriceTable table = build_price_table(job);
  const double cpu_before = cpu_seconds();
  const Clock::time_point start = Clock::now();
  const Clock::time_point end =
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::int64_t priced = 0;
  for (std::size_t at = 0; at < branches.size() && Clock::now() < end; ++at) {
    Prefix prefix = rules.prefix_at(branches[at], kBranchDepth);
    priced += price_below(rules, prefix, table, end);
  }
  print(num_plans(plans), "sampled", priced, seconds_since(start), cpu_seconds() - cpu_before);
}

void search(const Job& job, const SearchSpace& space, const SearchOptions& options) {
  const double cpu_before = cpu_seconds();
  const SearchResult result = search_plans(job, space, options);
  std::int64_t cut = 0;
  for (const RuleCount& count : result.pruned) {
    cut += count.rule.starts_with("cut: ") ? count.plans : 0;
  }
  print(result.plans_in_space, std::to_string(result.plans_priced + cut), result.plans_priced,
        result.seconds, cpu_seconds() - cpu_before);
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

void bench(double sample_seconds) {
  std::printf("%-44s%17s %14s %12s %9s %9s %13s %8s\n", "job", "plans in space", "valid", "priced",
              "seconds", "CPU s", "prices/s/core", "RSS MiB");
  const Library library;
  for (const BenchJob& bench : kJobs) {
    const Job job = job_of(bench, library);
    for (const bool wide : {false, true}) {
      const SearchSpace space = wide ? wide_space(job) : default_space(job);
      const std::string name = bench.model + " / " + std::to_string(job.cluster.world_size()) +
                               (wide ? ", all axes" : "");
      measure(name, [&] { search(job, space, {}); });
      measure(name + ", pareto", [&] { search(job, space, {.pareto = true}); });
      measure(name + ", no bounds", [&] { sample(job, space, sample_seconds); });
    }
  }
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  double seconds = 2;
  if (argc == 3 && std::string(argv[1]) == "--seconds") {
    seconds = std::strtod(argv[2], nullptr);
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: bench_search [--seconds N]\n");
    return 2;
  }
  shardplan::bench(seconds);
  return 0;
}
