// Tokens per second of real training steps on this machine's GPUs: one row for each case line of
// the file given. Random tokens and weights; whole steps by the host's clock, after warm-up.
//   usage: bench_training CASES.jsonl [--seconds 10] [--profile] [--tune N] [--products FILE]
//                         [--attention fastest|own] [--collectives fastest|nccl]
// --profile   one more step, operation by operation, on the first GPU, and with a pipeline on the
//             last one
// --tune      first chooses the fastest of N algorithms of cuBLASLt for every product that FILE
//             lacks, and adds the choices to it; 0.4 s for each algorithm
// --products  the file of choices, else $SHARDPLAN_PRODUCTS or shardplan/products in
//             $XDG_CACHE_HOME; products that it lacks run as cuBLASLt suggests
// --collectives  nccl: also those of tensor and context parallelism that copy engines can serve
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "data/case_line.h"
#include "tools/training_profile.h"
#include "validator/cuda_backend.h"
#include "validator/cuda_products.h"
#include "validator/lower.h"
#include "validator/run_data.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmups = 3;
constexpr std::size_t kBatches = 8;
constexpr double kRate = 1e-6;
constexpr double kGiB = 1024.0 * 1024 * 1024;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Options {
  std::string file = {};
  double seconds = 10;  // of measured steps, five at least
  bool profiles = false;
  int candidates = 0;  // of every product; 0: no tuning
  std::string products = gemm_choices_path();
  AttentionKernels attention = AttentionKernels::kFastest;
  Collectives collectives = Collectives::kFastest;
};

void tune(const Program& program, int candidates, const std::string& path) {
  GemmChoices choices = read_gemm_choices(path);
  tune_products(program, candidates, choices, [&](const TunedProduct& product) {
    std::printf("%s: %.0f TFLOP/s as expected, %.0f with candidate %zu of %zu\n",
                product.name.c_str(), product.flops / product.expected_s / 1e12,
                product.flops / product.best_s / 1e12, product.best, product.num_candidates);
    write_gemm_choices(path, choices);
  });
}

void profile(const std::vector<Program>& programs, bool has_stages, CudaBackend& backend,
             const Batch& batch) {
  std::vector<LaunchHooks> hooks(programs.size());
  std::vector<std::unique_ptr<TrainingProfile>> profiles;
  std::vector<std::size_t> ranks = {0};
  if (has_stages) {
    ranks.push_back(programs.size() - 1);
  }
  for (const std::size_t rank : ranks) {
    profiles.push_back(std::make_unique<TrainingProfile>(programs[rank], static_cast<int>(rank)));
    hooks[rank] = profiles.back()->hooks();
  }
  backend.step(batch, kRate, hooks);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::printf("rank %zu\n", ranks[i]);
    profiles[i]->print();
  }
}

void measure(const Case& question, const Options& options) {
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
  if (options.candidates > 0) {
    tune(programs.front(), options.candidates, options.products);
  }
  CudaBackend backend(programs, CudaPrecision::kAsPlanned, options.attention,
                      read_gemm_choices(options.products), options.collectives);
  backend.load_random(1);
  // Several, and a small rate: a model that knows its batch by heart has gradients of its own kind.
  std::vector<Batch> batches;
  for (std::uint64_t seed = 1; seed <= kBatches; ++seed) {
    batches.push_back(uniform_batch(job, seed));
  }
  double loss = 0;
  std::size_t num_steps = 0;
  const auto step = [&] { loss = backend.step(batches[num_steps++ % kBatches], kRate); };
  for (int i = 0; i < kWarmups; ++i) { step(); }
  std::vector<double> steps;
  const Clock::time_point begin = Clock::now();
  while (steps.size() < 5 || seconds_since(begin) < options.seconds) {
    const Clock::time_point start = Clock::now();
    step();
    steps.push_back(seconds_since(start));
  }
  std::ranges::sort(steps);
  const double median = steps[steps.size() / 2];
  const double tokens = static_cast<double>(job.global_batch * job.sequence_length);
  std::printf(
      "%-40s %8.0f tokens/s/GPU  %.4f s/step (%zu steps, %.4f to %.4f)  arenas %.3f GiB  device "
      "used %.3f GiB  loss %.4f  attention: %s; products: %s  outside the arenas, MiB by rank:",
      question.id.c_str(), tokens / median / static_cast<double>(world), median, steps.size(),
      steps.front(), steps.back(), static_cast<double>(arenas_of(0)) / kGiB,
      static_cast<double>(backend.device_used_bytes(0)) / kGiB, loss,
      backend.attention_used().c_str(), backend.products_used().c_str());
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const std::int64_t outside = backend.device_used_bytes(rank) - arenas_of(rank);
    std::printf(" %lld", static_cast<long long>(outside / kMiB));
  }
  std::printf("\n");
  std::fflush(stdout);
  if (options.profiles) {
    profile(programs, question.plan.pp > 1, backend, batches.front());
  }
}

void run(const Options& options) {
  const Library library;
  std::ifstream lines(options.file);
  if (!lines) {
    throw std::runtime_error(options.file + ": cannot be read");
  }
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string place = options.file + ":" + std::to_string(number);
    try {
      measure(read_case(line, place, library), options);
    } catch (const std::exception& error) { std::printf("%s: %s\n", place.c_str(), error.what()); }
    std::fflush(stdout);
  }
}

AttentionKernels attention_of(const std::string& word) {
  if (word != "fastest" && word != "own") {
    throw std::invalid_argument("--attention: found '" + word + "', expected fastest or own");
  }
  return word == "own" ? AttentionKernels::kOwn : AttentionKernels::kFastest;
}

Collectives collectives_of(const std::string& word) {
  if (word != "fastest" && word != "nccl") {
    throw std::invalid_argument("--collectives: found '" + word + "', expected fastest or nccl");
  }
  return word == "nccl" ? Collectives::kNccl : Collectives::kFastest;
}

Options read_options(const std::vector<std::string_view>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const auto value = [&] {
      if (i + 1 == words.size()) {
        throw std::invalid_argument(std::string(word) + " needs a value");
      }
      return std::string(words[++i]);
    };
    if (word == "--seconds") {
      options.seconds = std::stod(value());
    } else if (word == "--profile") {
      options.profiles = true;
    } else if (word == "--tune") {
      options.candidates = std::stoi(value());
    } else if (word == "--products") {
      options.products = value();
    } else if (word == "--attention") {
      options.attention = attention_of(value());
    } else if (word == "--collectives") {
      options.collectives = collectives_of(value());
    } else if (options.file.empty() && !word.starts_with("--")) {
      options.file = word;
    } else {
      throw std::invalid_argument("unexpected '" + std::string(word) + "'");
    }
  }
  if (options.file.empty()) {
    throw std::invalid_argument("a file of case lines is needed");
  }
  return options;
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  try {
    shardplan::run(shardplan::read_options({argv + 1, argv + argc}));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "bench_training: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_training: %s\n", error.what());
    return 3;
  }
  return 0;
}
