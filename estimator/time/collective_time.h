// Seconds of collectives and sends: latency of the steps plus bytes over the slowest link.
// Bytes are of the whole tensor: what all-gather leaves on every rank, what reduce-scatter and
// all-reduce take from every rank, what one rank hands to an all-to-all.
#pragma once

#include "estimator/plan/cluster_spec.h"
#include "estimator/plan/job.h"
#include "estimator/plan/rank_grid.h"

namespace shardplan {

// What moves the bytes: kernels of NCCL, or copy engines (validator/cuda/peers.h). Copies that were
// not measured count as NCCL's collectives do. kWideNccl: as PyTorch runs FSDP2's, on streams of
// high priority and with as many channels as NCCL likes; alone they take as long.
enum class Carrier { kNccl, kWideNccl, kCopies };

// What moves what a trainer gathers, sums in parts, shifts around a ring or hands to the next
// stage; all-reduces and gradients always go by NCCL. Copies, where a trainer has them, in groups
// within a host and an NVLink domain.
Carrier carrier_of(bool by_copies, const GroupShape& group);

// Bytes as fast as the links carry them, and what no link shortens: launch, latency of the steps.
struct CollectiveTime {
  double start_s = 0;
  double bytes_s = 0;

  double total_s() const { return start_s + bytes_s; }
};
CollectiveTime collective_time(const ClusterSpec& cluster, const GroupShape& group,
                               Collective collective, double bytes,
                               Carrier carrier = Carrier::kNccl);

// The totals, by collective.
double all_gather_s(const ClusterSpec& cluster, const GroupShape& group, double bytes,
                    Carrier carrier = Carrier::kNccl);
// By copies: without the additions.
double reduce_scatter_s(const ClusterSpec& cluster, const GroupShape& group, double bytes,
                        Carrier carrier = Carrier::kNccl);
double all_reduce_s(const ClusterSpec& cluster, const GroupShape& group, double bytes);
double all_to_all_s(const ClusterSpec& cluster, const GroupShape& group, double bytes);

// Whether they rest on measured times: inside an NVLink domain, where this GPU's links were
// measured.
bool is_measured(const ClusterSpec& cluster, const GroupShape& group);

// What one rank moves a second in such a collective of many bytes; of a group inside an NVLink
// domain, and without NVLink inside a node.
double rank_bytes_per_s(const ClusterSpec& cluster, const GroupShape& group, Collective collective);
double domain_bytes_per_s(const ClusterSpec& cluster);

// From one member to the next.
double send_s(const ClusterSpec& cluster, const GroupShape& group, double bytes,
              Carrier carrier = Carrier::kNccl);

}  // namespace shardplan
