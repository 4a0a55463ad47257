// How the native trainer divides the tokens of a microbatch where tensor parallelism exchanges
// them.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"
#include "estimator/plan/plan.h"

namespace shardplan::native {

// Equal pieces of the tokens that tensor parallelism gathers and sums: the products of one run
// beside the communication of another. Four at most: 8 layers of Llama-3-8B, 8192 tokens a GPU,
// took 0.2194 and 0.2233 s in 4 and 8 pieces with tp 4, 0.2374, 0.2376 and 0.2439 s in 4, 8 and 16
// with tp 8 (data/measured/training_h200.txt). One piece where there are experts: they are chosen
// by the rows of a rank, counted by sequence, and those rows are neighbours. fp8 products take
// multiples of 16 tokens.
std::int64_t token_pieces(const Job& job, const Plan& plan);

}  // namespace shardplan::native
