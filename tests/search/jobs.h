// Jobs for tests of the search, written out by hand: no preset can move them.
#pragma once

#include <cstdint>
#include <random>

#include "estimator/plan/job.h"
#include "search/walk/search.h"

namespace shardplan {

// Llama 3.1 405B (arXiv 2407.21783, table 3), sequence 8192, global batch 2048, nodes of eight
// H100 80 GB.
Job llama_405b_job(std::int64_t nodes);

// Llama 3 8B, sequence 8192, global batch 64, on one node of eight H200.
Job llama_8b_job();

// A model of a few layers on at most 16 GPUs, dense or mixture of experts, under any profile; the
// capacity lies among the plans' peaks, so that some fit and some do not.
Job random_small_job(std::mt19937_64& random);

// A few random values of every axis, defaults first.
SearchSpace random_small_space(const Job& job, std::mt19937_64& random);

}  // namespace shardplan
