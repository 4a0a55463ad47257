// Tokens per second of real training steps on this machine's GPUs, beside a limit that was written
// down before they ran. Random tokens and weights; whole steps by the host's clock, after warm-up;
// clock and power of all GPUs meanwhile; last a table. Usage: tools/bench/training_options.h.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "estimator/answer/step_limit.h"
#include "estimator/estimate.h"
#include "estimator/plan/units.h"
#include "kernels/pointwise/cuda_check.h"
#include "tools/bench/training_measurement.h"
#include "tools/bench/training_options.h"
#include "tools/bench/training_table.h"
#include "tools/measure/sustained_gemm.h"
#include "tools/report/csv.h"
#include "tools/report/output.h"
#include "tools/report/training.h"
#include "validator/cuda/machine.h"
#include "validator/lower/lower.h"
#include "validator/program/kernel_sizes.h"
#include "validator/supervise/journal.h"

namespace shardplan {
namespace {

using Options = TrainingOptions;
using Clock = std::chrono::steady_clock;

std::int64_t num_devices() {
  int count = 0;
  CUDA_CHECK(cudaGetDeviceCount(&count));
  return count;
}

std::vector<std::string> bus_ids(std::int64_t gpus) {
  std::vector<std::string> ids;
  for (int device = 0; device < gpus; ++device) {
    std::array<char, 32> id{};
    CUDA_CHECK(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device));
    ids.emplace_back(id.data());
  }
  return ids;
}

// FLOP/s of one GPU in the mean; 0 where nothing is asked.
double sustained_rate(const Options& options, std::int64_t gpus) {
  if (options.gemm_seconds <= 0) {
    return 0;
  }
  double sum = 0;
  std::printf("sustained product, TFLOP/s by GPU:");
  for (const SustainedRate& rate :
       sustained_on_gpus(read_gemm_choices(options.products), options.gemm_seconds, gpus)) {
    std::printf(" %.1f", rate.settled_flops_per_s / kTera);
    sum += rate.settled_flops_per_s;
  }
  std::printf("\n");
  return sum / static_cast<double>(gpus);
}

// As git says where this runs; "unknown" outside a checkout.
std::string commit_here() {
  std::array<char, 64> line{};
  FILE* const git = popen("git describe --always --dirty 2>/dev/null", "r");
  if (git == nullptr) {
    return "unknown";
  }
  const std::string text = fgets(line.data(), line.size(), git) == nullptr ? "" : line.data();
  pclose(git);
  return text.empty() ? "unknown" : text.substr(0, text.find('\n'));
}

std::vector<TrainingCase> wanted_cases(const Options& options, std::int64_t gpus) {
  if (options.file.empty()) {
    return training_cases(gpus, options.gpu);
  }
  std::ifstream lines(options.file);
  if (!lines) {
    throw std::runtime_error(options.file + ": cannot be read");
  }
  std::vector<TrainingCase> cases;
  for (std::string line; std::getline(lines, line);) { cases.push_back({.line = line}); }
  return cases;
}

class Bench {
 public:
  Bench(const Options& options, const std::string& command)
      : options_(options),
        num_gpus_(options.num_gpus > 0 ? options.num_gpus : num_devices()),
        run_({.command = command,
              .commit = options.commit.empty() ? commit_here() : options.commit}) {
    read_questions();
    read_results();
  }

  // Whether all cases were measured, now or before.
  bool run() {
    write_limits();
    open_gpus();
    const bool is_left = has_time() && results_.size() < questions_.size();
    const double sustained = is_left ? sustained_rate(options_, num_gpus_) : 0;
    for (const TrainingQuestion& question : questions_) {
      if (done_before_.contains(question.read.id)) {
        continue;
      }
      if (!has_time()) {
        std::printf("something is left: the same command goes on\n");
        break;
      }
      run_one(question, sustained);
    }
    if (sustained > 0) {
      std::printf("once more, after the last case: ");
      sustained_rate(options_, num_gpus_);
    }
    std::printf("\n%s, commit %s\n%s", run_.machine.c_str(), run_.commit.c_str(),
                table_text(training_table(results_)).c_str());
    std::printf(
        "p10, p90: of steps, as speeds. roofline: of the limit with products at the rate that this "
        "run sustained\n");
    return results_.size() == num_cases_;
  }

 private:
  void open_gpus() {
    if (options_.stands_in) {
      num_gpus_ = std::min(num_gpus_, num_devices());
    }
    if (num_devices() < num_gpus_) {
      throw std::runtime_error("found " + std::to_string(num_devices()) + " GPUs, expected " +
                               std::to_string(num_gpus_));
    }
    sensors_ = std::make_unique<GpuSensors>(bus_ids(num_gpus_));
    run_.machine = std::to_string(num_gpus_) + "x " + machine_description(0);
    run_.sensors_absent = sensors_->why_absent();
    if (!run_.sensors_absent.empty()) {
      std::printf("no clocks, no power: %s\n", run_.sensors_absent.c_str());
    }
  }

  void read_questions() {
    std::int64_t line = 0;
    for (const TrainingCase& row : wanted_cases(options_, num_gpus_)) {
      const std::string place = options_.file + ":" + std::to_string(++line);
      if (row.line.empty()) {
        continue;
      }
      ++num_cases_;
      try {
        Case read = read_case(row.line, place, library_);
        std::optional<std::string> why = why_not_lowered(read.job, read.plan);
        why = why ? why : why_no_kernels(read.job, read.plan);
        const std::int64_t world = read.job.cluster.world_size();
        if (why || world > num_gpus_) {
          std::printf("%s: %s\n", read.id.c_str(),
                      why ? why->c_str() : ("needs " + std::to_string(world) + " GPUs").c_str());
          continue;
        }
        std::optional<Job> best = without_losses(read.job);
        questions_.push_back({.row = row, .read = std::move(read), .best = std::move(best)});
      } catch (const std::exception& error) {
        std::printf("%s: %s\n", place.c_str(), error.what());
      }
    }
  }

  // What the file of results has of these cases.
  void read_results() {
    if (options_.out.empty()) {
      return;
    }
    out_.emplace(options_.out);
    std::int64_t number = 0;
    for (const std::string& line : out_->records()) {
      const std::string place = options_.out + ":" + std::to_string(++number);
      std::optional<TrainingResult> result = training_result(line, place, library_);
      if (result && std::ranges::any_of(questions_, [&](const TrainingQuestion& question) {
            return question.read.id == result->question.id;
          })) {
        done_before_.insert(result->question.id);
        results_.push_back(std::move(*result));
      }
    }
  }

  void write_limits() const {
    Table table = {.columns = {"id", "limit_s", "limit_tokens_per_s_per_gpu", "estimate_s"}};
    for (const TrainingQuestion& question : questions_) {
      if (question.best) {
        const StepTime limit = estimate_step_time(*question.best, question.read.plan);
        table.rows.push_back({question.read.id, limit.total_s, limit.tokens_per_s_per_gpu,
                              estimate_step_time(question.read.job, question.read.plan).total_s});
      }
    }
    std::printf("limits, before anything runs\n%s\n", csv_text(table).c_str());
    if (!options_.limits.empty()) {
      Output file(options_.limits);
      file.write(csv_text(table));
      file.commit();
    }
  }

  // For one more case and the product afterwards.
  bool has_time() const {
    return options_.minutes <= 0 ||
           seconds_since(begin_) + options_.seconds + kReadySeconds + options_.gemm_seconds <
               60 * options_.minutes;
  }

  void run_one(const TrainingQuestion& question, double sustained) {
    TrainingResult result = {.question = question.read,
                             .line = question.row.line,
                             .goal = question.row.goal,
                             .sustained_flops_per_s = sustained};
    const auto step_s = [&](const std::optional<Job>& job) {
      return job ? std::optional(estimate_step_time(*job, question.read.plan).total_s)
                 : std::nullopt;
    };
    result.limit_s = step_s(question.best);
    if (sustained > 0) {
      result.roofline_s = step_s(without_losses(question.read.job, sustained));
    }
    std::exception_ptr problem;
    try {
      const std::int64_t world = question.read.job.cluster.world_size();
      measure_training(question, options_, std::min(world, num_gpus_), *sensors_, result);
    } catch (const CudaError& error) {
      result.failure = error.what();
      result.out_of_memory = error.is_out_of_memory();
      problem = result.out_of_memory ? nullptr : std::current_exception();
    } catch (const std::exception& error) {
      result.failure = error.what();
      problem = std::current_exception();
    }
    if (!result.failure.empty()) {
      std::printf("%s: %s\n", question.read.id.c_str(), result.failure.c_str());
    }
    std::fflush(stdout);
    if (out_) {
      const std::string line = training_json(result, run_);
      out_->append(line.substr(0, line.find('\n')));
    }
    results_.push_back(std::move(result));
    if (problem && out_) {
      std::rethrow_exception(problem);  // GPUs may not answer any more: the next process goes on
    }
  }

  static constexpr double kReadySeconds = 30;  // weights, connections, warm-up

  const Options& options_;
  const Library library_;
  std::int64_t num_gpus_;
  std::unique_ptr<GpuSensors> sensors_;  // once the limits are written
  TrainingRun run_;
  std::size_t num_cases_ = 0;  // those that cannot be read or run here, too
  std::vector<TrainingQuestion> questions_;
  std::optional<Journal> out_;
  std::vector<TrainingResult> results_;
  std::set<std::string> done_before_;  // ids of the results that were there
  Clock::time_point begin_ = Clock::now();
};

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  shardplan::ignore_write_signals();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was measured is not lost where it is stopped
  try {
    const std::vector<std::string_view> words(argv + 1, argv + argc);
    if (std::ranges::find(words, "--help") != words.end()) {
      std::printf("%s", std::string(shardplan::kTrainingUsage).c_str());
      return 0;
    }
    const shardplan::TrainingOptions options = shardplan::training_options(words);
    return shardplan::Bench(options, shardplan::training_command(words)).run() ? 0 : 1;
  } catch (const shardplan::InputError& error) {
    std::fprintf(stderr, "bench_training: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_training: %s\n", error.what());
    return 3;
  }
}
