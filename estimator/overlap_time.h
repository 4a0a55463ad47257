// What communication beside computation costs: what computation does not hide, and what both lose
// to each other.
#pragma once

#include <cstdint>

#include "estimator/cluster_spec.h"
#include "estimator/collective_time.h"
#include "estimator/rank_grid.h"

namespace shardplan {

// What products and a collective of this group keep of their rates while both run: as measured
// between two GPUs of one NVLink domain, or documented. A collective that the network holds below
// the rate left to it beside products loses nothing. Copies that were not measured count as NCCL's
// collectives do.
BesideRates beside_rates(const ClusterSpec& cluster, const GroupShape& group, Collective collective,
                         Carrier carrier = Carrier::kNccl);

// What both keep while collectives of first_s and second_s alone run one after the other.
BesideRates in_turn(const BesideRates& first, double first_s, const BesideRates& second,
                    double second_s);

// A collective of cost_s alone beside computation of compute_s alone: the seconds that it adds,
// cost_s at most. Both run at the shares that they keep while both run.
double beside_compute_s(const BesideRates& keep, double cost_s, double compute_s);

// The same in equal pieces, each beside the computation of another: one has nothing to hide behind.
double in_pieces_s(const BesideRates& keep, double cost_s, double compute_s, std::int64_t pieces);

}  // namespace shardplan
