// Which rank this process is, from the variables of whoever started it: torchrun, Slurm, Open MPI,
// or the PMI variables of MPICH and Intel MPI. Reads nothing but the variables that it is given.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shardplan {

// Thrown for variables that contradict each other or are no numbers; names variable, found value
// and expectation.
class LaunchError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct LaunchRank {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t local_rank = 0;  // among the processes of this host
  std::int64_t local_size = 1;
  std::string address = "127.0.0.1";  // where rank 0 listens
  std::int64_t port = 29500;          // torchrun's default
  std::string launcher = {};          // "torchrun"
};

using Environment = std::map<std::string, std::string, std::less<>>;

// Nothing where no launcher has left its variables. Several launchers may have (mpirun inside of
// Slurm): then they must agree on rank and world size, or LaunchError names both. Only torchrun,
// which says that it has started this process (TORCHELASTIC_RUN_ID), counts alone: srun may have
// started it once for each host.
//   torchrun: RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE      (torch.distributed.run)
//   Open MPI: OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE
//   Slurm:    SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NTASKS_PER_NODE  (srun)
//   MPICH:    PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS  (srun --mpi=pmi2: the first two)
// SLURM_PROCID alone is also there in a batch script that has not called srun; it counts only
// where SLURM_STEP_ID is set as well. srun sets SLURM_NTASKS_PER_NODE only where it is asked for
// (--ntasks-per-node): without it LaunchError says so where SLURM_STEP_NUM_NODES is above 1.
// The address is MASTER_ADDR and SHARDPLAN_PORT, else MASTER_PORT, or the port after it where
// torchrun uses that itself (TORCHELASTIC_USE_AGENT_STORE). On one host it may be absent; on
// several, Slurm's SLURM_LAUNCH_NODE_IPADDR takes its place, and without either LaunchError says
// so.
std::optional<LaunchRank> launch_rank(const Environment& environment);

// The variables of this process.
Environment process_environment();

}  // namespace shardplan
