// Tokens per second of real training steps on this machine's GPUs: one row for each case line of
// the files given. Random tokens and weights; whole steps by the host's clock, after warm-up.
//   usage: bench_training CASES.jsonl [seconds of measured steps, 10]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "data/case_line.h"
#include "validator/cuda_backend.h"
#include "validator/lower.h"
#include "validator/run_data.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmups = 3;
constexpr double kGiB = 1024.0 * 1024 * 1024;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void measure(const Case& question, double seconds) {
  const Job& job = question.job;
  if (const auto why = why_not_lowered(job, question.plan)) {
    std::printf("%-40s not lowered: %s\n", question.id.c_str(), why->c_str());
    return;
  }
  const std::int64_t world = job.cluster.world_size();
  std::vector<Program> programs;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    programs.push_back(lower(job, question.plan, rank, {}));
  }
  const auto arenas_of = [&](std::int64_t rank) {
    const Program& program = programs[static_cast<std::size_t>(rank)];
    return program.persistent_bytes + program.dynamic_bytes;
  };
  CudaBackend backend(programs, CudaPrecision::kAsPlanned);
  backend.load_random(1);
  const Batch batch = uniform_batch(job, 1);
  double loss = 0;
  for (int i = 0; i < kWarmups; ++i) { loss = backend.step(batch, 1e-4); }
  std::vector<double> steps;
  const Clock::time_point begin = Clock::now();
  while (steps.size() < 5 || seconds_since(begin) < seconds) {
    const Clock::time_point start = Clock::now();
    loss = backend.step(batch, 1e-4);
    steps.push_back(seconds_since(start));
  }
  std::ranges::sort(steps);
  const double median = steps[steps.size() / 2];
  const double tokens = static_cast<double>(job.global_batch * job.sequence_length);
  std::printf(
      "%-40s %8.0f tokens/s/GPU  %.4f s/step (%zu steps, slowest %.4f)  arenas %.3f GiB  device "
      "used %.3f GiB  loss %.4f  outside the arenas, MiB by rank:",
      question.id.c_str(), tokens / median / static_cast<double>(world), median, steps.size(),
      steps.back(), static_cast<double>(arenas_of(0)) / kGiB,
      static_cast<double>(backend.device_used_bytes(0)) / kGiB, loss);
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const std::int64_t outside = backend.device_used_bytes(rank) - arenas_of(rank);
    std::printf(" %lld", static_cast<long long>(outside / kMiB));
  }
  std::printf("\n");
}

void run(const std::string& file, double seconds) {
  const Library library;
  std::ifstream lines(file);
  if (!lines) {
    throw std::runtime_error(file + ": cannot be read");
  }
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string place = file + ":" + std::to_string(number);
    try {
      measure(read_case(line, place, library), seconds);
    } catch (const std::exception& error) { std::printf("%s: %s\n", place.c_str(), error.what()); }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_training CASES.jsonl [seconds]\n");
    return 2;
  }
  try {
    shardplan::run(argv[1], argc > 2 ? std::atof(argv[2]) : 10);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_training: %s\n", error.what());
    return 3;
  }
  return 0;
}
