#include "tools/validate/workers.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "data/read/input_error.h"
#include "tools/options/option_values.h"
#include "tools/report/output.h"
#include "tools/validate/case.h"
#include "tools/validate/stop_signals.h"
#include "validator/supervise/remote_worker.h"
#include "validator/supervise/worker_process.h"

namespace shardplan {
namespace {

constexpr const char* kCudaProgram = "shardplan-validate-cuda";
constexpr std::int64_t kMostHostRanks = 64;
constexpr std::chrono::seconds kConnectTime{60};

// 128 random bits in hexadecimal.
std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw EnvironmentError(std::string("validate: no random numbers: ") + std::strerror(errno));
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

std::string own_path() {
  std::error_code problem;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", problem);
  if (problem) {
    throw EnvironmentError("validate: /proc/self/exe cannot be read: " + problem.message());
  }
  return self.string();
}

// The host's ranks are this program; those on GPUs another, so that this one stays free of CUDA.
std::string program_of(bool on_gpus) {
  const std::string self = own_path();
  if (!on_gpus) {
    return self;
  }
  const std::filesystem::path beside = std::filesystem::path(self).parent_path() / kCudaProgram;
  if (access(beside.c_str(), X_OK) == 0) {
    return beside.string();
  }
  throw EnvironmentError(
      std::string("validate: ") + kCudaProgram +
      " is not beside this program; to build it: cmake --preset release -DSHARDPLAN_GPU=ON && "
      "cmake --build --preset release (or run on the host: --backend host)");
}

// One device file for each GPU that this process may open: nothing of CUDA is asked.
std::int64_t num_gpus() {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string list(visible);
    return list.empty() ? 0 : std::ranges::count(list, ',') + 1;
  }
  std::int64_t count = 0;
  while (std::filesystem::exists("/dev/nvidia" + std::to_string(count))) { ++count; }
  return count;
}

WorkerCommand command_of(const std::string& program, const WorkerPlace& place,
                         const std::string& token) {
  return {
      .arguments = {program, "worker", std::to_string(place.rank), std::to_string(place.local_rank),
                    place.address, std::to_string(place.port)},
      .environment = {std::string(kTokenVariable) + "=" + token}};
}

// Launchers may leave each process one GPU to see, which is then number 0 of its own.
std::int64_t device_of(const LaunchRank& launched) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string list = visible == nullptr ? "" : visible;
  return !list.empty() && list.find(',') == std::string::npos ? 0 : launched.local_rank;
}

std::string token_of_launch() {
  const char* token = std::getenv(kTokenVariable);
  return token == nullptr ? "" : token;
}

bool is_on_one_host(const LaunchRank& launched) {
  return launched.local_size == launched.world_size;
}

std::string address_of(const LaunchRank& launched) {
  return is_on_one_host(launched) ? "127.0.0.1" : launched.address;
}

}  // namespace

std::optional<LaunchRank> launched_rank() {
  try {
    const std::optional<LaunchRank> rank = launch_rank(process_environment());
    if (!rank || rank->world_size == 1) {
      return std::nullopt;
    }
    if (token_of_launch().size() < 16) {
      throw InputError(std::string("validate: ") + rank->launcher +
                       " has started several processes; expected one secret of at least 16 letters "
                       "for all of them in " +
                       kTokenVariable + ", as in " + kTokenVariable + "=$(openssl rand -hex 16)");
    }
    return rank;
  } catch (const LaunchError& error) { throw InputError(std::string("validate: ") + error.what()); }
}

void hand_to_cuda_program(const std::string& command, const Arguments& arguments) {
  std::vector<std::string> words = {program_of(true), command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) { pointers.push_back(word.data()); }
  pointers.push_back(nullptr);
  execv(pointers.front(), pointers.data());
  throw EnvironmentError(std::string(kCudaProgram) +
                         ": cannot be started: " + std::strerror(errno));
}

WorkerPool::WorkerPool(const WorkerSettings& settings) {
  const std::optional<LaunchRank>& launched = settings.launched;
  const std::string program = program_of(settings.on_gpus);
  const std::string token = launched ? token_of_launch() : random_token();
  try {
    rendezvous_ = std::make_unique<RendezvousServer>(
        launched ? launched->port : 0, token,
        launched && !is_on_one_host(*launched) ? Reach::kAllHosts : Reach::kThisHost);
  } catch (const RendezvousError& error) { throw EnvironmentError(error.what()); }
  std::vector<std::unique_ptr<WorkerLink>> workers;
  const std::int64_t num_here = launched ? 1 : settings.on_gpus ? num_gpus() : kMostHostRanks;
  if (num_here == 0) {
    throw EnvironmentError(
        "validate: found no GPU: neither /dev/nvidia0 nor a device in "
        "CUDA_VISIBLE_DEVICES");
  }
  for (std::int64_t rank = 0; rank < num_here; ++rank) {
    const WorkerPlace place{.rank = rank,
                            .local_rank = launched ? device_of(*launched) : rank,
                            .address = "127.0.0.1",
                            .port = rendezvous_->port()};
    workers.push_back(std::make_unique<WorkerProcess>(command_of(program, place, token)));
  }
  for (std::int64_t rank = 1; launched && rank < launched->world_size; ++rank) {
    workers.push_back(std::make_unique<RemoteWorker>(*rendezvous_, rank));
  }
  supervisor_ = std::make_unique<Supervisor>(std::move(workers), *rendezvous_, settings.supervisor);
}

ExitCode run_as_agent(const WorkerSettings& settings) {
  const LaunchRank& launched = settings.launched.value();
  const WorkerPlace place{.rank = launched.rank,
                          .local_rank = device_of(launched),
                          .address = address_of(launched),
                          .port = launched.port};
  const std::string token = token_of_launch();
  try {
    RendezvousClient client(place.address, place.port, token, kConnectTime);
    if (!claim_rank(client, launched.rank)) {
      throw InputError("validate: rank " + std::to_string(launched.rank) +
                       ": found two processes to which " + launched.launcher +
                       " gives it, expected one");
    }
    WorkerProcess worker(command_of(program_of(settings.on_gpus), place, token));
    serve_as_agent(client, launched.rank, worker, watch_stop_signals());
    return ExitCode::kOk;
  } catch (const RendezvousError& error) {
    throw EnvironmentError("validate: rank " + std::to_string(launched.rank) + ": " + error.what());
  }
}

int run_worker(const Arguments& arguments, const BackendMaker& make_backend) {
  if (arguments.size() != 4) {
    throw InputError("worker: is started by validate only");
  }
  constexpr std::int64_t kMost = 1 << 20;
  const WorkerPlace place{.rank = parse_count(arguments[0], 0, kMost, "worker: rank"),
                          .local_rank = parse_count(arguments[1], 0, kMost, "worker: local rank"),
                          .address = arguments[2],
                          .port = parse_count(arguments[3], 1, 65535, "worker: port")};
  try {
    return serve_runs(place, rank_run_of, make_backend);
  } catch (const RendezvousError& error) {
    throw EnvironmentError("worker: rank " + std::to_string(place.rank) + ": " + error.what());
  }
}

}  // namespace shardplan
