#include "validator/cuda/reach.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/pointwise/cuda_check.h"
#include "validator/cuda/hex_text.h"

namespace shardplan {
namespace {

constexpr const char* kArenaNames[] = {"persistent", "dynamic"};

std::string key_of(const std::string& what, std::int64_t rank) {
  return what + "/" + std::to_string(rank);
}

std::string places_key(const CommunicatorKey& communicator, std::int64_t rank) {
  return key_of("places " + text_of(communicator), rank);
}

// The kernel's id of this boot, equal for all processes of a machine; "" where there is none.
std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

// What is a host to NCCL is one to copies: NCCL_HOSTID where it is set, else the machine, or this
// rank alone where the machine has no name.
std::string name_of_host(std::int64_t rank) {
  if (const char* host = std::getenv("NCCL_HOSTID")) {
    return host;
  }
  const std::string boot = boot_id();
  return boot.empty() ? key_of("rank", rank) : boot;
}

}  // namespace

ReachedRanks::ReachedRanks(CudaRank& rank, RunStore& store) : rank_(rank), store_(store) {
  const ArenaPair arenas = rank_.arenas();
  for (std::size_t i = 0; i < arenas.size(); ++i) {
    cudaIpcMemHandle_t handle;
    CUDA_CHECK(cudaIpcGetMemHandle(&handle, arenas[i]));
    store_.set(key_of(kArenaNames[i], own()), hex_of(handle));
  }
  store_.set(key_of("host", own()), name_of_host(own()));
  arenas_[own()] = arenas;
}

const ArenaPair& ReachedRanks::arenas_of(std::int64_t rank) {
  if (!arenas_.contains(rank)) {
    ArenaPair arenas{};
    for (std::size_t i = 0; i < arenas.size(); ++i) {
      const std::string handle = store_.get(key_of(kArenaNames[i], rank));
      arenas[i] = static_cast<char*>(mapped_.open(from_hex<cudaIpcMemHandle_t>(handle)));
    }
    arenas_[rank] = arenas;
  }
  return arenas_.at(rank);
}

void ReachedRanks::share_experts_memory() {
  const std::vector<std::int64_t> groups = rank_.exchanging_groups();
  if (groups.empty()) {
    return;
  }
  store_.set(key_of("exchange", own()), rank_.exchange_layout());
  const std::string boot = boot_id();
  store_.set(key_of("boot", own()), boot);
  for (const std::int64_t group : groups) {
    std::vector<void*> members;
    for (const std::int64_t member :
         rank_.program().groups[static_cast<std::size_t>(group)].ranks) {
      if (store_.get(key_of("boot", member)) != boot) {
        throw RunFailure({.status = RunStatus::kInvalid,
                          .reason = "ranks " + std::to_string(own()) + " and " +
                                    std::to_string(member) +
                                    " share experts but no host: their rows are written into the "
                                    "memory of each other's GPU"});
      }
      if (store_.get(key_of("exchange", member)) != rank_.exchange_layout()) {
        throw std::logic_error("ranks " + std::to_string(own()) + " and " + std::to_string(member) +
                               " have the rows of their experts at different places");
      }
      members.push_back(arenas_of(member)[1]);
    }
    rank_.set_member_arenas(group, std::move(members));
  }
}

// Every member finds the same answer.
bool ReachedRanks::can_copy_within(std::size_t use) {
  const CommunicatorKey& key = rank_.uses()[use].key;
  const std::string name = "layout " + text_of(key);
  const std::string layout = rank_.copy_layout(use);
  const std::string host = name_of_host(own());
  store_.set(key_of(name, own()), layout);
  store_.set(places_key(key, own()), rank_.copy_places(use));
  bool can = true;
  for (const std::int64_t member : key.ranks) {
    const bool is_near = store_.get(key_of("host", member)) == host;
    can = store_.get(key_of(name, member)) == layout && is_near && can;
  }
  return can;
}

void ReachedRanks::serve_by_copies() {
  std::map<std::size_t, std::vector<Peer>> members;  // by communicator
  bool are_reached = true;
  try {
    for (const std::size_t use : rank_.copied_uses()) {
      if (can_copy_within(use)) {
        const CommunicatorKey& key = rank_.uses()[use].key;
        for (const std::int64_t member : key.ranks) {
          members[use].push_back(
              {.arenas = arenas_of(member), .places = store_.get(places_key(key, member))});
        }
      }
    }
  } catch (const CudaError&) { are_reached = false; }
  if (store_.all_agree("peers reached", are_reached)) {
    for (const auto& [use, peers] : members) { rank_.set_peers(use, peers); }
  }
}

}  // namespace shardplan
