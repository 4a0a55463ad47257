#include "tools/measure/calibrate_memory.h"

#include <algorithm>

#include "data/read/library.h"
#include "tools/commands/help.h"
#include "tools/measure/calibration.h"
#include "tools/options/options.h"
#include "tools/options/question.h"
#include "tools/report/calibration.h"
#include "tools/report/output.h"
#include "tools/validate/case.h"
#include "tools/validate/workers.h"
#include "validator/lower/lower.h"
#include "validator/program/communicators.h"

namespace shardplan {
namespace {

// What a rank has on its device beside its arenas and what its communicators take by their law.
std::int64_t rest_bytes(const CalibrationRun& run, std::size_t rank) {
  const RankMemory& memory = run.ranks[rank];
  return memory.device_used - memory.persistent_arena - memory.dynamic_arena -
         run.communicator_bytes[rank];
}

std::int64_t largest_rest_bytes(const CalibrationRun& run) {
  std::int64_t largest = 0;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    largest = std::max(largest, rest_bytes(run, rank));
  }
  return largest;
}

// On processes of its own: what an earlier plan has left would be counted twice.
CalibrationRun run_on_new_processes(const std::string& line, const std::string& data_folder,
                                    const Library& library) {
  const Case question = read_case(line, "calibration", library);
  RunRequest request{
      .plan = text_of(CaseSource{.text = line, .place = "calibration", .data_folder = data_folder}),
      .world_size = question.job.cluster.world_size(),
      .warmup = 1,
      .steps = 2};
  const auto program_of = [&](std::int64_t rank) {
    return lower(question.job, question.plan, rank, {});
  };
  StopFlags stop;
  WorkerPool pool({.on_gpus = true, .supervisor = {}, .launched = std::nullopt});
  const RunOutcome outcome = pool.supervisor().run(request, program_of, stop);
  if (outcome.status != RunStatus::kOk) {
    throw EnvironmentError("calibrate: a plan on " + std::to_string(request.world_size) +
                           " GPUs ended with " + std::string(name_of(outcome.status)) + ": " +
                           outcome.reason);
  }
  CalibrationRun run;
  for (std::int64_t rank = 0; rank < request.world_size; ++rank) {
    run.machine = outcome.ranks.front().machine;
    run.ranks.push_back(outcome.ranks.at(static_cast<std::size_t>(rank)).memory);
    std::int64_t bytes = 0;
    for (const CommunicatorUse& use : communicators_of(program_of(rank))) {
      bytes += device_bytes(use);
    }
    run.communicator_bytes.push_back(bytes);
  }
  return run;
}

std::int64_t num_gpus() {
  WorkerPool pool({.on_gpus = true, .supervisor = {}, .launched = std::nullopt});
  return pool.supervisor().num_workers();
}

std::string text_of(const NativeMemory& memory) {
  const auto mib = [](std::int64_t bytes) { return std::to_string(bytes / kMiB) + " MiB"; };
  const auto if_known = [&](const std::optional<std::int64_t>& bytes) {
    return bytes ? mib(*bytes) : std::string("not measured: needs two GPUs");
  };
  return "context " + mib(memory.context_bytes) + "\nlibraries " + mib(memory.library_bytes) +
         "\nNCCL, first communicator " + if_known(memory.nccl_bytes) + "\nNCCL, first message " +
         if_known(memory.first_send_bytes) + "\n";
}

}  // namespace

NativeMemory fitted_memory(const CalibrationRun& alone, const CalibrationRun& reducing,
                           const CalibrationRun& sending) {
  NativeMemory memory;
  for (const RankMemory& rank : alone.ranks) {
    memory.context_bytes = std::max(memory.context_bytes, rank.context);
  }
  const std::int64_t process = largest_rest_bytes(alone);
  memory.library_bytes = process - memory.context_bytes;
  if (!reducing.ranks.empty() && !sending.ranks.empty()) {
    const std::int64_t with_nccl = largest_rest_bytes(reducing);
    memory.nccl_bytes = std::max<std::int64_t>(0, with_nccl - process);
    memory.first_send_bytes = std::max<std::int64_t>(0, largest_rest_bytes(sending) - with_nccl);
  }
  return memory;
}

ExitCode run_calibration(const Arguments& arguments) {
  const Options options = parse_options("calibrate", arguments);
  if (given(options, "help")) {
    return run_help({"calibrate"});
  }
  if (given(options, "memory") == given(options, "time")) {
    throw InputError("calibrate: expected one of --memory and --time");
  }
  if (given(options, "time")) {
    static_cast<void>(library_of(options).gpu(required_text(options, "gpu")));
    hand_to_cuda_program("calibrate", arguments);
  }
  const std::string data_folder = text_or(options, "data", "");
  const Library library = library_of(options);
  const GpuSpec gpu = library.gpu(required_text(options, "gpu"));
  const std::string file = gpu_file_of(options, library);
  CalibrationFiles files(options);
  const auto run = [&](CalibrationPlan plan) {
    return run_on_new_processes(calibration_case(gpu.id, plan), data_folder, library);
  };
  const CalibrationRun alone = run(CalibrationPlan::kAlone);
  CalibrationRun reducing;
  CalibrationRun sending;
  if (num_gpus() > 1) {
    reducing = run(CalibrationPlan::kReducing);
    sending = run(CalibrationPlan::kSending);
  }
  NativeMemory memory = fitted_memory(alone, reducing, sending);
  const std::int64_t gpus = num_gpus();
  memory.source =
      calibration_source(arguments, "on " + std::to_string(gpus) + " of " + alone.machine);
  files.write(with_native_memory(file, memory), gpus, memory.source);
  print_message(text_of(memory));
  return ExitCode::kOk;
}

}  // namespace shardplan
