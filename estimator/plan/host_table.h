// Seconds that a host takes to launch a framework's kernels. The numbers stand in the framework's
// file under data/frameworks, each with its source; estimator/time adds them up.
#pragma once

#include <string_view>
#include <variant>

namespace shardplan {

struct HostCost {
  double forward_s = 0;
  double backward_s = 0;
};

// Numbers that a framework does not state add nothing.
struct HostTable {
  double host_slowdown = 1;  // of the machine on which the numbers below were measured
  HostCost layer = {};
  HostCost sharded = {};  // gathers and reductions of a layer's parameters
  HostCost tensor_parallel = {};
  HostCost context_parallel = {};       // with two ranks
  HostCost further_hop = {};            // of a ring, for each rank beyond two
  HostCost both = {};                   // where tensor and context parallelism meet
  HostCost expert_parallel = {};        // exchanges whose sizes the host reads
  HostCost fused_expert_parallel = {};  // the same with fused permutation
  HostCost routing = {};                // of a layer with experts: router, permutations, exchanges
  HostCost routing_behind_graph = {};   // where graphs hold the router
  HostCost fused_router_spares = {};    // where fused kernels choose them
  HostCost expert = {};                 // of each expert, where they run one after the other
  HostCost grouped_expert = {};         // of each expert, where one call runs all
  HostCost biased_expert = {};          // what biases add to each of them
  HostCost head_norms = {};             // norms of q and of k
  HostCost delta_net = {};              // a gated delta net instead of attention
  HostCost mamba = {};                  // a Mamba-2 mixer instead of attention
  HostCost latent = {};                 // latent attention instead of grouped queries
  HostCost latent_query = {};           // the same with latent queries, beside it
  HostCost shared_experts = {};
  HostCost shared_experts_beside = {};  // on a stream of their own, beside that
  HostCost fp8 = {};                    // what a layer's linear modules add in fp8
  HostCost grouped_expert_fp8 = {};     // and each expert
  HostCost combined_schedule = {};      // of experts' exchanges beside other microbatches
  HostCost graph = {};                  // launching one CUDA graph
  HostCost adapter = {};                // a low-rank adapter beside one linear layer's product
  HostCost ends = {};                   // embedding, head and loss
  HostCost loss_chunk = {};             // of a loss that takes tokens in chunks
  HostCost sharded_ends = {};
  double update_s = 0;         // clipping and optimizer, a layer
  double expert_update_s = 0;  // and each of its experts
  // Of a layer whose weights are divided by tp, one operator after the other.
  double tensor_parallel_update_s = 0;

  // Hooks that gather parameters and reduce gradients: of a layer and of the ends of a microbatch,
  // and what each weight adds.
  HostCost zero2_hooks = {};
  HostCost zero3_hooks = {};
  HostCost zero3_ends = {};
  HostCost expert_weight_hooks = {};  // of an expert
  HostCost copied_gradient = {};      // one that no product adds into the buffer
  HostCost gather = {};               // and letting go
  HostCost shared_gather = {};        // with several ranks
  HostCost gathered_rank = {};        // of several weights in one gather, for each further rank

  // A checkpoint that chooses by operators.
  HostCost chosen_operator = {};
  double exchange_operators = 0;  // of an exchange of experts

  double checkpoint_s = 0;              // of one around a module
  double checkpoint_host_slowdown = 1;  // of the machine on which checkpoints were measured

  // On a host of slowdown 1.
  HostCost chunk_pass = {};    // what an interleaved schedule adds to one pass of a chunk
  double newton_schulz_s = 0;  // Muon's update of one matrix
};

struct HostTables {
  HostTable eager = {};
  HostTable compiled = {};  // of compiled layers
};

inline constexpr double kMicro = 1e-6;

// A number of the table by the name that files give it.
struct HostNumber {
  std::string_view name;
  std::variant<HostCost HostTable::*, double HostTable::*> member;
  bool is_seconds = true;  // in files microseconds; else a plain value
};

}  // namespace shardplan
