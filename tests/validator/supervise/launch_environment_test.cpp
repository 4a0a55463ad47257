#include "validator/supervise/launch_environment.h"

#include <doctest/doctest.h>

namespace shardplan {
namespace {

// The variables that each launcher leaves for process `rank` of two hosts with four each.
Environment torchrun(std::int64_t rank) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", std::to_string(rank % 4)},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "10.0.0.7"},
          {"MASTER_PORT", "4711"}};
}

Environment slurm(std::int64_t rank) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_NTASKS", "8"},
          {"SLURM_LOCALID", std::to_string(rank % 4)},
          {"SLURM_NTASKS_PER_NODE", "4"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"},
          {"MASTER_PORT", "4711"}};
}

Environment open_mpi(std::int64_t rank) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", "8"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank % 4)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
          {"MASTER_ADDR", "10.0.0.7"},
          {"MASTER_PORT", "4711"}};
}

Environment mpich(std::int64_t rank) {
  return {{"PMI_RANK", std::to_string(rank)},
          {"PMI_SIZE", "8"},
          {"MPI_LOCALRANKID", std::to_string(rank % 4)},
          {"MPI_LOCALNRANKS", "4"},
          {"MASTER_ADDR", "10.0.0.7"},
          {"MASTER_PORT", "4711"}};
}

Environment with(Environment environment, const std::string& variable, const std::string& value) {
  environment[variable] = value;
  return environment;
}

Environment without(Environment environment, const std::string& variable) {
  environment.erase(variable);
  return environment;
}

std::string message_of(const Environment& environment) {
  try {
    static_cast<void>(launch_rank(environment));
  } catch (const LaunchError& error) { return error.what(); }
  return "";
}

}  // namespace

TEST_CASE("torchrun, Slurm, Open MPI and MPICH give the same rank map") {
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    for (const Environment& environment :
         {torchrun(rank), slurm(rank), open_mpi(rank), mpich(rank)}) {
      const std::optional<LaunchRank> found = launch_rank(environment);
      REQUIRE(found.has_value());
      CHECK(found->rank == rank);
      CHECK(found->world_size == 8);
      CHECK(found->local_rank == rank % 4);
      CHECK(found->local_size == 4);
      CHECK(found->address == "10.0.0.7");
      CHECK(found->port == 4711);
    }
  }
}

TEST_CASE("without a launcher there is no rank, nor in a Slurm batch script before srun") {
  CHECK(!launch_rank({{"PATH", "/bin"}}).has_value());
  CHECK(!launch_rank(without(slurm(0), "SLURM_STEP_ID")).has_value());
}

TEST_CASE("launchers inside of each other must agree") {
  Environment both = slurm(5);
  both.merge(open_mpi(5));
  CHECK(launch_rank(both)->rank == 5);
  CHECK(message_of(with(both, "OMPI_COMM_WORLD_RANK", "4")) ==
        "SLURM_PROCID: found 5, expected 4 as OMPI_COMM_WORLD_RANK says, or one of them unset");
  CHECK(message_of(with(with(both, "SLURM_NTASKS", "1"), "SLURM_PROCID", "0")) != "");
}

TEST_CASE("torchrun that srun has started on every host is the one that gives the ranks") {
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    Environment both = with(torchrun(rank), "TORCHELASTIC_RUN_ID", "none");
    both.merge(with(with(with(slurm(rank / 4), "SLURM_NTASKS", "2"), "SLURM_LOCALID", "0"),
                    "SLURM_NTASKS_PER_NODE", "1"));
    const std::optional<LaunchRank> found = launch_rank(both);
    CHECK(found->rank == rank);
    CHECK(found->world_size == 8);
    CHECK(found->local_rank == rank % 4);
    CHECK(found->launcher == "torchrun");
    // The same numbers without torchrun's word for it may be anybody's.
    CHECK(message_of(without(both, "TORCHELASTIC_RUN_ID")) != "");
    CHECK(message_of(without(both, "LOCAL_RANK")) != "");
  }
}

// srun --mpi=pmi2 has no word of the hosts.
TEST_CASE("the variables that Slurm leaves for PMI libraries agree with its own") {
  const Environment pmi2 = with(with(slurm(5), "PMI_RANK", "5"), "PMI_SIZE", "8");
  CHECK(launch_rank(pmi2)->launcher == "Slurm");
  CHECK(launch_rank(pmi2)->rank == 5);
  CHECK(launch_rank(pmi2)->local_rank == 1);
  CHECK(message_of(with(pmi2, "PMI_RANK", "4")) ==
        "PMI_RANK: found 4, expected 5 as SLURM_PROCID says, or one of them unset");
  CHECK(message_of(with(pmi2, "PMI_SIZE", "4")) ==
        "PMI_SIZE: found 4, expected 8 as SLURM_NTASKS says, or one of them unset");
  CHECK(message_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "8"}}) ==
        "MPI_LOCALRANKID: found nothing, expected a number from 0 to 7");
}

TEST_CASE("a variable that is missing or no number is named") {
  CHECK(message_of(with(torchrun(1), "RANK", "one")) ==
        "RANK: found \"one\", expected a number from 0 to 7");
  CHECK(message_of(with(torchrun(1), "RANK", "8")) ==
        "RANK: found \"8\", expected a number from 0 to 7");
  CHECK(message_of(with(torchrun(1), "LOCAL_RANK", "4x")) ==
        "LOCAL_RANK: found \"4x\", expected a number from 0 to 3");
  CHECK(message_of(without(torchrun(1), "WORLD_SIZE")) ==
        "WORLD_SIZE: found nothing, expected a number from 1 to 1048576");
  CHECK(message_of(with(torchrun(1), "MASTER_PORT", "0")) ==
        "MASTER_PORT: found \"0\", expected a number from 1 to 65534");
  CHECK(message_of(without(open_mpi(1), "MASTER_ADDR")) ==
        "MASTER_ADDR: found nothing, expected the address of rank 0: the processes are on several "
        "hosts");
}

TEST_CASE("srun on several hosts has to say how many processes each of them has") {
  const Environment two_hosts =
      with(without(slurm(5), "SLURM_NTASKS_PER_NODE"), "SLURM_STEP_NUM_NODES", "2");
  CHECK(message_of(two_hosts) ==
        "SLURM_NTASKS_PER_NODE: found nothing, expected the processes of each of several hosts "
        "(--ntasks-per-node)");
  CHECK(launch_rank(with(two_hosts, "SLURM_STEP_NUM_NODES", "1"))->local_size == 8);
}

TEST_CASE("srun may start fewer processes on a host than the allocation has room for") {
  for (const std::int64_t world_size : {1, 2, 8}) {
    const Environment few = with(with(slurm(0), "SLURM_NTASKS_PER_NODE", "8"), "SLURM_NTASKS",
                                 std::to_string(world_size));
    CHECK(launch_rank(few)->local_size == world_size);
    CHECK(launch_rank(with(few, "SLURM_STEP_NUM_NODES", "1"))->local_size == world_size);
  }
  const Environment one_each =
      with(with(slurm(0), "SLURM_NTASKS", "2"), "SLURM_STEP_NUM_NODES", "2");
  CHECK(message_of(one_each) ==
        "SLURM_NTASKS_PER_NODE: found \"4\", expected a number from 1 to 2");
}

TEST_CASE("on one host rank 0 listens on the loopback unless told otherwise") {
  const Environment one_host{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}};
  CHECK(launch_rank(one_host)->address == "127.0.0.1");
  CHECK(launch_rank(one_host)->local_size == 2);
}

}  // namespace shardplan
