// What communication beside computation costs: what computation does not hide, and what both lose
// to each other.
#pragma once

#include <cstdint>

#include "estimator/plan/cluster_spec.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/time/collective_time.h"

namespace shardplan {

// What products and a collective of this group keep of their rates while both run: as measured
// between two GPUs of one NVLink domain, or documented. A collective that the network holds below
// the rate left to it beside products loses nothing. Copies that were not measured count as NCCL's
// collectives do.
BesideRates beside_rates(const ClusterSpec& cluster, const GroupShape& group, Collective collective,
                         Carrier carrier = Carrier::kNccl);

// The same inside an NVLink domain, whatever the group. Without a measurement a collective takes
// its SMs from the products and nothing else is known but on Hopper. What calibrate measures is our
// own trainer's NCCL, of few channels.
BesideRates rates_within_domain(const GpuSpec& gpu, Carrier carrier = Carrier::kNccl);

// Communication, one collective or several in turn: what it takes alone, what it takes while
// products run, and what these lose meanwhile.
struct BesideCost {
  double alone_s = 0;
  double beside_s = 0;
  double lost_s = 0;
};
BesideCost operator+(const BesideCost& a, const BesideCost& b);
BesideCost operator*(double times, const BesideCost& cost);

// Products slow down bytes on their way; a start takes as long.
BesideCost beside_cost(const BesideRates& keep, const CollectiveTime& alone);
BesideCost collective_cost(const ClusterSpec& cluster, const GroupShape& group,
                           Collective collective, double bytes, Carrier carrier = Carrier::kNccl);

// The seconds that communication adds to computation of compute_s alone beside which it runs: no
// more than it takes alone.
double beside_compute_s(const BesideCost& cost, double compute_s);

// The same in equal pieces, each beside the computation of another: one has nothing to hide behind.
double in_pieces_s(const BesideCost& cost, double compute_s, std::int64_t pieces);

}  // namespace shardplan
