#include "validator/cuda/backend.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "kernels/pointwise/cuda_check.h"
#include "validator/cuda/load.h"
#include "validator/cuda/peer_access.h"
#include "validator/program/run_data.h"
#include "validator/supervise/on_threads.h"

namespace shardplan {

CudaBackend::CudaBackend(const std::vector<Program>& programs, CudaPrecision precision,
                         AttentionKernels kernels, const GemmChoices& choices,
                         Collectives collectives) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  if (static_cast<std::size_t>(devices) < programs.size()) {
    throw std::runtime_error("cuda backend: found " + std::to_string(devices) +
                             " GPUs, expected one for each of " + std::to_string(programs.size()) +
                             " ranks");
  }
  std::map<CommunicatorKey, ncclUniqueId> ids;
  for (const Program& program : programs) {
    for (const CommunicatorUse& use : communicators_of(program)) {
      if (!ids.contains(use.key)) {
        ids[use.key] = new_communicator_id();
      }
    }
  }
  ranks_.resize(programs.size());
  on_threads(programs.size(), [&](std::size_t i) {
    const bool is_wide = precision == CudaPrecision::kFloat;
    ranks_[i] = std::make_unique<CudaRank>(is_wide ? widened(programs[i]) : programs[i],
                                           static_cast<int>(i));
    ranks_[i]->prepare(kernels, choices);
  });
  on_threads(programs.size(), [&](std::size_t i) {
    ranks_[i]->use_device();
    reach_members(*ranks_[i]);
    for (std::size_t use = 0; use < ranks_[i]->uses().size(); ++use) {
      const CommunicatorUse& u = ranks_[i]->uses()[use];
      if (!all_here(u.key)) {
        continue;
      }
      ranks_[i]->connect(
          use, std::make_unique<CudaCommunicator>(ids.at(u.key), u.size(), u.index, u.channels));
      ranks_[i]->launch_first_calls(use);
      ranks_[i]->synchronize();
    }
  });
  if (collectives == Collectives::kFastest) {
    on_threads(ranks_.size(), [&](std::size_t i) {
      ranks_[i]->use_device();
      reach_peers(*ranks_[i]);
    });
  }
  on_threads(ranks_.size(), [&](std::size_t i) {
    ranks_[i]->use_device();
    ranks_[i]->launch_first_exchanges();
    ranks_[i]->synchronize();
  });
}

bool CudaBackend::is_here(std::int64_t rank) const {
  return rank < static_cast<std::int64_t>(ranks_.size());
}

std::vector<std::int64_t> CudaBackend::present(std::vector<std::int64_t> ranks) const {
  std::erase_if(ranks, [&](std::int64_t rank) { return !is_here(rank); });
  return ranks;
}

bool CudaBackend::all_here(const CommunicatorKey& key) const {
  return std::ranges::all_of(key.ranks, [&](std::int64_t rank) { return is_here(rank); });
}

std::int64_t CudaBackend::holder_of(std::int64_t rank, const CommunicatorKey& key,
                                    std::int64_t asking) const {
  if (is_here(rank)) {
    return rank;
  }
  const std::vector<std::int64_t> here = present(key.ranks);
  if (here.size() < 2) {
    throw std::runtime_error("cuda backend: found one rank of a group of " +
                             std::to_string(key.ranks.size()) +
                             " here, expected another one to stand for those that are absent");
  }
  return stand_in_for(asking, here);
}

// Every member finds the same answer.
void CudaBackend::reach_peers(CudaRank& rank) const {
  std::int64_t most_members = 0;
  for (const std::size_t use : rank.copied_uses()) {
    const CommunicatorKey& key = rank.uses()[use].key;
    const std::string layout = rank.copy_layout(use);
    std::vector<Peer> peers;
    bool is_equal = true;
    for (const std::int64_t member : key.ranks) {
      const std::int64_t holder = holder_of(member, key, rank.program().rank);
      const CudaRank& other = *ranks_[static_cast<std::size_t>(holder)];
      const auto found = std::ranges::find(other.uses(), key, &CommunicatorUse::key);
      const auto theirs = static_cast<std::size_t>(found - other.uses().begin());
      is_equal = is_equal && other.copy_layout(theirs) == layout;
      peers.push_back({.arenas = other.arenas(), .places = other.copy_places(theirs)});
      if (holder != member) {
        peers.back().stand_in = other.uses()[theirs].index;
      }
    }
    const std::vector<std::int64_t> here = present(key.ranks);
    if (!is_equal || !reach_each_other(here)) {
      continue;
    }
    for (const std::int64_t member : here) {
      if (member != rank.program().rank) {
        enable_access(member);
      }
    }
    rank.set_peers(use, peers);
    most_members = std::max(most_members, static_cast<std::int64_t>(peers.size()));
  }
  if (most_members > 0) {
    rank.keep_pace(most_members);
  }
}

// Arenas of other devices, which one process addresses as its own once access is enabled.
void CudaBackend::reach_members(CudaRank& rank) const {
  for (const std::int64_t group : rank.exchanging_groups()) {
    std::vector<void*> arenas;
    for (const std::int64_t member : rank.program().groups[static_cast<std::size_t>(group)].ranks) {
      const CudaRank& other = *ranks_.at(static_cast<std::size_t>(member));
      if (other.exchange_layout() != rank.exchange_layout()) {
        throw std::logic_error("cuda backend: ranks " + std::to_string(rank.program().rank) +
                               " and " + std::to_string(member) +
                               " have the rows of their experts at different places");
      }
      if (member != rank.program().rank) {
        enable_access(member);
      }
      arenas.push_back(other.dynamic_arena());
    }
    rank.set_member_arenas(group, std::move(arenas));
  }
}

void CudaBackend::load(const Tensors& tensors) {
  shapes_ = tensors;
  for (auto& [name, matrix] : shapes_) {
    std::ranges::fill(matrix.values, std::numeric_limits<double>::quiet_NaN());
  }
  for (const std::unique_ptr<CudaRank>& rank : ranks_) {
    rank->use_device();
    load_tensors(*rank, tensors);
  }
  num_steps_ = 0;
}

void CudaBackend::load_random(std::uint64_t seed) {
  on_threads(ranks_.size(), [&](std::size_t i) {
    ranks_[i]->use_device();
    shardplan::load_random(*ranks_[i], seed);
  });
  num_steps_ = 0;
}

double CudaBackend::step(const Batch& batch, double learning_rate) {
  return step(batch, learning_rate, {});
}

double CudaBackend::step(const Batch& batch, double learning_rate,
                         const std::vector<LaunchHooks>& hooks) {
  ++num_steps_;
  std::once_flag aborted;  // several ranks may fail at once
  on_threads(ranks_.size(), [&](std::size_t i) {
    try {
      ranks_[i]->use_device();
      fill_inputs(*ranks_[i], batch);
      ranks_[i]->launch_step(num_steps_, learning_rate,
                             i < hooks.size() ? hooks[i] : LaunchHooks{});
      ranks_[i]->synchronize();
    } catch (...) {  // the others would wait for this rank for ever
      std::call_once(aborted, [&] {
        for (const std::unique_ptr<CudaRank>& rank : ranks_) { rank->abort(); }
      });
      throw;
    }
  });
  double loss = 0;
  for (const std::unique_ptr<CudaRank>& rank : ranks_) {
    rank->use_device();
    loss += loss_share(*rank);
  }
  return loss;
}

std::optional<double> CudaBackend::needed_buffer_factor() const {
  std::optional<double> most;
  for (const std::unique_ptr<CudaRank>& rank : ranks_) {
    rank->use_device();
    const std::optional<double> needed = shardplan::needed_buffer_factor(*rank);
    most = needed ? std::max(*needed, most.value_or(0)) : most;
  }
  return most;
}

std::int64_t CudaBackend::device_used_bytes(std::int64_t rank) const {
  ranks_.at(static_cast<std::size_t>(rank))->use_device();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<std::int64_t>(total_bytes - free_bytes);
}

Tensors CudaBackend::collected(ParameterRange ParameterPart::*range) const {
  Tensors tensors = shapes_;
  for (const std::unique_ptr<CudaRank>& rank : ranks_) {
    rank->use_device();
    HostCopies copies(*rank);
    for (const ParameterPart& part : rank->program().parameters) {
      const ParameterRange& where = part.*range;
      const HostCopy& copy = copies.of(where.tensor);
      Matrix& matrix = tensors.at(part.logical);
      for (std::int64_t e = where.begin; e < where.end; ++e) {
        logical_element(matrix, part, e) = copy.at(where.offset + e - where.begin);
      }
    }
  }
  for (const auto& [name, matrix] : tensors) {
    if (std::ranges::any_of(matrix.values, [](double value) { return std::isnan(value); })) {
      throw std::logic_error("no rank holds some element of " + name + ", or it is no number");
    }
  }
  return tensors;
}

}  // namespace shardplan
