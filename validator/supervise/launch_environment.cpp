#include "validator/supervise/launch_environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

namespace shardplan {
namespace {

struct Launcher {
  std::string_view name;
  std::string_view rank;
  std::string_view world_size;
  std::string_view local_rank;
  std::string_view local_size;
  std::string_view required;        // without it the launcher has not started this process
  std::string_view num_hosts = {};  // where local_size may be absent on several
};

constexpr std::array<Launcher, 4> kLaunchers = {{
    {.name = "torchrun",
     .rank = "RANK",
     .world_size = "WORLD_SIZE",
     .local_rank = "LOCAL_RANK",
     .local_size = "LOCAL_WORLD_SIZE",
     .required = "RANK"},
    {.name = "Open MPI",
     .rank = "OMPI_COMM_WORLD_RANK",
     .world_size = "OMPI_COMM_WORLD_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .required = "OMPI_COMM_WORLD_RANK"},
    {.name = "Slurm",
     .rank = "SLURM_PROCID",
     .world_size = "SLURM_NTASKS",
     .local_rank = "SLURM_LOCALID",
     .local_size = "SLURM_NTASKS_PER_NODE",
     .required = "SLURM_STEP_ID",
     .num_hosts = "SLURM_STEP_NUM_NODES"},
    {.name = "MPICH",
     .rank = "PMI_RANK",
     .world_size = "PMI_SIZE",
     .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS",
     .required = "PMI_RANK"},
}};

struct Bounds {
  std::int64_t low = 0;
  std::int64_t high = 0;
};

[[noreturn]] void fail(std::string_view variable, std::string_view found,
                       const std::string& expected) {
  throw LaunchError(std::string(variable) + ": found " + std::string(found) + ", expected " +
                    expected);
}

std::int64_t number(const Environment& environment, std::string_view variable,
                    const Bounds& bounds) {
  const std::string expected =
      "a number from " + std::to_string(bounds.low) + " to " + std::to_string(bounds.high);
  const auto found = environment.find(variable);
  if (found == environment.end()) {
    fail(variable, "nothing", expected);
  }
  const std::string& text = found->second;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < bounds.low ||
      value > bounds.high) {
    fail(variable, "\"" + text + "\"", expected);
  }
  return value;
}

constexpr std::int64_t kMostRanks = 1 << 20;

LaunchRank rank_of(const Launcher& launcher, const Environment& environment) {
  LaunchRank rank;
  rank.launcher = launcher.name;
  rank.world_size = number(environment, launcher.world_size, {.low = 1, .high = kMostRanks});
  rank.rank = number(environment, launcher.rank, {.low = 0, .high = rank.world_size - 1});
  const bool is_on_several =
      environment.contains(launcher.num_hosts) &&
      number(environment, launcher.num_hosts, {.low = 1, .high = kMostRanks}) > 1;
  // Without the number of processes of this host, one host has them all.
  if (!environment.contains(launcher.local_size) && is_on_several) {
    fail(launcher.local_size, "nothing",
         "the processes of each of several hosts (--ntasks-per-node)");
  }
  // Slurm's is how many the allocation lets a host have: the only one may have fewer.
  const bool may_exceed = !launcher.num_hosts.empty() && !is_on_several;
  const Bounds sizes = {.low = 1, .high = may_exceed ? kMostRanks : rank.world_size};
  rank.local_size = environment.contains(launcher.local_size)
                        ? std::min(number(environment, launcher.local_size, sizes), rank.world_size)
                        : rank.world_size;
  rank.local_rank =
      number(environment, launcher.local_rank, {.low = 0, .high = rank.local_size - 1});
  return rank;
}

bool is_complete(const Launcher& launcher, const Environment& environment) {
  return environment.contains(launcher.rank) && environment.contains(launcher.world_size) &&
         environment.contains(launcher.local_rank);
}

// Those that have left their variables; torchrun alone where it has started this process, whoever
// has started torchrun: one for each host, as srun does, or all of them.
std::vector<Launcher> launchers_in(const Environment& environment) {
  const Launcher& torchrun = kLaunchers.front();
  if (environment.contains("TORCHELASTIC_RUN_ID") && is_complete(torchrun, environment)) {
    return {torchrun};
  }
  std::vector<Launcher> found;
  for (const Launcher& launcher : kLaunchers) {
    if (environment.contains(launcher.required) && environment.contains(launcher.rank)) {
      found.push_back(launcher);
    }
  }
  return found;
}

// In whatever the other has left, which may be less than a rank needs: srun --mpi=pmi2 sets
// PMI_RANK and PMI_SIZE for libraries (p_mpi_hook_slurmstepd_task of Slurm's mpi_pmi2.c).
void check_agreement(const Launcher& first, const LaunchRank& rank, const Launcher& other,
                     const Environment& environment) {
  const auto check = [&](std::string_view variable, std::string_view as, std::int64_t expected) {
    if (!environment.contains(variable)) {
      return;
    }
    const std::int64_t found = number(environment, variable, {.low = 0, .high = kMostRanks});
    if (found != expected) {
      fail(variable, std::to_string(found),
           std::to_string(expected) + " as " + std::string(as) + " says, or one of them unset");
    }
  };
  check(other.rank, first.rank, rank.rank);
  check(other.world_size, first.world_size, rank.world_size);
  check(other.local_rank, first.local_rank, rank.local_rank);
}

void find_address(LaunchRank& rank, const Environment& environment) {
  const auto master = environment.find("MASTER_ADDR");
  const auto slurm = environment.find("SLURM_LAUNCH_NODE_IPADDR");
  if (master != environment.end()) {
    rank.address = master->second;
  } else if (rank.local_size < rank.world_size && slurm != environment.end()) {
    rank.address = slurm->second;
  } else if (rank.local_size < rank.world_size) {
    fail("MASTER_ADDR", "nothing", "the address of rank 0: the processes are on several hosts");
  }
  if (rank.address.empty()) {
    fail("MASTER_ADDR", "\"\"", "the address of rank 0");
  }
  if (environment.contains("SHARDPLAN_PORT")) {
    rank.port = number(environment, "SHARDPLAN_PORT", {.low = 1, .high = 65535});
  } else if (environment.contains("MASTER_PORT")) {
    // torchrun may keep the port for a store of its own (torch.distributed.elastic).
    const auto taken = environment.find("TORCHELASTIC_USE_AGENT_STORE");
    const bool is_taken = taken != environment.end() && taken->second == "True";
    rank.port = number(environment, "MASTER_PORT", {.low = 1, .high = 65534}) + (is_taken ? 1 : 0);
  }
}

}  // namespace

std::optional<LaunchRank> launch_rank(const Environment& environment) {
  const std::vector<Launcher> launchers = launchers_in(environment);
  if (launchers.empty()) {
    return std::nullopt;
  }
  const auto complete = std::ranges::find_if(
      launchers, [&](const Launcher& launcher) { return is_complete(launcher, environment); });
  const Launcher& first = complete == launchers.end() ? launchers.front() : *complete;
  LaunchRank rank = rank_of(first, environment);
  for (const Launcher& other : launchers) { check_agreement(first, rank, other, environment); }
  find_address(rank, environment);
  return rank;
}

Environment process_environment() {
  Environment variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace shardplan
