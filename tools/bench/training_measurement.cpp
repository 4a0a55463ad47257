#include "tools/bench/training_measurement.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "estimator/plan/units.h"
#include "tools/bench/training_options.h"
#include "tools/bench/training_profile.h"
#include "tools/bench/training_table.h"
#include "tools/report/text.h"
#include "validator/cuda/backend.h"
#include "validator/cuda/products.h"
#include "validator/lower/lower.h"
#include "validator/program/run_data.h"

namespace shardplan {
namespace {

using Options = TrainingOptions;
using Clock = std::chrono::steady_clock;

constexpr int kWarmups = 3;
constexpr std::size_t kBatches = 8;
constexpr double kRate = 1e-6;

void tune(const Program& program, int candidates, const std::string& path) {
  GemmChoices choices = read_gemm_choices(path);
  tune_products(program, candidates, choices, [&](const TunedProduct& product) {
    std::printf("%s: %.0f TFLOP/s as expected, %.0f with candidate %zu of %zu\n",
                product.name.c_str(), product.flops / product.expected_s / kTera,
                product.flops / product.best_s / kTera, product.best, product.num_candidates);
    write_gemm_choices(path, choices);
  });
}

// One more step with events around every operation of one rank of the stage that the limit is of.
void itemise(const TrainingQuestion& question, const std::vector<Program>& programs, bool prints,
             CudaBackend& backend, const Batch& batch, TrainingResult& result) {
  const StepAccount limit =
      step_account(question.best.value_or(question.read.job), question.read.plan);
  std::size_t rank = 0;
  while (
      coordinates_of(question.read.job, question.read.plan, static_cast<std::int64_t>(rank)).pp !=
      limit.pp_rank) {
    ++rank;
  }
  TrainingProfile profile(programs[rank], static_cast<int>(rank));
  std::vector<LaunchHooks> hooks(programs.size());
  hooks[rank] = profile.hooks();
  backend.step(batch, kRate, hooks);
  if (prints) {
    std::printf("rank %zu\n", rank);
    profile.print();
  }
  if (question.best) {
    result.losses = step_losses(programs[rank], profile.times(), limit);
    std::printf("%s\n", losses_text(result).c_str());
  }
}

void print_memory(const std::vector<Program>& programs, const CudaBackend& backend,
                  TrainingResult& result) {
  std::printf("  device used, and outside the arenas MiB by rank:");
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const std::int64_t used = backend.device_used_bytes(static_cast<std::int64_t>(i));
    const std::int64_t outside = used - programs[i].persistent_bytes - programs[i].dynamic_bytes;
    result.device_used_bytes = std::max(result.device_used_bytes, used);
    std::printf(" %.3f GiB %lld", static_cast<double>(used) / static_cast<double>(kGiB),
                static_cast<long long>(outside / kMiB));
  }
  std::printf("\n");
}

}  // namespace

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void measure_training(const TrainingQuestion& question, const Options& options,
                      std::int64_t num_programs, GpuSensors& sensors, TrainingResult& result) {
  const Job& job = question.read.job;
  std::vector<Program> programs;
  for (std::int64_t rank = 0; rank < num_programs; ++rank) {
    programs.push_back(lower(job, question.read.plan, rank, {}));
  }
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
  sensors.start();
  const Clock::time_point begin = Clock::now();
  while (steps.size() < 5 || seconds_since(begin) < options.seconds) {
    const Clock::time_point start = Clock::now();
    step();
    steps.push_back(seconds_since(start));
  }
  result.sensors = sensors.stop();
  if (const std::optional<double> factor = backend.needed_buffer_factor()) {
    throw std::runtime_error("rows of experts were left out: moe_buffer_factor " +
                             fixed(*factor, 2) + " is needed");
  }
  result.steps_s = std::move(steps);
  result.attention = backend.attention_used();
  result.products = backend.products_used();
  const double median_s = percentile(result.steps_s, 0.5);
  std::printf("%s: %.0f tokens/s/GPU, %.4f s/step, loss %.4f, attention: %s; products: %s\n",
              question.read.id.c_str(), result.tokens_per_s_per_gpu(median_s), median_s, loss,
              result.attention.c_str(), result.products.c_str());
  print_memory(programs, backend, result);
  itemise(question, programs, options.profiles, backend, batches.front(), result);
}

}  // namespace shardplan
